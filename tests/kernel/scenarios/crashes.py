"""Tunnels that fail under mounted volumes: waiting requests continue, and nothing is lost."""

import os
import signal

from tests.kernel.guest.kernel import nfs_mount
from tests.kernel.guest.machine import Machine
from tests.kernel.guest.node import defunct_children, start
from tests.kernel.guest.waiting import until
from tests.kernel.guest.work import working
from tests.prometheus import running_prometheus

from kube_efs.tunnels.data_plane import DataPlaneName

_RESTARTS = {
    DataPlaneName.STUNNEL: "kube_efs_stunnel_restarts_total",
    DataPlaneName.KERNEL: "kube_efs_relay_restarts_total",
}
_ALERTS = {
    DataPlaneName.STUNNEL: "EFSStunnelRestarting",
    DataPlaneName.KERNEL: "EFSRelayRestarting",
}
_DOWN_SECONDS = 60.0
# Nobody is accepted for half a minute before it is doubted; and the kernel has to connect again.
_REPLACED_SECONDS = 240.0
# Between two attempts to connect the kernel waits longer each time.
_CONNECTED_SECONDS = 90.0


async def data_plane_is_killed(machine: Machine) -> None:
    fs = await machine.create_file_system()
    volume = machine.efs.create_access_point(fs, "/data", uid=1001)
    async with machine.node() as node:
        target = await node.publish(volume, "pod")
        before = nfs_mount(target)
        async with working(target / "work", machine.efs.path(fs, "/data/work")) as work:
            for _ in range(3):
                os.kill(node.data_plane_at(before.port), signal.SIGKILL)
                await work.continues()
        after = nfs_mount(target)
        assert (after.port, after.options) == (before.port, before.options)
        assert after.connects > before.connects
        assert await node.metric(_RESTARTS[machine.data_plane]) == 3
        assert defunct_children(node.tunnel.pid) == []


async def alert_fires_when_the_data_plane_ends_repeatedly(machine: Machine) -> None:
    fs = await machine.create_file_system()
    volume = machine.efs.create_access_point(fs, "/data", uid=1001)
    folder = machine.folder / "prometheus"
    folder.mkdir()
    async with machine.node() as node, running_prometheus(folder, {"tunnel": node.tunnel}) as prometheus:

        async def nothing_fires() -> bool:
            return await prometheus.firing() == set()

        async def fires() -> bool:
            return _ALERTS[machine.data_plane] in await prometheus.firing()

        target = await node.publish(volume, "pod")
        port = nfs_mount(target).port
        async with working(target / "work", machine.efs.path(fs, "/data/work")) as work:
            # Without waiting times, EFSTunnelDown fires for the moment in which the tunnel is made.
            await until(nothing_fires, "nothing fires")
            for _ in range(4):
                os.kill(node.data_plane_at(port), signal.SIGKILL)
                await work.continues()
        await until(fires, f"{_ALERTS[machine.data_plane]} fires")
        await node.unpublish(volume, target)


async def data_plane_is_stopped(machine: Machine) -> None:
    """Its process keeps its ports but no longer answers."""
    fs = await machine.create_file_system()
    volume = machine.efs.create_access_point(fs, "/data", uid=1001)
    async with machine.node() as node:
        target = await node.publish(volume, "pod")
        before = nfs_mount(target)
        pid, others = node.data_plane_at(before.port), node.data_planes()
        async with working(target / "work", machine.efs.path(fs, "/data/work")) as work:
            os.kill(pid, signal.SIGSTOP)
            await work.continues(seconds=_REPLACED_SECONDS)
        machine.tell(waited_seconds=work.longest)
        # It alone is replaced.
        assert {one for one in others.values() if one not in node.data_planes().values()} == {pid}
        assert nfs_mount(target).port == before.port


async def agent_and_data_plane_are_killed(machine: Machine) -> None:
    fs = await machine.create_file_system()
    volume = machine.efs.create_access_point(fs, "/data", uid=1001)
    async with machine.node() as node:
        target = await node.publish(volume, "pod")
        port = nfs_mount(target).port
        async with working(target / "work", machine.efs.path(fs, "/data/work")) as work:
            await node.tunnel.kill()
            node.kill_data_planes()
            await start(node.tunnel)
            await work.continues(seconds=_CONNECTED_SECONDS)
        assert nfs_mount(target).port == port


async def agent_and_data_plane_are_down_for_a_minute(machine: Machine) -> None:
    fs = await machine.create_file_system()
    volume = machine.efs.create_access_point(fs, "/data", uid=1001)
    async with machine.node() as node:
        target = await node.publish(volume, "pod")
        async with working(target / "work", machine.efs.path(fs, "/data/work")) as work:
            await node.tunnel.kill()
            node.kill_data_planes()
            await until(lambda: work.waits_since > _DOWN_SECONDS, "a minute", seconds=_DOWN_SECONDS * 2)
            await start(node.tunnel)
            await work.continues(seconds=_CONNECTED_SECONDS)
        machine.tell(waited_seconds=work.longest)


async def agent_and_data_plane_are_killed_while_metadata_does_not_answer(machine: Machine) -> None:
    """An agent reads the metadata when it starts, as do other processes at that time."""
    fs = await machine.create_file_system()
    volume = machine.efs.create_access_point(fs, "/data", uid=1001)
    async with machine.node() as node:
        target = await node.publish(volume, "pod")
        async with working(target / "work", machine.efs.path(fs, "/data/work")) as work:
            await machine.efs.metadata.stop()
            await node.tunnel.kill()
            node.kill_data_planes()
            await start(node.tunnel)
            await work.continues(seconds=_CONNECTED_SECONDS)
        assert '"region_source": "stored location"' in node.tunnel.log_file.read_text()
    await machine.efs.metadata.start()
