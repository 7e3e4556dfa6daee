"""Takes the protection off claims that no pod uses and off volumes that no claim is bound to.

As Kubernetes' pvc-protection and pv-protection controllers do; the API server puts it on. A pod uses a
claim from being scheduled until it is gone, also after it has ended: its containers' data is still there.
"""

import asyncio
from collections.abc import Iterable

from lightkube import AsyncClient
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim
from lightkube.resources.core_v1 import Pod as PodObject
from lightkube.types import PatchType

from tinykube.controllers.caches import Caches, Change
from tinykube.controllers.values import (
    CLAIM_PROTECTION,
    VOLUME_PROTECTION,
    Claim,
    Key,
    Meta,
    Pod,
    Volume,
    VolumePhase,
    read_pod,
)
from tinykube.controllers.work_queue import WorkQueue

_WORKERS = 4


def is_used(claim: Key, pods: Iterable[Pod]) -> bool:
    """Whether one of the pods uses the claim."""
    return any(
        pod.node_name and pod.meta.key.namespace == claim.namespace and claim.name in pod.claim_names
        for pod in pods
    )


def awaits_release(meta: Meta, finalizer: str) -> bool:
    """Whether an object is being deleted and has this protection on."""
    return meta.deleting and finalizer in meta.finalizers


class Protection:
    """Takes protections off while ``run`` runs."""

    def __init__(self, client: AsyncClient, caches: Caches) -> None:
        self._client = client
        self._caches = caches
        self._claims: WorkQueue[Key] = WorkQueue("claim-protection", self._look_at_claim)
        self._volumes: WorkQueue[Key] = WorkQueue("volume-protection", self._look_at_volume)
        caches.claims.listen(self._claim_changed)
        caches.volumes.listen(self._volume_changed)
        caches.pods.listen(self._pod_changed)

    async def run(self) -> None:
        """Work until cancelled; somebody else fills the caches."""
        await self._caches.ready()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._claims.run(_WORKERS))
            tasks.create_task(self._volumes.run(_WORKERS))

    def _claim_changed(self, change: Change[Claim]) -> None:
        if change.after is not None and awaits_release(change.after.meta, CLAIM_PROTECTION):
            self._claims.add(change.after.meta.key)

    def _volume_changed(self, change: Change[Volume]) -> None:
        if change.after is not None and awaits_release(change.after.meta, VOLUME_PROTECTION):
            self._volumes.add(change.after.meta.key)

    def _pod_changed(self, change: Change[Pod]) -> None:
        if change.after is None and change.before is not None:
            for name in change.before.claim_names:
                self._claims.add(Key(change.before.meta.key.namespace, name))

    async def _look_at_claim(self, key: Key) -> None:
        claim = self._caches.claims.values.get(key)
        if claim is None or not awaits_release(claim.meta, CLAIM_PROTECTION):
            return
        if is_used(key, self._caches.pods.values.values()) or await self._is_used_now(key):
            return
        await self._client.patch(
            PersistentVolumeClaim,
            key.name,
            _without(claim.meta, CLAIM_PROTECTION),
            namespace=key.namespace,
            patch_type=PatchType.MERGE,
        )

    async def _is_used_now(self, key: Key) -> bool:
        # The cache may not know of a new pod yet, and a claim under a pod must never go.
        found = [read_pod(pod) async for pod in self._client.list(PodObject, namespace=key.namespace)]
        return is_used(key, found)

    async def _look_at_volume(self, key: Key) -> None:
        volume = self._caches.volumes.values.get(key)
        if volume is None or not awaits_release(volume.meta, VOLUME_PROTECTION):
            return
        if volume.phase is VolumePhase.BOUND:
            return
        await self._client.patch(
            PersistentVolume,
            key.name,
            _without(volume.meta, VOLUME_PROTECTION),
            patch_type=PatchType.MERGE,
        )


def _without(meta: Meta, finalizer: str) -> dict[str, dict[str, object]]:
    kept = [name for name in meta.finalizers if name != finalizer]
    return {"metadata": {"finalizers": kept, "resourceVersion": meta.version, "uid": meta.uid}}
