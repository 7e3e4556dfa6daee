"""Deletes the volumes of worker pods that do not exist any more.

A volume is created after its pod, and nothing creates the pod again: its name is random. A missing pod
therefore proves that the volume has no use, also if an earlier leader created it late. Kubernetes keeps a
volume that is bound until its claim is deleted.
"""

import asyncio
from typing import Final

import structlog
from lightkube import AsyncClient
from lightkube.resources.core_v1 import PersistentVolume, Pod

from kube_efs.kube.deleting import delete_exactly
from kube_efs.kube.errors import translated
from kube_efs.model.errors import KubeConflict, KubeError, KubeNotFound
from kube_efs.model.volumes import Volume, VolumePhase
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.provisioning.workers.roots import is_root_of_pod

log = structlog.get_logger(__name__)

_PAUSE_SECONDS: Final = 10.0


class WorkerVolumes:
    """The volumes of worker pods in one namespace; ``index`` must know all volumes."""

    def __init__(self, client: AsyncClient, index: VolumeIndex, *, namespace: str) -> None:
        self._client = client
        self._index = index
        self._namespace = namespace

    async def run(self) -> None:
        """Delete unused volumes until cancelled."""
        while True:
            await self.delete_unused()
            await asyncio.sleep(_PAUSE_SECONDS)

    async def delete_unused(self) -> None:
        """Delete those whose pod does not exist; errors are logged, and retried by the next call."""
        for volume in list(self._index.volumes.values()):
            is_candidate = volume.phase is not VolumePhase.BOUND and not volume.deleting
            if not is_candidate or not is_root_of_pod(volume, self._namespace):
                continue
            try:
                if not await self._has_pod(volume):
                    await self._delete(volume)
            except KubeError as error:
                log.warning("worker-volume-not-deleted", volume=volume.name, reason=str(error))

    async def _has_pod(self, volume: Volume) -> bool:
        try:
            with translated(f"worker pod {volume.name}"):
                await self._client.get(Pod, volume.name, namespace=self._namespace)
        except KubeNotFound:
            return False
        return True

    async def _delete(self, volume: Volume) -> None:
        try:
            with translated(f"volume {volume.name}"):
                await delete_exactly(self._client, PersistentVolume, volume.name, volume.uid)
        except (KubeNotFound, KubeConflict):  # It is gone; another one may have its name.
            return
        log.info("worker-volume-deleted", volume=volume.name)
