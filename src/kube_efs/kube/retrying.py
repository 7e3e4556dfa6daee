"""Sends requests again that the API server has not carried out, by the rules of client-go.

* After an answer 429, or any 5xx with a ``Retry-After``, every request is sent again. Without this header, a
  5xx is final: the server may have done a part of the work.
* If the connection was not established, nothing was sent, so every request is sent again.
* If the connection broke later, only reads are sent again. The server may have carried out a write, so its
  caller must find out.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

import httpx2
import structlog

log = structlog.get_logger(__name__)

_TOO_MANY_REQUESTS = 429
_FIRST_PAUSE_SECONDS = 0.25
_LAST_PAUSE_SECONDS = 5.0
# Never earlier than requested, and not all at the same moment. A server answers 429 when the agents of many
# nodes send requests at once, and requests a delay of one second from all of them: too short to serve them.
# So these requests are spread over several times the delay, and further ones over more.
_SPREAD = 1.25
_SPREAD_OF_MANY = 6.0
_SPREAD_MAX = 24.0

_Outcome = httpx2.Response | httpx2.TransportError


class RetryingTransport(httpx2.AsyncBaseTransport):
    """Repeats requests until the server has answered, for at most ``patience_seconds``.

    After that, it returns the last answer or raises the last error; also if the next attempt would be later.
    """

    def __init__(
        self,
        inner: httpx2.AsyncBaseTransport,
        patience_seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._inner = inner
        self._patience_seconds = patience_seconds
        self._clock = clock
        self._sleep = sleep

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The answer; raises TransportError."""
        ends_at = self._clock() + self._patience_seconds
        attempt, pause, spread_of_many = 1, _FIRST_PAUSE_SECONDS, _SPREAD_OF_MANY
        while True:
            outcome = await self._send(request)
            asked = _asked_seconds(request, outcome)
            if asked is None:
                return _result(outcome)
            spread = spread_of_many if _is_throttled(outcome) else _SPREAD
            least, patience = max(asked, pause), ends_at - self._clock()
            if least > patience:
                return _result(outcome)
            delay = random.uniform(least, min(least * spread, patience))  # noqa: S311 - guards nothing
            _log_retry(request, outcome, attempt, delay)
            if isinstance(outcome, httpx2.Response):
                await outcome.aclose()
            await self._sleep(delay)
            pause = min(pause * 2, _LAST_PAUSE_SECONDS)
            spread_of_many = min(spread_of_many * 2, _SPREAD_MAX)
            attempt += 1

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()

    async def _send(self, request: httpx2.Request) -> _Outcome:
        try:
            return await self._inner.handle_async_request(request)
        except httpx2.TransportError as error:
            return error


def _asked_seconds(request: httpx2.Request, outcome: _Outcome) -> float | None:
    """The minimum delay before the request is sent again; None when it must not be repeated."""
    if isinstance(outcome, httpx2.Response):
        seconds = outcome.headers.get("Retry-After", "")
        if not _is_throttled(outcome) and not (outcome.is_server_error and seconds.isdecimal()):
            return None
        return float(seconds) if seconds.isdecimal() else 0.0
    was_sent = not isinstance(outcome, httpx2.ConnectError | httpx2.ConnectTimeout)
    # One that was sent may have been carried out, so only a read is repeated.
    return None if was_sent and request.method != "GET" else 0.0


def _is_throttled(outcome: _Outcome) -> bool:
    return isinstance(outcome, httpx2.Response) and outcome.status_code == _TOO_MANY_REQUESTS


def _result(outcome: _Outcome) -> httpx2.Response:
    if isinstance(outcome, httpx2.Response):
        return outcome
    raise outcome


def _log_retry(request: httpx2.Request, outcome: _Outcome, attempt: int, delay: float) -> None:
    if isinstance(outcome, httpx2.Response):
        reason = f"answered {outcome.status_code}"
    else:
        reason = str(outcome) or type(outcome).__name__
    log.info(
        "request-repeated",
        method=request.method,
        path=request.url.path,
        attempt=attempt,
        reason=reason,
        retry_seconds=round(delay, 2),
    )
