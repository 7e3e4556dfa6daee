"""Volumes: ours get a finalizer; Released ones are removed with their data if policy and guards allow it."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog
from lightkube import AsyncClient
from lightkube.resources.core_v1 import PersistentVolume

from kube_efs.controllers.events import ProvisioningEvents
from kube_efs.controllers.queue import Controller
from kube_efs.kube.reading import read_volume
from kube_efs.kube.watching import Applied, Deleted, Listed, follow
from kube_efs.model.errors import KubeEfsError, LeftAlone, RemovalRefused, WorkerDenied
from kube_efs.model.tunnel_volumes import ROOT_CLASS
from kube_efs.model.volumes import Volume, VolumePhase
from kube_efs.provisioning.engine import Engine
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.telemetry.duties import Duties
from kube_efs.telemetry.metrics import ControllerMetrics, Outcome

log = structlog.get_logger(__name__)

# Nothing reports that an access point, or a link on the file system, no longer blocks a removal.
_REFUSED_AGAIN_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """A refused removal: the volumes that block it, and how long it waits after one of them is deleted."""

    text: str
    published_at: float
    volumes: frozenset[str]
    pause_seconds: float = 0.0


class VolumeController(Controller[str]):
    """Reclaims released volumes, after ``begin`` is set if given; use as ``async with``."""

    def __init__(
        self,
        *,
        engine: Engine,
        index: VolumeIndex,
        events: ProvisioningEvents,
        metrics: ControllerMetrics,
        backoff_seconds: float,
        duties: Duties,
        begin: asyncio.Event | None = None,
    ) -> None:
        super().__init__("volumes", self._handle, duties)
        self._begin = begin
        self._engine = engine
        self._index = index
        self._events = events
        self._metrics = metrics
        self._backoff_seconds = backoff_seconds
        # By volume. Users can create volumes that block removals, and delete them, as often as they want, and
        # each attempt is a call to AWS. So only a deletion of a blocking volume repeats a removal, each time
        # after a longer pause.
        self._refusals: dict[str, _Refusal] = {}

    def listed(self, volumes: Sequence[Volume]) -> None:
        """Replace the known volumes with a full list."""
        self._index.replace_volumes(volumes)
        for volume in volumes:
            if self._concerns(volume):
                self._queue.add(volume.name)

    def seen(self, volume: Volume) -> None:
        """A volume is new or has changed."""
        before = self._index.volumes.get(volume.name)
        self._index.put_volume(volume)
        if self._concerns(volume) and before != volume:
            self._queue.add(volume.name)

    def gone(self, volume: Volume) -> None:
        """A volume was deleted, so it no longer blocks the removal of others."""
        self._index.drop_volume(volume)
        self._refusals.pop(volume.name, None)
        for name, refusal in self._refusals.items():
            if volume.name in refusal.volumes:
                self._repeat(name)

    def _concerns(self, volume: Volume) -> bool:
        is_leaving = volume.phase in {VolumePhase.RELEASED, VolumePhase.FAILED} or volume.deleting
        return is_leaving or self._engine.is_unprotected(volume)

    async def _handle(self, name: str) -> float | None:
        volume = self._index.volumes.get(name)
        # At once, not after the wait: a volume that is deleted without our finalizer leaves its directory
        # behind.
        delay = await self._protect(volume) if volume else None
        if self._begin is not None:
            await self._begin.wait()
        volume = self._index.volumes.get(name)
        if volume is None:
            return None
        try:
            done = await self._engine.reclaim(volume)
        except LeftAlone as error:
            self._refusals.pop(name, None)
            self._events.volume_left_alone(volume, error)
            return delay
        except RemovalRefused as error:
            self._refused(volume, error)
            return _REFUSED_AGAIN_SECONDS if delay is None else delay
        except KubeEfsError as error:
            self._refusals.pop(name, None)
            self._events.not_reclaimed(volume, error)
            outcome = Outcome.REFUSED if isinstance(error, WorkerDenied) else Outcome.RETRIED
            self._count(volume, outcome)
            return self._backoff_seconds
        self._refusals.pop(name, None)
        if done is not None:
            self._events.reclaimed(done)
            self._count(volume, Outcome.SUCCEEDED)
        return delay

    def _report_fault(self, name: str, error: Exception) -> None:
        self._refusals.pop(name, None)
        if volume := self._index.volumes.get(name):
            self._events.not_reclaimed(volume, error)

    async def _protect(self, volume: Volume) -> float | None:
        """Add our finalizer; after a failure, returns the seconds until the next attempt."""
        try:
            await self._engine.protect(volume)
        except KubeEfsError as error:
            delay = self._backoff_seconds
            log.warning("volume-not-protected", volume=volume.name, reason=str(error), retry_seconds=delay)
            return delay
        return None

    def _refused(self, volume: Volume, error: RemovalRefused) -> None:
        now, text = asyncio.get_running_loop().time(), str(error)
        before = self._refusals.get(volume.name)
        published_at, pause = (before.published_at, before.pause_seconds) if before else (now, 0.0)
        if before is None or before.text != text or now >= published_at + _REFUSED_AGAIN_SECONDS:
            self._events.not_reclaimed(volume, error)
            published_at = now
        self._refusals[volume.name] = _Refusal(
            text=text, published_at=published_at, volumes=error.volumes, pause_seconds=pause
        )
        self._count(volume, Outcome.REFUSED)
        # One of them may have been deleted since the check.
        if not error.volumes <= self._index.volumes.keys():
            self._repeat(volume.name)

    def _repeat(self, name: str) -> None:
        pause = self._refusals[name].pause_seconds
        if self._queue.add(name, after_seconds=pause):
            longer = min(max(1.0, 2 * pause), self._backoff_seconds)
            self._refusals[name] = replace(self._refusals[name], pause_seconds=longer)

    def _count(self, volume: Volume, outcome: Outcome) -> None:
        self._metrics.deletions.labels(volume.provisioned_by or "", outcome).inc()


async def watch_volumes(
    client: AsyncClient, volumes: VolumeController, root_changed: Callable[[], None], listed: asyncio.Event
) -> None:
    """Pass every volume to the controller, until cancelled; ``listed`` is set when all are known."""
    async for change in follow(client, PersistentVolume, read=read_volume_object):
        match change:
            case Listed(objects):
                volumes.listed(objects)
                listed.set()
            case Applied(volume):
                volumes.seen(volume)
            case Deleted(volume):
                volumes.gone(volume)
                if volume.storage_class == ROOT_CLASS:
                    root_changed()


def read_volume_object(found: PersistentVolume) -> Volume:
    """The volume in an object of the client."""
    return read_volume(found.to_dict())
