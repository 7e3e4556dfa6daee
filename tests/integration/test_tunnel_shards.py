"""Several stunnels of one node: new agents find them, and a fault of one does not affect the others."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.integration.nfs_backend import Backend
from tests.integration.tunnel_node import (
    FS,
    Client,
    Node,
    agent_process,
    connected,
    document,
    end,
    eventually,
    host_of,
    listening,
    running,
    shards_of,
    stunnels_of,
    target,
)

from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.tunnels.api.client import TunnelClient, connect_tunnels
from kube_efs.tunnels.data_plane import TunnelService
from kube_efs.tunnels.options import TunnelOptions
from kube_efs.tunnels.reservations import Holder, TunnelSpec
from kube_efs.tunnels.sockets.ports import listening_ports
from kube_efs.tunnels.status import TunnelState
from kube_efs.tunnels.stunnel import shards
from kube_efs.tunnels.stunnel.assignment import SHARD_SIZE, shard_path
from kube_efs.tunnels.stunnel.configuration import render_configuration
from kube_efs.tunnels.stunnel.process import StunnelProcess, find_running
from tinykube.ports import free_port

STUNNEL = Path("/usr/bin/stunnel")

pytestmark = pytest.mark.skipif(not STUNNEL.exists(), reason="stunnel is not installed")


def holder(number: int) -> Holder:
    return Holder(f"volume-{number} /pods/{number}")


def spec(backend: Backend, number: int) -> TunnelSpec:
    point = AccessPointId(f"fsap-{number:017x}")
    return TunnelSpec(file_system_id=FS, address=backend.address, access_point_id=point)


async def ensured(client: TunnelClient, backend: Backend, *numbers: int) -> list[int]:
    """The ports of tunnels, each with its own holder, opened at the same time."""
    return await asyncio.gather(*(client.ensure(spec(backend, one), holder(one)) for one in numbers))


@asynccontextmanager
async def serving(options: TunnelOptions) -> AsyncIterator[Node]:
    """A running agent; at the end all holders release their tunnels, so that the stunnels end."""
    assert options.on_demand
    path = options.on_demand.socket_path
    async with running(options) as node:
        await eventually(path.exists, "the socket")
        try:
            yield node
        finally:
            async with connect_tunnels(path) as client:
                for one in {one for tunnel in await client.tunnels() for one in tunnel.holders}:
                    await client.release(one)


@asynccontextmanager
async def next_agent(options: TunnelOptions) -> AsyncIterator[tuple[Node, TunnelClient]]:
    """The agent after a killed one, with a new client.

    An earlier client may not know yet that it must reconnect.
    """
    assert options.on_demand
    path = options.on_demand.socket_path
    path.unlink()
    async with serving(options) as node, connect_tunnels(path, timeout_seconds=30) as client:
        yield node, client


@asynccontextmanager
async def mounts(ports: list[int]) -> AsyncIterator[list[Client]]:
    """An open connection to each port."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(connected(port)) for port in ports]


async def all_answer(clients: list[Client]) -> None:
    await asyncio.gather(*(client.call() for client in clients))


def pid_at(options: TunnelOptions, port: int) -> int:
    [pid] = [pid for pid in stunnels_of(options.conf_path) if port in listening_ports(pid)]
    return pid


async def test_killed_stunnel_is_restarted_alone(
    options: TunnelOptions, client: TunnelClient, backend: Backend
) -> None:
    async with serving(options) as node:
        ports = await ensured(client, backend, *range(SHARD_SIZE + 1))
        by_shard = {pid_at(options, port): port for port in ports}
        [(first, killed_port), (other, kept_port)] = by_shard.items()
        async with mounts([kept_port]) as kept:
            os.kill(first, signal.SIGKILL)
            await listening(killed_port)
            async with mounts([killed_port]) as again:
                await all_answer(kept + again)
            assert pid_at(options, kept_port) == other
        assert node.registry.get_sample_value("kube_efs_stunnel_restarts_total") == 1


async def test_hanging_stunnel_is_replaced_alone(
    options: TunnelOptions, client: TunnelClient, backend: Backend
) -> None:
    quick = replace(options, probe_timeout_seconds=0.2, stall_seconds=1)
    async with serving(quick):
        ports = await ensured(client, backend, *range(SHARD_SIZE + 1))
        by_shard = {pid_at(options, port): port for port in ports}
        [(hanging, hanging_port), (other, kept_port)] = by_shard.items()
        async with mounts([kept_port]) as kept:
            os.kill(hanging, signal.SIGSTOP)
            await eventually(lambda: hanging not in stunnels_of(options.conf_path), "its end")
            await listening(hanging_port)
            await all_answer(kept)
            assert pid_at(options, kept_port) == other


async def test_first_stunnel_ends_with_the_targets_and_leaves_its_log_only(
    options: TunnelOptions, client: TunnelClient, backend: Backend
) -> None:
    async with serving(options) as node:
        node.push(target("fs-1", free_port(), a=backend.address))
        [port] = await ensured(client, backend, 1)
        await eventually(lambda: shards_of(options.conf_path).keys() == {0, 1}, "both stunnels")
        kept = pid_at(options, port)
        node.push()
        # The doctor would miss the ports of a configuration that stays.
        await eventually(lambda: shards_of(options.conf_path).keys() == {1}, "the end of the first")
        assert stunnels_of(options.conf_path) == [kept]
        assert options.log_path.exists()

        node.push(target("fs-1", free_port(), a=backend.address))
        await eventually(lambda: shards_of(options.conf_path).keys() == {0, 1}, "the first again")
        await eventually(lambda: len(stunnels_of(options.conf_path)) == 2, "its process")


async def test_next_agent_finds_each_tunnel_in_its_stunnel(
    options: TunnelOptions, client: TunnelClient, backend: Backend
) -> None:
    numbers = range(SHARD_SIZE + 3)
    own = document(target("fs-1", free_port(), a=backend.address))
    async with agent_process(options, own) as first:
        ports = await ensured(client, backend, *numbers)
        before = {port: pid_at(options, port) for port in ports}
        async with mounts(ports) as clients:
            await end(first, signal.SIGKILL)
            async with next_agent(options) as (_, again):
                assert await ensured(again, backend, *numbers) == ports
                [new] = await ensured(again, backend, 100)
                await all_answer(clients)
                assert {port: pid_at(options, port) for port in ports} == before
                # It belongs to the fullest one with room, which any three of them have reached.
                [_, (roomy, _)] = Counter(before.values()).most_common()
                assert pid_at(options, new) == roomy
                sizes = {number: len(names) for number, names in shards_of(options.conf_path).items()}
                assert sizes == {0: 1, 1: SHARD_SIZE, 2: 4}


async def test_tunnels_that_an_agent_without_shards_has_loaded_stay_until_they_close(
    options: TunnelOptions, client: TunnelClient, backend: Backend
) -> None:
    only, second = options.conf_path, shard_path(options.conf_path, 1)
    async with agent_process(options, stops_stunnel=False) as first:
        ports = await ensured(client, backend, 1, 2)
        [stunnel] = stunnels_of(only)
        await end(first, signal.SIGKILL)
    # The state that an agent leaves which knows one stunnel and one configuration.
    os.kill(stunnel, signal.SIGKILL)
    # Until its end, it has the ports.
    await eventually(lambda: stunnel not in stunnels_of(only), "its end")
    second.rename(only)
    older = StunnelProcess.start(STUNNEL, only, options.log_path, lambda: None).pid
    for port in ports:
        await listening(port)
    async with mounts(ports) as clients, next_agent(options) as (_, again):
        [new] = await ensured(again, backend, 3)
        assert await ensured(again, backend, 1, 2) == ports
        await all_answer(clients)
        assert [pid_at(options, port) for port in ports] == [older, older]
        assert pid_at(options, new) != older
        assert {number: len(names) for number, names in shards_of(only).items()} == {0: 2, 1: 1}
        for one in (1, 2):
            await again.release(holder(one))
        await all_answer(clients)
        for mount in clients:
            await mount.close()
        await eventually(lambda: older not in stunnels_of(only), "its end, as nothing uses it")
        await listening(new)


async def test_nearly_empty_stunnel_is_merged_when_nothing_uses_it(
    options: TunnelOptions, client: TunnelClient, backend: Backend
) -> None:
    async with serving(options):
        first = await ensured(client, backend, *range(SHARD_SIZE))
        ports = await ensured(client, backend, 100, 101)
        full, small = pid_at(options, first[0]), pid_at(options, ports[0])
        assert small != full
        async with mounts(ports[:1]) as clients:
            for number in range(4):
                await client.release(holder(number))
            await eventually(lambda: len(listening_ports(full)) == SHARD_SIZE - 4, "four tunnels closed")
            await asyncio.sleep(2)  # four times the time after which an unused one is merged
            await all_answer(clients)
            assert [pid_at(options, port) for port in ports] == [small, small]
        await eventually(lambda: stunnels_of(options.conf_path) == [full], "the merge")
        for port in ports:
            await listening(port)
        assert set(shards_of(options.conf_path)) == {1}
        async with mounts(ports) as clients:
            await all_answer(clients)


def has_lines(path: Path, text: str, number: int) -> bool:
    return path.read_text().count(text) == number


MOMENTS: dict[str, Callable[[TunnelOptions], object]] = {
    "at once": lambda _options: True,
    "configuration of the second stunnel written": lambda options: shard_path(options.conf_path, 2).exists(),
    "second stunnel started": lambda options: len(stunnels_of(options.conf_path)) == 2,
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(
    "killed", [pytest.param(False, id="agent"), pytest.param(True, id="agent and stunnels")]
)
async def test_killed_agent_loses_no_tunnel(
    moment: str,
    *,
    killed: bool,
    options: TunnelOptions,
    client: TunnelClient,
    backend: Backend,
) -> None:
    numbers = range(SHARD_SIZE + 4)
    async with agent_process(options) as first:
        ports = await ensured(client, backend, *numbers[:SHARD_SIZE])
        asked = [
            asyncio.create_task(client.ensure(spec(backend, one), holder(one)))
            for one in numbers[SHARD_SIZE:]
        ]
        await eventually(lambda: MOMENTS[moment](options), moment)
        await end(first, signal.SIGKILL)
        for pid in stunnels_of(options.conf_path) if killed else ():
            os.kill(pid, signal.SIGKILL)
        await asyncio.gather(*asked, return_exceptions=True)
        async with next_agent(options) as (node, again):
            assert (await ensured(again, backend, *numbers))[:SHARD_SIZE] == ports
            await eventually(lambda: node.agent.readiness().ok, "all stunnels")
            for port in await ensured(again, backend, *numbers):
                async with mounts([port]) as clients:
                    await all_answer(clients)
            assert len(stunnels_of(options.conf_path)) == 2


async def test_stunnel_that_a_killed_agent_starts_late_is_taken_over(
    options: TunnelOptions, client: TunnelClient, backend: Backend, tmp_path: Path
) -> None:
    async with agent_process(options, stops_stunnel=False) as first:
        [port] = await ensured(client, backend, 1)
        [stunnel] = stunnels_of(options.conf_path)
        await end(first, signal.SIGKILL)
    os.kill(stunnel, signal.SIGKILL)
    (tmp_path / "run" / "tunnel.sock").unlink()
    # Another number than the next agent chooses; it listens after that agent has searched.
    late = shard_path(options.conf_path, 7)
    text = shard_path(options.conf_path, 1).read_text()
    started: list[int] = []
    # The next agent reads in the log whether a reload worked.
    create = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    logged = [(os.POSIX_SPAWN_OPEN, 2, str(late.with_suffix(".log")), create, 0o600)]

    loop = asyncio.get_running_loop()

    def search(program: Path) -> list[tuple[int, Path]]:
        """The agent calls this in a thread."""
        found = list(find_running(program))
        if not started:
            late.write_text(text)
            pid = os.posix_spawn(program, [str(program), str(late)], {}, file_actions=logged)
            started.append(pid)
            listens = eventually(lambda: listening_ports(pid) == (port,), "the late stunnel listens")
            asyncio.run_coroutine_threadsafe(listens, loop).result()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "find_running", search)
        patch.setattr(shards.StunnelShards, "_remove_leftovers", lambda _: None)
        async with serving(options) as node:
            await node.until(FS, TunnelState.UP, on_demand=True)
            assert stunnels_of(options.conf_path) == started
            async with mounts([port]) as clients:
                await all_answer(clients)


async def test_stunnel_that_reloads_in_its_first_moments_of_listening_survives(
    options: TunnelOptions, backend: Backend
) -> None:
    """Without the wait, more than half of them end: stunnel listens before it handles SIGHUP."""
    many = render_configuration(
        (
            TunnelService(
                name=f"fs-{number}",
                file_system_id=FS,
                port=port,
                addresses=(backend.address,),
                check_host=host_of(FS),
                ca_file=options.authorities(options.region),
            )
            for number, port in enumerate(free_port() for _ in range(100))
        ),
        connect_timeout_seconds=1,
    )
    options.conf_path.write_text(many)
    read = "Reading configuration from file"
    for attempt in range(1, 6):
        stunnel = StunnelProcess.start(STUNNEL, options.conf_path, options.log_path, lambda: None)
        try:
            await stunnel.wait_until_reloadable()
            stunnel.reload()
            await eventually(partial(has_lines, options.log_path, read, 2 * attempt), "the reload")
            assert not stunnel.ended.is_set()
        finally:
            await stunnel.stop(timeout_seconds=5)
