"""What the mount table says for certain.

The kernel gives ``/proc/self/mountinfo`` away piece by piece. While other mounts come and go, a reader can
miss one that is there all the time (before Linux 5.8 for certain, and reports go on); no reader sees one that
is not. So what any of several readings shows is there, and only what all of them miss is not.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from kube_efs.mounts.mountinfo import MountEntry

Reading = Callable[[], Sequence[MountEntry]]

_READINGS: Final = 3
_PAUSE_SECONDS: Final = 0.02
# Written behind a mount point that was removed in another mount namespace; Path makes one slash of two.
_REMOVED: Final = ("/deleted", " (deleted)")


async def mounted_at(target: Path, read: Reading, *, readings: int = _READINGS) -> MountEntry | None:
    """What is visible at the target, of several mounts the last; None if that many readings show nothing.

    ``target`` is absolute and without links. Raises PlatformError when the table cannot be read.
    """
    for number in range(readings):
        await asyncio.sleep(_PAUSE_SECONDS if number else 0)
        there = [entry for entry in await asyncio.to_thread(read) if entry.mount_point == target]
        if there:
            return there[-1]
    return None


async def mount_points(
    read: Reading, *, readings: int = _READINGS, pause_seconds: float = _PAUSE_SECONDS
) -> frozenset[Path]:
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
