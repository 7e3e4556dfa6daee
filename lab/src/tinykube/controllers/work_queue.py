"""Keys that wait to be checked: each once, never by two workers at a time, failed ones again later."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from http import HTTPStatus
from typing import Generic, TypeVar

import structlog
from lightkube import ApiError

from tinykube.client.calls import ERRORS
from tinykube.errors import NotYet

log = structlog.get_logger(__name__)

_FIRST_BACK_OFF_SECONDS = 0.01
_LAST_BACK_OFF_SECONDS = 10.0
_WAIT_SECONDS = 0.5
_OVERTAKEN = {HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND}

K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """Coalesces requests to look at a key; ``handle`` reads the current state itself."""

    def __init__(self, name: str, handle: Callable[[K], Awaitable[None]]) -> None:
        self._name = name
        self._handle = handle
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._waiting: set[K] = set()
        self._busy: set[K] = set()
        self._failures: dict[K, int] = {}

    def add(self, key: K) -> None:
        """Have the key looked at soon; again if somebody is just looking at it."""
        if key in self._waiting:
            return
        self._waiting.add(key)
        if key not in self._busy:
            self._ready.put_nowait(key)

    async def run(self, workers: int) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(workers):
                tasks.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = await self._ready.get()
            self._waiting.discard(key)
            self._busy.add(key)
            try:
                await self._look_at(key)
            finally:
                self._busy.discard(key)
                if key in self._waiting:
                    self._ready.put_nowait(key)

    async def _look_at(self, key: K) -> None:
        try:
            await self._handle(key)
        except NotYet as error:
            log.debug("waiting", queue=self._name, key=str(key), reason=str(error))
            self._later(key, at_most=_WAIT_SECONDS)
        except ERRORS as error:
            # When somebody else was quicker, the watch brings the news.
            overtaken = isinstance(error, ApiError) and error.status.code in _OVERTAKEN
            level = logging.DEBUG if overtaken else logging.WARNING
            log.log(level, "failed", queue=self._name, key=str(key), reason=str(error))
            self._later(key)
        else:
            self._failures.pop(key, None)

    def _later(self, key: K, *, at_most: float = _LAST_BACK_OFF_SECONDS) -> None:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        seconds = min(_FIRST_BACK_OFF_SECONDS * 2 ** min(failures, 20), at_most)
        asyncio.get_running_loop().call_later(seconds, self.add, key)
