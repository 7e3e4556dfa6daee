"""Mounts of one volume over one connection, several connections, or several tunnels, measured inside a guest.

Everything in a guest shares one processor: the kernel's client, stunnel, the TLS front and the file server.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from tests.kernel.guest.kernel import nfs_mount
from tests.kernel.guest.machine import Machine
from tests.kernel.guest.node import Node
from tests.kernel.guest.work import run

from kube_efs.model.csi.volume_handles import VolumeHandle
from kube_efs.model.efs.directories import parse_directory

MOUNTS: Final = 2
NCONNECT: Final = 4
ROUNDS: Final = 3
WRITING_SECONDS: Final = 5
# The mount options of each mount. Mounts with different zones have different tunnels to one mount target.
WAYS: Final[Mapping[str, Sequence[str]]] = {
    "shared": ("noatime",) * MOUNTS,
    "nconnect": (f"nconnect={NCONNECT}",) * MOUNTS,
    "tunnels": tuple(f"az=us-east-1{zone}" for zone in "ab"),
}
_SMALL_BYTES: Final = 4096
_LARGE_BYTES: Final = 1 << 20
# The last write of each program may wait for all others.
_SECONDS: Final = WRITING_SECONDS + 100.0
# Prints how many writes were on the server's disk in that time.
_WRITER: Final = """\
import os, sys, time
name, size, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
end, writes = time.monotonic() + seconds, 0
while True:
    os.pwrite(file, bytes(size), 0)
    os.fsync(file)
    if time.monotonic() > end:
        break
    writes += 1
print(writes)
"""


async def connections(machine: Machine) -> None:
    """Measure each way in turn; tell the writes of each round, and the numbers of connections and ports."""
    fs = await machine.create_file_system()
    volumes = []
    for number in range(MOUNTS):
        machine.efs.path(fs, f"/{number}").mkdir()
        volumes.append(VolumeHandle(file_system_id=fs, directory=parse_directory(f"/{number}")))
    async with machine.node(KUBE_EFS_PROBE_INTERVAL_SECONDS="600") as node:
        for number in range(ROUNDS):
            # Each way is once the first, because the load of the machine changes.
            first = number % len(WAYS)
            for way in (*list(WAYS)[first:], *list(WAYS)[:first]):
                async with _mounted(node, volumes, WAYS[way]) as targets:
                    # One mount has small writes, while the other has large ones.
                    small, large = await asyncio.gather(*map(_write, targets, (_SMALL_BYTES, _LARGE_BYTES)))
                    ports = {nfs_mount(target).port for target in targets}
                    machine.tell(
                        **{
                            f"{way}_small_{number}": small,
                            f"{way}_large_{number}": large,
                            f"{way}_connections": _established(ports),
                            f"{way}_ports": len(ports),
                        }
                    )


@asynccontextmanager
async def _mounted(
    node: Node, volumes: Sequence[VolumeHandle], options: Sequence[str]
) -> AsyncIterator[list[Path]]:
    async with AsyncExitStack() as stack:
        targets = []
        for number, (volume, option) in enumerate(zip(volumes, options, strict=True)):
            target = await node.publish(volume, f"pod-{number}", flags=(option,))
            stack.push_async_callback(node.unpublish, volume, target)
            targets.append(target)
        yield targets


async def _write(target: Path, size: int) -> int:
    """The number of writes of that size to a file of the mount."""
    arguments = (f"{target}/file", str(size), str(WRITING_SECONDS))
    return int(await run(sys.executable, "-I", "-S", "-c", _WRITER, *arguments, seconds=_SECONDS))


def _established(ports: Collection[int]) -> int:
    """The connections of the kernel's client to these loopback ports."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    # Columns of proc_net_tcp: the remote address, and the state, 01 for an established connection.
    return sum(row[3] == "01" and int(row[2].partition(":")[2], 16) in ports for row in rows)
