"""The usage of a file system and of the files of a mount, read so that a dead server blocks nothing.

A program reads it, not a thread: a thread that waits for a dead server cannot be ended, and keeps the mount
busy.
"""

import re
from asyncio.subprocess import DEVNULL
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from kube_efs.model.errors import MountFailed
from kube_efs.mounts.mount import run

# Size of a block; blocks, free ones, those that users can have; inodes, free ones (stat(1)).
_FORMAT: Final = "%S %b %f %a %c %d"
_ANSWER: Final = re.compile(r"[0-9]+( [0-9]+){5}")
# The bytes and the path (du(1)).
_COUNT: Final = re.compile(r"([0-9]+) /.*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The result of statfs(2); ``available`` is for users without privileges. EFS reports zero inodes."""

    total_bytes: int
    used_bytes: int
    available_bytes: int
    total_inodes: int = 0
    used_inodes: int = 0
    available_inodes: int = 0

    @classmethod
    def parse(cls, answer: str) -> Self:
        """The figures as df(1) counts them, from the answer of stat(1)."""
        size, blocks, free, available, inodes, free_inodes = map(int, answer.split())
        return cls(
            total_bytes=blocks * size,
            used_bytes=(blocks - free) * size,
            available_bytes=available * size,
            total_inodes=inodes,
            used_inodes=inodes - free_inodes,
            available_inodes=free_inodes,
        )


async def read_usage(path: Path, *, program: str = "stat") -> Usage:
    """The usage of the mount; waits until the server answers. Raises MountFailed.

    A cancelled call leaves no process behind.
    """
    ended = await run(program, "--file-system", f"--format={_FORMAT}", str(path))
    if ended.status or not _ANSWER.fullmatch(ended.output):
        raise MountFailed(f"cannot be used ({ended.output or 'no reason'})", field="path", value=str(path))
    return Usage.parse(ended.output)


async def count_bytes(path: Path, *, program: str = "du") -> int:
    """The bytes in the blocks of all files, directories and links of the mount; raises MountFailed.

    A file with several names counts once. Files that disappear meanwhile, or that cannot be read, do not
    count. A cancelled call leaves no process behind.
    """
    # Its messages contain names of files, which nobody but the users of the volume should read.
    ended = await run(
        program, "--summarize", "--one-file-system", "--block-size=1", str(path), stderr=DEVNULL
    )
    found = _COUNT.fullmatch(ended.output)
    if not found:
        problem = f"cannot be counted ({program} ended with status {ended.status})"
        raise MountFailed(problem, field="path", value=str(path))
    return int(found[1])
