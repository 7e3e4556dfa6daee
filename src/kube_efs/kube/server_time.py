"""The time of the API server, for a process whose own clock may be wrong."""

from datetime import datetime
from email.utils import parsedate_to_datetime

import httpx2


class ServerTime:
    """The time in the first answer of the API server; None before it, and if no answer has one."""

    def __init__(self) -> None:
        self.first: datetime | None = None


class TimeReadingTransport(httpx2.AsyncBaseTransport):
    """Sends requests with ``inner``, and notes the time of the server."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, time: ServerTime) -> None:
        self._inner = inner
        self._time = time

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The answer; raises TransportError."""
        response = await self._inner.handle_async_request(request)
        if self._time.first is None:
            try:
                time = parsedate_to_datetime(response.headers.get("Date", ""))
            except ValueError:
                return response
            if time.tzinfo is not None:
                self._time.first = time
        return response

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()
