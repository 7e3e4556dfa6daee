"""Copies a directory with its contents to another place of a mounted file system.

Nobody ever sees a part of a copy, and a copy never changes what others have written. It is made in a
directory of its own, ``.kube-efs-copies/KEY/tree``, which is renamed to the target at the end. The kernel
renames a directory only to a missing or empty one, so a target with contents is refused, not changed.

An attempt that is killed at any moment leaves one of these states, and the next attempt continues from it:

* The tree is incomplete. A file is complete when it has the size, the times, the mode and the owners of its
  source; a directory, when it has the times, the mode and the owners. Both are set last, so complete ones are
  skipped, directories with everything in them. An attempt therefore repeats only what was in progress.
* The tree is complete, and a record ``is-INODE`` with its inode exists, but it was not renamed yet.
* It was renamed. The target then has the inode of the record, and there is nothing to do. This is also
  true when users have changed or deleted the files meanwhile: a copy that was finished once, perhaps by the
  pod of an earlier leader, is never repeated into a volume in use.

A record ``from-HASH`` names the source. An attempt with another one begins again.

The copy reads a directory while others may write into it. Each file is as it was at some moment of the copy.
All calls use directory file descriptors: they follow no link, and enter no other file system.
"""

import errno
import hashlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from kube_efs.model.copies import COPIES, SNAPSHOTS, Copied, CopyProgress, CopyTerms, Owner
from kube_efs.model.efs.directories import Directory, Relation
from kube_efs.model.errors import CopyDiffers, WorkerFailed, WorkerRefused
from kube_efs.provisioning.workers.gid_marks import MARKS
from kube_efs.provisioning.workers.trash import (
    NO_DIRECTORY,
    OPEN_DIRECTORY,
    TRASH,
    entry_name,
    opened_trash,
)

OURS: Final = frozenset({TRASH, MARKS, COPIES, SNAPSHOTS})

_TREE: Final = "tree"
_LINKS: Final = "links"
_PRIVATE: Final = 0o700
_PARENT_MODE: Final = 0o755
# Files of one directory are copied at the same time, because each needs several answers of the server.
_THREADS: Final = 16
_CHUNK: Final = 256
_BLOCK_BYTES: Final = 8 * 1024**2
# Each level needs two descriptors.
_DEPTH_MAX: Final = 200
# How often a file may be replaced while it is copied.
_REPLACEMENTS_FOLLOWED: Final = 3
_GONE: Final = frozenset({errno.ENOENT, errno.ESTALE})
_IN_USE: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST})
_NO_ATTRIBUTES: Final = frozenset({errno.ENOTSUP, errno.ENODATA, errno.ENOSYS})
# Others belong to the kernel, such as labels of SELinux.
_ATTRIBUTES: Final = ("user.", "system.posix_acl_")
# A copy that nobody has continued for so long is abandoned, and the record of a finished one has no use.
_ABANDONED_SECONDS: Final = 7 * 24 * 3600.0

Report = Callable[[CopyProgress], None]


def copy_tree(root: int, target: Directory, terms: CopyTerms, report: Report) -> Copied:
    """Copy the source of the terms to the target, unless a copy with the key is there already.

    ``report`` is called from time to time. Raises WorkerRefused when the target has contents, is or contains
    the source; CopyDiffers when the key belongs to a finished copy of another source; WorkerFailed and
    OSError when a file cannot be copied.
    """
    _check_apart(terms.source, target)
    with _opened_or_made(root, COPIES) as copies, _opened_or_made(copies, terms.key) as folder:
        os.utime(folder)
        with _opened_parent(root, target) as parent:
            finished = _finished(folder, parent, target.parts[-1])
            _record_source(root, folder, terms, is_finished=finished is not None)
            if finished is not None:
                return Copied(progress=CopyProgress(), finished=finished)
            return _copy(root, folder, parent, target, terms, report)


def discard_abandoned(root: int, *, now: Callable[[], float] = time.time) -> None:
    """Move copies that nobody continues into the trash, and old records of finished ones; raises OSError."""
    try:
        copies = os.open(COPIES, OPEN_DIRECTORY, dir_fd=root)
    except FileNotFoundError:
        return
    try:
        with opened_trash(root) as trash:
            for name in os.listdir(copies):  # noqa: PTH208 - of a descriptor
                if now() - _changed(name, copies) <= _ABANDONED_SECONDS:
                    continue
                kept_as = entry_name("")
                os.rename(name, kept_as, src_dir_fd=copies, dst_dir_fd=trash)
                # An attempt that began at this moment must not lose files while it continues.
                if now() - _changed(kept_as, trash) <= _ABANDONED_SECONDS:
                    os.rename(kept_as, name, src_dir_fd=trash, dst_dir_fd=copies)
    finally:
        os.close(copies)


# --- the records of a copy


def _changed(name: str, folder: int) -> float:
    return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime


def _check_apart(source: Directory, target: Directory) -> None:
    if target.is_root or source.relation_to(target) is not Relation.APART or source.is_root:
        raise WorkerRefused(
            "is, contains or is inside the directory of the copy",
            field="source",
            value=str(source),
            remedy=f"use a class whose volumes are not there; this one would be {target}",
        )


def _record_source(root: int, folder: int, terms: CopyTerms, *, is_finished: bool) -> None:
    """Record the source; what an attempt with another source has left is discarded.

    Raises CopyDiffers if the copy of another source is finished.
    """
    own = f"from-{hashlib.sha256(str(terms.source).encode(errors='surrogatepass')).hexdigest()[:32]}"
    names = os.listdir(folder)
    if any(name.startswith("from-") and name != own for name in names):
        if is_finished:
            remedy = "use another name"
            problem = "is the name of a copy of another directory"
            raise CopyDiffers(problem, field="copy", value=terms.key, remedy=remedy)
        for name in names:
            _discard(root, folder, name)
    os.close(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder))


def _finished(folder: int, parent: int, name: str) -> float | None:
    """When the copy became complete, if it is at its target; otherwise None."""
    try:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        return os.stat(_record(found.st_ino), dir_fd=folder, follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return None


def _record(inode: int) -> str:
    return f"is-{inode:x}"


# --- the copy


def _copy(root: int, folder: int, parent: int, target: Directory, terms: CopyTerms, report: Report) -> Copied:
    name = target.parts[-1]
    made = _stat_or_none(name, parent)
    if made is not None and not stat.S_ISDIR(made.st_mode):
        raise _taken(target, "is a link or file")
    with (
        _opened_source(root, terms) as source,
        _opened_or_made(folder, _TREE) as tree,
        _opened_or_made(folder, _LINKS) as links,
    ):
        found = os.fstat(tree if source is None else source)
        owners = _owners(found, made, terms, target)
        with ThreadPoolExecutor(_THREADS) as threads:
            work = _Work(root=root, links=links, device=found.st_dev, owners=owners, threads=threads)
            if source is not None:
                _Copier(work, report).fill(source, tree, (), is_new=False, omitted=OURS)
        _remove_links(links)
        _finish_top(tree, found, made, owners)
        inode = os.fstat(tree).st_ino
    os.rmdir(_LINKS, dir_fd=folder)
    record = _record(inode)
    os.close(os.open(record, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=folder))
    try:
        os.rename(_TREE, name, src_dir_fd=folder, dst_dir_fd=parent)
    except OSError as error:
        if error.errno in _IN_USE:
            raise _taken(target, "exists and is not empty") from error
        raise
    finished = os.stat(record, dir_fd=folder, follow_symlinks=False).st_mtime
    report(work.progress)
    return Copied(progress=work.progress, finished=finished)


def _taken(target: Directory, problem: str) -> WorkerRefused:
    return WorkerRefused(
        problem,
        field="directory",
        value=str(target),
        remedy="remove it, or use a class that gives each claim a directory of its own",
    )


def _owners(
    source: os.stat_result, made: os.stat_result | None, terms: CopyTerms, target: Directory
) -> Callable[[os.stat_result], tuple[int, int]]:
    """What the owners of a file become in the copy."""
    if not terms.maps_owner:
        return lambda found: (found.st_uid, found.st_gid)
    if made is None:
        raise WorkerFailed(
            "does not exist any more", field="directory", value=str(target), remedy="it is retried"
        )
    own = terms.owner or Owner(uid=source.st_uid, gid=source.st_gid)

    def mapped(found: os.stat_result) -> tuple[int, int]:
        uid = made.st_uid if found.st_uid == own.uid else found.st_uid
        gid = made.st_gid if found.st_gid == own.gid else found.st_gid
        return uid, gid

    return mapped


def _finish_top(
    tree: int,
    source: os.stat_result,
    made: os.stat_result | None,
    owners: Callable[[os.stat_result], tuple[int, int]],
) -> None:
    """Give the tree what its volume has: mode and owners of the directory that was made for it, if any."""
    if made is not None:
        _set_owners(tree, made.st_uid, made.st_gid)
        os.fchmod(tree, stat.S_IMODE(made.st_mode))
    else:
        _set_owners(tree, *owners(source))
        os.fchmod(tree, stat.S_IMODE(source.st_mode))
    os.utime(tree, ns=(source.st_atime_ns, source.st_mtime_ns))


def _remove_links(links: int) -> None:
    for name in os.listdir(links):
        os.unlink(name, dir_fd=links)


@dataclass(slots=True, kw_only=True)
class _Work:
    """What all parts of a copy have in common, and the sum of what is done."""

    root: int
    links: int
    device: int
    owners: Callable[[os.stat_result], tuple[int, int]]
    threads: ThreadPoolExecutor
    progress: CopyProgress = field(default_factory=CopyProgress)


class _Copier:
    """Copies directories; only files of one directory are copied at the same time."""

    def __init__(self, work: _Work, report: Report) -> None:
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
        folders: list[tuple[str, os.stat_result]] = []
        for chunk in _chunks(source, omitted, path):
            files = []
            for name, found in chunk:
                if found.st_dev != self._work.device:
                    continue  # A nested mount belongs to another file system.
                if stat.S_ISDIR(found.st_mode):
                    folders.append((name, found))
                elif stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
                    self._copy(self._copy_linked, source, target, (*path, name), found)
                else:
                    files.append((name, found))
            tasks = [
                self._work.threads.submit(self._copy, self._copy_file, source, target, (*path, name), found)
                for name, found in files
            ]
            for task in tasks:
                task.result()
            self._report(self._work.progress)
        for name, found in folders:
            self._copy_folder(source, target, (*path, name), found)

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
                now, partial = _stat_or_none(name, source), _stat_or_none(name, target)
                if partial is not None:
                    self._remove(target, name, partial)
                if now is None or stat.S_ISDIR(now.st_mode):
                    return
                found = now

    def _copy_folder(self, source: int, target: int, path: Sequence[str], found: os.stat_result) -> None:
        name = path[-1]
        with _about(path):
            is_new = _make_folder(self._work.root, target, name)
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

    def _copy_file(self, source: int, target: int, name: str, found: os.stat_result) -> None:
        """Copy a file, a link or a special file."""
        before = _stat_or_none(name, target)
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

        The first copy also gets a name in the directory of links, which an interrupted copy keeps. That name
        counts as a link, so of a file with the most links that the server allows, the last is copied again.
        """
        links, key = self._work.links, f"{found.st_ino:x}"
        first, before = _stat_or_none(key, links), _stat_or_none(name, target)
        if first is not None and not self._is_copied(found, first):
            # An earlier attempt copied an older state, or another file had the inode then.
            os.unlink(key, dir_fd=links)
            first = None
        if before is not None:
            if first is not None and os.path.samestat(before, first):
                return
            self._remove(target, name, before)
        if first is not None:
            try:
                os.link(key, name, src_dir_fd=links, dst_dir_fd=target, follow_symlinks=False)
            except OSError as error:
                if error.errno != errno.EMLINK:
                    raise
            else:
                self._count(0)
                return
        self._copy_data(source, target, name)
        if first is None:
            os.link(name, key, src_dir_fd=target, dst_dir_fd=links, follow_symlinks=False)

    def _copy_data(self, source: int, target: int, name: str) -> None:
        """Copy a regular file that does not exist in the target."""
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
                self._finish(data, copy, found)
            finally:
                os.close(copy)
        finally:
            os.close(data)
        self._count(0)

    def _finish(self, source: int, copy: int, found: os.stat_result) -> None:
        """Set what makes a file or directory complete, the times last."""
        _set_owners(copy, *self._work.owners(found))
        os.fchmod(copy, stat.S_IMODE(found.st_mode))
        _copy_attributes(source, copy)
        os.utime(copy, ns=(found.st_atime_ns, found.st_mtime_ns))

    def _is_copied(self, source: os.stat_result, copy: os.stat_result) -> bool:
        return (
            source.st_mode == copy.st_mode
            and source.st_mtime_ns == copy.st_mtime_ns
            and (stat.S_ISDIR(source.st_mode) or source.st_size == copy.st_size)
            and self._work.owners(source) == (copy.st_uid, copy.st_gid)
        )

    def _remove_vanished(self, source: int, target: int, path: Sequence[str]) -> None:
        for chunk in _chunks(target, frozenset(), path):
            for name, found in chunk:
                with _about((*path, name)):
                    if _stat_or_none(name, source) is None:
                        self._remove(target, name, found)

    def _remove(self, target: int, name: str, found: os.stat_result) -> None:
        """Remove a name from the unfinished copy."""
        if stat.S_ISDIR(found.st_mode):
            _discard(self._work.root, target, name)
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


def _make_folder(root: int, parent: int, name: str) -> bool:
    """Make the directory, instead of a file if there is one; returns whether it is new."""
    with suppress(FileExistsError):
        os.mkdir(name, _PRIVATE, dir_fd=parent)
        return True
    if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
        return False
    _discard(root, parent, name)
    os.mkdir(name, _PRIVATE, dir_fd=parent)
    return True


def _discard(root: int, parent: int, name: str) -> None:
    with opened_trash(root) as trash:
        os.rename(name, entry_name(""), src_dir_fd=parent, dst_dir_fd=trash)


def _set_owners(descriptor: int, uid: int, gid: int) -> None:
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
) -> Iterator[list[tuple[str, os.stat_result]]]:
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


@contextmanager
def _about(path: Sequence[str]) -> Iterator[None]:
    """Name the file in an error."""
    try:
        yield
    except OSError as error:
        raise _failed(path, error.strerror or "") from error


def _failed(path: Sequence[str], reason: str) -> WorkerFailed:
    remedy = "the copy continues with the next attempt"
    return WorkerFailed(f"cannot be copied ({reason})", field="file", value="/".join(path), remedy=remedy)


def _stat_or_none(name: str, folder: int) -> os.stat_result | None:
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
        if error.errno in {*NO_DIRECTORY, *_GONE}:
            return None
        raise


# --- opening


@contextmanager
def _opened_source(root: int, terms: CopyTerms) -> Iterator[int | None]:
    """The source; None when it is missing and may be."""
    here = os.dup(root)
    try:
        for part in terms.source.parts:
            child = os.open(part, OPEN_DIRECTORY, dir_fd=here)
            os.close(here)
            here = child
    except OSError as error:
        os.close(here)
        if error.errno == errno.ENOENT and terms.may_be_missing:
            yield None
            return
        problem = "does not exist" if error.errno == errno.ENOENT else f"cannot be read ({error.strerror})"
        raise WorkerRefused(
            problem, field="source", value=str(terms.source), remedy="check the volume or the snapshot"
        ) from error
    try:
        yield here
    finally:
        os.close(here)


@contextmanager
def _opened_parent(root: int, directory: Directory) -> Iterator[int]:
    """The parent of the directory, made if missing; raises OSError for a link on the path."""
    here = os.dup(root)
    try:
        for part in directory.parts[:-1]:
            with suppress(FileExistsError):
                os.mkdir(part, _PARENT_MODE, dir_fd=here)
            child = os.open(part, OPEN_DIRECTORY, dir_fd=here)
            os.close(here)
            here = child
        yield here
    finally:
        os.close(here)


@contextmanager
def _opened_or_made(folder: int, name: str) -> Iterator[int]:
    with suppress(FileExistsError):
        os.mkdir(name, _PRIVATE, dir_fd=folder)
    descriptor = os.open(name, OPEN_DIRECTORY, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
