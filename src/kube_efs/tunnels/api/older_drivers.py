"""Drivers up to version 0.2.0, which call the agent with gRPC.

gRPC needs 13 MB on each node. So it is imported, and its server started on a private socket, when the first
of these drivers connects. Their connections are relayed to it.
"""

import asyncio
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from pathlib import Path
from typing import Final

import structlog

from kube_efs.tunnels.api.calls import TunnelCalls

log = structlog.get_logger()

_CHUNK_BYTES: Final = 1 << 16


class OlderDrivers:
    """Relays their connections to a gRPC server, which the first one starts."""

    def __init__(self, calls: TunnelCalls, *, grace_seconds: float) -> None:
        self._calls = calls
        self._grace_seconds = grace_seconds
        self._server = AsyncExitStack()
        self._changing = asyncio.Lock()
        self._socket: Path | None = None
        self._is_closed = False
        self._drivers: set[asyncio.StreamWriter] = set()

    def protocol(self) -> asyncio.Protocol:
        """That of a new connection."""
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), self._relay)

    async def close(self) -> None:
        """End the server, if there is one, and their connections."""
        async with self._changing:
            self._is_closed = True
            await self._server.aclose()
        for driver in self._drivers:
            driver.close()

    async def _relay(self, calls: asyncio.StreamReader, driver: asyncio.StreamWriter) -> None:
        self._drivers.add(driver)
        try:
            if socket := await self._start():
                answers, server = await asyncio.open_unix_connection(socket)
                await asyncio.gather(_copy(calls, server), _copy(answers, driver))
        except Exception:
            # The driver connects again.
            log.exception("older-driver-not-served")
        finally:
            driver.close()
            self._drivers.discard(driver)

    async def _start(self) -> Path | None:
        """Start the server unless it runs; returns its socket, None after the end."""
        async with self._changing:
            if self._socket is None and not self._is_closed:
                # The import takes longer than the loop may wait.
                serving = await asyncio.to_thread(self._load)
                self._socket = await self._server.enter_async_context(serving)
                log.info("older-driver-served", reason="it calls with gRPC")
            return None if self._is_closed else self._socket

    def _load(self) -> AbstractAsyncContextManager[Path]:
        from kube_efs.tunnels.api.grpc_server import serving_grpc  # noqa: PLC0415

        return serving_grpc(self._calls, grace_seconds=self._grace_seconds)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until one of both ends; then end the other one."""
    try:
        with suppress(ConnectionError):
            while data := await reader.read(_CHUNK_BYTES):
                writer.write(data)
                await writer.drain()
    finally:
        writer.close()
