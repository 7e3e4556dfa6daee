"""What is mounted where, by the mount table.

``read`` gives the table as ``read_mountinfo`` does: whole, unless it never stands still.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from kube_efs.mounts.mountinfo import MountEntry

Reading = Callable[[], Sequence[MountEntry]]

# Written behind a mount point that was removed in another mount namespace; Path makes one slash of two.
_REMOVED: Final = ("/deleted", " (deleted)")


async def mounted_at(target: Path, read: Reading) -> MountEntry | None:
    """What is visible at the target, of several mounts the last; None when nothing is mounted there.

    ``target`` is absolute and without links. Raises PlatformError when the table cannot be read.
    """
    there = [entry for entry in await asyncio.to_thread(read) if entry.mount_point == target]
    return there[-1] if there else None


async def mount_points(read: Reading, *, readings: int = 1, pause_seconds: float = 0.0) -> frozenset[Path]:
    """Every place where any of that many readings shows a mount; raises PlatformError."""
    found: set[Path] = set()
    for number in range(readings):
        await asyncio.sleep(pause_seconds if number else 0)
        found.update(place for entry in await asyncio.to_thread(read) for place in _places(entry))
    return frozenset(found)


def _places(entry: MountEntry) -> Iterator[Path]:
    """Where this is mounted, in both readings of a name that may have a mark behind it."""
    yield entry.mount_point
    text = str(entry.mount_point)
    yield from (Path(text.removesuffix(mark)) for mark in _REMOVED if text.endswith(mark))
