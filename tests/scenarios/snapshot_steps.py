"""Steps for scenarios of snapshots: they do what snapshot-controller does."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import yaml
from lightkube import ApiError
from lightkube.codecs import from_dict
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.types import PatchType
from tests.scenarios import directory_steps
from tests.scenarios.csi_steps import DRIVER
from tests.scenarios.directory_steps import Claims
from tests.scenarios.steps import Cluster, eventually

from kube_efs.kube.errors import translated
from kube_efs.kube.snapshots import VolumeSnapshot, VolumeSnapshotContent, read_content
from kube_efs.model.copies import SNAPSHOTS
from kube_efs.model.errors import KubeNotFound
from kube_efs.model.snapshots import BEING_DELETED, FINALIZER, SnapshotContent
from kube_efs.model.volumes import Volume

KINDS = Path(__file__).with_name("snapshot-kinds.yaml")


async def install_kinds(cluster: Cluster) -> None:
    """Give the cluster the kinds of snapshots; a controller would notice them only after a minute."""
    for body in yaml.safe_load_all(await asyncio.to_thread(KINDS.read_text)):
        await cluster.client.create(from_dict(body))

    async def is_served() -> bool:
        try:
            with translated("kinds of snapshots"):
                return [one async for one in cluster.client.list(VolumeSnapshotContent)] == []
        except KubeNotFound:
            return False

    await eventually(is_served, what="the kinds are served")
    await directory_steps.restarted(cluster.controller)


class Snapshots:
    """Snapshots of one namespace."""

    def __init__(self, cluster: Cluster, claims: Claims) -> None:
        self._client = cluster.client
        self._namespace = claims.namespace

    async def create(
        self, name: str, source: Mapping[str, str], *, policy: str = "Delete", of: str = ""
    ) -> str:
        """The name of the content of a new snapshot; ``of`` is the uid of another one that owns it."""
        metadata = ObjectMeta(name=name, namespace=self._namespace)
        snapshot = await self._client.create(VolumeSnapshot(metadata=metadata, spec={"source": {}}))
        uid = of or snapshot.metadata.uid
        spec = {
            "driver": DRIVER,
            "deletionPolicy": policy,
            "source": dict(source),
            "volumeSnapshotRef": {"namespace": self._namespace, "name": name, "uid": uid},
        }
        content = f"snapcontent-{snapshot.metadata.uid}"
        metadata = ObjectMeta(name=content, finalizers=[FINALIZER])
        await self._client.create(VolumeSnapshotContent(metadata=metadata, spec=spec))
        return content

    async def take(self, name: str, volume: Volume) -> str:
        """Start a snapshot of the volume; returns the name of its content."""
        assert volume.csi
        return await self.create(name, {"volumeHandle": volume.csi.handle})

    async def content(self, name: str) -> SnapshotContent:
        """The content as it is now."""
        return read_content((await self._client.get(VolumeSnapshotContent, name)).to_dict())

    async def is_ready(self, name: str, content: str) -> SnapshotContent:
        """Wait until the snapshot is complete, and tell its user."""

        async def look() -> SnapshotContent | None:
            found = await self.content(content)
            return found if found.is_ready and not found.is_being_created else None

        found = await eventually(look, what=f"the snapshot {name} is ready")
        status = {"status": {"boundVolumeSnapshotContentName": content, "readyToUse": True}}
        await self._client.patch(
            VolumeSnapshot.Status, name, status, namespace=self._namespace, patch_type=PatchType.MERGE
        )
        return found

    async def ready(self, name: str, volume: Volume) -> SnapshotContent:
        """A complete snapshot of the volume."""
        return await self.is_ready(name, await self.take(name, volume))

    async def delete(self, content: str) -> None:
        """Delete the snapshot of that content."""
        annotations = {"metadata": {"annotations": {BEING_DELETED: "yes"}}}
        await self._client.patch(VolumeSnapshotContent, content, annotations, patch_type=PatchType.MERGE)
        await self._client.delete(VolumeSnapshotContent, content)

    async def is_gone(self, content: str) -> None:
        """Wait until the content is deleted."""

        async def look() -> bool:
            try:
                await self.content(content)
            except ApiError as error:
                return error.status.code == 404
            return False

        await eventually(look, what=f"{content} is gone")


def data_of(cluster: Cluster, content: SnapshotContent) -> Path:
    """The directory of a snapshot on this machine."""
    return cluster.efs.folder(cluster.file_system_ids[0]) / SNAPSHOTS / content.request_name
