"""Copies a directory with its contents to another place of a mounted file system.

Nobody ever sees a part of a copy, and a copy never changes what others have written. It is made in a
directory of its own, ``.kube-efs-copies/KEY/tree-ATTEMPT``, which is renamed to the target at the end. The
kernel renames a directory only to a missing or empty one, so a target with contents is refused, not changed.

An attempt that is killed at any moment leaves one of these states, and the next attempt continues from it:

* The tree is incomplete. A file is complete when it has the size, the times, the mode and the owners of its
  source; a directory, when it has the times, the mode and the owners. Both are set last, so complete ones are
  skipped, directories with everything in them. An attempt therefore repeats only what was in progress.
* The tree is complete, and a record ``is-INODE`` with its inode exists, but it was not renamed yet.
* It was renamed. The target then has the inode of the record, and there is nothing to do. This is also
  true when users have changed or deleted the files meanwhile: a copy that was finished once, perhaps by the
  pod of an earlier leader, is never repeated into a volume in use.

A record ``from-HASH`` names the source. An attempt with another one begins again.

Only the last attempt works on a copy. Each begins by giving the tree a name of its own. An earlier one may
still be running: its node was cut off, or its process stood still. It stops as soon as it misses its name,
and its rename at the end fails without it, however late that comes.

The copy reads a directory while others may write into it. A file that is written while it is read may have
parts of both states in the copy. ``tree_copy`` copies the files.
"""

import errno
import hashlib
import os
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from kube_efs.model.copies import COPIES, SNAPSHOTS, Copied, CopyProgress, CopyTerms, FileOwner
from kube_efs.model.efs.directories import Directory, Relation
from kube_efs.model.errors import CopyDiffers, WorkerFailed, WorkerRefused
from kube_efs.provisioning.workers.gid_marks import MARKS
from kube_efs.provisioning.workers.opening import OPEN_DIRECTORY, opened, opened_or_made
from kube_efs.provisioning.workers.trash import TRASH, entry_name
from kube_efs.provisioning.workers.tree_copy import (
    Report,
    TreeCopier,
    Work,
    discard,
    set_owners,
    stat_or_none,
)

OURS: Final = frozenset({TRASH, MARKS, COPIES, SNAPSHOTS})

_TREE: Final = "tree"
_LINKS: Final = "links"
_FROM: Final = "from-"
_PRIVATE: Final = 0o700
_PARENT_MODE: Final = 0o755
# Files of one directory are copied at the same time, because each needs several answers of the server.
_THREADS: Final = 16
_NOT_EMPTY: Final = "exists and is not empty"
_IN_USE: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST})
# A copy that nobody has continued for so long is abandoned, and the record of a finished one has no use.
_ABANDONED_SECONDS: Final = 7 * 24 * 3600.0
# How often an attempt in progress shows that it continues the copy.
_RENEWED_SECONDS: Final = 3600.0


def copy_tree(root: int, target: Directory, terms: CopyTerms, report: Report) -> Copied:
    """Copy the source of the terms to the target, unless a copy with the key is there already.

    ``report`` is called from time to time. Raises WorkerRefused when the target has contents, is or contains
    the source; CopyDiffers when the key belongs to a finished copy of another source; WorkerFailed and
    OSError when a file cannot be copied.
    """
    _check_apart(terms.source, target)
    with opened_or_made(root, COPIES) as copies, opened_or_made(copies, terms.key) as folder:
        # Others remove abandoned copies by this time. It shows that this one is continued.
        os.utime(folder)
        attempt = _take_over(root, folder, terms.key)
        with _opened_parent(root, target) as parent:
            # After the earlier attempts have lost the copy: they cannot finish it any more.
            finished = _finished(folder, parent, target.parts[-1])
            has_another_source = _has_another_source(folder, terms)
            if finished is not None:
                with suppress(OSError):
                    os.rmdir(attempt.tree, dir_fd=folder)
                if has_another_source:
                    remedy = "use another name"
                    problem = "is the name of a copy of another directory"
                    raise CopyDiffers(problem, field="copy", value=terms.key, remedy=remedy)
                return Copied(progress=CopyProgress(), finished=finished)
            if has_another_source:
                attempt = _begin_again(root, folder, terms.key)
            _make_record(_source_record(terms), folder)
            return _copy(attempt, folder, parent, target, terms, report)


def discard_abandoned(root: int) -> None:
    """Move copies that nobody continues into the trash, and old records of finished ones; raises OSError."""
    try:
        copies = os.open(COPIES, OPEN_DIRECTORY, dir_fd=root)
    except FileNotFoundError:
        return
    try:
        # The clock of the server: it has also set the times of the copies, and the one here may differ.
        os.utime(copies)
        oldest = os.fstat(copies).st_mtime - _ABANDONED_SECONDS
        for name in os.listdir(copies):  # noqa: PTH208 - of a descriptor
            with suppress(FileNotFoundError):  # Another process has discarded it, too.
                if _changed(name, copies) < oldest:
                    _discard_abandoned(root, copies, name, oldest)
    finally:
        os.close(copies)


def _discard_abandoned(root: int, copies: int, name: str, oldest: float) -> None:
    # Not into the trash at once: an attempt that begins at this moment must not lose files, and others would
    # empty the trash before it is moved back. If this process ends here, the name is abandoned in turn.
    aside = entry_name("")
    os.rename(name, aside, src_dir_fd=copies, dst_dir_fd=copies)
    if _changed(aside, copies) >= oldest:
        try:
            os.rename(aside, name, src_dir_fd=copies, dst_dir_fd=copies)
        except OSError as error:
            # The next attempt has already begun without it.
            if error.errno not in _IN_USE:
                raise
        else:
            return
    discard(root, copies, aside)


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


class _Attempt:
    """This attempt at the copy with the key, by the name of its tree."""

    def __init__(self, root: int, key: str) -> None:
        self.root = root
        self.key = key
        self.tree = f"{_TREE}-{uuid.uuid4().hex}"
        self._renewed = time.monotonic()

    @contextmanager
    def opened(self) -> Iterator[int]:
        """The directory of the copy; raises WorkerFailed when it is not the one of this attempt any more.

        It is searched from the root, because a descriptor stays valid when the copy gets into the trash. An
        NFS client asks the server whenever it opens a directory, so its cache hides no other attempt.
        """
        with ExitStack() as stack:
            try:
                folder = stack.enter_context(opened(self.root, (COPIES, self.key)))
                os.stat(self.tree, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError as error:
                raise self.lost() from error
            yield folder

    def confirm(self) -> None:
        """Raise WorkerFailed unless the copy belongs to this attempt; regularly show that it is continued."""
        with self.opened() as folder:
            if time.monotonic() > self._renewed + _RENEWED_SECONDS:
                os.utime(folder)
                self._renewed = time.monotonic()

    def lost(self) -> WorkerFailed:
        """The error of an attempt that has no copy any more."""
        remedy = "the copy continues with the next attempt"
        problem = "was taken over by another attempt, or removed"
        return WorkerFailed(problem, field="copy", value=self.key, remedy=remedy)


def _take_over(root: int, folder: int, key: str) -> _Attempt:
    """Make the tree that of a new attempt; raises WorkerFailed if another one does so at this moment."""
    attempt = _Attempt(root, key)
    try:
        if trees := _trees(folder):
            os.rename(trees[0], attempt.tree, src_dir_fd=folder, dst_dir_fd=folder)
        else:
            os.mkdir(attempt.tree, _PRIVATE, dir_fd=folder)
        # Again: of two attempts that have found no tree and made one each, at most one keeps it.
        for other in _trees(folder):
            if other != attempt.tree:
                discard(root, folder, other)
    except FileNotFoundError as error:
        raise attempt.lost() from error
    return attempt


def _trees(folder: int) -> list[str]:
    return [name for name in os.listdir(folder) if name.startswith(_TREE)]


def _begin_again(root: int, folder: int, key: str) -> _Attempt:
    """Discard what attempts with another source have left."""
    # The record last: without it, the next attempt would continue the copy of the other source.
    for name in sorted(os.listdir(folder), key=lambda name: name.startswith(_FROM)):
        discard(root, folder, name)
    return _take_over(root, folder, key)


def _has_another_source(folder: int, terms: CopyTerms) -> bool:
    own = _source_record(terms)
    return any(name.startswith(_FROM) and name != own for name in os.listdir(folder))


def _source_record(terms: CopyTerms) -> str:
    return f"{_FROM}{hashlib.sha256(str(terms.source).encode(errors='surrogatepass')).hexdigest()[:32]}"


def _finished(folder: int, parent: int, name: str) -> float | None:
    """When the copy became complete, if it is at its target; otherwise None."""
    try:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        return os.stat(_record(found.st_ino), dir_fd=folder, follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return None


def _record(inode: int) -> str:
    return f"is-{inode:x}"


def _make_record(name: str, folder: int) -> None:
    os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder))


# --- the copy


def _copy(
    attempt: _Attempt, folder: int, parent: int, target: Directory, terms: CopyTerms, report: Report
) -> Copied:
    name = target.parts[-1]
    made = stat_or_none(name, parent)
    if made is not None and not stat.S_ISDIR(made.st_mode):
        raise _taken(target, "is a link or file")
    if made is not None and terms.in_use:
        raise _taken(target, "exists and is used by another volume")
    # The rename at the end decides. This only avoids to read the whole source before.
    if made is not None and _has_contents(parent, name):
        raise _taken(target, _NOT_EMPTY)
    with (
        _opened_source(attempt.root, terms) as source,
        _opened_tree(attempt, folder) as tree,
        opened_or_made(folder, _LINKS) as links,
    ):
        if source is None and os.listdir(tree):  # noqa: PTH208 - of a descriptor
            # An earlier attempt has copied a part of it, so it is not the directory of an unused volume.
            raise _refused_source(terms, "does not exist any more, and only a part of it was copied")
        found = os.fstat(tree if source is None else source)
        owners = _owners(found, made, terms, target)
        with ThreadPoolExecutor(_THREADS) as threads:
            work = Work(
                root=attempt.root,
                confirm=attempt.confirm,
                links=links,
                device=found.st_dev,
                owners=owners,
                threads=threads,
            )
            copier = TreeCopier(work, report)
            if source is not None:
                copier.fill(source, tree, (), is_new=False, omitted=OURS)
            copier.remove_links()
        # A missing source has had no other report. A copy that was given up ends here.
        report(work.progress)
        os.rmdir(_LINKS, dir_fd=folder)
        with attempt.opened() as own:
            _finish_top(tree, found, made, owners)
            record = _record(os.fstat(tree).st_ino)
            # Before the rename. After it, users may write into the directory. An attempt that is killed in
            # between would leave a target with contents and no sign that it is the finished copy: the next
            # one would be refused.
            _make_record(record, own)
            try:
                os.rename(attempt.tree, name, src_dir_fd=own, dst_dir_fd=parent)
            except FileNotFoundError as error:
                raise attempt.lost() from error
            except OSError as error:
                if error.errno in _IN_USE:
                    raise _taken(target, _NOT_EMPTY) from error
                raise
    finished = os.stat(record, dir_fd=folder, follow_symlinks=False).st_mtime
    report(work.progress)
    return Copied(progress=work.progress, finished=finished)


def _has_contents(parent: int, name: str) -> bool:
    with opened(parent, (name,)) as directory, os.scandir(directory) as entries:
        return next(entries, None) is not None


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
    own = terms.owner or FileOwner(uid=source.st_uid, gid=source.st_gid)

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
        set_owners(tree, made.st_uid, made.st_gid)
        os.fchmod(tree, stat.S_IMODE(made.st_mode))
    else:
        set_owners(tree, *owners(source))
        os.fchmod(tree, stat.S_IMODE(source.st_mode))
    os.utime(tree, ns=(source.st_atime_ns, source.st_mtime_ns))


# --- opening


@contextmanager
def _opened_tree(attempt: _Attempt, folder: int) -> Iterator[int]:
    with ExitStack() as stack:
        try:
            tree = stack.enter_context(opened(folder, (attempt.tree,)))
        except FileNotFoundError as error:
            raise attempt.lost() from error
        yield tree


@contextmanager
def _opened_source(root: int, terms: CopyTerms) -> Iterator[int | None]:
    """The source; None when it is missing and may be."""
    with ExitStack() as stack:
        try:
            source = stack.enter_context(opened(root, terms.source.parts))
        except OSError as error:
            is_missing = error.errno == errno.ENOENT
            if not (is_missing and terms.may_be_missing):
                problem = "does not exist" if is_missing else f"cannot be read ({error.strerror})"
                raise _refused_source(terms, problem) from error
            source = None
        yield source


def _refused_source(terms: CopyTerms, problem: str) -> WorkerRefused:
    remedy = "check the volume or the snapshot"
    return WorkerRefused(problem, field="source", value=str(terms.source), remedy=remedy)


@contextmanager
def _opened_parent(root: int, directory: Directory) -> Iterator[int]:
    """The parent of the directory, made if missing; raises OSError for a link on the path."""
    here = os.dup(root)
    try:
        for part in directory.parts[:-1]:
            with suppress(FileExistsError):
                # Snapshots contain files of all users.
                os.mkdir(part, _PRIVATE if part == SNAPSHOTS else _PARENT_MODE, dir_fd=here)
            child = os.open(part, OPEN_DIRECTORY, dir_fd=here)
            os.close(here)
            here = child
        yield here
    finally:
        os.close(here)
