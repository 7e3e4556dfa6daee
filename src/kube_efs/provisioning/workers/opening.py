"""Directories of a mounted file system as descriptors, opened without following a link."""

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# The errors of opening a link or a file with these flags.
NO_DIRECTORY: Final = frozenset({errno.ELOOP, errno.ENOTDIR})

_PRIVATE: Final = 0o700


@contextmanager
def opened(start: int, names: Sequence[str]) -> Iterator[int]:
    """The directory at the path of these names; raises OSError."""
    here = os.dup(start)
    try:
        for name in names:
            child = os.open(name, OPEN_DIRECTORY, dir_fd=here)
            os.close(here)
            here = child
        yield here
    finally:
        os.close(here)


@contextmanager
def opened_or_made(folder: int, name: str) -> Iterator[int]:
    """The directory of that name, which only root can enter if it is new; raises OSError."""
    with suppress(FileExistsError):
        os.mkdir(name, _PRIVATE, dir_fd=folder)
    descriptor = os.open(name, OPEN_DIRECTORY, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
