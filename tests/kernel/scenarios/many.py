"""As many volumes as a large node has."""

import asyncio
import os
import signal
import time
from itertools import product
from pathlib import Path

from tests.kernel.guest.kernel import nfs_mount
from tests.kernel.guest.machine import Machine
from tests.kernel.guest.node import start
from tests.kernel.guest.work import run

from kube_efs.model.directories import parse_directory
from kube_efs.model.ids import FileSystemId
from kube_efs.model.volume_handles import VolumeHandle

_FILE_SYSTEMS = 4
_DIRECTORIES = 3
_AT_ONCE = 10
_BYTES = 16384
# The kernel pauses for some seconds before it connects again, longer each time; and guests are slow.
_BACK_SECONDS = 60.0


async def sixty_volumes_are_back_when_their_agent_is(machine: Machine) -> None:
    systems = [await machine.create_file_system() for _ in range(_FILE_SYSTEMS)]
    places = list(product(systems, range(_DIRECTORIES)))
    for fs, number in places:
        (machine.efs.path(fs) / f"d{number}").mkdir()
    async with machine.node() as node:
        slots = asyncio.Semaphore(_AT_ONCE)

        async def published(fs: FileSystemId, number: int, flag: str) -> Path:
            volume = VolumeHandle(file_system_id=fs, directory=parse_directory(f"/d{number}"))
            async with slots:
                return await node.publish(volume, f"{fs}-{number}-{flag}", flags=[flag])

        publishing = (published(*place, flag) for place in places for flag in _ways(machine, place[0]))
        targets = await asyncio.gather(*publishing)
        assert len(targets) == 60
        assert len(await node.tunnels()) == len({nfs_mount(one).port for one in targets}) == 20

        await node.tunnel.kill()
        [pid] = node.stunnels()
        os.kill(pid, signal.SIGKILL)
        writing = [asyncio.create_task(_write(target)) for target in targets]
        await start(node.tunnel)
        began = time.monotonic()
        async with asyncio.timeout(_BACK_SECONDS):
            await asyncio.gather(*writing)
        machine.tell(back_after_seconds=time.monotonic() - began)
        for fs, number in places:
            files = (machine.efs.path(fs) / f"d{number}").iterdir()
            assert [file.stat().st_size for file in files] == [_BYTES] * 5


def _ways(machine: Machine, fs: FileSystemId) -> tuple[str, ...]:
    """Mount options, each of which leads to a tunnel of its own."""
    near, far = (front.address for front in machine.efs.fronts(fs))
    return ("tls", "az=us-east-1a", "az=us-east-1b", f"mounttargetip={near}", f"mounttargetip={far}")


async def _write(target: Path) -> None:
    file = f"of={target}/{target.parent.name}"
    await run("dd", "if=/dev/zero", file, f"bs={_BYTES}", "count=1", "conv=fsync", seconds=_BACK_SECONDS * 5)
