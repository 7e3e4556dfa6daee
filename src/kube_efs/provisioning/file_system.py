"""Directories of a mounted file system, made and removed so that nothing outside them can be touched.

Every step goes through directory file descriptors and refuses symbolic links, so neither a link planted
by a user of the file system nor a rename in the middle leads anywhere else. A removal first renames the
directory into a trash folder: whatever interrupts it, the directory is either whole in its place or gone
from it, and the next run empties the trash.
"""

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from kube_efs.model.directories import Directory, Relation
from kube_efs.model.errors import PlatformError, RemovalRefused, WorkerFailed

log = structlog.get_logger(__name__)

TRASH = ".kube-efs-trash"

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PARENT_MODE = 0o755
# What opening anything else with these flags fails with: a link, a file.
_NO_DIRECTORY = frozenset({errno.ELOOP, errno.ENOTDIR})


def make_directory(root: Path, directory: Directory, *, mode: int) -> bool:
    """Make the directory with that mode, and parents with 0755; tell whether it was not there before.

    One that is there keeps its mode and contents. Raises WorkerFailed when something else is in the way.
    """
    try:
        with _opened_root(root) as descriptor:
            return _make_below(descriptor, directory, mode)
    except OSError as error:
        raise WorkerFailed(
            f"could not be made ({error.strerror})",
            field="directory",
            value=str(directory),
            remedy=_hint(error),
        ) from error


def _make_below(root: int, directory: Directory, mode: int) -> bool:
    parent, made = os.dup(root), False
    try:
        for depth, name in enumerate(directory.parts, start=1):
            is_leaf = depth == len(directory.parts)
            made = _make_one(parent, name, mode if is_leaf else _PARENT_MODE)
            child = os.open(name, _OPEN_DIRECTORY, dir_fd=parent)
            os.close(parent)
            parent = child
    finally:
        os.close(parent)
    return made


def _make_one(parent: int, name: str, mode: int) -> bool:
    # The mode goes with the call: a chmod afterwards could be lost to a crash in between.
    former = os.umask(0)
    try:
        os.mkdir(name, mode, dir_fd=parent)
    except FileExistsError:
        return False
    finally:
        os.umask(former)
    return True


def remove_directory(root: Path, directory: Directory, *, base: Directory) -> bool:
    """Remove the directory with everything in it; tell whether it was there.

    Raises RemovalRefused, with nothing touched, unless it is strictly inside ``base``, outside the trash,
    reached without a link, and on the same file system as ``root``; WorkerFailed when the server says no.
    """
    _refuse_outside(directory, base)
    try:
        with _opened_root(root) as descriptor:
            moved_to = _move_to_trash(descriptor, directory)
            with _opened_trash(descriptor) as trash:
                if moved_to is not None:
                    _remove_tree(trash, moved_to)
                _empty(trash, directory)
            return moved_to is not None
    except OSError as error:
        raise WorkerFailed(
            f"could not be removed ({error.strerror})",
            field="directory",
            value=str(directory),
            remedy=_hint(error),
        ) from error


def _empty(trash: int, directory: Directory) -> None:
    """Remove what interrupted runs have left; what resists must not keep others' directories from going."""
    for name in os.listdir(trash):
        try:
            _remove_tree(trash, name)
        except OSError as error:
            log.warning("trash-not-emptied", entry=name, after=str(directory), reason=error.strerror)


def _remove_tree(trash: int, name: str) -> None:
    """Remove an entry of the trash with all that is in it.

    Directories in it are moved up into the trash before they are removed in turn, so that neither stack
    nor descriptors run out however deep people have nested them. What is mounted there does not move and
    so is not entered.
    """
    waiting = [name]
    while waiting:
        name = waiting.pop()
        try:
            folder = os.open(name, _OPEN_DIRECTORY, dir_fd=trash)
        except OSError as error:
            if error.errno not in _NO_DIRECTORY:
                raise
            os.unlink(name, dir_fd=trash)
            continue
        try:
            waiting += _unload(folder, trash)
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=trash)


def _unload(folder: int, trash: int) -> list[str]:
    """Empty the folder; gives the names under which its directories are in the trash now."""
    moved = []
    with os.scandir(folder) as listing:
        entries = list(listing)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            moved.append(uuid.uuid4().hex)
            os.rename(entry.name, moved[-1], src_dir_fd=folder, dst_dir_fd=trash)
        else:
            os.unlink(entry.name, dir_fd=folder)
    return moved


def _refuse_outside(directory: Directory, base: Directory) -> None:
    if directory.relation_to(base) is not Relation.BELOW:
        raise RemovalRefused(
            "is not strictly inside the base directory",
            field="directory",
            value=str(directory),
            remedy=f"only directories below {base} are removed",
        )
    if directory.parts[0] == TRASH:
        raise RemovalRefused("is the trash folder", field="directory", value=str(directory))


def _move_to_trash(root: int, directory: Directory) -> str | None:
    """Rename the directory into the trash; gives its name there, None when it was not in its place."""
    with _opened_parent(root, directory) as parent:
        if parent is None:
            return None
        name = directory.parts[-1]
        try:
            before = _checked_leaf(root, parent, name, directory)
        except FileNotFoundError:
            return None
        with _opened_trash(root) as trash:
            kept_as = uuid.uuid4().hex
            os.rename(name, kept_as, src_dir_fd=parent, dst_dir_fd=trash)
            after = os.stat(kept_as, dir_fd=trash, follow_symlinks=False)
            if (after.st_dev, after.st_ino) != before:
                os.rename(kept_as, name, src_dir_fd=trash, dst_dir_fd=parent)
                raise RemovalRefused("was replaced meanwhile", field="directory", value=str(directory))
    return kept_as


@contextmanager
def _opened_root(root: Path) -> Iterator[int]:
    try:
        descriptor = os.open(root, _OPEN_DIRECTORY)
    except OSError as error:
        raise PlatformError(
            f"cannot be opened ({error.strerror})",
            field="root",
            value=str(root),
            remedy="mount the file system there",
        ) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _opened_parent(root: int, directory: Directory) -> Iterator[int | None]:
    """The directory that holds this one, reached without following a link; None when it is not there."""
    parent = os.dup(root)
    try:
        for name in directory.parts[:-1]:
            child = _open_step(parent, name, directory)
            if child is None:
                os.close(parent)
                parent = -1
                break
            os.close(parent)
            parent = child
        yield None if parent < 0 else parent
    finally:
        if parent >= 0:
            os.close(parent)


def _open_step(parent: int, name: str, directory: Directory) -> int | None:
    try:
        return os.open(name, _OPEN_DIRECTORY, dir_fd=parent)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in _NO_DIRECTORY:
            raise _link_in_the_way(directory, name) from error
        raise


def _checked_leaf(root: int, parent: int, name: str, directory: Directory) -> tuple[int, int]:
    """Device and inode of the directory to remove; raises RemovalRefused for anything but a plain one."""
    try:
        leaf = os.open(name, _OPEN_DIRECTORY, dir_fd=parent)
    except OSError as error:
        if error.errno in _NO_DIRECTORY:
            raise _link_in_the_way(directory, name) from error
        raise
    try:
        found = os.fstat(leaf)
        if found.st_dev != os.fstat(root).st_dev:
            raise RemovalRefused(
                "is another file system",
                field="directory",
                value=str(directory),
                remedy="unmount what is mounted there",
            )
        return found.st_dev, found.st_ino
    finally:
        os.close(leaf)


@contextmanager
def _opened_trash(root: int) -> Iterator[int]:
    with suppress(FileExistsError):
        os.mkdir(TRASH, 0o700, dir_fd=root)
    try:
        trash = os.open(TRASH, _OPEN_DIRECTORY, dir_fd=root)
    except OSError as error:
        if error.errno in _NO_DIRECTORY:
            remedy = f"remove what is called {TRASH} at the top of the file system"
            raise RemovalRefused(
                "is no directory", field="trash folder", value=TRASH, remedy=remedy
            ) from error
        raise
    try:
        yield trash
    finally:
        os.close(trash)


def _link_in_the_way(directory: Directory, name: str) -> RemovalRefused:
    remedy = "look at it; a volume's directory is never a link"
    return RemovalRefused(
        f"is or lies behind a link or file ({name})", field="directory", value=str(directory), remedy=remedy
    )


def _hint(error: OSError) -> str:
    if error.errno in {errno.EACCES, errno.EPERM}:
        return "the file system's policy must allow root access (elasticfilesystem:ClientRootAccess)"
    if error.errno in _NO_DIRECTORY:
        return "a link or file is in the way; move it"
    if error.errno == errno.EROFS:
        return "the file system's policy must allow writing (elasticfilesystem:ClientWrite)"
    return "it is tried again"
