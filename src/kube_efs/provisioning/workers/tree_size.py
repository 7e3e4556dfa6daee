"""The size of a directory of a mounted file system, measured at a limited pace.

Each file needs a request to the server, so the pace and the time are limited. All calls use directory file
descriptors: they follow no link and enter no other file system.
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
from kube_efs.provisioning.workers.opening import OPEN_DIRECTORY, opened
from kube_efs.provisioning.workers.orders import MeasuringTerms

# Each level needs a descriptor; deeper directories are omitted.
_DEPTH_MAX: Final = 200
_BLOCK_BYTES: Final = 512  # The unit of st_blocks on every file system.
# A shorter pause costs more than it saves.
_LEAST_PAUSE_SECONDS: Final = 0.05
_GONE: Final = frozenset({errno.ENOENT, errno.ESTALE})


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


class Pace:
    """Limits the pace and the time of a measurement.

    ``sleep`` returns true if the measurement must stop.
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
        """Count one more file, and wait if the pace is too high; returns whether time is left."""
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
    """The size of each directory, or the reason for a failure, until the time of the terms ends."""
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
        mounted = os.open(root, OPEN_DIRECTORY)
        try:
            with opened(mounted, directory.parts) as top:
                return _Walk(os.fstat(top), pace).measure(top)
        finally:
            os.close(mounted)
    except OSError as error:
        raise WorkerFailed(
            f"could not be measured ({error.strerror})", field="directory", value=str(directory)
        ) from error


class _Walk:
    """The sum of the files found so far."""

    def __init__(self, top: os.stat_result, pace: Pace) -> None:
        self._pace = pace
        self._device = top.st_dev
        self._used_bytes = 0
        self._entries = 0
        self._complete = True
        self._linked: set[int] = set()
        self._add(top)

    def measure(self, top: int) -> TreeSize:
        """The sum of the whole tree; raises OSError when the top cannot be listed."""
        self._look_into(top, depth=1)
        return TreeSize(used_bytes=self._used_bytes, entries=self._entries, complete=self._complete)

    def _add(self, found: os.stat_result) -> None:
        """Count a file; hard links to it are not counted again."""
        if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
            if found.st_ino in self._linked:
                return
            self._linked.add(found.st_ino)
        self._used_bytes += found.st_blocks * _BLOCK_BYTES
        self._entries += 1

    def _look_into(self, folder: int, *, depth: int) -> bool:
        """Count the contents of the directory; returns whether time is left."""
        with os.scandir(folder) as listing:
            for entry in listing:
                if not self._pace.step():
                    self._complete = False
                    return False
                with self._tolerating():
                    found = entry.stat(follow_symlinks=False)
                    # A nested mount belongs to another file system and is counted there.
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
        """Continue after a deleted or unreadable file; an unreadable one makes the result incomplete."""
        try:
            yield
        except OSError as error:
            self._complete &= error.errno in _GONE
