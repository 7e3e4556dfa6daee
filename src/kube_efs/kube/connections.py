"""The connections to an API server: aiohttp's, below the client's own HTTP library.

A request costs half the processor time that it costs by httpcore, which that library brings, and requests are
most of what a claim costs the controller. A connection is closed at once when the request that used it is
cancelled, in the midst of a TLS handshake too.
"""

import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import aiohttp
import httpx2
from aiohttp import ClientHandlerType
from yarl import URL

# The first that fits; the client's library has names for the same things.
_NAMES = (
    (aiohttp.ConnectionTimeoutError, httpx2.ConnectTimeout),
    (aiohttp.ServerTimeoutError, httpx2.ReadTimeout),
    (aiohttp.ClientHttpProxyError, httpx2.ProxyError),
    (aiohttp.ClientConnectorError, httpx2.ConnectError),
    (aiohttp.ClientPayloadError, httpx2.RemoteProtocolError),
    (aiohttp.ServerDisconnectedError, httpx2.RemoteProtocolError),
    (aiohttp.ClientError, httpx2.ReadError),
)
# A request that has none of these is sent without: aiohttp would add its own.
_NOTHING_OF_ITS_OWN = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class Connections(httpx2.AsyncBaseTransport):
    """A pool of connections, verified by ``verify``, through an HTTP ``proxy`` if there is one.

    It is made and closed in the loop that it serves. Timeouts are those of each request.
    """

    def __init__(self, verify: ssl.SSLContext, proxy: str | None = None) -> None:
        self._verify = verify
        self._proxy = proxy
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The answer, whose body is still to be read; raises TransportError."""
        with _translated():
            answer = await self._opened().request(
                request.method,
                URL(str(request.url), encoded=True),
                headers=request.headers.multi_items(),
                data=await request.aread() or None,
                proxy=self._proxy,
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
        # It wants a running loop, which code that only reads a kubeconfig does not have.
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=self._verify),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=_NOTHING_OF_ITS_OWN,
                auto_decompress=False,
                middlewares=(_send_once,),
            )
        return self._session


class _Body(httpx2.AsyncByteStream):
    """The body of an answer as it comes."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _translated():
            async for chunk in self._answer.content.iter_any():
                yield chunk

    async def aclose(self) -> None:
        # A connection that has more to say is closed by it, any other is kept.
        self._answer.release()


async def _send_once(request: aiohttp.ClientRequest, send: ClientHandlerType) -> aiohttp.ClientResponse:
    """Translate here already: after an error of its own, aiohttp would send a PUT or DELETE again."""
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
