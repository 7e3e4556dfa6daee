"""How much a directory of a mounted file system takes up, found out without haste.

Each file costs the server a look, so the pace is limited and so is the time. Everything goes through
directory file descriptors: no link is followed and no other file system entered.
"""

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kube_efs.model.efs.directories import Directory
from kube_efs.model.errors import WorkerFailed
from kube_efs.model.usage import MeasuredDirectory, TreeSize
from kube_efs.provisioning.workers.orders import MeasuringTerms
from kube_efs.provisioning.workers.trash import OPEN_DIRECTORY

# One descriptor each; what lies deeper is left out.
_DEPTH_MAX: Final = 200
_BLOCK_BYTES: Final = 512  # of st_blocks, whatever the file system's own
# A shorter pause costs more than it spares.
_LEAST_PAUSE_SECONDS: Final = 0.05
_GONE: Final = frozenset({errno.ENOENT, errno.ESTALE})


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


class Pace:
    """How fast, and how long at most, files are measured.

    ``sleep`` gives whether it was woken because the measurement must stop.
    """

    def __init__(
        self,
        *,
        entries_per_second: float,
        seconds: float,
        sleep: Callable[[float], bool] = _sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate = entries_per_second
        self._sleep = sleep
        self._clock = clock
        self._began = clock()
        self._deadline = self._began + seconds
        self._entries = 0
        self.stopped = False

    def step(self) -> bool:
        """Count one more file, wait if they are too many; whether there is time for another."""
        self._entries += 1
        ahead = self._entries / self._rate - (self._clock() - self._began)
        if ahead >= _LEAST_PAUSE_SECONDS:
            self.stopped = self._sleep(ahead)
        return not self.stopped and self._clock() < self._deadline


def measure_all(
    root: Path,
    directories: Iterable[Directory],
    terms: MeasuringTerms,
    sleep: Callable[[float], bool] = _sleep,
) -> Iterator[MeasuredDirectory]:
    """The size of each directory, or why it has none, until the time of the terms is over."""
    deadline = time.monotonic() + terms.total_seconds
    for directory in directories:
        seconds = min(terms.directory_seconds, deadline - time.monotonic())
        if seconds <= 0:
            return
        pace = Pace(entries_per_second=terms.entries_per_second, seconds=seconds, sleep=sleep)
        try:
            size = measure_tree(root, directory, pace)
        except WorkerFailed as error:
            yield MeasuredDirectory(directory=directory, problem=str(error))
        else:
            yield MeasuredDirectory(directory=directory, size=size)
        if pace.stopped:
            return


def measure_tree(root: Path, directory: Directory, pace: Pace) -> TreeSize:
    """The size of the directory, as far as the pace allows; raises WorkerFailed when it cannot be opened."""
    try:
        top = _open_top(root, directory)
        try:
            return _Walk(os.fstat(top), pace).measure(top)
        finally:
            os.close(top)
    except OSError as error:
        raise WorkerFailed(
            f"could not be measured ({error.strerror})", field="directory", value=str(directory)
        ) from error


def _open_top(root: Path, directory: Directory) -> int:
    here = os.open(root, OPEN_DIRECTORY)
    for name in directory.parts:
        try:
            child = os.open(name, OPEN_DIRECTORY, dir_fd=here)
        finally:
            os.close(here)
        here = child
    return here


class _Walk:
    """The sum of what was found so far."""

    def __init__(self, top: os.stat_result, pace: Pace) -> None:
        self._pace = pace
        self._device = top.st_dev
        self._used_bytes = 0
        self._entries = 0
        self._complete = True
        self._linked: set[int] = set()
        self._add(top)

    def measure(self, top: int) -> TreeSize:
        """The sum, with all that is below; raises OSError when that cannot be listed."""
        self._look_into(top, depth=1)
        return TreeSize(used_bytes=self._used_bytes, entries=self._entries, complete=self._complete)

    def _add(self, found: os.stat_result) -> None:
        """Count what was found, a file of several names once."""
        if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
            if found.st_ino in self._linked:
                return
            self._linked.add(found.st_ino)
        self._used_bytes += found.st_blocks * _BLOCK_BYTES
        self._entries += 1

    def _look_into(self, folder: int, *, depth: int) -> bool:
        """Count what is in there; whether there is time for more."""
        with os.scandir(folder) as listing:
            for entry in listing:
                if not self._pace.step():
                    self._complete = False
                    return False
                with self._tolerating():
                    found = entry.stat(follow_symlinks=False)
                    # What is mounted there belongs to another file system, and is counted there.
                    if found.st_dev != self._device:
                        continue
                    self._add(found)
                    if stat.S_ISDIR(found.st_mode) and not self._enter(folder, entry.name, depth):
                        return False
        return True

    def _enter(self, folder: int, name: str, depth: int) -> bool:
        if depth >= _DEPTH_MAX:
            self._complete = False
            return True
        child = os.open(name, OPEN_DIRECTORY, dir_fd=folder)
        try:
            return self._look_into(child, depth=depth + 1)
        finally:
            os.close(child)

    @contextmanager
    def _tolerating(self) -> Iterator[None]:
        """Continue after a file that was deleted in the meantime or cannot be read, which is noted."""
        try:
            yield
        except OSError as error:
            self._complete &= error.errno in _GONE
