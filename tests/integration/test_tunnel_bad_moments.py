"""Faults around an agent while a volume is used: they are reported, and the volume is not affected."""

import asyncio
import os
import resource
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.integration.nfs_backend import Backend
from tests.integration.tunnel_node import (
    DEADLINE_SECONDS,
    FS,
    agent_process,
    connected,
    end,
    eventually,
    running,
    stunnels_of,
)

from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.model.errors import ConfigurationRejected, PortTaken, TunnelNotReady
from kube_efs.tunnels.api.client import TunnelClient
from kube_efs.tunnels.options import TunnelOptions
from kube_efs.tunnels.reservations import Holder, TunnelSpec
from kube_efs.tunnels.sockets.ports import find_taken
from kube_efs.tunnels.status import TunnelState

pytestmark = pytest.mark.skipif(not Path("/usr/bin/stunnel").exists(), reason="stunnel is not installed")

POD, OTHER_POD = Holder("volume-1 /pods/1"), Holder("volume-1 /pods/2")


def spec(backend: Backend, number: int = 0) -> TunnelSpec:
    return TunnelSpec(
        file_system_id=FS, address=backend.address, access_point_id=AccessPointId(f"fsap-{number:017x}")
    )


async def ensured(client: TunnelClient, asked: TunnelSpec, holder: Holder) -> int:
    """The port of a tunnel, with retries as by the kubelet."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            try:
                return await client.ensure(asked, holder)
            except (ConfigurationRejected, PortTaken):
                await asyncio.sleep(0.1)


async def until_up(client: TunnelClient) -> None:
    """Return when the only tunnel is up."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            [tunnel] = await client.tunnels()
            if tunnel.state is TunnelState.UP:
                return
            await asyncio.sleep(0.1)


@contextmanager
def no_space_for(pid: int) -> Iterator[None]:
    """The process cannot write to files while the context is open."""
    _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, most))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))


async def test_full_disk_is_reported_and_changes_nothing(
    options: TunnelOptions, client: TunnelClient, backend: Backend
) -> None:
    async with agent_process(options, stops_stunnel=False) as agent:
        port = await client.ensure(spec(backend), POD)
        [stunnel] = stunnels_of(options.conf_path)
        state = options.reservations_path.read_bytes()
        async with connected(port) as mount:
            with no_space_for(agent.pid):
                with pytest.raises(
                    TunnelNotReady, match=r"certificate: .* cannot be written \(File too large\)"
                ):
                    await client.ensure(spec(backend, 1), POD)
                for change in (client.ensure(spec(backend), OTHER_POD), client.release(POD)):
                    with pytest.raises(TunnelNotReady) as refused:
                        await change
                    assert refused.value.field == "state of the tunnels"
                    assert refused.value.problem == "cannot be written (File too large)"
                await mount.call()
            assert options.reservations_path.read_bytes() == state
            assert not list(options.directory.glob(".*"))
            assert await client.ensure(spec(backend), OTHER_POD) == port
            await mount.call()
            assert stunnels_of(options.conf_path) == [stunnel]
        await end(agent, signal.SIGKILL)
    (options.directory / "run" / "tunnel.sock").unlink()
    async with agent_process(options):
        [tunnel] = await client.tunnels()
        assert (tunnel.port, tunnel.holders) == (port, frozenset({OTHER_POD}))


async def test_stunnel_that_ends_while_the_disk_is_full_serves_again(
    options: TunnelOptions, client: TunnelClient, backend: Backend
) -> None:
    """Its unchanged configuration is there, and neither it nor its log can be written."""
    async with agent_process(options) as agent:
        port = await client.ensure(spec(backend), POD)
        [stunnel] = stunnels_of(options.conf_path)
        with no_space_for(agent.pid):
            os.kill(stunnel, signal.SIGKILL)
            async with connected(port) as mount:
                await mount.call()
            # The agent has waited for the log, and does not end a stunnel that listens.
            await until_up(client)
            async with connected(port) as mount:
                await mount.call()
        await client.release(POD)


async def test_removed_log_of_stunnel_keeps_no_tunnel_from_being_loaded(
    options: TunnelOptions, client: TunnelClient, backend: Backend
) -> None:
    """As after an administrator has made room."""
    async with running(options) as node:
        await eventually((options.directory / "run" / "tunnel.sock").exists, "the socket")
        await client.ensure(spec(backend), POD)
        [log] = options.directory.glob("stunnel-*.log")
        log.unlink()
        async with connected(await client.ensure(spec(backend, 1), OTHER_POD)) as mount:
            await mount.call()
            # A renewal opens no port.
            [one, _] = await client.tunnels()
            assert one.spec
            certificates = node.agent._certificates
            await certificates._renew(one.spec, None)
            certificates._on_renewed()

            def loaded() -> bool:
                served = node.agent._data_planes.report.loaded[one.name]
                return served.certificate == certificates.files[one.name]

            await eventually(loaded, "the renewed certificate is loaded")
            await mount.call()
        for holder in (POD, OTHER_POD):
            await client.release(holder)


async def test_port_of_an_unmounted_volume_that_another_program_has_taken_is_given_up(
    options: TunnelOptions, client: TunnelClient, backend: Backend
) -> None:
    """As after a reboot, when the state of the agent is still there."""
    async with agent_process(options):
        port = await client.ensure(spec(backend), POD)
    # A process that ends has no command line any more before it closes its port.
    await eventually(lambda: not find_taken([port]), "the port of the ended stunnel is free")
    (options.directory / "run" / "tunnel.sock").unlink()
    with socket.create_server(("127.0.0.1", port)):
        async with agent_process(options):
            other = await ensured(client, spec(backend), POD)
            assert other != port
            async with connected(other) as mount:
                await mount.call()
            await client.release(POD)


async def test_removed_stunnel_program_continues_and_is_reported_after_its_end(
    options: TunnelOptions, client: TunnelClient, backend: Backend, tmp_path: Path
) -> None:
    program, hidden = tmp_path / "bin" / "stunnel", tmp_path / "hidden"
    program.parent.mkdir()
    shutil.copy("/usr/bin/stunnel", program)
    async with running(replace(options, stunnel_path=program)) as node:
        await eventually((tmp_path / "run" / "tunnel.sock").exists, "the socket")
        port = await client.ensure(spec(backend), POD)
        program.rename(hidden)
        async with connected(port) as mount:
            other = await client.ensure(spec(backend, 1), POD)
            assert other != port
            await mount.call()
        os.kill(node.pid, signal.SIGKILL)
        await eventually(lambda: node.agent.status().stunnel_pid is None, "the death is seen")
        with pytest.raises(ConfigurationRejected, match=f"{program}: No such file or directory"):
            await client.ensure(spec(backend), OTHER_POD)
        hidden.rename(program)
        assert await ensured(client, spec(backend), OTHER_POD) == port
        async with connected(port) as mount:
            await mount.call()
        for holder in (POD, OTHER_POD):
            await client.release(holder)


async def test_truncated_state_file_interrupts_no_connection(
    options: TunnelOptions, client: TunnelClient, backend: Backend
) -> None:
    async with agent_process(options, stops_stunnel=False) as first:
        port = await client.ensure(spec(backend), POD)
        last_port = await client.ensure(spec(backend, 1), POD)
        [stunnel] = stunnels_of(options.conf_path)
        async with connected(port) as mount, connected(last_port) as last_mount:
            await end(first, signal.SIGKILL)
            os.truncate(options.reservations_path, 100)
            (options.directory / "run" / "tunnel.sock").unlink()
            async with running(options) as node:
                await eventually((options.directory / "run" / "tunnel.sock").exists, "the socket")
                [problem] = node.agent.status().problems
                assert f"{options.reservations_path} cannot be read" in problem
                assert await client.ensure(spec(backend), OTHER_POD) == port
                await mount.call()
                await last_mount.call()
                assert stunnels_of(options.conf_path) == [stunnel]
                for holder in (POD, OTHER_POD):
                    await client.release(holder)
