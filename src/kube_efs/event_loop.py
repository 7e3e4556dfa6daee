"""The event loop of the processes of a node, whose lookups of names hold up nothing else.

A resolver whose name servers do not answer takes 10 to 30 s for each name, and nothing can stop the thread
that waits for it. asyncio has a few threads for all calls that block. With lookups in them, a volume that
needs no name would wait until one is free to write the state or to read the ports. The end of the process
would wait, too. Lookups therefore have threads of their own. All clients look names up through the loop, also
those of aiohttp.
"""

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeVar

_T = TypeVar("_T")

_LOOKUPS_AT_ONCE: Final = 8


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """Run the work as ``asyncio.run`` does, in such a loop."""
    with asyncio.Runner(loop_factory=EventLoop) as runner:
        return runner.run(work)


class EventLoop(asyncio.SelectorEventLoop):
    """The loop of asyncio, except for lookups. One that is cancelled before it has a thread is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self._lookups = _DaemonThreads(_LOOKUPS_AT_ONCE)

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
        look_up = partial(socket.getaddrinfo, host, port, family, type, proto, flags)
        return await asyncio.wrap_future(self._lookups.submit(look_up), loop=self)


class _DaemonThreads:
    """At most so many threads, which end when no call waits.

    The end of the process does not wait for them, as it does for those of ThreadPoolExecutor.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._threads = 0
        self._waiting = deque[tuple[Future[Any], Callable[[], Any]]]()
        self._lock = threading.Lock()

    def submit(self, call: Callable[[], _T]) -> Future[_T]:
        future = Future[_T]()
        with self._lock:
            self._waiting.append((future, call))
            if self._threads < self._limit:
                threading.Thread(target=self._work, name="name-lookup", daemon=True).start()
                self._threads += 1
        return future

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                future, call = self._waiting.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                found = call()
            except BaseException as error:  # noqa: BLE001 - an error of the caller
                future.set_exception(error)
            else:
                future.set_result(found)
