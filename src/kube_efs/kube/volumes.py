"""Persistent volumes in the Kubernetes API, as values."""

from lightkube import AsyncClient
from lightkube.resources.core_v1 import PersistentVolume

from kube_efs.kube.building import build_volume
from kube_efs.kube.errors import translated
from kube_efs.kube.reading import read_volume
from kube_efs.model.errors import KubeNotFound
from kube_efs.model.volumes import Volume


class VolumeStore:
    """Creates, reads and deletes volumes; raises KubeError."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def create(self, volume: Volume) -> Volume:
        """The volume as the API server took it; raises KubeAlreadyExists."""
        with translated(f"volume {volume.name}"):
            return read_volume((await self._client.create(build_volume(volume))).to_dict())

    async def get(self, name: str) -> Volume:
        """The volume of that name; raises KubeNotFound."""
        with translated(f"volume {name}"):
            return read_volume((await self._client.get(PersistentVolume, name)).to_dict())

    async def delete(self, volume: Volume) -> None:
        """Delete the volume; one that is gone is no error."""
        try:
            with translated(f"volume {volume.name}"):
                await self._client.delete(PersistentVolume, volume.name)
        except KubeNotFound:
            return
