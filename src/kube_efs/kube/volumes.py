"""Persistent volumes in the Kubernetes API, as values."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from lightkube import AsyncClient
from lightkube.resources.core_v1 import PersistentVolume
from lightkube.types import PatchType

from kube_efs.kube.building import build_volume
from kube_efs.kube.deleting import delete_exactly
from kube_efs.kube.errors import translated
from kube_efs.kube.pages import PAGE_SIZE
from kube_efs.kube.reading import read_volume
from kube_efs.model.errors import KubeConflict, KubeNotFound, KubeUnavailable
from kube_efs.model.volumes import FINALIZER, Volume

# More concurrent requests slow down a busy API server, and use connections that other requests need.
_CREATED_AT_ONCE: Final = 16


class VolumeStore:
    """Creates, reads, expands and deletes volumes; raises KubeError."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._slots = asyncio.Semaphore(_CREATED_AT_ONCE)

    async def create(self, volume: Volume) -> Volume:
        """The created volume; raises KubeAlreadyExists.

        After KubeUnavailable, it may exist or can still be created.
        """
        async with self._slots:
            try:
                with translated(f"volume {volume.name}"):
                    return read_volume((await self._client.create(build_volume(volume))).to_dict())
            except KubeUnavailable as error:
                error.outcome_unknown = True
                raise

    async def get(self, name: str) -> Volume:
        """The volume of that name; raises KubeNotFound."""
        with translated(f"volume {name}"):
            return read_volume((await self._client.get(PersistentVolume, name)).to_dict())

    async def list(self) -> Sequence[Volume]:
        """Every volume, listed after this call."""
        with translated("list PersistentVolume"):
            found = self._client.list(PersistentVolume, chunk_size=PAGE_SIZE)
            return [read_volume(one.to_dict()) async for one in found]

    async def terminate(self, volume: Volume) -> None:
        """Delete the volume if it has not changed since it was read; our finalizer then holds it.

        Raises KubeConflict when it has changed, KubeNotFound when it was deleted.
        """
        with translated(f"volume {volume.name}"):
            await delete_exactly(
                self._client,
                PersistentVolume,
                volume.name,
                volume.uid,
                resource_version=volume.resource_version,
            )

    async def delete(self, volume: Volume) -> None:
        """Delete the volume with our finalizer; a missing volume is not an error.

        A newer volume of the same name is not changed.
        """
        if not volume.deleting:
            try:
                with translated(f"volume {volume.name}"):
                    await delete_exactly(self._client, PersistentVolume, volume.name, volume.uid)
            except (KubeNotFound, KubeConflict):
                return
        if FINALIZER in volume.finalizers:
            await self.release(volume)

    async def release(self, volume: Volume) -> None:
        """Remove our finalizer; a deleted volume is not an error."""
        with suppress(KubeNotFound):
            # Only this one, whatever others the list has got since the volume was read.
            await self._patch(volume, {"$deleteFromPrimitiveList/finalizers": [FINALIZER]})

    async def protect(self, volume: Volume) -> None:
        """Add our finalizer; a deleted volume is not an error."""
        with suppress(KubeNotFound):
            # A strategic patch adds it to the list, and keeps the others.
            await self._patch(volume, {"finalizers": [FINALIZER]})

    async def expand(self, volume: Volume, capacity: str) -> None:
        """Set the capacity; raises KubeConflict if the volume has changed since it was read."""
        version = {"resourceVersion": volume.resource_version}
        await self._patch(volume, version, {"capacity": {"storage": capacity}})

    async def _patch(
        self, volume: Volume, metadata: Mapping[str, object], spec: Mapping[str, object] | None = None
    ) -> None:
        # The uid makes the patch fail, instead of changing a new volume of the same name.
        patch = {"metadata": {"uid": volume.uid, **metadata}, **({"spec": spec} if spec else {})}
        with translated(f"volume {volume.name}"):
            await self._client.patch(PersistentVolume, volume.name, patch, patch_type=PatchType.STRATEGIC)
