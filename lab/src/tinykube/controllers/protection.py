"""Takes the protection off claims that no pod uses and off volumes that no claim is bound to.

As Kubernetes' pvc-protection and pv-protection controllers do; the API server puts it on. A pod uses a
claim from being scheduled until it is gone, also after it has ended: its containers' data is still there.
"""

import asyncio

from lightkube import AsyncClient
from lightkube.resources.core_v1 import Pod as PodObject

from tinykube.controllers.binder import write_all
from tinykube.controllers.binding import Write
from tinykube.controllers.caches import Caches, Change
from tinykube.controllers.values import (
    CLAIM_PROTECTION,
    VOLUME_PROTECTION,
    Claim,
    Key,
    Meta,
    Pod,
    Volume,
    read_pod,
)
from tinykube.controllers.work_queue import WorkQueue

_WORKERS = 4


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
        self._claims.add(change.known.meta.key)

    def _volume_changed(self, change: Change[Volume]) -> None:
        self._volumes.add(change.known.meta.key)

    def _pod_changed(self, change: Change[Pod]) -> None:
        if change.after is None and change.before is not None:
            for name in change.before.claim_names:
                self._claims.add(Key(change.before.meta.key.namespace, name))

    async def _look_at_claim(self, key: Key) -> None:
        claim = self._caches.claims.values.get(key)
        if claim is None or not _awaits_release(claim.meta, CLAIM_PROTECTION):
            return
        if not await self._is_used(key):
            await self._take_off(claim, CLAIM_PROTECTION)

    async def _is_used(self, key: Key) -> bool:
        """Whether a pod uses the claim. The cache may not know of a new one, and no claim may go under it."""
        found = [read_pod(pod) async for pod in self._client.list(PodObject, namespace=key.namespace)]
        return any(pod.node_name and key.name in pod.claim_names for pod in found)

    async def _look_at_volume(self, key: Key) -> None:
        volume = self._caches.volumes.values.get(key)
        if volume is None or volume.phase == "Bound":
            return
        if _awaits_release(volume.meta, VOLUME_PROTECTION):
            await self._take_off(volume, VOLUME_PROTECTION)

    async def _take_off(self, target: Claim | Volume, finalizer: str) -> None:
        kept = [name for name in target.meta.finalizers if name != finalizer]
        write = Write(target, {"metadata": {"finalizers": kept}})
        await write_all(self._client, self._caches, (write,))


def _awaits_release(meta: Meta, finalizer: str) -> bool:
    return meta.deleting and finalizer in meta.finalizers
