"""The volume binder: looks at claims and volumes when they change, and makes the writes of ``binding``."""

import asyncio
from typing import Any

from lightkube import AsyncClient
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim
from lightkube.resources.storage_v1 import StorageClass as StorageClassObject
from lightkube.types import PatchType

from tinykube.client.calls import unless_missing
from tinykube.controllers.binding import Writes, decide_claim, decide_volume
from tinykube.controllers.caches import Cache, Caches, Change
from tinykube.controllers.values import Claim, ClaimReference, Key, StorageClass, Volume
from tinykube.controllers.work_queue import WorkQueue

_WORKERS = 8


class Binder:
    """Binds claims and volumes of one cluster while ``run`` runs."""

    def __init__(self, client: AsyncClient, caches: Caches) -> None:
        self._client = client
        self._caches = caches
        self._claims: WorkQueue[Key] = WorkQueue("claims", self._look_at_claim)
        self._volumes: WorkQueue[Key] = WorkQueue("volumes", self._look_at_volume)
        caches.claims.listen(self._claim_changed)
        caches.volumes.listen(self._volume_changed)
        caches.classes.listen(self._class_changed)

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
            for volume in self._caches.volumes.values.values():
                if volume.claim is not None and volume.claim.key == claim.meta.key:
                    self._volumes.add(volume.meta.key)

    def _volume_changed(self, change: Change[Volume]) -> None:
        volume = change.known
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

    async def _look_at_claim(self, key: Key) -> None:
        claim = self._caches.claims.values.get(key)
        if claim is None:
            return
        storage_class = await self._class_of(claim)
        await write_all(
            self._client, self._caches, decide_claim(claim, self._caches.volumes.values, storage_class)
        )

    async def _look_at_volume(self, key: Key) -> None:
        volume = self._caches.volumes.values.get(key)
        if volume is None:
            return
        claim = await self._claim_of(volume, volume.claim) if volume.claim else None
        await write_all(self._client, self._caches, decide_volume(volume, claim))

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
        settled = volume.phase in {"Released", "Failed"}
        if settled or not reference.uid or (known is not None and known.meta.uid == reference.uid):
            return known
        # Released means that data may be deleted: never say so because the claim's own watch is late.
        found = await unless_missing(
            self._client.get(PersistentVolumeClaim, reference.key.name, namespace=reference.key.namespace)
        )
        return None if found is None else self._caches.claims.remember(found)


async def write_all(client: AsyncClient, caches: Caches, writes: Writes) -> None:
    """Make the writes one by one, each on top of what the one before made of the object.

    The server refuses a write when the object is no longer what was decided on.
    """
    untyped: Any = client  # its overloads want the kind spelt out
    versions: dict[str, str] = {}
    for write in writes:
        meta = write.target.meta
        of_claim = isinstance(write.target, Claim)
        kind: Any = PersistentVolumeClaim if of_claim else PersistentVolume
        cache: Cache[Any] = caches.claims if of_claim else caches.volumes
        version = {"resourceVersion": versions.get(meta.uid, meta.version), "uid": meta.uid}
        written = await untyped.patch(
            kind.Status if "status" in write.patch else kind,
            meta.key.name,
            {**write.patch, "metadata": {**write.patch.get("metadata", {}), **version}},
            patch_type=PatchType.MERGE,
            **({"namespace": meta.key.namespace} if of_claim else {}),
        )
        value = cache.remember(written)
        if value is not None:
            versions[meta.uid] = value.meta.version
