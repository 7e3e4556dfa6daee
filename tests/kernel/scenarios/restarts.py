"""The driver and the tunnel agent are restarted, killed and replaced while pods use their volumes."""

import asyncio
import os

from tests.kernel.guest.kernel import nfs_mount
from tests.kernel.guest.machine import Machine
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
        connects, stunnels = nfs_mount(target).connects, node.stunnels()
        async with working(target / "work", served / "work") as work:
            for number in range(2):
                copy = f"copy-{number}"
                copying = asyncio.create_task(run("cp", str(original), str(target / copy)))
                await node.driver.stop()
                await node.tunnel.stop()
                await node.driver.start()
                await node.tunnel.start()
                await copying
                assert (served / copy).read_bytes() == original.read_bytes()
                await work.goes_on()
            await node.tunnel.ready()
            assert nfs_mount(target).connects == connects
            assert node.stunnels() == stunnels
            # Both are as good as before.
            other = await node.publish(volume, "other")
            assert nfs_mount(other).port == nfs_mount(target).port
            await node.unpublish(volume, other)
