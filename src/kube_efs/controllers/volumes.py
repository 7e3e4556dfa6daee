"""Volumes: ours get a finalizer; Released ones are removed with their data if policy and guards allow it."""

import asyncio
from collections.abc import Callable, Sequence
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
        # The volumes whose removal another volume blocks, or may block while it is tried.
        self._blocked: set[str] = set()

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
        self._blocked.discard(volume.name)
        for name in self._blocked:
            self._queue.add(name)

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
        self._blocked.add(name)
        try:
            done = await self._engine.reclaim(volume)
        except LeftAlone as error:
            self._blocked.discard(name)
            self._events.volume_left_alone(volume, error)
            return delay
        except RemovalRefused as error:
            again = _REFUSED_AGAIN_SECONDS if delay is None else delay
            return self._not_reclaimed(volume, error, Outcome.REFUSED, again)
        except KubeEfsError as error:
            self._blocked.discard(name)
            outcome = Outcome.REFUSED if isinstance(error, WorkerDenied) else Outcome.RETRIED
            return self._not_reclaimed(volume, error, outcome, self._backoff_seconds)
        self._blocked.discard(name)
        if done is not None:
            self._events.reclaimed(done)
            self._metrics.deletions.labels(volume.provisioned_by or "", Outcome.SUCCEEDED).inc()
        return delay

    def _report_fault(self, name: str, error: Exception) -> None:
        self._blocked.discard(name)
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

    def _not_reclaimed(self, volume: Volume, error: KubeEfsError, outcome: Outcome, delay: float) -> float:
        self._events.not_reclaimed(volume, error)
        self._metrics.deletions.labels(volume.provisioned_by or "", outcome).inc()
        return delay


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
