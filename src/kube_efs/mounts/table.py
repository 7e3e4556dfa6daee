"""The mount table for many callers: read no more often than necessary, while other processes mount.

**Is anything mounted at this path?** The kernel answers this exactly (``is_mount_point``), without the
table. The table is read only if the kernel cannot answer.

**What is mounted at this path?** Only the table contains this. The kernel returns it in pieces of a page.
Each piece is correct at its moment, but between two pieces other mounts are added and removed, and the
reader can miss one that exists all the time (see ``mountinfo``). A reading is therefore trusted in one
direction. What it contains was mounted after the reading began, even if the table changed meanwhile. What it
does not contain is *not mounted* only if the table did not change, or if the kernel confirms it for that
path. If the kernel cannot answer, several readings must miss it. The mounts of other processes therefore do
not cause another reading of what one reading has shown.

**Sharing.** There is one reading at a time. A call that arrives during a reading cannot use it, because the
part with its path may have been read before. It waits for the next one, which all calls that arrived
meanwhile share. No answer is therefore older than its call, and twenty concurrent calls need two readings.
Only lines with the requested mount point are parsed: to find the mount point in a line takes a twentieth of
the time of parsing it.
"""

import asyncio
import ctypes
import errno
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kube_efs.model.errors import PlatformError
from kube_efs.mounts.mountinfo import (
    MOUNTINFO,
    MountEntry,
    lines_by_mount_point,
    parse_mountinfo,
    read_once,
    table_unreadable,
)
from kube_efs.single_flight import SingleFlight

# If the table changes all the time and the kernel cannot answer for a path.
_READINGS: Final = 5
# The kernel appends this to a mount point that was removed in another mount namespace.
_REMOVED: Final = (b"//deleted", b" (deleted)")
_OPENAT2: Final = 437  # include/uapi/asm-generic/unistd.h
_RESOLVE_NO_XDEV: Final = 0x01  # include/uapi/linux/openat2.h
# Nothing can be mounted on a name that does not exist, nor below one that is not a directory.
_NOT_THERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP})


class _OpenHow(ctypes.Structure):
    """``struct open_how``."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_libc: Final = ctypes.CDLL(None, use_errno=True)


def is_mount_point(path: Path) -> bool | None:
    """Whether anything is mounted on exactly that path; None when this kernel does not say.

    ``path`` is absolute and its parents have no links; a link in its place is not a mount point.

    openat2(2) with RESOLVE_NO_XDEV opens a name in its parent directory and refuses with EXDEV to step from
    there onto another mount, bind mounts included. So one system call of some microseconds is exact, however
    many mounts there are and however fast they change. It stops before it enters the mounted file system.
    stat(2), statx(2) and open(2) enter it, whatever their flags, and then wait indefinitely for an NFS
    server that does not answer. Python has no function for openat2, therefore ctypes, which adds 0.7 MB to
    the process; the number of the call is the same on x86-64 and ARM. Kernels before 5.6 do not have it, and
    a sandbox may forbid it: then there is no answer here, and the mount table has to give one.
    """
    try:
        parent = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return False if error.errno in _NOT_THERE else None
    how = _OpenHow(flags=os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, mode=0, resolve=_RESOLVE_NO_XDEV)
    try:
        opened = _libc.syscall(
            ctypes.c_long(_OPENAT2),
            ctypes.c_int(parent),
            ctypes.c_char_p(os.fsencode(path.name)),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        number = ctypes.get_errno()
    finally:
        os.close(parent)
    if opened >= 0:
        os.close(opened)
        return False
    if number == errno.EXDEV:
        return True
    return False if number in _NOT_THERE else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """Lines by mount point; ``is_whole`` if the table did not change during the reading."""

    lines: Mapping[bytes, Sequence[bytes]]
    is_whole: bool

    def at(self, place: Path) -> tuple[MountEntry, ...]:
        """The mounts at that path, a later one above an earlier one."""
        return _parsed(self.lines.get(os.fsencode(place), ()))

    def shows(self, place: Path) -> bool:
        """Whether a mount is there, also if its mount point was removed in another namespace."""
        name = os.fsencode(place)
        return name in self.lines or any(name + mark in self.lines for mark in _REMOVED)

    def mentioning(self, text: bytes) -> Iterator[MountEntry]:
        """The mounts that have the text somewhere in their lines."""
        for lines in self.lines.values():
            yield from _parsed([line for line in lines if text in line])


class MountTable:
    """The mount table of this process; every method raises PlatformError when it cannot be read.

    Paths are absolute and their parents have no links. ``read`` returns the text and whether the table did
    not change, or raises OSError; ``ask`` returns whether a path is a mount point, None if that is unknown.
    """

    def __init__(
        self,
        *,
        read: Callable[[], tuple[bytes, bool]] = read_once,
        ask: Callable[[Path], bool | None] = is_mount_point,
    ) -> None:
        self._read = read
        self._ask = ask
        self._reading = SingleFlight(lambda: asyncio.to_thread(self._read_indexed))

    async def is_mounted(self, place: Path) -> bool:
        """Whether anything is mounted at the path."""
        answer = await asyncio.to_thread(self._ask, place)
        return await self.mounted_at(place) is not None if answer is None else answer

    async def mounted_at(self, place: Path) -> MountEntry | None:
        """The topmost mount at the path; None when nothing is mounted there."""
        answer = None
        for _ in range(_READINGS):
            answer = await asyncio.to_thread(self._ask, place)
            if answer is False:
                return None
            reading = await self._reading()
            if there := reading.at(place):
                return there[-1]
            # The reading misses the path. A whole one proves that nothing is mounted there, but only if the
            # kernel does not know better: with ``answer`` true, something was mounted a moment ago.
            if answer is None and reading.is_whole:
                return None
        if answer:
            problem, remedy = (
                "is a mount point that is missing in the mount table",
                "check that /proc is complete",
            )
            raise PlatformError(problem, field="mounts", value=str(place), remedy=remedy)
        return None

    async def mounted_among(
        self, places: Collection[Path], *, readings: int = _READINGS, pause_seconds: float = 0.0
    ) -> frozenset[Path]:
        """The paths that any of the readings shows as mounted, and those for which this stays unknown."""
        missing, is_sure = set(places), False
        for number in range(readings):
            await asyncio.sleep(pause_seconds if number else 0)
            reading = await self._reading()
            missing = {place for place in missing if not reading.shows(place)}
            is_sure |= reading.is_whole
        # All readings miss these paths. That is certain if one of them was whole.
        if not is_sure:
            missing -= await asyncio.to_thread(self._possibly_mounted, frozenset(missing))
        return frozenset(places) - missing

    async def mounted_from(self, source: str) -> tuple[MountEntry, ...]:
        """Every mount of that source, such as ``fs-1.efs.eu-west-1.amazonaws.com:/data``."""
        # The path behind the server may be written with escapes, the server cannot.
        server = os.fsencode(source.partition(":/")[0])
        found: dict[int, MountEntry] = {}
        for _ in range(_READINGS):
            reading = await self._reading()
            found |= {one.mount_id: one for one in reading.mentioning(server) if one.source == source}
            if reading.is_whole:
                break
        return tuple(found.values())

    def _possibly_mounted(self, places: Collection[Path]) -> frozenset[Path]:
        return frozenset(place for place in places if self._ask(place) is not False)

    def _read_indexed(self) -> _Reading:
        try:
            text, is_whole = self._read()
        except OSError as error:
            raise table_unreadable(error, MOUNTINFO) from error
        return _Reading(lines=lines_by_mount_point(text), is_whole=is_whole)


def _parsed(lines: Sequence[bytes]) -> tuple[MountEntry, ...]:
    return parse_mountinfo(os.fsdecode(b"\n".join(lines)))
