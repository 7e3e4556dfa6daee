"""Virtual time: an event loop whose clock jumps to the next timer, and processes in this loop.

There are no sockets and no threads. Whenever nothing is ready, the clock is set to the time of the next
timer. So minutes pass in milliseconds, and the order of all events depends only on the seed.

A process is a set of callbacks with one context (``contextvars``): everything that its tasks start belongs to
it, as with processes of an operating system. A paused process does not run while its timers expire and
answers arrive. After the pause, it handles all of them at once, in order. A killed process does not run
again, not even ``finally``, as after SIGKILL. The requests that it had sent are still delivered.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context, ContextVar, copy_context
from enum import Enum, auto
from itertools import count
from typing import Any

# More callbacks at one moment of virtual time mean an endless loop.
_CALLBACKS_MOST = 200_000
_CANCELLED_MOST = 50


class State(Enum):
    """The state of a process."""

    RUNNING = auto()
    PAUSED = auto()
    DEAD = auto()


class Process:
    """A process on a simulated machine."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = State.RUNNING
        self.held: list[asyncio.Handle] = []
        # The error of its machine's clock, in seconds.
        self.clock_offset = 0.0
        # The time at which it resumed after a pause.
        self.resumed_at = -1e9

    def start(self, loop: "VirtualLoop", main: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run ``main`` as this process."""
        context = copy_context()
        context.run(_PROCESS.set, self)
        return loop.create_task(main, context=context)

    def pause(self) -> None:
        """Pause the process, as SIGSTOP or a paused machine does."""
        if self.state is State.RUNNING:
            self.state = State.PAUSED

    def resume(self, loop: "VirtualLoop") -> None:
        """Resume the process."""
        if self.state is State.PAUSED:
            self.state, self.resumed_at = State.RUNNING, loop.time()
            held, self.held = self.held, []
            loop.take_back(held)

    def kill(self) -> None:
        """End the process at once."""
        self.state = State.DEAD
        self.held.clear()


_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


def current_process() -> str:
    """The name of the running process."""
    process = _PROCESS.get()
    return process.name if process else "nobody"


def clock_offset() -> float:
    """The error in seconds of the clock of the running process's machine."""
    process = _PROCESS.get()
    return process.clock_offset if process else 0.0


def settle(future: "asyncio.Future[Any]", outcome: Any) -> None:
    """Set the result or the exception of a future, unless it is done."""
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


class Stuck(Exception):
    """No event is left, or the same moment never ends."""


class _Task(asyncio.Task[Any]):
    """A task with a hash that does not depend on its memory address."""

    _numbers = count()

    def __init__(self, coroutine: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = next(_Task._numbers)
        super().__init__(coroutine, **options)
        # Tasks of killed processes are not changed.
        self._log_destroy_pending = False

    def __hash__(self) -> int:
        return self._number


def _new_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> "asyncio.Task[Any]":
    return _Task(coroutine, loop=loop, **options)


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop in virtual time; ``outside`` is the context of callbacks without a process."""

    _ready: "deque[asyncio.Handle]"
    _scheduled: list[asyncio.TimerHandle]
    _timer_cancelled_count: int

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._callbacks = 0
        self.outside: Context = copy_context()
        self.set_task_factory(_new_task)
        # Unused answers, and tasks of killed processes.
        self.set_exception_handler(lambda *_: None)

    def time(self) -> float:
        """Seconds since the start."""
        return self._now

    def after(self, seconds: float, callback: Callable[..., object], *arguments: Any) -> asyncio.TimerHandle:
        """Call the function after that time, outside of every process."""
        return self.call_at(self._now + seconds, callback, *arguments, context=self.outside)

    def take_back(self, handles: list[asyncio.Handle]) -> None:
        """Put these callbacks back, to run next."""
        self._ready.extend(handles)

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, function: Callable[..., Any], *arguments: Any
    ) -> "asyncio.Future[Any]":
        """Run the function at once, instead of in a thread."""
        done = self.create_future()
        try:
            done.set_result(function(*arguments))
        except Exception as error:  # noqa: BLE001 - for the caller to judge
            done.set_exception(error)
        return done

    def _write_to_self(self) -> None:
        """Do nothing: no other thread exists."""

    def _process_events(self, event_list: list[Any]) -> None:
        """Do nothing: there are no sockets."""

    def _drop_cancelled(self) -> None:
        """Remove cancelled timers: most are timeouts of requests that were answered long before."""
        scheduled = self._scheduled
        if self._timer_cancelled_count > _CANCELLED_MOST:
            self._timer_cancelled_count = 0
            scheduled[:] = [one for one in scheduled if not one._cancelled]
            heapq.heapify(scheduled)
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)

    def _run_once(self) -> None:
        scheduled, ready = self._scheduled, self._ready
        self._drop_cancelled()
        if not ready:
            if not scheduled:
                raise Stuck("nothing is left to wait for")
            if scheduled[0].when() > self._now:
                self._now = scheduled[0].when()
                self._callbacks = 0
        while scheduled and scheduled[0].when() <= self._now:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False  # type: ignore[attr-defined]
            ready.append(handle)
        for _ in range(len(ready)):
            one = ready.popleft()
            if one._cancelled:
                continue
            process = one._context.get(_PROCESS)  # type: ignore[attr-defined]
            if process is None or process.state is State.RUNNING:
                one._run()
            elif process.state is State.PAUSED:
                process.held.append(one)
        self._callbacks += 1
        if self._callbacks > _CALLBACKS_MOST:
            raise Stuck(f"the moment {self._now:.3f} never ends")
