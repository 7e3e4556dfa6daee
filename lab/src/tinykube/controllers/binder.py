"""The volume binder: looks at claims and volumes when they change, and makes the writes of ``binding``."""

import asyncio

import structlog
from lightkube import AsyncClient
from lightkube.models.core_v1 import ObjectReference
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim
from lightkube.resources.storage_v1 import StorageClass as StorageClassObject
from lightkube.types import PatchType

from tinykube.client.calls import unless_missing
from tinykube.client.events import EventRecorder
from tinykube.controllers.binding import (
    ReferClaim,
    Report,
    SetClaim,
    SetClaimStatus,
    SetVolumePhase,
    Steps,
    decide_claim,
    decide_volume,
)
from tinykube.controllers.caches import Caches, Change
from tinykube.controllers.patches import on_top_of
from tinykube.controllers.values import (
    Claim,
    ClaimPhase,
    ClaimReference,
    Key,
    Pod,
    StorageClass,
    Volume,
    VolumePhase,
)
from tinykube.controllers.work_queue import WorkQueue

log = structlog.get_logger(__name__)

_WORKERS = 8


class Binder:
    """Binds claims and volumes of one cluster while ``run`` runs."""

    def __init__(self, client: AsyncClient, caches: Caches, events: EventRecorder) -> None:
        self._client = client
        self._caches = caches
        self._events = events
        self._last_words: dict[str, tuple[str, str]] = {}
        self._claims: WorkQueue[Key] = WorkQueue("claims", self._look_at_claim)
        self._volumes: WorkQueue[Key] = WorkQueue("volumes", self._look_at_volume)
        caches.claims.listen(self._claim_changed)
        caches.volumes.listen(self._volume_changed)
        caches.classes.listen(self._class_changed)
        caches.pods.listen(self._pod_changed)

    async def run(self) -> None:
        """Work until cancelled; somebody else fills the caches."""
        await self._caches.ready()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._claims.run(_WORKERS))
            tasks.create_task(self._volumes.run(_WORKERS))

    def _claim_changed(self, change: Change[Claim]) -> None:
        claim = change.known
        self._claims.add(claim.meta.key)
        if claim.volume_name:
            self._volumes.add(Key("", claim.volume_name))
        if change.after is None:
            self._last_words.pop(claim.meta.uid, None)
            for volume in self._caches.volumes.values.values():
                if volume.claim is not None and volume.claim.key == claim.meta.key:
                    self._volumes.add(volume.meta.key)

    def _volume_changed(self, change: Change[Volume]) -> None:
        volume = change.known
        if change.after is None:
            self._last_words.pop(volume.meta.uid, None)
        self._volumes.add(volume.meta.key)
        for state in (change.before, change.after):
            if state is not None and state.claim is not None:
                self._claims.add(state.claim.key)
        if volume.claim is None:
            for claim in self._caches.claims.values.values():
                unbound = not claim.volume_name and claim.class_name in {volume.class_name, None}
                if unbound or claim.volume_name == volume.meta.key.name:
                    self._claims.add(claim.meta.key)

    def _class_changed(self, change: Change[StorageClass]) -> None:
        name = change.known.meta.key.name
        for claim in self._caches.claims.values.values():
            if claim.class_name == name and not claim.volume_name:
                self._claims.add(claim.meta.key)

    def _pod_changed(self, change: Change[Pod]) -> None:
        """A claim that waits for a consumer says which pods it waits for."""
        pod = change.known
        if pod.node_name:
            return
        for name in pod.claim_names:
            self._claims.add(Key(pod.meta.key.namespace, name))

    async def _look_at_claim(self, key: Key) -> None:
        claim = self._caches.claims.values.get(key)
        if claim is None:
            return
        waiting = tuple(
            sorted(
                pod.meta.key.name
                for pod in self._caches.pods.values.values()
                if not pod.node_name
                and pod.meta.key.namespace == key.namespace
                and key.name in pod.claim_names
            )
        )
        steps = decide_claim(claim, self._caches.volumes.values, await self._class_of(claim), waiting)
        await self._take(steps)

    async def _look_at_volume(self, key: Key) -> None:
        volume = self._caches.volumes.values.get(key)
        if volume is None:
            return
        claim = await self._claim_of(volume, volume.claim) if volume.claim else None
        await self._take(decide_volume(volume, claim))

    async def _class_of(self, claim: Claim) -> StorageClass | None:
        if claim.volume_name or not claim.class_name:
            return None
        known = self._caches.classes.values.get(Key("", claim.class_name))
        if known is not None:
            return known
        # Class and claim often come in one manifest: the claim may be seen first.
        found = await unless_missing(self._client.get(StorageClassObject, claim.class_name))
        return None if found is None else self._caches.classes.remember(found)

    async def _claim_of(self, volume: Volume, reference: ClaimReference) -> Claim | None:
        known = self._caches.claims.values.get(reference.key)
        settled = volume.phase in {VolumePhase.RELEASED, VolumePhase.FAILED}
        if settled or not reference.uid or (known is not None and known.meta.uid == reference.uid):
            return known
        # Released means that data may be deleted: never say so because the claim's own watch is late.
        found = await unless_missing(
            self._client.get(PersistentVolumeClaim, reference.key.name, namespace=reference.key.namespace)
        )
        return None if found is None else self._caches.claims.remember(found)

    async def _take(self, steps: Steps) -> None:
        """Make the writes one by one, each on top of what the one before made of the object."""
        versions: dict[str, str] = {}
        for step in steps:
            match step:
                case ReferClaim() | SetVolumePhase():
                    await self._write_volume(step, versions)
                case SetClaim() | SetClaimStatus():
                    await self._write_claim(step, versions)
                case Report():
                    self._report(step)

    def _report(self, step: Report) -> None:
        """Post an event unless it is the one that was posted last: each change brings another look."""
        uid, words = step.about.meta.uid, (step.reason, step.message)
        if self._last_words.get(uid) == words:
            return
        self._last_words[uid] = words
        self._events.publish(_subject(step.about), step.reason, step.message, warning=step.warning)

    async def _write_volume(self, step: ReferClaim | SetVolumePhase, versions: dict[str, str]) -> None:
        meta = step.volume.meta
        kind = PersistentVolume.Status if isinstance(step, SetVolumePhase) else PersistentVolume
        written = await self._client.patch(
            kind, meta.key.name, on_top_of(meta, versions, step), patch_type=PatchType.MERGE
        )
        value = self._caches.volumes.remember(written)
        if value is not None:
            versions[meta.uid] = value.meta.version
        log.debug("volume-written", volume=meta.key.name, step=type(step).__name__)

    async def _write_claim(self, step: SetClaim | SetClaimStatus, versions: dict[str, str]) -> None:
        meta = step.claim.meta
        kind = PersistentVolumeClaim.Status if isinstance(step, SetClaimStatus) else PersistentVolumeClaim
        written = await self._client.patch(
            kind,
            meta.key.name,
            on_top_of(meta, versions, step),
            namespace=meta.key.namespace,
            patch_type=PatchType.MERGE,
        )
        value = self._caches.claims.remember(written)
        if value is not None:
            versions[meta.uid] = value.meta.version
        if isinstance(step, SetClaimStatus) and step.phase is ClaimPhase.BOUND and step.volume:
            log.info("claim-bound", claim=str(meta.key), volume=step.volume.meta.key.name)


def _subject(about: Claim | Volume) -> ObjectReference:
    kind = "PersistentVolumeClaim" if isinstance(about, Claim) else "PersistentVolume"
    meta = about.meta
    return ObjectReference(
        apiVersion="v1",
        kind=kind,
        namespace=meta.key.namespace or None,
        name=meta.key.name,
        uid=meta.uid,
        resourceVersion=meta.version,
    )
