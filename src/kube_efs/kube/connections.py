"""Connections to an API server with aiohttp, below the client's own HTTP library.

lightkube sends its requests with httpx2, which sends them with httpcore unless it is given a transport. This
is such a transport. A request needs half the processor time of httpcore, and requests cause most of the
controller's cost of a claim. If a request is cancelled, its connection is closed at once, also during a TLS
handshake.

Two things must be as with httpcore, because the code above relies on them. First, a failure is an error of
httpx2: only those are translated to ``KubeUnavailable`` and retried. Second, a request is sent once: the
answer to a POST or DELETE may be lost after it has taken effect, and only the caller knows whether a second
one is harmless.
"""

import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress

import aiohttp
import httpx2
from aiohttp import AddrInfoType, ClientHandlerType
from yarl import URL

# The errors of aiohttp as errors of the client's library; the first match applies.
_NAMES = (
    (aiohttp.ConnectionTimeoutError, httpx2.ConnectTimeout),
    (aiohttp.ServerTimeoutError, httpx2.ReadTimeout),
    (aiohttp.ClientHttpProxyError, httpx2.ProxyError),
    (aiohttp.ClientConnectorError, httpx2.ConnectError),
    (aiohttp.ClientPayloadError, httpx2.RemoteProtocolError),
    (aiohttp.ServerDisconnectedError, httpx2.RemoteProtocolError),
    (aiohttp.ClientError, httpx2.ReadError),
)
# A server that has lost its power or network says nothing, and a watch has nothing to send. So after 30 s of
# silence, the kernel sends probes, and 15 s later the connection fails, as those of client-go do.
_KEEPALIVE_IDLE_SECONDS = 30
_KEEPALIVE_INTERVAL_SECONDS = 5
_KEEPALIVE_PROBES = 3
# aiohttp would add its own headers to a request without these.
_NO_DEFAULT_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class Connections(httpx2.AsyncBaseTransport):
    """A pool of connections, verified by ``verify``, through an HTTP ``proxy`` if there is one.

    ``server_name`` is the name in the server's certificate, if it is not that of the address.
    It must be created and closed in the loop that uses it. Each request has its own timeouts.
    """

    def __init__(
        self, verify: ssl.SSLContext, proxy: str | None = None, server_name: str | None = None
    ) -> None:
        self._verify = verify
        self._proxy = proxy
        self._server_name = server_name
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The answer with an unread body; raises TransportError."""
        with _translated():
            answer = await self._opened().request(
                request.method,
                URL(str(request.url), encoded=True),
                headers=request.headers.multi_items(),
                data=await request.aread() or None,
                proxy=self._proxy,
                server_hostname=self._server_name,
                timeout=_timeout(request),
                allow_redirects=False,
            )
        reason = (answer.reason or "").encode()
        return httpx2.Response(
            answer.status,
            headers=answer.raw_headers,
            stream=_Body(answer),
            extensions={"http_version": b"HTTP/1.1", "reason_phrase": reason},
        )

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session:
            await self._session.close()

    def _opened(self) -> aiohttp.ClientSession:
        # aiohttp needs a running loop, but code that only reads a kubeconfig has none.
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=self._verify, socket_factory=_socket_with_keepalive),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=_NO_DEFAULT_HEADERS,
                auto_decompress=False,
                middlewares=(_send_once,),
            )
        return self._session


class _Body(httpx2.AsyncByteStream):
    """The body of an answer, as a stream."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _translated():
            async for chunk in self._answer.content.iter_any():
                yield chunk

    async def aclose(self) -> None:
        # This closes a connection with unread data, and keeps any other.
        self._answer.release()


def _socket_with_keepalive(address: AddrInfoType) -> socket.socket:
    """A socket whose connection fails when its peer does not answer any more."""
    family, kind, protocol, _, _ = address
    limit = _KEEPALIVE_IDLE_SECONDS + _KEEPALIVE_PROBES * _KEEPALIVE_INTERVAL_SECONDS
    made = socket.socket(family, kind, protocol)
    with suppress(OSError):
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # macOS, where only people's commands run, and some sandboxes do not have all of them.
    for name, value in (
        ("TCP_KEEPIDLE", _KEEPALIVE_IDLE_SECONDS),
        ("TCP_KEEPINTVL", _KEEPALIVE_INTERVAL_SECONDS),
        ("TCP_KEEPCNT", _KEEPALIVE_PROBES),
        # The same for what was sent and not confirmed, in milliseconds.
        ("TCP_USER_TIMEOUT", 1000 * limit),
    ):
        if hasattr(socket, name):
            with suppress(OSError):
                made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


async def _send_once(request: aiohttp.ClientRequest, send: ClientHandlerType) -> aiohttp.ClientResponse:
    """Translate errors here: after its own errors, aiohttp would send a PUT or DELETE again."""
    with _translated():
        return await send(request)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except aiohttp.ClientError as error:
        kind = next(ours for theirs, ours in _NAMES if isinstance(error, theirs))
        raise kind(str(error) or type(error).__name__) from error


def _timeout(request: httpx2.Request) -> aiohttp.ClientTimeout:
    asked = request.extensions["timeout"]
    return aiohttp.ClientTimeout(
        total=None, connect=asked["pool"], sock_connect=asked["connect"], sock_read=asked["read"]
    )
