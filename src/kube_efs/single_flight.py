"""One answer for all concurrent callers of a function.

A caller never gets the answer of a call that began before it, because this answer may be too old. Callers
that arrive during a call share the next one, which begins after all of them have arrived. So any number of
concurrent callers causes at most two calls, one after the other.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class SingleFlight(Generic[Answer]):
    """Shares the answers and errors of ``ask``."""

    def __init__(self, ask: Callable[[], Awaitable[Answer]]) -> None:
        self._ask = ask
        self._next: asyncio.Task[Answer] | None = None
        self._running: asyncio.Task[Answer] | None = None
        self._lock = asyncio.Lock()

    async def __call__(self) -> Answer:
        """The answer of a call of ``ask`` that begins after this one; raises what ``ask`` raises."""
        if self._next is None:
            self._next = asyncio.create_task(self._run())
            # Its error goes to the waiting callers; if all were cancelled, nothing gets it.
            self._next.add_done_callback(lambda done: done.cancelled() or done.exception())
        # A cancelled caller must not cancel the call for the others.
        return await asyncio.shield(self._next)

    async def any_answer(self) -> Answer:
        """The answer of the running call; without one, the same as a call of this object."""
        return await asyncio.shield(self._running) if self._running else await self()

    async def _run(self) -> Answer:
        async with self._lock:
            # From here on, this call is too old for callers that arrive later.
            self._running, self._next = self._next, None
            try:
                return await self._ask()
            finally:
                self._running = None
