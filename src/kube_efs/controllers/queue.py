"""A queue of keys to reconcile.

One task at a time handles each key, and once more if the key was added meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from contextlib import AbstractAsyncContextManager
from math import inf
from types import TracebackType
from typing import Generic, Self, TypeVar

from kube_efs.telemetry.duties import Duties

K = TypeVar("K", bound=Hashable)

FAULT_DELAY_SECONDS = 60.0


class WorkQueue(AbstractAsyncContextManager["WorkQueue[K]"], Generic[K]):
    """Calls ``handle(key)`` for every key added; use as ``async with``.

    ``handle`` returns None when nothing is left to do, or the seconds after which the key must be handled
    again unless it is added before. Keys do not wait for each other in the queue. ``handle`` itself limits
    concurrent calls to a server, or pods. ``duties`` count its unexpected errors under ``name``, and
    ``failed`` reports them.
    """

    def __init__(
        self,
        name: str,
        handle: Callable[[K], Awaitable[float | None]],
        duties: Duties,
        failed: Callable[[K, Exception], None] = lambda _key, _error: None,
    ) -> None:
        self._name = name
        self._handle = handle
        self._duties = duties
        self._failed = failed
        self._running: set[K] = set()
        # When a key that is being handled must be handled once more, on the clock of the loop.
        self._again: dict[K, float] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._tasks = asyncio.TaskGroup()
        self._live: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> int:
        """How many keys are being handled or wait for their next attempt."""
        return len(self._running | self._timers.keys())

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for timer in self._timers.values():
            timer.cancel()
        for task in self._live:
            task.cancel()
        # Without the error, which the task group would otherwise raise inside an ExceptionGroup.
        await self._tasks.__aexit__(None, None, None)

    def add(self, key: K, *, after_seconds: float = 0.0) -> bool:
        """Handle the key after that time at the latest; once more after it if it is being handled.

        Gives whether the key is handled earlier than it would have been otherwise.
        """
        loop = asyncio.get_running_loop()
        at = loop.time() + after_seconds
        timer = self._timers.get(key)
        if at >= (self._again.get(key, inf) if timer is None else timer.when()):
            return False
        if key in self._running:
            self._again[key] = at
            return True
        if timer is not None:
            timer.cancel()
        if after_seconds > 0:
            self._timers[key] = loop.call_at(at, self._start, key)
        else:
            self._start(key)
        return True

    def _start(self, key: K) -> None:
        self._timers.pop(key, None)
        self._running.add(key)
        task = self._tasks.create_task(self._work(key))
        self._live.add(task)
        task.add_done_callback(self._live.discard)

    async def _work(self, key: K) -> None:
        loop = asyncio.get_running_loop()
        again_at = loop.time()
        try:
            while again_at <= loop.time():
                self._again.pop(key, None)
                delay = await self._handled(key)
                # From here until the key leaves ``_running``, there must be no await: an ``add`` would be
                # lost.
                again_at = self._again.pop(key, inf)
        finally:
            self._running.discard(key)
        if delay is not None:
            again_at = min(again_at, loop.time() + delay)
        if again_at < inf:
            self._timers[key] = loop.call_at(again_at, self._start, key)

    async def _handled(self, key: K) -> float | None:
        try:
            return await self._handle(key)
        except Exception as error:  # noqa: BLE001 - an internal error with one object must not stop the others
            self._duties.note(self._name, error, retry_seconds=FAULT_DELAY_SECONDS, key=str(key))
            self._failed(key, error)
            return FAULT_DELAY_SECONDS


class Controller(Generic[K]):
    """A controller with a queue of keys, which it works off while its context is open."""

    def __init__(self, name: str, handle: Callable[[K], Awaitable[float | None]], duties: Duties) -> None:
        self._queue = WorkQueue(name, handle, duties, self._report_fault)

    def _report_fault(self, key: K, error: Exception) -> None:
        """Report an unexpected error, after which the key is handled again."""

    async def __aenter__(self) -> Self:
        await self._queue.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._queue.__aexit__(kind, error, trace)
