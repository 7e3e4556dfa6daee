"""The agent's socket: tunnels on demand for the other processes of the node.

A call is a POST request of HTTP/1.1: the path ends with the name of the call, the body is the message of its
request. 200 has the message of the answer, 422 a Failure, and 500 a text.

Drivers up to version 0.2.0 call with gRPC on the same socket, see ``older_drivers``.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, cast

import structlog
from aiohttp import web
from google.protobuf.message import DecodeError, Message

from kube_efs.model.errors import InvalidSetting
from kube_efs.telemetry.traces import TRACE_PARENT
from kube_efs.tunnels.api.calls import CALLS, CallFailed, TunnelCalls
from kube_efs.tunnels.api.older_drivers import OlderDrivers
from kube_efs.tunnels.on_demand.tunnels import OnDemandTunnels
from kube_efs.tunnels.status import TunnelsStatus

log = structlog.get_logger()

# SIGTERM leaves the agent 5 s for everything.
_GRACE_SECONDS: Final = 1.0
_DIRECTORY_MODE: Final = 0o750
_SOCKET_MODE: Final = 0o600
_MAX_BYTES: Final = 4 << 20  # of a request, as with gRPC
# Each call has a connection. After a restart of the node, the calls of all its pods arrive at once.
_BACKLOG: Final = 1024
_HTTP_2: Final = b"PRI "  # RFC 9113, 3.4: a connection of HTTP/2, and so of gRPC, begins with this


@asynccontextmanager
async def serving(
    socket: Path, tunnels: OnDemandTunnels, get_status: Callable[[], TunnelsStatus]
) -> AsyncIterator[None]:
    """Answers on the socket while the context is open; ``get_status`` gives the state of the tunnels.

    Only the user of this process and root may connect. Raises InvalidSetting when the socket cannot be bound.
    """
    calls = TunnelCalls(tunnels, get_status)
    app = web.Application(client_max_size=_MAX_BYTES)
    for name, request in CALLS.items():
        app.router.add_post(f"/v1/{name}", _page(calls, request))
    # A caller that has given up gets no tunnel.
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=_GRACE_SECONDS)
    await runner.setup()
    http = cast("Callable[[], asyncio.Protocol]", runner.server)
    older = OlderDrivers(calls, grace_seconds=_GRACE_SECONDS)
    try:
        async with _listening(socket, lambda: _FirstBytes(http, older.protocol)):
            log.info("tunnels-on-demand-served", socket=str(socket))
            yield
    finally:
        await asyncio.gather(runner.cleanup(), older.close())


@asynccontextmanager
async def _listening(socket: Path, protocol: Callable[[], asyncio.Protocol]) -> AsyncIterator[None]:
    """Accept connections on the socket while the context is open; raises InvalidSetting."""
    async with AsyncExitStack() as stack:
        try:
            socket.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
            loop, hidden = asyncio.get_running_loop(), socket.with_name(f".{socket.name}")
            listener = await loop.create_unix_server(protocol, hidden, backlog=_BACKLOG)
            stack.callback(listener.close)
            stack.enter_context(_published(hidden, socket))
        except OSError as error:
            raise InvalidSetting(
                f"cannot be bound ({error})",
                field="KUBE_EFS_TUNNEL_SOCKET",
                value=str(socket),
                remedy="choose a short path in a writable directory",
            ) from error
        yield


@contextmanager
def _published(hidden: Path, socket: Path) -> Iterator[None]:
    """While the context is open, the socket that is bound with a hidden name has its own name.

    It is renamed after its mode is set, so no other user can connect at any moment, and clients never find a
    dead socket. It replaces the socket of an earlier process. At the end, the name is removed unless a
    successor has taken it. Raises OSError.
    """
    hidden.chmod(_SOCKET_MODE)
    ours = hidden.stat().st_ino
    hidden.replace(socket)
    try:
        yield
    finally:
        if socket.exists() and socket.stat().st_ino == ours:
            socket.unlink()


class _FirstBytes(asyncio.Protocol):
    """Gives a connection to the protocol that its first bytes belong to."""

    def __init__(self, http: Callable[[], asyncio.Protocol], older: Callable[[], asyncio.Protocol]) -> None:
        self._http = http
        self._older = older
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        transport = cast("asyncio.Transport", self._transport)
        protocol = self._older() if data.startswith(_HTTP_2) else self._http()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(data)


def _page(calls: TunnelCalls, kind: type[Message]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(request: web.Request) -> web.Response:
        try:
            message = kind.FromString(await request.read())
        except DecodeError:
            return web.Response(status=400, text="the body is not a valid message of this call")
        try:
            answered = await calls.answer(message, request.headers.get(TRACE_PARENT, ""))
        except CallFailed as failed:
            if failed.failure:
                return web.Response(status=422, body=failed.failure)
            return web.Response(status=500, text=str(failed))
        return web.Response(body=answered.SerializeToString())

    return answer
