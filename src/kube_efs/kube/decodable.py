"""Makes every answer of the API server one that Python can decode, whatever an object in it contains.

Everybody who can write an object can also write its ``metadata.managedFields``, and some other times. The API
server stores values there that Python does not have: times before the year 1 and after 9999, and fields that
are nested thousands of levels deep. An answer with one such value cannot be decoded at all. So one claim of
one namespace would end the watch of all claims, and each list of them, until somebody deletes it.

Therefore no such value reaches the decoder. ``managedFields`` becomes an empty list: it is half of a typical
object, and only the operator reads it, of the workloads in its own namespace, where tenants cannot write. A
time becomes the first or the last one that Python has. It does not disappear, because some kinds require it,
and because a ``deletionTimestamp`` means something even if its value does not.

Both are replaced in the text, because only this works for all depths and all kinds. Inside a JSON string,
quotes are escaped, so the patterns match only keys and values of the answer itself.
"""

import gzip
import re
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Final

import httpx2

_MANAGED_FIELDS: Final = re.compile(rb'"managedFields"\s*:\s*\[')
# Up to the next bracket outside of strings. Groups are atomic instead of possessive, as in model/secrets.py.
_TO_BRACKET: Final = re.compile(
    rb'(?>[^"\[\]]*+(?:"[^"\\]*+(?>(?:\\.[^"\\]*+)*)"[^"\[\]]*+)*)[\[\]]', re.DOTALL
)
_OPENING: Final = ord("[")
# The lists of all namespaces have another path.
_WORKLOADS_OF_A_NAMESPACE: Final = "/apis/apps/v1/namespaces/"
_UNKNOWN_TIME: Final = re.compile(rb'":\s*+"(?:(-\d+|0000)|\d{5,})-\d\d-\d\dT[\d:.]+Z"')
# The names of all fields with a time. Keys of annotations usually have a prefix, and then do not match.
_NAME_OF_TIME: Final = re.compile(rb"[A-Za-z]*(?:[Tt]ime(?:stamp|Added)?|At)|notBefore|notAfter")
_FIRST_TIME: Final = b'":"0001-01-01T00:00:00Z"'
_LAST_TIME: Final = b'":"9999-12-31T23:59:59Z"'


class DecodableTransport(httpx2.AsyncBaseTransport):
    """Sends requests with ``inner``, and replaces what Python cannot decode in each answer in JSON."""

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The answer; raises TransportError or DecodingError."""
        is_watch = b"watch=true" in request.url.query
        # The client's library decompresses after this transport, so it must be done here. The API server
        # knows only gzip, and does not compress watches.
        request.headers["Accept-Encoding"] = "identity" if is_watch else "gzip"
        response = await self._inner.handle_async_request(request)
        body = response.stream
        if isinstance(body, httpx2.AsyncByteStream) and _is_json(response):
            change = _with_known_times if _WORKLOADS_OF_A_NAMESPACE in request.url.path else decodable
            if is_watch:
                response.stream = _Lines(body, change)
            else:
                response.stream = httpx2.ByteStream(change(await _read(response, body)))
        return response

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


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


async def _read(response: httpx2.Response, body: httpx2.AsyncByteStream) -> bytes:
    """The whole body, and close it; raises TransportError or DecodingError."""
    try:
        content = b"".join([chunk async for chunk in body])
    finally:
        await body.aclose()
    if response.headers.get("Content-Encoding") == "gzip":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise httpx2.DecodingError(str(error)) from error
        del response.headers["Content-Encoding"]
    return content


def decodable(content: bytes) -> bytes:
    """JSON with empty ``managedFields``, and only with times that Python has."""
    return _with_known_times(_without_managed_fields(content))


def _with_known_times(content: bytes) -> bytes:
    return _UNKNOWN_TIME.sub(_nearest_time, content)


def _without_managed_fields(content: bytes) -> bytes:
    kept, begin = [], 0
    while found := _MANAGED_FIELDS.search(content, begin):
        kept.append(content[begin : found.end()])
        begin = _closing_bracket(content, found.end())
    return b"".join([*kept, content[begin:]])


def _closing_bracket(content: bytes, begin: int) -> int:
    """The place of the bracket that closes the list which begins there; the end if the text is cut off."""
    depth = 1
    while found := _TO_BRACKET.match(content, begin):
        begin = found.end()
        depth += 1 if content[begin - 1] == _OPENING else -1
        if not depth:
            return begin - 1
    return len(content)


def _nearest_time(found: re.Match[bytes]) -> bytes:
    name = found.string[found.string.rfind(b'"', 0, found.start()) + 1 : found.start()]
    if not _NAME_OF_TIME.fullmatch(name):
        return found[0]
    return _FIRST_TIME if found[1] else _LAST_TIME
