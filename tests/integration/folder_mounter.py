"""A mounter for kernels without NFS: exports are directories, and the mounts are real.

The mount table shows them as mounts of the kernel's NFS client.
"""

import asyncio
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.unmounting import unmount

from kube_efs.model.errors import MountFailed
from kube_efs.mounts.mount import SystemMounter
from kube_efs.mounts.mountinfo import parse_mountinfo, read_once
from kube_efs.mounts.table import MountTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounted:
    """The arguments of a mount."""

    source: str
    options: tuple[str, ...]


@dataclass(slots=True)
class FolderMounter:
    """Mounts directories of ``exports``; mounts wait for ``gate``."""

    exports: Path
    asked: dict[Path, Mounted] = field(default_factory=dict)
    calls: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: int = 0
    is_stuck: bool = False
    forced: list[Path] = field(default_factory=list)
    table: MountTable = field(init=False)

    def __post_init__(self) -> None:
        self.gate.set()
        self.table = MountTable(read=self._read)

    async def mount(self, source: str, target: Path, options: str) -> None:
        self.calls += 1
        self.waiting += 1
        try:
            await self.gate.wait()
        finally:
            self.waiting -= 1
        folder = self.exports / source.partition(":/")[2]
        if not folder.is_dir():
            raise MountFailed("No such file or directory", field="target", value=str(target))
        given = tuple(options.split(","))
        access = "ro" if "ro" in given else "rw"
        await run("mount", "--bind", "-o", access, str(folder), str(target))
        self.asked[target] = Mounted(source=source, options=given)

    async def unmount(self, target: Path, *, force: bool = False, lazy: bool = False) -> None:
        if force:
            self.forced.append(target)
        elif self.is_stuck:
            await asyncio.Event().wait()
        await SystemMounter().unmount(target, force=force, lazy=lazy)

    def _read(self) -> tuple[bytes, bool]:
        text, is_whole = read_once()
        return b"\n".join(map(self._shown, text.split(b"\n"))), is_whole

    def _shown(self, line: bytes) -> bytes:
        for entry in parse_mountinfo(os.fsdecode(line)):
            if asked := self.asked.get(entry.mount_point):
                what = f" - nfs4 {asked.source} {','.join(asked.options)}"
                return line.partition(b" - ")[0] + what.encode()
        return line


async def run(*command: str) -> None:
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)


@contextmanager
def private_folder() -> Iterator[Path]:
    """A directory with private mounts, which end with it."""
    with tempfile.TemporaryDirectory(prefix="node-") as name:
        subprocess.run(["mount", "-t", "tmpfs", "none", name], check=True)
        subprocess.run(["mount", "--make-private", name], check=True)
        try:
            yield Path(name)
        finally:
            unmount(Path(name), "--recursive")
