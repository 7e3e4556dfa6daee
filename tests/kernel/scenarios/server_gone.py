"""A file system that answers nobody any more, at none of its mount targets, for good."""

import asyncio
import time

import pytest
from tests.kernel.guest.kernel import is_mounted
from tests.kernel.guest.machine import Machine
from tests.kernel.guest.work import run, working

from kube_efs.local.efs.tls_front import Condition

_WAITS_SECONDS = 5.0
_UNMOUNT_SECONDS = 5
# umount, umount by force and once more by force, and what is slow in a guest.
_ENDED_SECONDS = 4 * _UNMOUNT_SECONDS


async def pods_can_be_deleted(machine: Machine) -> None:
    fs, other_fs = await machine.create_file_system(), await machine.create_file_system()
    volume = machine.efs.create_access_point(fs, "/data", uid=1001)
    other_volume = machine.efs.create_access_point(other_fs, "/data", uid=1001)
    settings = {
        "KUBE_EFS_FORCE_UNMOUNT_AFTER_TIMEOUT": "true",
        "KUBE_EFS_UNMOUNT_TIMEOUT_SECONDS": str(_UNMOUNT_SECONDS),
    }
    async with machine.node(**settings) as node:
        target = await node.publish(volume, "pod")
        other = await node.publish(other_volume, "other")
        await run("dd", "if=/dev/zero", f"of={target}/file", "bs=64k", "count=16")
        async with working(other / "work", machine.efs.path(other_fs, "/data/work")) as unaffected:
            for front in machine.efs.fronts(fs):
                await front.become(Condition.SILENT)
            reading = asyncio.create_task(
                run("dd", f"if={target}/file", "of=/dev/null", "iflag=direct", seconds=_WAITS_SECONDS)
            )
            with pytest.raises(TimeoutError):  # the program was waiting, and could be killed
                await reading
            began = time.monotonic()
            async with asyncio.timeout(_ENDED_SECONDS):
                await node.unpublish(volume, target)
            machine.tell(unpublish_seconds=time.monotonic() - began)
            assert not is_mounted(target)
            assert not target.exists()
            await unaffected.goes_on()
            for front in machine.efs.fronts(fs):
                await front.become(Condition.SERVING)
            again = await node.publish(volume, "pod")
            await run("touch", f"{again}/after")
            await node.unpublish(volume, again)
