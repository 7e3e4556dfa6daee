"""Copies the files of a directory into another one, and continues where an earlier attempt has ended.

A file is complete when it has the size, the times, the mode and the owners of its source; a directory, when
it has the times, the mode and the owners. Both are set last, so complete ones are skipped, directories with
everything in them. All calls use directory file descriptors: they follow no link, and enter no other file
system.

Descriptors stay valid when another attempt takes over the copy and makes it a volume: this process may have
stood still meanwhile. So it asks directly before each removal, after each block, and after each chunk of
files whether it still has the copy. What remains is the time between the answer and the next call: a few
milliseconds for a removal. At worst, files of one chunk that users have removed appear again, of each at most
one block.
"""

import errno
import os
import stat
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final, TypeAlias, TypeVar

from kube_efs.model.copies import CopyProgress
from kube_efs.model.errors import WorkerFailed
from kube_efs.provisioning.workers.opening import NO_DIRECTORY, OPEN_DIRECTORY, opened
from kube_efs.provisioning.workers.trash import entry_name, opened_trash

# Others must not enter a directory before it has its owners, which come before its mode.
_PRIVATE: Final = 0o700
_CHUNK: Final = 256
_BLOCK_BYTES: Final = 8 * 1024**2
# How many subdirectories are listed before they are copied: users can make millions in one directory. The
# listing stays open while they are copied, as it does for files. Most directories have fewer.
_FOLDERS_MAX: Final = 4 * _CHUNK
# Each level needs two descriptors, and a third one for a listing that stays open.
_DEPTH_MAX: Final = 200
# How often a file may be replaced while it is copied.
_REPLACEMENTS_FOLLOWED: Final = 3
# How often a directory is listed that changes meanwhile.
_LISTINGS: Final = 10
_GONE: Final = frozenset({errno.ENOENT, errno.ESTALE})
_NO_ATTRIBUTES: Final = frozenset({errno.ENOTSUP, errno.ENODATA, errno.ENOSYS})
# Others belong to the kernel, such as labels of SELinux.
_ATTRIBUTES: Final = ("user.", "system.posix_acl_")

Report: TypeAlias = Callable[[CopyProgress], None]
_T = TypeVar("_T")


@dataclass(slots=True, kw_only=True)
class Work:
    """What all parts of a copy have in common, and the sum of what is done.

    ``confirm`` raises WorkerFailed unless this attempt still has the copy.
    """

    root: int
    confirm: Callable[[], None]
    links: int
    device: int
    owners: Callable[[os.stat_result], tuple[int, int]]
    threads: ThreadPoolExecutor
    progress: CopyProgress = field(default_factory=CopyProgress)


class TreeCopier:
    """Copies directories; only files of one directory are copied at the same time."""

    def __init__(self, work: Work, report: Report) -> None:
        self._work = work
        self._report = report
        self._counting = threading.Lock()

    def fill(
        self,
        source: int,
        target: int,
        path: Sequence[str],
        *,
        is_new: bool,
        omitted: frozenset[str] = frozenset(),
    ) -> None:
        """Copy everything in the source, except the omitted names, into the target.

        Names of the target that are not in the source any more are removed from it.
        """
        if len(path) > _DEPTH_MAX:
            raise _failed(path, f"is deeper than {_DEPTH_MAX} directories")
        if not is_new:
            self._remove_vanished(source, target, path)
        # An NFS server may omit names while others are removed, and what is renamed before it is copied has
        # another name. So the directory is listed again until nothing has changed meanwhile, with a limit.
        for listing in range(_LISTINGS):
            before = _modified(source, path)
            self._fill_listed(source, target, path, omitted, only_missing=listing > 0)
            if _modified(source, path) == before:
                return

    def _fill_listed(
        self, source: int, target: int, path: Sequence[str], omitted: frozenset[str], *, only_missing: bool
    ) -> None:
        """Copy what one listing of the source contains, or only what is not in the target yet."""
        folders: dict[str, os.stat_result] = {}
        # After a failure, the listing must not stay open until somebody collects it.
        with closing(_chunks(source, omitted, path)) as chunks:
            for listed in chunks:
                chunk = self._missing(listed, target) if only_missing else listed
                files = []
                for name, found in chunk:
                    if found.st_dev != self._work.device:
                        continue  # A nested mount belongs to another file system.
                    if stat.S_ISDIR(found.st_mode):
                        folders[name] = found
                    elif stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
                        # Not in the threads: two names of a file at the same moment would both be the first.
                        self._copy(self._copy_linked, source, target, (*path, name), found)
                    else:
                        files.append((name, found))
                self._together(
                    partial(self._copy, self._copy_file, source, target, (*path, name), found)
                    for name, found in files
                )
                self._report(self._work.progress)
                self._work.confirm()
                if len(folders) >= _FOLDERS_MAX:
                    self._copy_folders(source, target, path, folders)
                    folders.clear()
        self._copy_folders(source, target, path, folders)

    def _copy_folders(
        self, source: int, target: int, path: Sequence[str], folders: Mapping[str, os.stat_result]
    ) -> None:
        for number, (name, found) in enumerate(folders.items(), start=1):
            self._copy_folder(source, target, (*path, name), found)
            if number % _CHUNK == 0:  # Most may be complete, and would otherwise report nothing.
                self._report(self._work.progress)
                self._work.confirm()

    def _missing(
        self, chunk: Sequence[tuple[str, os.stat_result]], target: int
    ) -> list[tuple[str, os.stat_result]]:
        copies = self._together(partial(stat_or_none, name, target) for name, _ in chunk)
        return [one for one, copy in zip(chunk, copies, strict=True) if copy is None]

    def _together(self, actions: Iterable[Callable[[], _T]]) -> list[_T]:
        """Do all of it in the threads; none of it is in progress afterwards, also not after a failure."""
        try:
            tasks = [self._work.threads.submit(action) for action in actions]
            return [task.result() for task in tasks]
        except BaseException:
            # The callers close their descriptors. Soon these numbers would be those of other directories.
            self._work.threads.shutdown(cancel_futures=True)
            raise

    def _copy(
        self,
        copy: Callable[[int, int, str, os.stat_result], None],
        source: int,
        target: int,
        path: Sequence[str],
        found: os.stat_result,
    ) -> None:
        """Copy a file in that way, again if it is replaced meanwhile, and not at all if it vanishes."""
        name = path[-1]
        with _about(path):
            for attempt in range(_REPLACEMENTS_FOLLOWED + 1):
                try:
                    copy(source, target, name, found)
                except OSError as error:
                    if error.errno not in _GONE or attempt == _REPLACEMENTS_FOLLOWED:
                        raise
                else:
                    return
                now, partial = stat_or_none(name, source), stat_or_none(name, target)
                if partial is not None:
                    self._remove(target, name, partial)
                if now is None or stat.S_ISDIR(now.st_mode):
                    return
                found = now

    def _copy_folder(self, source: int, target: int, path: Sequence[str], found: os.stat_result) -> None:
        name = path[-1]
        with _about(path):
            is_new = self._make_folder(target, name)
            before = os.stat(name, dir_fd=target, follow_symlinks=False)
            if not is_new and self._is_copied(found, before):
                return
            inside = _open_or_none(name, source)
            if inside is None:
                self._remove(target, name, before)
                return
            try:
                folder = os.open(name, OPEN_DIRECTORY, dir_fd=target)
            except OSError:
                os.close(inside)
                raise
        try:
            # Its times from before the listing: if it changes meanwhile, the next attempt looks again.
            found = os.fstat(inside)
            self.fill(inside, folder, path, is_new=is_new)
            with _about(path):
                self._finish(inside, folder, found)
            self._count(0)
        finally:
            os.close(folder)
            os.close(inside)

    def _make_folder(self, target: int, name: str) -> bool:
        """Make the directory, instead of a file if there is one; returns whether it is new."""
        with suppress(FileExistsError):
            os.mkdir(name, _PRIVATE, dir_fd=target)
            return True
        found = os.stat(name, dir_fd=target, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            return False
        self._remove(target, name, found)
        os.mkdir(name, _PRIVATE, dir_fd=target)
        return True

    def _copy_file(self, source: int, target: int, name: str, found: os.stat_result) -> None:
        """Copy a file, a link or a special file."""
        before = stat_or_none(name, target)
        if before is not None:
            if self._is_copied(found, before):
                return
            self._remove(target, name, before)
        if stat.S_ISREG(found.st_mode):
            self._copy_data(source, target, name)
            return
        if stat.S_ISLNK(found.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        else:
            os.mknod(name, stat.S_IFMT(found.st_mode) | 0o600, found.st_rdev, dir_fd=target)
        uid, gid = self._work.owners(found)
        os.chown(name, uid, gid, dir_fd=target, follow_symlinks=False)
        if not stat.S_ISLNK(found.st_mode):
            os.chmod(name, stat.S_IMODE(found.st_mode), dir_fd=target)
        times = (found.st_atime_ns, found.st_mtime_ns)
        os.utime(name, ns=times, dir_fd=target, follow_symlinks=False)
        self._count(0)

    def _copy_linked(self, source: int, target: int, name: str, found: os.stat_result) -> None:
        """Copy a file that has several names: once, and all further names as links to that copy.

        The first copy also gets a name in the directory of links, which an interrupted copy keeps until all
        is copied. That name counts as a link, so of a file with the most links that the server allows, the
        last is copied again.
        """
        links, key = self._work.links, f"{found.st_ino:x}"
        first, before = stat_or_none(key, links), stat_or_none(name, target)
        if first is not None and not self._is_copied(found, first):
            # An earlier attempt copied an older state, or another file had the inode then.
            self._remove(links, key, first)
            first = None
        if before is not None:
            if first is not None and os.path.samestat(before, first):
                return
            if first is None and self._is_copied(found, before):
                # An earlier attempt has ended between the last file and the rename.
                _link(target, name, links, key)
                return
            self._remove(target, name, before)
        if first is not None and _link(links, key, target, name):
            self._count(0)
            return
        self._copy_data(source, target, name)
        if first is None:
            _link(target, name, links, key)

    def remove_links(self) -> None:
        """Remove the names in the directory of links, so that files have as many names as in the source."""
        links = self._work.links
        self._work.confirm()
        # The listing begins again each time: it may omit names while others are removed.
        while names := _some_names(links):
            self._together(partial(os.unlink, name, dir_fd=links) for name in names)
            self._report(self._work.progress)
            self._work.confirm()

    def _copy_data(self, source: int, target: int, name: str) -> None:
        """Copy a regular file that does not exist in the target."""
        # O_NONBLOCK: a user may have replaced the file by a named pipe, and its open would wait for a writer.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        data = os.open(name, flags, dir_fd=source)
        try:
            found = os.fstat(data)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            copy = os.open(name, flags, 0o600, dir_fd=target)
            try:
                offset = 0
                while sent := os.sendfile(copy, data, offset, _BLOCK_BYTES):
                    offset += sent
                    self._count(sent, entries=0)
                    if sent == _BLOCK_BYTES:
                        self._work.confirm()
                # The server may refuse data long after it was written. Without this, only the close would
                # report that, and the file would already count as complete.
                os.fsync(copy)
                self._finish(data, copy, found)
            finally:
                os.close(copy)
        finally:
            os.close(data)
        self._count(0)

    def _finish(self, source: int, copy: int, found: os.stat_result) -> None:
        """Set what makes a file or directory complete, the times last.

        The owners come before the mode: their change may clear setuid and setgid.
        """
        set_owners(copy, *self._work.owners(found))
        os.fchmod(copy, stat.S_IMODE(found.st_mode))
        _copy_attributes(source, copy)
        os.utime(copy, ns=(found.st_atime_ns, found.st_mtime_ns))

    def _is_copied(self, source: os.stat_result, copy: os.stat_result) -> bool:
        # The access time does not count: reading a file changes it.
        return (
            source.st_mode == copy.st_mode
            and source.st_mtime_ns == copy.st_mtime_ns
            and (stat.S_ISDIR(source.st_mode) or source.st_size == copy.st_size)
            and self._work.owners(source) == (copy.st_uid, copy.st_gid)
        )

    def _remove_vanished(self, source: int, target: int, path: Sequence[str]) -> None:
        removed = -1
        # Again after each removal, because an NFS server may omit names while others are removed.
        while removed:
            removed = 0
            for chunk in _chunks(target, frozenset(), path):
                for name, found in chunk:
                    with _about((*path, name)):
                        if stat_or_none(name, source) is None:
                            self._remove(target, name, found)
                            removed += 1
                self._report(self._work.progress)

    def _remove(self, target: int, name: str, found: os.stat_result) -> None:
        """Remove a name from the unfinished copy."""
        self._work.confirm()
        if stat.S_ISDIR(found.st_mode):
            discard(self._work.root, target, name)
        else:
            os.unlink(name, dir_fd=target)

    def _count(self, copied_bytes: int, *, entries: int = 1) -> None:
        with self._counting:
            before = self._work.progress
            self._work.progress = CopyProgress(
                entries=before.entries + entries, copied_bytes=before.copied_bytes + copied_bytes
            )
        if not entries:
            self._report(self._work.progress)


def _link(folder: int, name: str, into: int, new: str) -> bool:
    """Give the file another name; returns whether the server allows one more."""
    try:
        os.link(name, new, src_dir_fd=folder, dst_dir_fd=into, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.EMLINK:
            raise
        return False
    return True


def discard(root: int, parent: int, name: str) -> None:
    """Move what has that name into the trash of the file system."""
    with opened_trash(root) as trash:
        os.rename(name, entry_name(""), src_dir_fd=parent, dst_dir_fd=trash)


def set_owners(descriptor: int, uid: int, gid: int) -> None:
    """Set the owners unless they are the same."""
    found = os.fstat(descriptor)
    # Without root access, even a change to the same owners fails.
    if (found.st_uid, found.st_gid) != (uid, gid):
        os.fchown(descriptor, uid, gid)


def _copy_attributes(source: int, copy: int) -> None:
    """Copy extended attributes, on file systems that have them; EFS has none."""
    try:
        names = os.listxattr(source)
    except OSError as error:
        if error.errno in _NO_ATTRIBUTES:
            return
        raise
    for name in names:
        if name.startswith(_ATTRIBUTES):
            os.setxattr(copy, name, os.getxattr(source, name))


def _chunks(
    folder: int, omitted: frozenset[str], path: Sequence[str]
) -> Generator[list[tuple[str, os.stat_result]], None, None]:
    """The names in a directory with what they are, some at a time; those that vanish are left out."""
    chunk: list[tuple[str, os.stat_result]] = []
    with os.scandir(folder) as listing:
        for entry in listing:
            if entry.name in omitted:
                continue
            with _about((*path, entry.name)), suppress(FileNotFoundError):
                chunk.append((entry.name, entry.stat(follow_symlinks=False)))
            if len(chunk) == _CHUNK:
                yield chunk
                chunk = []
    yield chunk


def _modified(folder: int, path: Sequence[str]) -> int:
    """When names were last added or removed; opened again, because an NFS client then asks the server."""
    with _about(path), opened(folder, (".",)) as same:
        return os.fstat(same).st_mtime_ns


def _some_names(folder: int) -> list[str]:
    with os.scandir(folder) as listing:
        return [entry.name for entry in islice(listing, _CHUNK)]


@contextmanager
def _about(path: Sequence[str]) -> Iterator[None]:
    """Name the file in an error."""
    try:
        yield
    except OSError as error:
        raise _failed(path, error.strerror or "") from error


def _failed(path: Sequence[str], reason: str) -> WorkerFailed:
    remedy = "the copy continues with the next attempt"
    value = "/".join(path) or "."
    return WorkerFailed(f"cannot be copied ({reason})", field="file", value=value, remedy=remedy)


def stat_or_none(name: str, folder: int) -> os.stat_result | None:
    """What has that name, without following a link; None if nothing has."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise


def _open_or_none(name: str, folder: int) -> int | None:
    """The directory, without following a link; None when something else has its name now."""
    try:
        return os.open(name, OPEN_DIRECTORY, dir_fd=folder)
    except OSError as error:
        # Not ESTALE: the directory may still be there, and all of it would be missing.
        if error.errno in {*NO_DIRECTORY, errno.ENOENT}:
            return None
        raise
