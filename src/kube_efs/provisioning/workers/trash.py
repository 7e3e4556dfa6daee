"""The trash directory of a file system: removed directories are renamed into it and deleted later.

The name of an entry is ``<tenant>.<inode>-<unique>``: the tenant, the inode of the removed directory, and a
unique number. Tenant and inode may be missing, as in entries of older versions. If an entry has another inode
than its name, another process has replaced the directory at the moment of the rename. Such an entry must not
be removed, and is kept.

Emptying must work with any tree: millions of names in one directory, directories of any depth, files that
cannot be removed, and processes that still write into it. It works in slices. A slice removes some hundred
files of one entry and keeps no state; the next one begins at the top of the entry again. So only the names
of entries are stored, a crash loses nothing, and tenants take turns.

* Names are read from a directory one after the other, never all at once. If names are removed from a
  directory during a listing, the listing may omit names (POSIX permits it, and NFS servers do it). So the end
  of a listing proves nothing. Only rmdir does: while it fails with "not empty" and the last listing contained
  something to remove, the directory is listed again.
* A slice descends a limited number of levels, each with a descriptor. A deeper directory is renamed into the
  trash itself, where it is removed before anything else of that entry. So each such step adds at most one
  entry to the trash, for any number of directories at that depth, and stack and descriptors are sufficient.
* Files that cannot be removed are recorded and skipped. An entry is stuck when a slice can remove nothing of
  it.
* Links are never followed, and other mounts are never entered. This includes other mounts of the same file
  system, which have the same device number.
"""

import errno
import os
import random
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum, auto
from pathlib import Path
from typing import Final

from kube_efs.model.errors import RemovalRefused
from kube_efs.model.trash import StuckEntry, TrashReport
from kube_efs.provisioning.workers.opening import NO_DIRECTORY, OPEN_DIRECTORY
from kube_efs.provisioning.workers.turns import Turns

TRASH = ".kube-efs-trash"

# Some hundred removals take EFS about a second.
SLICE: Final = 250
# A slice without any removal ends after so many failures.
_FAILURES_MAX: Final = 1000
# Each level needs two descriptors.
_DEPTH_MAX: Final = 32
# Limits of the names in memory, of the trash and of stuck entries; a name needs about 100 bytes.
_TENANTS_MAX: Final = 2000
_ENTRIES_OF_TENANT_MAX: Final = 16
_STUCK_MAX: Final = 50_000
_EXAMPLES_MAX: Final = 10
_PATH_MAX_CHARACTERS: Final = 200
_GONE: Final = frozenset({errno.ENOENT, errno.ESTALE})
_NOT_EMPTY: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST})
_NAME: Final = re.compile(r"(?:([a-z0-9]{1,12})\.)?(?:([0-9a-f]+)-)?[0-9a-f]{32}")


def entry_name(tenant: str, inode: int | None = None) -> str:
    """A new name for an entry of the trash."""
    owner = f"{tenant}." if tenant else ""
    meant = "" if inode is None else f"{inode:x}-"
    return f"{owner}{meant}{uuid.uuid4().hex}"


def tenant_of(name: str) -> str:
    """The tenant of the entry; empty if its name contains none."""
    match = _NAME.fullmatch(name)
    return (match and match[1]) or ""


def _inode_meant(name: str) -> int | None:
    match = _NAME.fullmatch(name)
    return int(match[2], 16) if match and match[2] else None


@contextmanager
def opened_trash(root: int, *, make: bool = True) -> Iterator[int]:
    """The trash directory of the file system, created if missing; raises RemovalRefused and OSError."""
    if make:
        with suppress(FileExistsError):
            os.mkdir(TRASH, 0o700, dir_fd=root)
    try:
        trash = os.open(TRASH, OPEN_DIRECTORY, dir_fd=root)
    except OSError as error:
        if error.errno in NO_DIRECTORY:
            remedy = f"remove the entry {TRASH} at the top of the file system"
            raise RemovalRefused(
                "is not a directory", field="trash directory", value=TRASH, remedy=remedy
            ) from error
        raise
    try:
        yield trash
    finally:
        os.close(trash)


def empty(trash: int, may_go_on: Callable[[], bool]) -> TrashReport:
    """Remove what can be removed while ``may_go_on`` returns true; raises OSError for an unreadable trash.

    Tenants take turns of ``SLICE`` removals, and so do the entries of each. ``may_go_on`` is called before
    every step.
    """
    return _Emptying(trash, may_go_on).run()


class _Emptying:
    """One run through the trash."""

    def __init__(self, trash: int, may_go_on: Callable[[], bool]) -> None:
        self._trash = trash
        self._mount = _mount_of(trash)
        self._may_go_on = may_go_on
        self._stuck: set[str] = set()
        self._examples: list[StuckEntry] = []
        self._removed = 0

    def run(self) -> TrashReport:
        while self._may_go_on() and len(self._stuck) < _STUCK_MAX and (turns := self._listed()):
            while turns and self._may_go_on():
                tenant, chain = turns.take()
                self._work_on(chain)
                if chain:
                    turns.add(tenant, chain)
        return self._report()

    def _report(self) -> TrashReport:
        entries = stuck = 0
        with os.scandir(self._trash) as listing:
            for entry in listing:
                entries += 1
                stuck += entry.name in self._stuck
        return TrashReport(
            entries=entries, stuck=stuck, removed=self._removed, examples=tuple(self._examples)
        )

    def _listed(self) -> Turns[list[str]]:
        """Entries that are not stuck, by tenant; each starts a chain of directories to remove, last first.

        The order of tenants is random. Otherwise, runs that end early would prefer the first ones.
        """
        found: dict[str, list[str]] = {}
        with os.scandir(self._trash) as listing:
            for entry in listing:
                tenant = tenant_of(entry.name)
                if entry.name in self._stuck or (tenant not in found and len(found) >= _TENANTS_MAX):
                    continue
                waiting = found.setdefault(tenant, [])
                if len(waiting) < _ENTRIES_OF_TENANT_MAX:
                    waiting.append(entry.name)
        tenants, turns = list(found), Turns[list[str]]()
        random.shuffle(tenants)
        for tenant in tenants:
            for name in found[tenant]:
                turns.add(tenant, [name])
        return turns

    def _work_on(self, chain: list[str]) -> None:
        """Work on the chain for one slice."""
        left = SLICE
        while chain and left > 0 and self._may_go_on():
            name = chain[-1]
            walk = _Slice(self._trash, self._mount, self._may_go_on, left)
            outcome = walk.remove(name)
            self._removed += walk.removed
            # At least 1: steps that remove nothing must end the slice, too.
            left -= max(1, walk.removed)
            match outcome:
                case _Outcome.DONE:
                    chain.pop()
                case _Outcome.STUCK:
                    self._note_stuck(chain.pop(), walk)
                case _Outcome.MOVED_UP:
                    chain.append(walk.moved_up)

    def _note_stuck(self, name: str, walk: "_Slice") -> None:
        self._stuck.add(name)
        if len(self._examples) < _EXAMPLES_MAX:
            path, reason = walk.failure
            example = StuckEntry(
                entry=name[:_PATH_MAX_CHARACTERS], path=path[:_PATH_MAX_CHARACTERS], reason=reason
            )
            self._examples.append(example)


class _Outcome(Enum):
    """The state of an entry after a slice."""

    DONE = auto()
    MORE = auto()
    STUCK = auto()
    MOVED_UP = auto()


class _SliceOverError(Exception):
    """This slice takes no further step."""


class _Slice:
    """Some removals in one entry of the trash."""

    def __init__(self, trash: int, mount: str, may_go_on: Callable[[], bool], steps: int) -> None:
        self._trash = trash
        self._mount = mount
        self._may_go_on = may_go_on
        self._steps = steps
        self._failures = 0
        self._path: list[str] = []
        self._tenant = ""
        self.removed = 0
        self.moved_up = ""
        self.failure = ("", "")

    def remove(self, name: str) -> _Outcome:
        """Remove the entry, or a part of it; files that cannot be removed are skipped."""
        self._tenant = tenant_of(name)
        try:
            if not self._is_meant(name):
                return _Outcome.STUCK
            self._remove(self._trash, name)
        except _SliceOverError:
            if self.moved_up:
                return _Outcome.MOVED_UP
            hopeless = not self.removed and self._failures >= _FAILURES_MAX
            return _Outcome.STUCK if hopeless else _Outcome.MORE
        if not self._failures:
            return _Outcome.DONE
        # A removal may allow others that have failed in this slice.
        return _Outcome.MORE if self.removed else _Outcome.STUCK

    def _is_meant(self, name: str) -> bool:
        meant = _inode_meant(name)
        if meant is None:
            return True
        try:
            found = os.stat(name, dir_fd=self._trash, follow_symlinks=False)
        except OSError as error:
            if error.errno in _GONE:
                return True
            self._note(error.strerror or "")
            return False
        if found.st_ino != meant:
            self._note("is not the directory that had to be removed; move it back to its place")
        return found.st_ino == meant

    def _remove(self, parent: int, name: str, *, is_folder: bool = True) -> None:
        """Remove the file or directory of that name, if possible; raises _SliceOverError."""
        if self.removed >= self._steps or self._failures >= _FAILURES_MAX or not self._may_go_on():
            raise _SliceOverError
        try:
            if not is_folder:
                os.unlink(name, dir_fd=parent)
            elif not self._remove_folder(parent, name):
                return
            self.removed += 1
        except OSError as error:
            if error.errno not in _GONE:
                self._note(error.strerror or "")

    def _remove_folder(self, parent: int, name: str) -> bool:
        """Remove the directory, or a file in its place; returns false when something in it was skipped."""
        if len(self._path) >= _DEPTH_MAX:
            return self._remove_deep(parent, name)
        try:
            folder = os.open(name, OPEN_DIRECTORY, dir_fd=parent)
        except OSError as error:
            if error.errno not in NO_DIRECTORY:
                raise
            os.unlink(name, dir_fd=parent)
            return True
        try:
            # Not the device: another mount of the same file system has the same one.
            if _mount_of(folder) != self._mount:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
            return self._unload(folder, parent, name)
        finally:
            os.close(folder)

    def _unload(self, folder: int, parent: int, name: str) -> bool:
        while True:
            removed, failures = self.removed, self._failures
            with os.scandir(folder) as listing:
                for entry in listing:
                    self._path.append(entry.name)
                    self._remove(folder, entry.name, is_folder=_may_be_folder(entry))
                    self._path.pop()
            if self._failures > failures:
                return False
            # The listing may have omitted names, because others were removed meanwhile. Only rmdir knows.
            try:
                os.rmdir(name, dir_fd=parent)
            except OSError as error:
                if error.errno not in _NOT_EMPTY or self.removed == removed:
                    raise
            else:
                return True

    def _remove_deep(self, parent: int, name: str) -> bool:
        """Remove the directory if it is empty; otherwise move it into the trash itself."""
        try:
            os.rmdir(name, dir_fd=parent)
        except OSError as error:
            if error.errno in NO_DIRECTORY:
                os.unlink(name, dir_fd=parent)
                return True
            if error.errno not in _NOT_EMPTY:
                raise
            new = entry_name(self._tenant)
            os.rename(name, new, src_dir_fd=parent, dst_dir_fd=self._trash)
            self.moved_up = new
            raise _SliceOverError from error
        return True

    def _note(self, reason: str) -> None:
        """Count a failure; the first one is reported."""
        if not self._failures:
            self.failure = ("/".join(self._path), reason)
        self._failures += 1


def _may_be_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        # Opening it shows its type.
        return True


def _mount_of(descriptor: int) -> str:
    """The kernel's ID of the mount of the descriptor; raises OSError."""
    with Path(f"/proc/self/fdinfo/{descriptor}").open(encoding="ascii") as lines:
        for line in lines:
            if line.startswith("mnt_id:"):
                return line.split()[1]
    raise OSError(errno.ENOTSUP, "the kernel does not report the mount of a directory")
