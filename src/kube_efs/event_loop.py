"""The event loop of the processes of a node, whose lookups of names hold up nothing else.

A resolver whose name servers do not answer takes 10 to 30 s for each name, and nothing can stop the thread
that waits for it. asyncio has a few threads for all calls that block. With lookups in them, a volume that
needs no name would wait until one is free to write the state or to read the ports. The end of the process
would wait, too. Lookups therefore have threads of their own. All clients look names up through the loop, also
those of aiohttp.

Often only the name server of one domain does not answer. So that its names do not occupy all these threads,
callers that ask for the same name share a lookup, and lookups in the ``background``, which are repeated all
the time, have at most half of the threads.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Hashable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

_T = TypeVar("_T")

_LOOKUPS_AT_ONCE: Final = 16
_IN_BACKGROUND: Final = ContextVar("in_background", default=False)


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """Run the work as ``asyncio.run`` does, in such a loop."""
    with asyncio.Runner(loop_factory=EventLoop) as runner:
        return runner.run(work)


@contextmanager
def background() -> Iterator[None]:
    """Lookups in this context, also those of tasks that begin in it, leave half of the threads to others."""
    token = _IN_BACKGROUND.set(True)
    try:
        yield
    finally:
        _IN_BACKGROUND.reset(token)


class EventLoop(asyncio.SelectorEventLoop):
    """The loop of asyncio, except for lookups. One that all callers cancel before its start is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self._lookups = _Lookups(_LOOKUPS_AT_ONCE)

    async def getaddrinfo(
        self,
        host: bytes | str | None,
        port: bytes | str | int | None,
        *,
        family: int = 0,
        type: int = 0,  # noqa: A002
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        """The addresses of a name, as ``socket.getaddrinfo`` returns them."""
        asked = (host, port, family, type, proto, flags)
        answer = self._lookups.submit(
            asked, partial(socket.getaddrinfo, *asked), in_background=_IN_BACKGROUND.get()
        )
        found = await asyncio.wrap_future(answer, loop=self)
        return list(found)  # each caller has its own, as without sharing


@dataclass(eq=False, slots=True, kw_only=True)
class _Lookup:
    """A lookup, and the callers that wait for it; in the background only if all of them are."""

    call: Callable[[], Any]
    in_background: bool
    callers: list[Future[Any]] = field(default_factory=list)
    is_running: bool = False


class _Lookups:
    """Runs at most so many at once, in threads that end when none waits.

    The end of the process does not wait for them, as it does for those of ThreadPoolExecutor.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._threads = 0
        # By what is looked up, in the order of their first callers.
        self._lookups: dict[Hashable, _Lookup] = {}
        self._lock = threading.Lock()

    def submit(self, asked: Hashable, call: Callable[[], _T], *, in_background: bool) -> Future[_T]:
        future = Future[_T]()
        with self._lock:
            lookup = self._lookups.setdefault(asked, _Lookup(call=call, in_background=in_background))
            lookup.in_background = lookup.in_background and in_background
            lookup.callers.append(future)
            if not lookup.is_running and self._threads < self._limit:
                threading.Thread(target=self._work, name="name-lookup", daemon=True).start()
                self._threads += 1
        return future

    def _work(self) -> None:
        while True:
            with self._lock:
                asked = self._next()
                if asked is None:
                    self._threads -= 1
                    return
                lookup = self._lookups[asked]
                lookup.is_running = True
            answer = Future[Any]()
            try:
                answer.set_result(lookup.call())
            except BaseException as error:  # noqa: BLE001 - an error of the callers
                answer.set_exception(error)
            with self._lock:
                del self._lookups[asked]
            for caller in lookup.callers:
                if not caller.set_running_or_notify_cancel():
                    continue
                if problem := answer.exception():
                    caller.set_exception(problem)
                else:
                    caller.set_result(answer.result())

    def _next(self) -> Hashable | None:
        """The next lookup that may begin; forgets those that all callers have cancelled."""
        in_background = sum(one.is_running and one.in_background for one in self._lookups.values())
        for asked, lookup in list(self._lookups.items()):
            if lookup.is_running:
                continue
            if all(caller.cancelled() for caller in lookup.callers):
                del self._lookups[asked]
            elif not lookup.in_background or in_background < self._limit // 2:
                return asked
        return None
