"""A queue of keys to reconcile.

One task at a time handles each key, and once more if the key was added meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from contextlib import AbstractAsyncContextManager
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
        self._again: set[K] = set()
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

    def add(self, key: K) -> None:
        """Handle the key soon; once more after the current time if it is being handled."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key in self._running:
            self._again.add(key)
            return
        self._running.add(key)
        task = self._tasks.create_task(self._work(key))
        self._live.add(task)
        task.add_done_callback(self._live.discard)

    async def _work(self, key: K) -> None:
        delay = None
        try:
            while True:
                self._again.discard(key)
                delay = await self._handled(key)
                # From here until the key leaves ``_running``, there must be no await: an ``add`` would be
                # lost.
                if key not in self._again:
                    break
        finally:
            self._running.discard(key)
        if delay is not None:
            self._timers[key] = asyncio.get_running_loop().call_later(delay, self.add, key)

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
