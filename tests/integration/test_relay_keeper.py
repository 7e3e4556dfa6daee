"""The agent with the kernel's data plane: the relay survives it, is replaced, and stands beside stunnel.

Whether bytes pass is tested in ``data_planes``, which needs a kernel with TLS. Here, the relay of a tunnel
that works listens on its port.
"""

import asyncio
import os
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs
from tests.integration.nfs_backend import Authority, Backend, free_address
from tests.integration.relay_runner import COMMAND, relay_process, service_of, serving
from tests.integration.tunnel_node import (
    Node,
    agent_process,
    connected,
    document,
    end,
    eventually,
    host_of,
    listening,
    running,
    stunnels_of,
    target,
)

from kube_efs.doctor.gathering.attempts import Attempts
from kube_efs.doctor.gathering.node import NodeCheckOptions, gather_node
from kube_efs.model.errors import RelayUnavailable
from kube_efs.telemetry.health import Heartbeat
from kube_efs.telemetry.metrics import TunnelMetrics
from kube_efs.tunnels.data_plane import STUNNEL, DataPlaneChoice, DataPlaneName, TunnelService
from kube_efs.tunnels.detached_process import DetachedProcess, running_commands
from kube_efs.tunnels.options import TunnelOptions
from kube_efs.tunnels.relay import keeper as relay_keeper
from kube_efs.tunnels.relay.control import RelayControl, RelayState
from kube_efs.tunnels.relay.keeper import RelayKeeper
from kube_efs.tunnels.sockets.ports import listening_ports
from kube_efs.tunnels.status import TunnelState
from tinykube.ports import free_port

KERNEL = DataPlaneChoice(name=DataPlaneName.KERNEL)


@pytest.fixture
def options(options: TunnelOptions) -> Iterator[TunnelOptions]:
    # The directory of pytest can be too long for a socket.
    with tempfile.TemporaryDirectory() as folder:
        changed = replace(options, data_plane=KERNEL, conf_path=Path(folder, "stunnel.conf"), on_demand=None)
        yield changed
        for pid in [*relays_of(changed), *stunnels_of(changed.conf_path)]:
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ca")


def relays_of(options: TunnelOptions) -> list[int]:
    path = str(options.relay_socket)
    return sorted(
        pid for pid, command in running_commands() if command[-1] == path and psutil.Process(pid).is_running()
    )


def relay_at(options: TunnelOptions, port: int) -> int:
    [pid] = [pid for pid in relays_of(options) if port in listening_ports(pid)]
    return pid


async def test_killed_relay_is_restarted_with_all_services(options: TunnelOptions) -> None:
    ports = [free_port(), free_port()]
    async with running(options) as node:
        node.push(*(target(f"fs-{port}", port, a=free_address()) for port in ports))
        for port in ports:
            await node.until(f"fs-{port}", TunnelState.DOWN)
        first = relay_at(options, ports[0])
        assert [one.relay_pid for one in node.agent.status().tunnels] == [first, first]
        assert node.agent.status().stunnel_pid is None

        os.kill(first, signal.SIGKILL)
        await eventually(lambda: node.agent.status().relay_pid not in {None, first}, "another relay")
        for port in ports:
            await listening(port)
        assert relay_at(options, ports[0]) == relay_at(options, ports[1]) == node.agent.status().relay_pid
        assert node.registry.get_sample_value("kube_efs_relay_restarts_total") == 1
        assert node.agent.readiness().ok
    assert relays_of(options) == []


@pytest.mark.parametrize("is_stored", [True, False])
async def test_next_agent_takes_over_the_relay(options: TunnelOptions, is_stored: bool) -> None:
    port = free_port()
    targets = document(target("fs-1", port, a=free_address()))
    async with agent_process(options, targets) as first:
        await listening(port)
        pid = relay_at(options, port)
        await eventually(options.state_path.exists, "the targets are stored")
        await end(first, signal.SIGKILL)
        assert relay_at(options, port) == pid
        if not is_stored:
            options.state_path.write_text("{")
        async with running(options) as node:
            await node.until("fs-1", TunnelState.DOWN, relay_pid=pid)
            other = free_port()
            node.push(target("fs-1", port, a=free_address()), target("fs-2", other, a=free_address()))
            await node.until("fs-2", TunnelState.DOWN, relay_pid=pid)
            assert relays_of(options) == [pid]
    assert relays_of(options) == []


async def test_relay_that_hangs_is_replaced(options: TunnelOptions) -> None:
    port = free_port()
    async with running(replace(options, stall_seconds=0.5)) as node:
        node.push(target("fs-1", port, a=free_address()))
        await node.until("fs-1", TunnelState.DOWN)
        hanging = relay_at(options, port)
        os.kill(hanging, signal.SIGSTOP)
        await eventually(lambda: node.agent.status().relay_pid not in {None, hanging}, "another relay")
        await listening(port)
        assert hanging not in relays_of(options)
        # On a machine without free processors, half a second can be a stall of the next one too.
        await eventually(lambda: node.agent.status().relay_pid == relay_at(options, port), "its report")


async def test_relay_ends_without_services(options: TunnelOptions) -> None:
    port = free_port()
    async with running(options) as node:
        node.push(target("fs-1", port, a=free_address()))
        await node.until("fs-1", TunnelState.DOWN)
        node.push()
        await eventually(lambda: node.agent.status().relay_pid is None, "no relay")
        assert relays_of(options) == []
        node.push(target("fs-2", port, a=free_address()))
        await node.until("fs-2", TunnelState.DOWN)


async def test_port_of_another_program_is_reported_and_opened_later(options: TunnelOptions) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        async with running(options) as node:
            node.push(target("fs-1", port, a=free_address()))
            await node.until("fs-1", TunnelState.REJECTED)
            assert "is taken by" in node.tunnel("fs-1").reason
            other.close()
            await node.until("fs-1", TunnelState.DOWN)


async def test_service_that_the_relay_refuses_delays_no_other_one(options: TunnelOptions) -> None:
    # With so few files, the relay takes at most eight services.
    async with relay_process(options.relay_socket, files=64):
        eight = [service_of(free_address(), name=f"fs-{number}") for number in range(1, 9)]
        async with keeping(options, *eight) as keeper:
            ninth = service_of(free_address(), name="fs-0")
            changed = replace(eight[-1], addresses=(free_address(),))
            keeper.set_services([ninth, *eight[:-1], changed])
            await eventually(lambda: keeper.report.loaded.get(changed.name) == changed, "the change")
            assert "8 services are the most" in str(keeper.report.left_out[ninth.name])

            keeper.set_services([ninth, *eight[1:-1], changed])
            await eventually(lambda: keeper.report.loaded.get(ninth.name) == ninth, "the ninth")
            assert keeper.report.left_out == {}


@asynccontextmanager
async def keeping(options: TunnelOptions, *services: TunnelService) -> AsyncIterator[RelayKeeper]:
    keeper = RelayKeeper(options, TunnelMetrics(CollectorRegistry()), lambda: None)
    keeper.set_services(services)
    task = asyncio.create_task(keeper.run())
    try:
        await eventually(lambda: keeper.report.loaded.keys() == {one.name for one in services}, "services")
        yield keeper
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await keeper.stop()


@asynccontextmanager
async def carrying(
    options: TunnelOptions, authority: Authority
) -> AsyncIterator[tuple[RelayKeeper, TunnelService, psutil.Process]]:
    """A keeper with one service, and its relay, which carries a connection."""
    address = free_address()
    with socket.create_server((address, 2049)):  # accepts, and never answers
        async with keeping(options, service_of(address, ca_file=authority.file)) as keeper:
            [service] = keeper.report.loaded.values()
            relay = psutil.Process(keeper.report.relay_pid)
            _, writer = await asyncio.open_connection("127.0.0.1", service.port)
            await eventually(lambda: _carries(relay), "it accepts")
            yield keeper, service, relay
            writer.close()


def _carries(relay: psutil.Process) -> bool:
    return any(one.status == "ESTABLISHED" for one in relay.net_connections())


async def test_predecessor_keeps_its_connections_and_is_reported(
    options: TunnelOptions, authority: Authority
) -> None:
    async with carrying(options, authority) as (keeper, service, first):
        keeper.reload_or_replace([service.port])
        await eventually(lambda: keeper.report.leaving == (first.pid,), "the predecessor")
        assert keeper.report.relay_pid not in {None, first.pid}
        assert list(keeper.report.loaded.values()) == [service]
        assert relay_at(options, service.port) == keeper.report.relay_pid
        async with keeping_after(options, keeper) as following:
            assert following.report.leaving == (first.pid,)


@pytest.mark.parametrize("is_noticed", [True, False])
async def test_request_about_a_relay_that_has_ended_does_not_replace_the_next_one(
    options: TunnelOptions, authority: Authority, *, is_noticed: bool
) -> None:
    async with carrying(options, authority) as (keeper, service, ended):
        ended.kill()
        if is_noticed:
            await eventually(lambda: keeper.report.relay_pid is None, "its end")
        keeper.reload_or_replace([service.port])
        await eventually(lambda: keeper.report.relay_pid not in {None, ended.pid}, "the next relay")
        following = keeper.report.relay_pid
        other = replace(service, name="fs-2", port=free_port())
        keeper.set_services([service, other])
        await eventually(lambda: len(keeper.report.loaded) == 2, "what comes after the request")
        assert keeper.report.relay_pid == following


async def test_end_that_the_kernel_reports_late_is_no_hand_over(
    options: TunnelOptions, authority: Authority
) -> None:
    async with carrying(options, authority) as (keeper, service, ended):
        process, loop = keeper._process, asyncio.get_running_loop()
        assert process is not None
        loop.remove_reader(process._pidfd)
        ended.kill()
        await asyncio.to_thread(os.waitid, os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        with capture_logs() as logs:
            keeper.set_services([service, replace(service, name="fs-2", port=free_port())])
            await eventually(lambda: keeper.report.left_out or keeper.report.leaving, "nobody answers")
            loop.add_reader(process._pidfd, process._on_end)
            await eventually(lambda: len(keeper.report.loaded) == 2, "the next relay")
        assert [one["pid"] for one in logs if one["event"] == "relay-died"] == [ended.pid]


async def test_end_before_the_hand_over_is_no_predecessor(
    options: TunnelOptions, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with carrying(options, authority) as (keeper, service, ended):
        process, spawn, loop = keeper._process, keeper._spawn, asyncio.get_running_loop()
        assert process is not None

        async def too_late() -> tuple[DetachedProcess | None, bool]:
            loop.remove_reader(process._pidfd)
            ended.kill()
            await asyncio.to_thread(os.waitid, os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
            spawned = await spawn()
            # The keeper continues before the loop reports the end.
            loop.add_reader(process._pidfd, process._on_end)
            return spawned

        monkeypatch.setattr(keeper, "_spawn", too_late)
        with capture_logs() as logs:
            keeper.reload_or_replace([service.port])
            await eventually(lambda: keeper.report.relay_pid not in {None, ended.pid}, "the next relay")
            await eventually(lambda: list(keeper.report.loaded.values()) == [service], "the service")
        assert [one["pid"] for one in logs if one["event"] == "relay-died"] == [ended.pid]
        assert keeper.report.leaving == ()


async def test_relay_that_has_handed_over_and_ended_has_not_died(
    options: TunnelOptions, authority: Authority
) -> None:
    async with keeping(options, service_of(free_address(), ca_file=authority.file)) as keeper:
        [service], first = keeper.report.loaded.values(), keeper.report.relay_pid
        with capture_logs() as logs:
            keeper.reload_or_replace([service.port])
            await eventually(lambda: relays_of(options) not in ([], [first]), "a successor")
            await eventually(lambda: relays_of(options) == [keeper.report.relay_pid], "only the successor")
            await eventually(lambda: not keeper.report.leaving, "its end is known")
        assert keeper.report.relay_pid != first
        assert "relay-died" not in {one["event"] for one in logs}


async def test_relay_that_ends_without_an_answer_has_no_services(
    options: TunnelOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(_control: RelayControl, _name: str) -> None:
        raise RelayUnavailable("did not answer in 5 s")

    async with keeping(options, service_of(free_address())) as keeper:
        monkeypatch.setattr(RelayControl, "remove", lost)
        keeper.set_services([])
        await eventually(lambda: keeper.report.relay_pid is None, "its end")
        assert keeper.report.loaded == {}


async def test_facts_of_a_service_that_a_new_relay_does_not_have_yet_are_the_last_ones(
    options: TunnelOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = [service_of(free_address(), name=name) for name in ("fs-1", "fs-2")]
    async with keeping(options, *services) as keeper:
        before = await keeper.read_facts(["fs-1", "fs-2"])
        assert before["fs-2"].traffic is not None
        state = await RelayControl.state(keeper._control)

        async def without_the_last(_control: RelayControl) -> RelayState:
            return replace(state, services=state.services[:1])

        monkeypatch.setattr(RelayControl, "state", without_the_last)
        found = await keeper.read_facts(["fs-1", "fs-2"])
        assert found["fs-2"] is before["fs-2"]
        assert (await keeper.read_facts(["fs-1"])).keys() == {"fs-1"}


async def test_relay_that_answers_late_keeps_its_connections(
    options: TunnelOptions, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with carrying(options, authority) as (keeper, service, first):
        state, asked = RelayControl.state, 0

        async def late(control: RelayControl) -> RelayState:
            nonlocal asked
            asked += 1
            if asked < 3:
                raise RelayUnavailable("did not answer in 5 s")
            return await state(control)

        monkeypatch.setattr(RelayControl, "state", late)
        keeper.reload_or_replace([service.port])
        await eventually(lambda: keeper.report.leaving == (first.pid,), "the predecessor")
        assert _carries(first)


async def test_relay_that_hangs_after_an_answer_is_ended(
    options: TunnelOptions, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with carrying(options, authority) as (keeper, service, hanging):
        monkeypatch.setattr(relay_keeper, "_ANSWER_SECONDS", 0.5)
        answered, has_answered = keeper._await_answer, False

        async def hang_after_an_answer(
            is_expected: Callable[[int], bool], ended: asyncio.Event | None = None
        ) -> RelayState | None:
            nonlocal has_answered
            state = await answered(is_expected, ended)
            if not has_answered:
                has_answered = True
                hanging.suspend()
            return state

        monkeypatch.setattr(keeper, "_await_answer", hang_after_an_answer)
        with capture_logs() as logs:
            keeper.reload_or_replace([service.port])
            await eventually(lambda: any(one["event"] == "relay-not-started" for one in logs), "no successor")
        keeper.reload_or_replace([service.port])
        await eventually(lambda: not hanging.is_running(), "its end")
        monkeypatch.setattr(relay_keeper, "_ANSWER_SECONDS", 20.0)
        await eventually(lambda: list(keeper.report.loaded.values()) == [service], "the service")
        assert relay_at(options, service.port) == keeper.report.relay_pid


async def test_relay_that_is_started_when_the_agent_ends_is_ended_too(
    options: TunnelOptions, authority: Authority
) -> None:
    keeper = RelayKeeper(options, TunnelMetrics(CollectorRegistry()), lambda: None)
    keeper.set_services([service_of(free_address(), ca_file=authority.file)])
    with capture_logs() as logs:
        task = asyncio.create_task(keeper.run())
        await eventually(lambda: any(one["event"] == "relay-started" for one in logs), "a start")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await keeper.stop()
    assert relays_of(options) == []


async def test_relay_that_answers_stays_if_no_successor_starts(
    options: TunnelOptions, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with carrying(options, authority) as (keeper, service, first):
        with monkeypatch.context() as broken, capture_logs() as logs:
            broken.setattr(relay_keeper, "_MODULE", "kube_efs.tunnels.relay.missing")
            keeper.reload_or_replace([service.port])
            await eventually(lambda: any(one["event"] == "relay-not-started" for one in logs), "no successor")
        keeper.reload_or_replace([service.port])
        await eventually(lambda: keeper.report.leaving == (first.pid,), "the predecessor")
        assert keeper.report.relay_pid not in {None, first.pid}
        assert _carries(first)


async def test_ports_that_were_handed_over_to_a_successor_that_ended_are_served_again(
    options: TunnelOptions, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with carrying(options, authority) as (keeper, service, first):
        answered = keeper._await_answer

        async def too_late(
            is_expected: Callable[[int], bool], ended: asyncio.Event | None = None
        ) -> RelayState | None:
            if is_expected(first.pid):
                return await answered(is_expected, ended)
            monkeypatch.undo()
            await answered(is_expected, ended)
            return None

        monkeypatch.setattr(keeper, "_await_answer", too_late)
        keeper.reload_or_replace([service.port])
        await eventually(lambda: keeper.report.leaving == (first.pid,), "the predecessor")
        await eventually(lambda: keeper.report.relay_pid not in {None, first.pid}, "another relay")
        await eventually(lambda: list(keeper.report.loaded.values()) == [service], "the service")
        assert relay_at(options, service.port) == keeper.report.relay_pid
        assert _carries(first)


async def test_relay_whose_socket_was_removed_is_changed_and_taken_over(
    options: TunnelOptions, authority: Authority
) -> None:
    async with carrying(options, authority) as (keeper, service, relay):
        options.relay_socket.unlink()
        async with keeping_after(options, keeper):
            assert relays_of(options) == [relay.pid]

        options.relay_socket.unlink()
        other = replace(service, name="fs-2", port=free_port())
        keeper.set_services([service, other])
        await eventually(lambda: len(keeper.report.loaded) == 2, "the other service")
        assert keeper.report.relay_pid == relay.pid
        assert _carries(relay)


@asynccontextmanager
async def replaced_by_another_agent(
    options: TunnelOptions, authority: Authority
) -> AsyncIterator[tuple[RelayKeeper, TunnelService, psutil.Process, asyncio.subprocess.Process]]:
    """A keeper that watches a relay, and has not read yet that a successor has taken over.

    An agent that was killed while it started a successor leaves such a state to the next one.
    """
    async with carrying(options, authority) as (keeper, service, first):
        successor = await asyncio.create_subprocess_exec(*COMMAND, str(options.relay_socket))
        await serving(options.relay_socket, successor)
        await eventually(lambda: listening_ports(first.pid) == (), "the ports are handed over")
        try:
            yield keeper, service, first, successor
        finally:
            if successor.returncode is None:
                successor.kill()
            await successor.wait()


async def test_successor_that_an_earlier_agent_has_started_is_watched(
    options: TunnelOptions, authority: Authority
) -> None:
    async with replaced_by_another_agent(options, authority) as (keeper, service, first, successor):
        await keeper.read_facts([service.name])
        await eventually(lambda: keeper.report.relay_pid == successor.pid, "the one that answers")
        assert keeper.report.leaving == (first.pid,)

        successor.kill()
        await eventually(lambda: keeper.report.relay_pid not in {None, successor.pid}, "another relay")
        await eventually(lambda: list(keeper.report.loaded.values()) == [service], "the service")
        assert relay_at(options, service.port) == keeper.report.relay_pid
        assert _carries(first)


async def test_ports_of_a_successor_that_ended_before_it_was_watched_are_served_again(
    options: TunnelOptions, authority: Authority
) -> None:
    async with replaced_by_another_agent(options, authority) as (keeper, service, first, successor):
        successor.kill()
        await successor.wait()
        await keeper.read_facts([service.name])
        await eventually(lambda: keeper.report.relay_pid not in {None, first.pid}, "another relay")
        await eventually(lambda: list(keeper.report.loaded.values()) == [service], "the service")
        assert relay_at(options, service.port) == keeper.report.relay_pid
        assert keeper.report.leaving == (first.pid,)
        assert _carries(first)


@asynccontextmanager
async def keeping_after(options: TunnelOptions, before: RelayKeeper) -> AsyncIterator[RelayKeeper]:
    """The keeper of the next agent, which leaves the processes to the earlier one."""
    keeper = RelayKeeper(options, TunnelMetrics(CollectorRegistry()), lambda: None)
    keeper.set_services(before.report.loaded.values())
    task = asyncio.create_task(keeper.run())
    try:
        await eventually(lambda: keeper.report.loaded == before.report.loaded, "the services")
        assert keeper.report.relay_pid == before.report.relay_pid
        yield keeper
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_doctor_finds_the_tunnels_of_the_relay(options: TunnelOptions, authority: Authority) -> None:
    service = service_of(free_address(), ca_file=authority.file)
    checked = NodeCheckOptions(name="node-1", configuration=options.conf_path, agent_url="http://127.0.0.1:9")
    async with keeping(options, service):
        found = await gather_node(checked, Attempts(timeout_seconds=60))
        assert found.tunnels
        assert [(one.tunnel.name, one.tunnel.port) for one in found.tunnels] == [(service.name, service.port)]
        assert found.tunnels[0].listening
    assert (await gather_node(checked, Attempts(timeout_seconds=60))).tunnels is None


async def test_tunnel_in_use_stays_with_stunnel_and_moves_when_it_is_unused(
    options: TunnelOptions, authority: Authority
) -> None:
    options.authorities(options.region).write_bytes(authority.file.read_bytes())
    used, new = free_port(), free_port()
    async with Backend(authority, host_of("fs-1")) as backend:
        targets = target("fs-1", used, a=backend.address)
        async with agent_process(replace(options, data_plane=STUNNEL), document(targets)) as first:
            await listening(used)
            async with connected(used) as client:
                [stunnel] = stunnels_of(options.conf_path)
                await eventually(options.state_path.exists, "the targets are stored")
                await end(first, signal.SIGKILL)
                async with running(options) as node:
                    node.push(targets, target("fs-2", new, a=free_address()))
                    await node.until("fs-2", TunnelState.DOWN)
                    assert node.tunnel("fs-2").relay_pid == relay_at(options, new)
                    await node.until("fs-1", TunnelState.UP, stunnel_pid=stunnel)
                    await rounds(node, 5)
                    assert node.tunnel("fs-1").stunnel_pid == stunnel
                    await client.call()

                    await client.close()
                    await eventually(
                        lambda: node.tunnel("fs-1").relay_pid == relay_at(options, new), "a move"
                    )
                    await eventually(lambda: stunnels_of(options.conf_path) == [], "no stunnel")
                    await listening(used)


async def test_tunnel_of_the_relay_moves_back_to_stunnel(
    options: TunnelOptions, authority: Authority
) -> None:
    options.authorities(options.region).write_bytes(authority.file.read_bytes())
    port = free_port()
    async with Backend(authority, host_of("fs-1")) as backend:
        targets = target("fs-1", port, a=backend.address)
        async with agent_process(options, document(targets)) as first:
            await listening(port)
            await eventually(options.state_path.exists, "the targets are stored")
            await end(first, signal.SIGKILL)
            assert relays_of(options) == [relay_at(options, port)]
            async with running(replace(options, data_plane=STUNNEL)) as node:
                node.push(targets)
                await node.until("fs-1", TunnelState.UP, relay_pid=None)
                await eventually(lambda: relays_of(options) == [], "no relay")
                async with connected(port) as client:
                    await client.call()


async def rounds(node: Node, number: int) -> None:
    """Wait for so many checks of the tunnels, after which an unused one would have moved."""
    _, probes = node.agent._heartbeats
    for _ in range(number):
        await eventually(partial(_has_beaten, probes, probes._last), "a check of the tunnels")


def _has_beaten(heartbeat: Heartbeat, before: float) -> bool:
    return heartbeat._last != before
