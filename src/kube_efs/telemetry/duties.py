"""Supervises the duties of a process: the tasks that run as long as the process.

An unexpected error, such as an invalid answer, must end neither its duty nor another one. It is logged and
counted, and the duty is restarted after a pause. A permanent error affects only its duty, and is visible in
the log, in a metric and in ``problems``.

A restarted duty reads its input again. A task that must not be restarted after an error, such as the watch of
volumes, is not a duty: its end ends the process.
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
        """The duties that failed recently, with the class of the error."""
        now = self._clock()
        return tuple(text for text, until in self._failures.values() if now < until)

    async def keep(
        self, name: str, duty: Callable[[], Awaitable[None]], *, failed: Callable[[], None] = lambda: None
    ) -> None:
        """Run the duty until it returns or is cancelled; restart it with a pause after an error.

        The pause doubles from 1 s to 60 s, and is reset after a run of more than 60 s. ``failed`` is called
        after each failure.
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

    def note(self, name: str, error: Exception, *, retry_seconds: float, **fields: str) -> None:
        """Log and count the failure of a duty, or of a part of one, that is retried.

        ``fields`` of the log name the part, such as an object.
        """
        self._metrics.failures.labels(name).inc()
        log.error(
            "duty-failed",
            duty=name,
            error=kinds_of(error),
            frames=frames_of(error),
            retry_seconds=retry_seconds,
            **fields,
        )
        # A repeated failure must be reported without a gap.
        until = self._clock() + retry_seconds + _LONGEST_PAUSE_SECONDS
        self._failures[name] = (f"{name}: failed ({kinds_of(error)}) and is retried", until)


def kinds_of(error: BaseException) -> str:
    """The class of the error, or those in a group; not the text, which may contain secrets."""
    return ", ".join(dict.fromkeys(type(one).__name__ for one in _leaves(error)))


def frames_of(error: BaseException) -> list[str]:
    """The frames of the error, the innermost one last: only files, lines and functions."""
    [first, *_] = _leaves(error)
    frames = traceback.extract_tb(first.__traceback__)[-_FRAMES_MOST:]
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in _leaves(one)]
    return [error]
