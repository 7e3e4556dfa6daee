"""A slow reader of a large file through a tunnel."""

import asyncio
import ctypes
import hashlib
import os
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from types import TracebackType
from typing import Self

from tests.scenarios.steps import Cluster, port_of

from kube_efs.model.efs.ids import FileSystemId

CHUNK_BYTES = 256 * 1024
# Of Debian 12 and 13. Functions of later versions have other arguments.
_NAMES = ("libnfs.so.13", "libnfs.so.14")
# A lost connection is an error at once. A machine under load may need seconds for an answer.
_TIMEOUT_MILLISECONDS = 15_000
_PAUSE_SECONDS = 0.1
_CONNECT_SECONDS = 20.0


class LibnfsError(Exception):
    """An error of the library."""


class LibnfsFile:
    """A file opened with libnfs (NFSv4), which never reconnects by itself; calls block."""

    def __init__(self, port: int, name: str) -> None:
        self._library = _load()
        self._context = self._library.nfs_init_context()
        url = f"nfs://127.0.0.1//{name}?version=4&nfsport={port}&mountport={port}&autoreconnect=0".encode()
        parsed = self._library.nfs_parse_url_full(self._context, url)
        self._library.nfs_set_timeout(self._context, _TIMEOUT_MILLISECONDS)
        self._file = ctypes.c_void_p()
        try:
            self._check(self._library.nfs_mount(self._context, b"127.0.0.1", b"/"))
            path = f"/{name}".encode()
            self._check(self._library.nfs_open(self._context, path, os.O_RDONLY, ctypes.byref(self._file)))
        except LibnfsError:
            self.close()
            raise
        finally:
            self._library.nfs_destroy_url(parsed)

    def read(self, offset: int, size: int) -> bytes:
        """Read up to that many bytes; raises LibnfsError if the connection is lost."""
        buffer = ctypes.create_string_buffer(size)
        count = self._check(self._library.nfs_pread(self._context, self._file, offset, size, buffer))
        return buffer.raw[:count]

    def close(self) -> None:
        """Close the connection without a message to the server."""
        if self._context:
            self._library.nfs_destroy_context(self._context)
            self._context = None

    def _check(self, status: int) -> int:
        if status < 0:
            raise LibnfsError(self._library.nfs_get_error(self._context).decode(errors="replace"))
        return status


def load_libnfs() -> ctypes.CDLL:
    """The library that this machine has; raises LibnfsError without one."""
    for name in _NAMES:
        with suppress(OSError):
            return ctypes.CDLL(name)
    raise LibnfsError(f"cannot load {' or '.join(_NAMES)}; install the Debian package libnfs-utils")


def _load() -> ctypes.CDLL:
    library = load_libnfs()
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    library.nfs_init_context.restype = pointer
    library.nfs_get_error.argtypes, library.nfs_get_error.restype = [pointer], text
    library.nfs_parse_url_full.argtypes, library.nfs_parse_url_full.restype = [pointer, text], pointer
    library.nfs_destroy_url.argtypes = [pointer]
    library.nfs_destroy_context.argtypes = [pointer]
    library.nfs_set_timeout.argtypes = [pointer, ctypes.c_int]
    library.nfs_mount.argtypes = [pointer, text, text]
    library.nfs_open.argtypes = [pointer, text, ctypes.c_int, ctypes.POINTER(pointer)]
    library.nfs_pread.argtypes = [pointer, pointer, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_char_p]
    return library


class SlowReader(AbstractAsyncContextManager["SlowReader"]):
    """Reads a file of random bytes in pieces; use as ``async with``.

    The first piece is read when it is entered, some in ``meanwhile``, the rest by ``finish``. Like the
    kernel's client, it reconnects and continues at the same place after a lost connection; ``reconnects``
    counts this.
    """

    def __init__(self, cluster: Cluster, file_system_id: FileSystemId, *, size_bytes: int) -> None:
        self._cluster = cluster
        self._file_system_id = file_system_id
        self._size_bytes = size_bytes
        self._offset = 0
        self._digest = hashlib.sha256()
        self._file: LibnfsFile | None = None
        self.reconnects = 0

    async def __aenter__(self) -> Self:
        large = self._cluster.efs.folder(self._file_system_id) / "large"
        content = os.urandom(self._size_bytes)
        await asyncio.to_thread(large.write_bytes, content)
        self._expected = hashlib.sha256(content).hexdigest()
        self._port = await port_of(self._cluster, self._file_system_id)
        async with asyncio.timeout(_CONNECT_SECONDS):
            # As mount(8) does: what is just connecting when stunnel loads its configuration is reset.
            await self._connect()
        await self._read_piece()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file:
            await asyncio.to_thread(self._file.close)

    async def finish(self, *, seconds: float = 60.0) -> None:
        """Read the rest; fails unless every byte is correct."""
        async with asyncio.timeout(seconds):
            while self._offset < self._size_bytes:
                await self._read_on()
        assert self._digest.hexdigest() == self._expected

    @asynccontextmanager
    async def meanwhile(self) -> AsyncGenerator[None, None]:
        """Read some pieces while the context is open."""
        over = asyncio.Event()

        async def read() -> None:
            while not over.is_set() and self._offset < self._size_bytes:
                await self._read_on()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_PAUSE_SECONDS):
                        await over.wait()

        # Never cancelled: a call of the library continues in its thread.
        reading = asyncio.create_task(read())
        try:
            yield
        finally:
            over.set()
            await reading

    async def _read_on(self) -> None:
        try:
            await self._read_piece()
        except LibnfsError:
            self.reconnects += 1
            await self._reconnect()

    async def _read_piece(self) -> None:
        assert self._file
        piece = await asyncio.to_thread(self._file.read, self._offset, CHUNK_BYTES)
        assert piece, f"the file ends at {self._offset} of {self._size_bytes} bytes"
        self._digest.update(piece)
        self._offset += len(piece)

    async def _reconnect(self) -> None:
        assert self._file
        await asyncio.to_thread(self._file.close)
        await self._connect()

    async def _connect(self) -> None:
        while True:
            try:
                self._file = await asyncio.to_thread(LibnfsFile, self._port, "large")
            except LibnfsError:
                await asyncio.sleep(0.05)
            else:
                return
