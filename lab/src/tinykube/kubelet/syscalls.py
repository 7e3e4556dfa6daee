"""The system calls of Linux about mounts that Python does not have; each raises OSError.

Mounts are moved about as file descriptors (``open_tree``, ``move_mount``: Linux 5.2, ``mount_setattr``:
5.12), so that a path is looked up once, and a read-only bind is read-only from the start.
"""

import ctypes
import os
from enum import IntFlag

_LIBC = ctypes.CDLL(None, use_errno=True)

# The numbers of calls since Linux 5.0 are the same on every architecture but alpha.
_OPEN_TREE = 428
_MOVE_MOUNT = 429
_MOUNT_SETATTR = 442

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MOUNT_ATTR_RDONLY = 1
_MNT_DETACH = 2
_PR_SET_PDEATHSIG = 1

CLONE_NEWNS = 0x20000
CLONE_NEWPID = 0x20000000


class MountFlag(IntFlag):
    """Flags of mount(2)."""

    RDONLY = 1
    NOSUID = 2
    NODEV = 4
    NOEXEC = 8
    REMOUNT = 32
    BIND = 4096
    REC = 16384
    PRIVATE = 1 << 18
    SHARED = 1 << 20


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def unshare(flags: int) -> None:
    """Leave the namespaces of the parent process."""
    _checked(_LIBC.unshare(flags))


def join(process: int, flags: int) -> None:
    """Enter these namespaces of the process that a file descriptor (pidfd) is for."""
    _checked(_LIBC.setns(process, flags))


def die_with_parent(signal_number: int) -> None:
    """Have this process get a signal when the thread that made it ends."""
    _checked(_LIBC.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0))


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount a file system; see section 2 of the manual."""
    code = _LIBC.mount(
        os.fsencode(source),
        os.fsencode(target),
        os.fsencode(kind),
        ctypes.c_ulong(flags),
        os.fsencode(options),
    )
    _checked(code, target)


def unmount(target: str) -> None:
    """Take off what is mounted there, at the latest when nobody uses it any more."""
    _checked(_LIBC.umount2(os.fsencode(target), _MNT_DETACH), target)


def pivot_root(new_root: str) -> None:
    """Make a mount point the root of this mount namespace, and forget the old root."""
    os.chdir(new_root)
    # The old root is stacked over the new one and taken off again: see pivot_root(2), NOTES.
    _checked(_LIBC.pivot_root(b".", b"."), new_root)
    _checked(_LIBC.umount2(b".", _MNT_DETACH), new_root)
    os.chdir("/")


def clone_mount(path: str, *, read_only: bool = False) -> int:
    """A copy of everything mounted at a path and below, as a file descriptor that is mounted nowhere."""
    flags = _OPEN_TREE_CLONE | _AT_RECURSIVE | os.O_CLOEXEC
    tree = _checked(_LIBC.syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags), path)
    if read_only:
        attributes = _MountAttr(attr_set=_MOUNT_ATTR_RDONLY)
        code = _LIBC.syscall(
            _MOUNT_SETATTR,
            tree,
            b"",
            _AT_EMPTY_PATH | _AT_RECURSIVE,
            ctypes.byref(attributes),
            ctypes.sizeof(attributes),
        )
        _checked(code, path)
    return tree


def attach_mount(tree: int, target: str) -> None:
    """Mount what ``clone_mount`` gave, and close it."""
    code = _LIBC.syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)
    os.close(tree)
    _checked(code, target)


def _checked(code: int, path: str = "") -> int:
    if code < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path or None)
    return code
