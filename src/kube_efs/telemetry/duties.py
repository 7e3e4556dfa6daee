"""Duties of a process: what it does periodically for as long as it runs.

A duty must survive whatever it meets, such as an unexpected answer, and must never end
another one. So each is supervised: an unexpected error is logged and counted, and the duty is
restarted after a pause. A fault that stays costs this duty alone, and shows in the log, in a metric and in
``problems``.

Duties read what they need again when they start. One that must not continue where it failed, such as
the watch of volumes, is not a duty in this sense: its end ends the process.
"""

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
from prometheus_client import CollectorRegistry

from kube_efs.telemetry.metrics import DutyMetrics

log = structlog.get_logger(__name__)

_FIRST_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 60.0
_FRAMES_MOST: Final = 12


class Duties:
    """Supervises the duties of a process."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metrics = DutyMetrics(registry)
        self._sleep = sleep
        self._clock = clock
        self._failures: dict[str, tuple[str, float]] = {}

    @property
    def problems(self) -> tuple[str, ...]:
        """The duties that have failed of late, with the class of the error."""
        now = self._clock()
        return tuple(text for text, until in self._failures.values() if now < until)

    async def keep(
        self, name: str, duty: Callable[[], Awaitable[None]], *, failed: Callable[[], None] = lambda: None
    ) -> None:
        """Do the duty until it ends by itself, or until cancelled; an error restarts it after a pause.

        The pause doubles from 1 s to a minute, and is reset when the duty has lasted longer than that.
        ``failed`` is called after each failure.
        """
        pause = _FIRST_PAUSE_SECONDS
        while True:
            began = self._clock()
            try:
                return await duty()
            except Exception as error:  # noqa: BLE001 - after any error, the duty continues
                lasted = self._clock() - began
                pause = _FIRST_PAUSE_SECONDS if lasted > _LONGEST_PAUSE_SECONDS else pause
                self.note(name, error, retry_seconds=pause)
                failed()
            await self._sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    def note(self, name: str, error: Exception, *, retry_seconds: float) -> None:
        """Log and count that a duty, or a part of one, has failed and is retried."""
        self._metrics.failures.labels(name).inc()
        log.error(
            "duty-failed",
            duty=name,
            error=kinds_of(error),
            frames=frames_of(error),
            retry_seconds=retry_seconds,
        )
        # A failure that comes again must be reported without a gap.
        until = self._clock() + retry_seconds + _LONGEST_PAUSE_SECONDS
        self._failures[name] = (f"{name}: failed ({kinds_of(error)}) and is retried", until)


def kinds_of(error: BaseException) -> str:
    """The names of the error's classes, of all in a group: its text may come from anywhere."""
    return ", ".join(dict.fromkeys(type(one).__name__ for one in _leaves(error)))


def frames_of(error: BaseException) -> list[str]:
    """Where it comes from, the innermost place last, also only names of the program."""
    [first, *_] = _leaves(error)
    frames = traceback.extract_tb(first.__traceback__)[-_FRAMES_MOST:]
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in _leaves(one)]
    return [error]
