"""The driver and the tunnel agent are restarted, killed and replaced while pods use their volumes."""

import asyncio
import json
import os

from tests.kernel.guest.kernel import nfs_mount
from tests.kernel.guest.machine import Machine
from tests.kernel.guest.node import start
from tests.kernel.guest.work import run, working

_COPIED = 8 * 1024 * 1024


async def driver_and_agent_restart_while_a_file_is_copied(machine: Machine) -> None:
    fs = await machine.create_file_system()
    volume = machine.efs.create_access_point(fs, "/copies", uid=1001)
    served = machine.efs.path(fs, "/copies")
    original = machine.folder / "original"
    original.write_bytes(os.urandom(_COPIED))
    async with machine.node() as node:
        target = await node.publish(volume, "pod")
        connects, running = nfs_mount(target).connects, node.data_planes()
        async with working(target / "work", served / "work") as work:
            for number in range(2):
                copy = f"copy-{number}"
                copying = asyncio.create_task(run("cp", str(original), str(target / copy)))
                await node.driver.stop()
                await node.tunnel.stop()
                await start(node.driver)
                await start(node.tunnel)
                await copying
                assert (served / copy).read_bytes() == original.read_bytes()
                await work.continues()
            assert nfs_mount(target).connects == connects
            assert node.data_planes() == running
            # Both are as good as before.
            other = await node.publish(volume, "other")
            assert nfs_mount(other).port == nfs_mount(target).port
            await node.unpublish(volume, other)


async def driver_and_agent_are_killed(machine: Machine) -> None:
    fs = await machine.create_file_system()
    volume = machine.efs.create_access_point(fs, "/data", uid=1001)
    async with machine.node() as node:
        target = await node.publish(volume, "pod")
        before, running = nfs_mount(target), node.data_planes()
        async with working(target / "work", machine.efs.path(fs, "/data/work")) as work:
            await node.driver.kill()
            await node.tunnel.kill()
            await work.continues()
            await start(node.tunnel)
            await start(node.driver)
            await work.continues()
        assert nfs_mount(target) == before
        assert node.data_planes() == running
        await node.unpublish(volume, target)
        assert [one.holders for one in await node.tunnels()] == [frozenset()]


async def agent_of_another_version_takes_over(machine: Machine) -> None:
    """The state on the disk has additional fields for each tunnel."""
    fs = await machine.create_file_system()
    volume = machine.efs.create_access_point(fs, "/data", uid=1001)
    async with machine.node() as node:
        target = await node.publish(volume, "pod")
        before, running = nfs_mount(target), node.data_planes()
        [tunnel] = await node.tunnels()
        async with working(target / "work", machine.efs.path(fs, "/data/work")) as work:
            await node.tunnel.stop()
            state = json.loads(node.reservations.read_text())
            state["version"] += 1
            state["written_by"] = "tomorrow"
            for one in state["tunnels"]:
                one["colour"] = "blue"
            node.reservations.write_text(json.dumps(state))
            await start(node.tunnel)
            await work.continues()
            [found] = await node.tunnels()
        assert (found.spec, found.port, found.holders) == (tunnel.spec, tunnel.port, tunnel.holders)
        assert nfs_mount(target) == before
        assert node.data_planes() == running
