"""The trash folder of a file system: where directories are renamed to before what is in them is removed.

Everything goes through directory file descriptors and refuses symbolic links.
"""

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from kube_efs.model.errors import RemovalRefused

TRASH = ".kube-efs-trash"

OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# What opening anything else with these flags fails with: a link, a file.
NO_DIRECTORY = frozenset({errno.ELOOP, errno.ENOTDIR})


@contextmanager
def opened_trash(root: int) -> Iterator[int]:
    """The trash folder of the file system, made when it is not there; raises RemovalRefused and OSError."""
    with suppress(FileExistsError):
        os.mkdir(TRASH, 0o700, dir_fd=root)
    try:
        trash = os.open(TRASH, OPEN_DIRECTORY, dir_fd=root)
    except OSError as error:
        if error.errno in NO_DIRECTORY:
            remedy = f"remove what is called {TRASH} at the top of the file system"
            raise RemovalRefused(
                "is no directory", field="trash folder", value=TRASH, remedy=remedy
            ) from error
        raise
    try:
        yield trash
    finally:
        os.close(trash)


def empty(trash: int) -> None:
    """Remove what interrupted runs have left; what resists must not keep others' directories from going."""
    for name in os.listdir(trash):
        try:
            remove_tree(trash, name)
        except OSError as error:
            _say_left(name, error)


def _say_left(entry: str, error: OSError) -> None:
    # Half of a worker's start would be for the library of the logs, of which it seldom has need.
    import structlog  # noqa: PLC0415

    structlog.get_logger(__name__).warning("trash-not-emptied", entry=entry, reason=error.strerror)


def remove_tree(trash: int, name: str) -> None:
    """Remove an entry of the trash with all that is in it; raises OSError.

    Directories in it are moved up into the trash before they are removed in turn, so that neither stack
    nor descriptors run out however deep people have nested them. What is mounted there does not move and
    so is not entered.
    """
    waiting = [name]
    while waiting:
        name = waiting.pop()
        try:
            folder = os.open(name, OPEN_DIRECTORY, dir_fd=trash)
        except OSError as error:
            if error.errno not in NO_DIRECTORY:
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
