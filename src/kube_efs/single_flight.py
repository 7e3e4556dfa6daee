"""One result for all concurrent calls that ask for the same.

The answer of a question that began before you asked may be older than your question, so it is never given
to you: those who come while a question is under way share the next one, which begins after all of them have
asked. However many ask at once, at most two questions are asked one after the other.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class SingleFlight(Generic[Answer]):
    """Shares the answers of ``ask``; errors are shared like answers."""

    def __init__(self, ask: Callable[[], Awaitable[Answer]]) -> None:
        self._ask = ask
        self._next: asyncio.Task[Answer] | None = None
        self._under_way: asyncio.Task[Answer] | None = None
        self._alone = asyncio.Lock()

    async def __call__(self) -> Answer:
        """An answer to a question that begins after this call; raises what ``ask`` raises."""
        if self._next is None:
            self._next = asyncio.create_task(self._asked())
            # Its error goes to the waiting callers; if all were cancelled, nothing gets it.
            self._next.add_done_callback(lambda done: done.cancelled() or done.exception())
        # A caller that is cancelled must not take the answer from the others.
        return await asyncio.shield(self._next)

    async def any_answer(self) -> Answer:
        """The answer to a question that is under way already, else as from a call."""
        return await asyncio.shield(self._under_way) if self._under_way else await self()

    async def _asked(self) -> Answer:
        async with self._alone:
            # From here on the question is under way, and too old for those who come later.
            self._under_way, self._next = self._next, None
            try:
                return await self._ask()
            finally:
                self._under_way = None
