"""A reader of a large file through a tunnel, slow enough that something can happen meanwhile."""

import asyncio
import hashlib
import os
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self

import psutil
from tests.scenarios.steps import Cluster, port_of

from kube_efs.model.ids import FileSystemId

_FIRST_BYTES = 1024 * 1024


class SlowReader(AbstractAsyncContextManager["SlowReader"]):
    """Reads a file of random bytes with libnfs's own client; use as ``async with``.

    The client stops when nobody takes what it has read, so after the first mebibyte the rest waits, with
    the connection open, until ``finish`` reads it all and compares.
    """

    def __init__(self, cluster: Cluster, file_system_id: FileSystemId, *, size_bytes: int) -> None:
        self._cluster = cluster
        self._file_system_id = file_system_id
        self._size_bytes = size_bytes

    async def __aenter__(self) -> Self:
        file = self._cluster.efs.folder(self._file_system_id) / "large"
        content = os.urandom(self._size_bytes)
        await asyncio.to_thread(file.write_bytes, content)
        self._expected = hashlib.sha256(content).hexdigest()
        port = await port_of(self._cluster, self._file_system_id)
        self._client = await asyncio.create_subprocess_exec(
            "nfs-cat",
            f"nfs://127.0.0.1//large?version=4&nfsport={port}&mountport={port}&autoreconnect=-1",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert self._client.stdout
        self._digest = hashlib.sha256()
        self._digest.update(await self._client.stdout.readexactly(_FIRST_BYTES))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client.returncode is None:
            self._client.kill()
        await self._client.wait()

    def source_port(self) -> int:
        """The port that its connection to the tunnel comes from; another one after a reconnect."""
        [connection] = [
            one
            for one in psutil.Process(self._client.pid).net_connections("tcp")
            if one.status == psutil.CONN_ESTABLISHED
        ]
        return int(connection.laddr.port)

    async def finish(self, *, seconds: float = 60.0) -> None:
        """Read the rest; fails unless every byte arrived and is right."""
        assert self._client.stdout
        async with asyncio.timeout(seconds):
            while chunk := await self._client.stdout.read(_FIRST_BYTES):
                self._digest.update(chunk)
            errors = await self._client.stderr.read() if self._client.stderr else b""
            assert await self._client.wait() == 0, errors.decode()
        assert self._digest.hexdigest() == self._expected
