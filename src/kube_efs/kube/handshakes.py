"""Connections that nobody waits for any more, closed at once.

httpcore closes a connection whose TLS handshake fails. One whose handshake is cancelled it leaves open, until
the garbage collector finds the socket.
"""

from collections.abc import Mapping
from typing import Any

import httpx2


class ClosingTransport(httpx2.AsyncHTTPTransport):
    """Leaves no connection behind when a request is cancelled."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The answer; raises TransportError."""
        request.extensions = {**request.extensions, "trace": _Handshake()}
        return await super().handle_async_request(request)


class _Handshake:
    """Hears what httpcore tells of one request, and closes what its handshake leaves."""

    def __init__(self) -> None:
        self._stream: Any = None

    async def __call__(self, event: str, info: Mapping[str, Any]) -> None:
        if event.endswith(".connect_tcp.complete"):
            self._stream = info["return_value"]
        elif event.endswith(".start_tls.failed") and self._stream:
            await self._stream.aclose()
