"""Reads the answers of the API server: each one can be decoded, and no page of a list is too large.

``decodable`` changes the text of each answer before anything decodes it.

A page of a list is bounded in bytes, too. Some hundred objects of a megabyte would fill the memory of this
process at each of its starts, and JSON makes some characters six times as long. So a page that is too large
is not read to its end, but requested again with fewer objects.

Only a few pages are read at a time, whatever the callers do. A list keeps the objects of a page until it has
the next one, so a list that has begun comes before others.
"""

import asyncio
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import Final

import httpx2

from kube_efs.kube.decodable import decodable, with_known_times

# The lists of all namespaces have another path.
_WORKLOADS_OF_A_NAMESPACE: Final = "/apis/apps/v1/namespaces/"
# Five hundred ordinary claims have a megabyte, as many pods seven. Decoding takes some ten times that.
_PAGE_BYTES: Final = 16 * 1024 * 1024
_FEWER: Final = 5
_PAGES_AT_ONCE: Final = 4
# The API server ends a request of a list after a minute. A connection that carries some bytes again and again
# has no other end, and would keep the other lists waiting.
_PAGE_SECONDS: Final = 60.0
_GZIP: Final = 16 + zlib.MAX_WBITS


class DecodableTransport(httpx2.AsyncBaseTransport):
    """Sends requests with ``inner``, and replaces what Python cannot decode in each answer in JSON."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, *, page_bytes: int = _PAGE_BYTES) -> None:
        self._inner = inner
        self._page_bytes = page_bytes
        # How many objects of a kind the next page may have, if the last one had too many bytes.
        self._limits: dict[str, int] = {}
        self._turns = _Turns()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The answer; raises TransportError or DecodingError."""
        is_watch = b"watch=true" in request.url.query
        # The client's library decompresses after this transport, so it must be done here. The API server
        # knows only gzip, and does not compress watches.
        request.headers["Accept-Encoding"] = "identity" if is_watch else "gzip"
        change = with_known_times if _WORKLOADS_OF_A_NAMESPACE in request.url.path else decodable
        if not is_watch:
            most = int(request.url.params.get("limit") or 0)
            async with self._turns.taken() if most > 1 else nullcontext():
                return await self._read_page(request, most, change)
        response = await self._inner.handle_async_request(request)
        body = response.stream
        if isinstance(body, httpx2.AsyncByteStream) and _is_json(response):
            response.stream = _Lines(body, change)
        return response

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()

    async def _read_page(
        self, request: httpx2.Request, most: int, change: Callable[[bytes], bytes]
    ) -> httpx2.Response:
        """The answer, whose body is bounded if it is a page of several objects, of ``most`` ones."""
        path = request.url.path
        limit = min(most, self._limits.get(path, most))
        while True:
            part = _with_limit(request, limit) if limit < most else request
            response = await self._inner.handle_async_request(part)
            body = response.stream
            if not (isinstance(body, httpx2.AsyncByteStream) and _is_json(response)):
                return response
            try:
                async with asyncio.timeout(_PAGE_SECONDS if most > 1 else None):
                    content = await _read(response, body, self._page_bytes if limit > 1 else None)
            except TimeoutError as error:
                raise httpx2.ReadTimeout("the page took too long", request=request) from error
            if content is not None:
                break
            limit = max(1, limit // _FEWER)
        if limit < most:
            # The next objects may be smaller.
            self._limits[path] = limit * 2
        elif most:
            self._limits.pop(path, None)
        response.stream = httpx2.ByteStream(change(content))
        return response


class _Turns:
    """Turns of pages: at most ``_PAGES_AT_ONCE`` at a time, in the order of the requests."""

    def __init__(self) -> None:
        self._free = _PAGES_AT_ONCE
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        if self._free:
            self._free -= 1
        else:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self._give_back()
                raise
        try:
            yield
        finally:
            self._give_back()

    def _give_back(self) -> None:
        self._free += 1
        # Not at once: the list of this page decodes it now, and requests its next page in the same step.
        asyncio.get_running_loop().call_soon(self._pass_on)

    def _pass_on(self) -> None:
        while self._free and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                self._free -= 1
                turn.set_result(None)


class _Lines(httpx2.AsyncByteStream):
    """The events of a watch, one in each line."""

    def __init__(self, body: httpx2.AsyncByteStream, change: Callable[[bytes], bytes]) -> None:
        self._body = body
        self._change = change

    async def __aiter__(self) -> AsyncIterator[bytes]:
        parts: list[bytes] = []
        async for chunk in self._body:
            *lines, rest = chunk.split(b"\n")
            for line in lines:
                whole, parts = b"".join([*parts, line]), []
                yield self._change(whole) + b"\n"
            parts.append(rest)
        if rest := b"".join(parts):
            yield self._change(rest)

    async def aclose(self) -> None:
        await self._body.aclose()


def _is_json(response: httpx2.Response) -> bool:
    return bool(response.headers.get("Content-Type", "").startswith("application/json"))


def _with_limit(request: httpx2.Request, limit: int) -> httpx2.Request:
    url = request.url.copy_set_param("limit", limit)
    return httpx2.Request(request.method, url, headers=request.headers, extensions=request.extensions)


async def _read(response: httpx2.Response, body: httpx2.AsyncByteStream, most: int | None) -> bytes | None:
    """The whole body, or None if it has more bytes; closes it. Raises TransportError or DecodingError."""
    is_compressed = response.headers.get("Content-Encoding") == "gzip"
    unzip, parts, size = zlib.decompressobj(_GZIP), [], 0
    try:
        async for chunk in body:
            # One byte more than it may have, because 0 means no bound.
            room = 0 if most is None else most - size + 1
            part = unzip.decompress(chunk, room) if is_compressed else chunk
            size += len(part)
            if most is not None and (size > most or unzip.unconsumed_tail):
                return None
            parts.append(part)
    except zlib.error as error:
        raise httpx2.DecodingError(str(error)) from error
    finally:
        await body.aclose()
    if is_compressed:
        if parts and not unzip.eof:
            raise httpx2.DecodingError("the compressed answer is cut off")
        del response.headers["Content-Encoding"]
    return b"".join(parts)
