"""Users of an NFS server: the access of a process with certain IDs, tested with NFS calls."""

import asyncio
import ctypes
import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tests.scenarios.nfs import load_libnfs

_TIMEOUT_MILLISECONDS = 5000
_FILE_MODE = 0o660


@dataclass(frozen=True, slots=True, kw_only=True)
class NfsUser:
    """The IDs that a process sends with each call (AUTH_SYS)."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()

    async def may_create(self, port: int, path: str) -> bool:
        """Whether the process can create the file through that loopback port; the file is kept."""
        status = await asyncio.to_thread(self._create, port, path)
        assert status in {0, -errno.EACCES}, os.strerror(-status)
        return status == 0

    async def change_owner(self, port: int, path: str, owner: int) -> None:
        """Give the file to that user and group; fails if the process may not."""
        status = await asyncio.to_thread(self._change_owner, port, path, owner)
        assert status == 0, os.strerror(-status)

    def _create(self, port: int, path: str) -> int:
        with self._connected(port, path) as (library, context):
            file = ctypes.c_void_p()
            status: int = library.nfs_creat(context, path.encode(), _FILE_MODE, ctypes.byref(file))
            if status == 0:
                library.nfs_close(context, file)
            return status

    def _change_owner(self, port: int, path: str, owner: int) -> int:
        with self._connected(port, path) as (library, context):
            status: int = library.nfs_chown(context, path.encode(), owner, owner)
            return status

    @contextmanager
    def _connected(self, port: int, path: str) -> Iterator[tuple[ctypes.CDLL, ctypes.c_void_p]]:
        library = _load()
        context = library.nfs_init_context()
        try:
            url = f"nfs://127.0.0.1/{path}?version=4&nfsport={port}&mountport={port}&autoreconnect=0"
            library.nfs_destroy_url(library.nfs_parse_url_full(context, url.encode()))
            library.nfs_set_timeout(context, _TIMEOUT_MILLISECONDS)
            library.nfs_set_auth(context, self._credentials(library))
            if library.nfs_mount(context, b"127.0.0.1", b"/") < 0:
                raise ConnectionError(library.nfs_get_error(context).decode(errors="replace"))
            yield library, context
        finally:
            library.nfs_destroy_context(context)

    def _credentials(self, library: ctypes.CDLL) -> ctypes.c_void_p:
        made: ctypes.c_void_p = library.libnfs_authunix_create(
            b"pod", self.uid, self.gid, len(self.groups), _array(self.groups)
        )
        return made


def _array(numbers: Sequence[int]) -> ctypes.Array[ctypes.c_uint32]:
    return (ctypes.c_uint32 * len(numbers))(*numbers)


def _load() -> ctypes.CDLL:
    library = load_libnfs()
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32
    library.nfs_init_context.restype = pointer
    library.nfs_get_error.argtypes, library.nfs_get_error.restype = [pointer], text
    library.nfs_parse_url_full.argtypes, library.nfs_parse_url_full.restype = [pointer, text], pointer
    library.nfs_destroy_url.argtypes = [pointer]
    library.nfs_destroy_context.argtypes = [pointer]
    library.nfs_set_timeout.argtypes = [pointer, ctypes.c_int]
    library.libnfs_authunix_create.argtypes = [text, number, number, number, ctypes.POINTER(number)]
    library.libnfs_authunix_create.restype = pointer
    library.nfs_set_auth.argtypes = [pointer, pointer]
    library.nfs_mount.argtypes = [pointer, text, text]
    library.nfs_creat.argtypes = [pointer, text, ctypes.c_int, ctypes.POINTER(pointer)]
    library.nfs_close.argtypes = [pointer, pointer]
    library.nfs_chown.argtypes = [pointer, text, ctypes.c_int, ctypes.c_int]
    return library
