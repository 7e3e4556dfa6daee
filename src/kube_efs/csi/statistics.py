"""How full volumes are and whether they answer, asked no more often than is of use."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kube_efs.model.errors import MountUnfinished
from kube_efs.mounts.usage import Usage, read_usage

# The kubelet asks for one volume after another.
_PATIENCE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The last usage that is known; ``problem`` says what hinders to know it anew, if anything does."""

    usage: Usage
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    usage: Usage
    since: float


class Statistics:
    """The usage of each target, taken anew after ``refresh_seconds``, whose answers come when they come."""

    def __init__(
        self,
        *,
        refresh_seconds: float,
        patience_seconds: float = _PATIENCE_SECONDS,
        ask: Callable[[Path], "asyncio.Future[Usage]"] = read_usage,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._refresh_seconds = refresh_seconds
        self._patience_seconds = patience_seconds
        self._ask = ask
        self._clock = clock
        self._known: dict[Path, _Known] = {}
        self._asking: dict[Path, asyncio.Future[Usage]] = {}

    async def report(self, target: Path) -> Report:
        """What is known of the volume there; raises MountUnfinished while nothing is."""
        known = self._known.get(target)
        if known and self._clock() - known.since < self._refresh_seconds:
            return Report(usage=known.usage)
        asking = self._asking.get(target) or self._begin(target)
        await asyncio.wait([asking], timeout=self._patience_seconds)
        problem = f"has not answered for {self._patience_seconds:g} s"
        if asking.done():
            self._asking.pop(target, None)
            error = asking.exception()
            if error is None:
                self._known[target] = _Known(usage=asking.result(), since=self._clock())
                return Report(usage=asking.result())
            problem = f"cannot be used ({getattr(error, 'strerror', error)})"
        if known is None:
            raise MountUnfinished(problem, field="volume_path", value=str(target))
        return Report(usage=known.usage, problem=f"the file system {problem}")

    def forget(self, target: Path) -> None:
        """Drop what is known of a target that is used no more."""
        self._known.pop(target, None)
        self._asking.pop(target, None)

    def _begin(self, target: Path) -> "asyncio.Future[Usage]":
        self._asking[target] = self._ask(target)
        return self._asking[target]
