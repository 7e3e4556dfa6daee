"""The usage of volumes, and whether they answer; read again only after an interval."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kube_efs.model.errors import MountFailed, MountUnfinished
from kube_efs.mounts.usage import Usage, read_usage

# The kubelet requests one volume after the other, so one that hangs must not delay the others.
_PATIENCE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeStats:
    """The last known usage; ``problem`` is the reason if the last update failed."""

    usage: Usage
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    usage: Usage
    since: float


class Statistics:
    """The usage of each target, read again after ``refresh_seconds``, for at most ``patience_seconds``."""

    def __init__(
        self,
        *,
        refresh_seconds: float,
        patience_seconds: float = _PATIENCE_SECONDS,
        ask: Callable[[Path], Awaitable[Usage]] = read_usage,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._refresh_seconds = refresh_seconds
        self._patience_seconds = patience_seconds
        self._ask = ask
        self._clock = clock
        self._known: dict[Path, _Known] = {}

    async def report(self, target: Path) -> VolumeStats:
        """The usage of the volume at the target; raises MountFailed while no usage is known."""
        known = self._known.get(target)
        if known and self._clock() - known.since < self._refresh_seconds:
            return VolumeStats(usage=known.usage)
        try:
            usage = await self._read(target)
        except MountFailed as error:
            if known is None:
                raise
            return VolumeStats(usage=known.usage, problem=f"the file system {error.problem}")
        self._known[target] = _Known(usage=usage, since=self._clock())
        return VolumeStats(usage=usage)

    def forget(self, target: Path) -> None:
        """Remove the usage of a target that is no longer used."""
        self._known.pop(target, None)

    async def _read(self, target: Path) -> Usage:
        try:
            async with asyncio.timeout(self._patience_seconds):
                return await self._ask(target)
        except TimeoutError as error:
            problem = f"has not answered for {self._patience_seconds:g} s"
            raise MountUnfinished(problem, field="volume_path", value=str(target)) from error
