"""Virtual time: an event loop whose clock jumps to the next timer, and processes that live inside it.

There are no sockets and no threads. Whenever nothing is ready, the clock is set to the moment of the next
timer, so that minutes pass in milliseconds and the order of everything is a function of the seed alone.

A process is a set of callbacks that share a context (``contextvars``): everything that one of its tasks
starts belongs to it, as with processes of an operating system. A paused process runs nothing while its timers
fall due and answers arrive for it; when it goes on, all of that happens at once, in the order in which it
came. A killed process runs nothing any more, not even ``finally``: that is what kill -9 does. What it had
sent is on its way all the same.
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

# So many callbacks at one moment of virtual time are a loop without end.
_CALLBACKS_MOST = 200_000
_CANCELLED_MOST = 50


class State(Enum):
    """Of a process."""

    RUNNING = auto()
    PAUSED = auto()
    DEAD = auto()


class Process:
    """A process of the simulated machines."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = State.RUNNING
        self.held: list[asyncio.Handle] = []
        # By which its machine's clock is wrong, in seconds.
        self.clock_offset = 0.0
        # When it has gone on after a standstill.
        self.resumed_at = -1e9

    def start(self, loop: "VirtualLoop", main: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run ``main`` as this process."""
        context = copy_context()
        context.run(_PROCESS.set, self)
        return loop.create_task(main, context=context)

    def pause(self) -> None:
        """Stop it, as SIGSTOP or a machine that stands still."""
        if self.state is State.RUNNING:
            self.state = State.PAUSED

    def resume(self, loop: "VirtualLoop") -> None:
        """Let it go on."""
        if self.state is State.PAUSED:
            self.state, self.resumed_at = State.RUNNING, loop.time()
            held, self.held = self.held, []
            loop.take_back(held)

    def kill(self) -> None:
        """End it at once."""
        self.state = State.DEAD
        self.held.clear()


_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


def current_process() -> str:
    """The name of the process that runs right now."""
    process = _PROCESS.get()
    return process.name if process else "nobody"


def clock_offset() -> float:
    """By how many seconds the clock is wrong of the machine that runs right now."""
    process = _PROCESS.get()
    return process.clock_offset if process else 0.0


def settle(future: "asyncio.Future[Any]", outcome: Any) -> None:
    """Give the one who waits his answer, or raise it there, if he still waits."""
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


class Stuck(Exception):
    """Nothing will ever happen again, or the same moment never ends."""


class _Task(asyncio.Task[Any]):
    """A task whose place in a set does not depend on where it lies in memory."""

    _numbers = count()

    def __init__(self, coroutine: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = next(_Task._numbers)
        super().__init__(coroutine, **options)
        # Those of killed processes are left as they are.
        self._log_destroy_pending = False

    def __hash__(self) -> int:
        return self._number


def _new_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> "asyncio.Task[Any]":
    return _Task(coroutine, loop=loop, **options)


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop in virtual time; ``outside`` is the context of what belongs to no process."""

    _ready: "deque[asyncio.Handle]"
    _scheduled: list[asyncio.TimerHandle]
    _timer_cancelled_count: int

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._callbacks = 0
        self.outside: Context = copy_context()
        self.set_task_factory(_new_task)
        # Answers that nobody waits for any more, and tasks of processes that were killed.
        self.set_exception_handler(lambda *_: None)

    def time(self) -> float:
        """Seconds since the beginning."""
        return self._now

    def after(self, seconds: float, callback: Callable[..., object], *arguments: Any) -> asyncio.TimerHandle:
        """Call it then, outside of every process."""
        return self.call_at(self._now + seconds, callback, *arguments, context=self.outside)

    def take_back(self, handles: list[asyncio.Handle]) -> None:
        """Run these next."""
        self._ready.extend(handles)

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, function: Callable[..., Any], *arguments: Any
    ) -> "asyncio.Future[Any]":
        """What threads would do is done here and now."""
        done = self.create_future()
        try:
            done.set_result(function(*arguments))
        except Exception as error:  # noqa: BLE001 - for the caller to judge
            done.set_exception(error)
        return done

    def _write_to_self(self) -> None:
        """There is no other thread that could wait for this one."""

    def _process_events(self, event_list: list[Any]) -> None:
        """There are no sockets."""

    def _drop_cancelled(self) -> None:
        """Most timers are time-outs of requests that were answered long before."""
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
