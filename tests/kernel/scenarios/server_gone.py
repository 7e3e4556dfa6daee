"""A file system that permanently stops answering at all mount targets."""

import asyncio
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.kernel.guest.kernel import is_mounted
from tests.kernel.guest.machine import Machine
from tests.kernel.guest.node import Node
from tests.kernel.guest.work import CommandFailed, run, working

from fake_efs.tls_front import Condition
from kube_efs.model.csi.volume_handles import VolumeHandle
from kube_efs.model.efs.ids import FileSystemId

_STEP_SECONDS = 60.0
_WAITS_SECONDS = 5.0
_UNMOUNT_SECONDS = 5
_FORCED = {
    "KUBE_EFS_FORCE_UNMOUNT_AFTER_TIMEOUT": "true",
    "KUBE_EFS_UNMOUNT_TIMEOUT_SECONDS": str(_UNMOUNT_SECONDS),
}
# umount, umount by force and once more by force, and what is slow in a guest on a busy machine.
_ENDED_SECONDS = 3 * _UNMOUNT_SECONDS + 60
# Opens a file, writes to it on request, and keeps it open; the data stays in the page cache.
_WRITER = """
import os, sys
sys.stdin.readline()
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
print("open", flush=True)
sys.stdin.readline()
os.write(file, bytes(1_000_000))
print("written", flush=True)
sys.stdin.readline()
"""


async def pods_can_be_deleted(machine: Machine) -> None:
    fs, other_fs = await machine.create_file_system(), await machine.create_file_system()
    volume = machine.efs.create_access_point(fs, "/data", uid=1001)
    other_volume = machine.efs.create_access_point(other_fs, "/data", uid=1001)
    async with machine.node(**_FORCED) as node:
        target = await node.publish(volume, "pod")
        other = await node.publish(other_volume, "other")
        await run("dd", "if=/dev/zero", f"of={target}/file", "bs=64k", "count=16")
        async with working(other / "work", machine.efs.path(other_fs, "/data/work")) as unaffected:
            await _become(machine, fs, Condition.SILENT)
            reading = asyncio.create_task(
                run("dd", f"if={target}/file", "of=/dev/null", "iflag=direct", seconds=_WAITS_SECONDS)
            )
            with pytest.raises(TimeoutError):  # the program was waiting, and could be killed
                await reading
            await _unpublish_in_time(machine, node, volume, target)
            await unaffected.continues()
            await _become(machine, fs, Condition.SERVING)
            again = await node.publish(volume, "pod")
            await run("touch", f"{again}/after")
            await node.unpublish(volume, again)


async def pod_that_cannot_be_killed_is_force_deleted(machine: Machine) -> None:
    """The pod waits with an open file and unwritten data for a server that never answers."""
    fs = await machine.create_file_system()
    volume = machine.efs.create_access_point(fs, "/data", uid=1001)
    async with machine.node(**_FORCED) as node:
        target = await node.publish(volume, "pod")
        async with _writer(target / "file") as pod:
            await _become(machine, fs, Condition.SILENT)
            await _step(pod, "written")
            pod.kill()
            with pytest.raises(TimeoutError):  # Linux does not end a process with unwritten data
                await asyncio.wait_for(pod.wait(), _WAITS_SECONDS)
            with pytest.raises(CommandFailed, match="target is busy"):
                await run("umount", "--no-canonicalize", "--internal-only", str(target))
            await _unpublish_in_time(machine, node, volume, target)
            assert "unmount-forced" in node.driver.log_file.read_text()
            await asyncio.wait_for(pod.wait(), _ENDED_SECONDS)
        await _become(machine, fs, Condition.SERVING)
        again = await node.publish(volume, "pod")
        await run("sh", "-c", f"echo hello > {again}/file")
        await node.unpublish(volume, again)
    assert machine.efs.path(fs, "/data/file").read_text() == "hello\n"


async def _unpublish_in_time(machine: Machine, node: Node, volume: VolumeHandle, target: Path) -> None:
    began = time.monotonic()
    async with asyncio.timeout(_ENDED_SECONDS):
        await node.unpublish(volume, target)
    machine.tell(unpublish_seconds=time.monotonic() - began)
    assert not is_mounted(target)
    assert not await asyncio.to_thread(target.exists)


async def _become(machine: Machine, fs: FileSystemId, condition: Condition) -> None:
    for front in machine.efs.fronts(fs):
        await front.become(condition)


@asynccontextmanager
async def _writer(file: Path) -> AsyncIterator[Process]:
    """Start the process of a pod that opens the file."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", "-c", _WRITER, str(file), stdin=PIPE, stdout=PIPE
    )
    try:
        await _step(process, "open")
        yield process
    finally:
        if process.returncode is None:
            process.kill()


async def _step(process: Process, expected: str) -> None:
    """Let it take the next step, and wait for its confirmation."""
    assert process.stdin
    assert process.stdout
    process.stdin.write(b"\n")
    async with asyncio.timeout(_STEP_SECONDS):
        assert (await process.stdout.readline()).decode().strip() == expected
