"""The bytes in the files of each volume, counted in the background as aws-efs-csi-driver counts them.

EFS reports the usage of complete file systems only. A count reads the metadata of every file, so it takes
longer than the kubelet waits, and costs throughput. Therefore a volume is counted once in a period, whatever
the number of its pods, and few volumes of a file system are counted at the same time.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import structlog

from kube_efs.model.csi.errors import VolumePending
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import KubeEfsError
from kube_efs.mounts.usage import count_bytes

log = structlog.get_logger()

_RETRY_SECONDS: Final = 300.0
# A count that takes longer would use the file system without end.
_LONGEST_SECONDS: Final = 86400.0


@dataclass(slots=True)
class _Volume:
    """What is known about a volume, and the count in progress with the target that it reads."""

    targets: set[Path] = field(default_factory=set)
    used_bytes: int | None = None
    due: float = 0.0
    counting: "tuple[Path, asyncio.Task[None]] | None" = None


class FileCounts:
    """The last count of each volume; counts run while the context is open.

    A volume is counted again ``refresh_seconds`` after its last count, and at most ``rate_limit`` volumes of
    a file system at once.
    """

    def __init__(
        self,
        *,
        refresh_seconds: float,
        rate_limit: int,
        count: Callable[[Path], Awaitable[int]] = count_bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._refresh_seconds = refresh_seconds
        self._rate_limit = rate_limit
        self._count = count
        self._clock = clock
        self._volumes: dict[str, _Volume] = {}
        self._ids: dict[Path, str] = {}
        self._running: Counter[FileSystemId] = Counter()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.gather(*map(self.forget, list(self._ids)))

    def used_bytes(self, volume_id: str, file_system_id: FileSystemId, target: Path) -> int:
        """The last count of the volume at the target; starts the next one if it is due.

        Raises VolumePending while the volume has no count: zero would be a wrong figure.
        """
        self._ids[target] = volume_id
        volume = self._volumes.setdefault(volume_id, _Volume(due=self._clock()))
        volume.targets.add(target)
        is_due = volume.counting is None and self._clock() >= volume.due
        if is_due and self._running[file_system_id] < self._rate_limit:
            self._running[file_system_id] += 1
            task = asyncio.create_task(self._refresh(volume, target))
            # Not in the task: one that is cancelled before its first step would not get there.
            task.add_done_callback(lambda _task: self._running.subtract([file_system_id]))
            volume.counting = target, task
        if volume.used_bytes is None:
            raise VolumePending(
                "has not been counted yet",
                field="volume_path",
                value=str(target),
                remedy="the kubelet asks again; the log says when a count fails",
            )
        return volume.used_bytes

    async def forget(self, target: Path) -> None:
        """Remove the target, and with the last one its volume; a count that reads the target has ended.

        A count in progress would keep the mount busy.
        """
        volume_id = self._ids.pop(target, None)
        if volume_id is None:
            return
        volume = self._volumes[volume_id]
        volume.targets.discard(target)
        if not volume.targets:
            del self._volumes[volume_id]
        if volume.counting is not None and volume.counting[0] == target:
            _, task = volume.counting
            # Before the wait, in which a call for another target may start the next count. A cancelled task
            # does not get to the end of ``_refresh``, which would remove that one.
            volume.counting = None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _refresh(self, volume: _Volume, target: Path) -> None:
        try:
            async with asyncio.timeout(_LONGEST_SECONDS):
                volume.used_bytes = await self._count(target)
            pause = self._refresh_seconds
        except (KubeEfsError, TimeoutError) as error:
            log.warning("volume-not-counted", target=str(target), reason=str(error) or "takes too long")
            pause = _RETRY_SECONDS
        volume.due = self._clock() + pause
        volume.counting = None
