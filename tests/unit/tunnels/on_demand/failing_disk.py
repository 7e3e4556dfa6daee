"""A disk that becomes full at an operation, or a kill at an operation, below real system calls."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TAKES_SPACE = frozenset({"open", "os.link", "os.mkdir"})
_CHANGES = _TAKES_SPACE | {"os.rename", "os.remove"}


class Killed(BaseException):
    """The simulated kill of a process: no later operation reaches the disk."""


class _Fault:
    def __init__(self, folder: Path, operations: int, error: type[BaseException]) -> None:
        self.folder = str(folder)
        self.operations = operations
        self.error = error

    def meets(self, event: str, args: tuple[object, ...]) -> None:
        if not (isinstance(args[0], str | Path) and str(args[0]).startswith(self.folder)):
            return
        if event == "open" and not (isinstance(args[2], int) and args[2] & os.O_CREAT):
            return
        self.operations -= 1
        if self.operations < 0 and self.error is Killed:
            raise Killed
        if self.operations < 0 and event in _TAKES_SPACE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), args[0])


_faults: list[_Fault] = []
_hooked: list[bool] = []


def _audit(event: str, args: tuple[object, ...]) -> None:
    if _faults and event in _CHANGES:
        for fault in _faults:
            fault.meets(event, args)


@contextmanager
def _meeting(fault: _Fault) -> Iterator[None]:
    if not _hooked:
        sys.addaudithook(_audit)  # for good; without a fault it does nothing
        _hooked.append(True)
    _faults.append(fault)
    try:
        yield
    finally:
        _faults.remove(fault)


@contextmanager
def full_disk(folder: Path, *, after: int) -> Iterator[None]:
    """After that many changes below ``folder``, the disk is full."""
    with _meeting(_Fault(folder, after, OSError)):
        yield


@contextmanager
def killed_at(folder: Path, *, after: int) -> Iterator[None]:
    """After that many changes below ``folder``, each raises Killed."""
    with _meeting(_Fault(folder, after, Killed)):
        yield
