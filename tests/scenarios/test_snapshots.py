"""Snapshots of volumes: created, restored and deleted without csi-snapshotter.

The tests do what snapshot-controller does, which is tested with its real program in tests/conformance.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio
import yaml
from lightkube import ApiError
from lightkube.codecs import from_dict
from lightkube.models.core_v1 import CSIPersistentVolumeSource, PersistentVolumeSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import PersistentVolume
from lightkube.types import PatchType
from tests.scenarios import csi_steps, directory_steps, steps
from tests.scenarios.copy_steps import (
    copy_of,
    folder_of,
    has_all,
    mounted_once,
    new_class,
    stopped_copy,
    with_many_files,
)
from tests.scenarios.csi_steps import DRIVER, Aws
from tests.scenarios.directory_steps import Claims
from tests.scenarios.steps import Cluster, eventually

from kube_efs.kube.snapshots import VolumeSnapshot, VolumeSnapshotContent, read_content
from kube_efs.model.copies import COPIES, SNAPSHOTS
from kube_efs.model.snapshots import BEING_DELETED, FINALIZER, SnapshotContent
from kube_efs.model.volumes import Volume

pytestmark = pytest.mark.asyncio(loop_scope="session")

KINDS = Path(__file__).with_name("snapshot-kinds.yaml")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def aws(cluster: Cluster) -> AsyncIterator[Aws]:
    """The account of a cluster that has the kinds of snapshots."""
    for body in yaml.safe_load_all(await asyncio.to_thread(KINDS.read_text)):
        await cluster.client.create(from_dict(body))

    async def is_served() -> bool:
        try:
            return [one async for one in cluster.client.list(VolumeSnapshotContent)] == []
        except ApiError:
            return False

    await eventually(is_served, what="the kinds are served")
    await directory_steps.restarted(cluster.controller)
    async with Aws.of(cluster) as aws:
        yield aws


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


@pytest.mark.parametrize("kind", ["efs-ap", "efs-dir"])
async def test_snapshot_is_restored_after_its_volume_was_deleted(
    cluster: Cluster, aws: Aws, kind: str
) -> None:
    claims, name = await Claims.of(cluster), await new_class(cluster, kind)
    snapshots = Snapshots(cluster, claims)
    volume = await claims.provisioned(name, "source")
    source = await mounted_once(cluster, aws, volume)
    own = source.stat()
    (source / "file").write_text("as in the snapshot")
    os.chown(source / "file", own.st_uid, own.st_gid)

    content = await snapshots.ready("yesterday", volume)

    (source / "file").write_text("changed")
    await csi_steps.removed(cluster, claims, "source")
    await cluster.client.create(copy_of(claims, "restored", name, "yesterday", "VolumeSnapshot"))
    restored = await folder_of(cluster, aws, await claims.bound("restored"))
    assert (restored / "file").read_text() == "as in the snapshot"
    assert (restored / "file").stat().st_uid == restored.stat().st_uid

    await snapshots.delete(content.name)
    await snapshots.is_gone(content.name)
    assert not data_of(cluster, content).exists()
    assert (restored / "file").read_text() == "as in the snapshot"
    await csi_steps.removed(cluster, claims, "restored")


async def test_deleted_snapshot_with_the_policy_retain_keeps_its_data(cluster: Cluster, aws: Aws) -> None:
    claims, name = await Claims.of(cluster), await new_class(cluster, "efs-dir")
    snapshots, volume = Snapshots(cluster, claims), await claims.provisioned(name, "source")
    assert volume.csi
    handle = {"volumeHandle": volume.csi.handle}
    content = await snapshots.is_ready("kept", await snapshots.create("kept", handle, policy="Retain"))
    await snapshots.delete(content.name)
    await snapshots.is_gone(content.name)
    assert data_of(cluster, content).exists()

    again = await snapshots.create("again", {"snapshotHandle": content.handle})
    assert (await snapshots.is_ready("again", again)).handle == content.handle
    await cluster.client.create(copy_of(claims, "restored", name, "again", "VolumeSnapshot"))
    await claims.bound("restored")


async def test_snapshot_that_cannot_be_taken_says_why_and_can_be_deleted(cluster: Cluster, aws: Aws) -> None:
    claims = await Claims.of(cluster)
    snapshots = Snapshots(cluster, claims)
    content = await snapshots.create("whole", {"volumeHandle": cluster.file_system_ids[0]})

    async def problem() -> str:
        return (await snapshots.content(content)).problem

    told = await eventually(problem, what="the snapshot has a problem")
    assert f"'{cluster.file_system_ids[0]}:/' is, contains or is inside the directory of the copy" in told

    async def is_over() -> bool:
        return not (await snapshots.content(content)).is_being_created

    await eventually(is_over, what="no attempt runs")
    await snapshots.delete(content)
    await snapshots.is_gone(content)


async def test_snapshot_of_others_is_not_restored(cluster: Cluster, aws: Aws) -> None:
    claims, name = await Claims.of(cluster), await new_class(cluster, "efs-dir")
    snapshots, volume = Snapshots(cluster, claims), await claims.provisioned(name, "source")
    assert volume.csi
    content = await snapshots.create("own", {"volumeHandle": volume.csi.handle}, of="another")
    await snapshots.is_ready("own", content)
    await cluster.client.create(copy_of(claims, "restored", name, "own", "VolumeSnapshot"))
    assert "has no content of its own" in await claims.warning("restored", "VolumeSnapshot")
    await claims.delete("restored")


async def test_snapshot_with_a_volume_in_it_is_kept(cluster: Cluster, aws: Aws) -> None:
    claims, name = await Claims.of(cluster), await new_class(cluster, "efs-dir")
    snapshots = Snapshots(cluster, claims)
    content = await snapshots.ready("used", await claims.provisioned(name, "source"))
    handle = f"{cluster.file_system_ids[0]}:/{SNAPSHOTS}/{content.request_name}"
    user = f"user-of-{content.name}"
    spec = PersistentVolumeSpec(
        accessModes=["ReadWriteMany"],
        capacity={"storage": "1Gi"},
        csi=CSIPersistentVolumeSource(driver=DRIVER, volumeHandle=handle),
    )
    await cluster.client.create(PersistentVolume(metadata=ObjectMeta(name=user), spec=spec))
    await snapshots.delete(content.name)
    reason = "SnapshotDeleteError"

    async def told() -> list[str]:
        return await steps.messages(cluster.client, "default", content.name, reason)

    assert f"is also used by {user}" in (await eventually(told, what=reason))[0]
    assert data_of(cluster, content).exists()
    await cluster.client.delete(PersistentVolume, user)
    await snapshots.is_gone(content.name)


async def test_snapshot_survives_the_controller(cluster: Cluster, aws: Aws) -> None:
    claims, name = await Claims.of(cluster), await new_class(cluster, "efs-dir")
    snapshots = Snapshots(cluster, claims)
    await with_many_files(cluster, aws, claims, name)
    content = await snapshots.take("data", await claims.bound("source"))
    request = (await snapshots.content(content)).request_name
    async with stopped_copy(f"snapshot.{request}"):
        assert (await snapshots.content(content)).is_being_created
        # Its data must not stay without an object, so it is first completed.
        await snapshots.delete(content)
        await cluster.controller.kill()
        await cluster.controller.start()
        assert (await snapshots.content(content)).deleting
    await snapshots.is_gone(content)
    root = cluster.efs.folder(cluster.file_system_ids[0])
    assert not (root / SNAPSHOTS / request).exists()
    assert not (root / COPIES / f"snapshot.{request}").exists()


async def test_complete_snapshot_has_all_files(cluster: Cluster, aws: Aws) -> None:
    claims, name = await Claims.of(cluster), await new_class(cluster, "efs-ap")
    snapshots = Snapshots(cluster, claims)
    await with_many_files(cluster, aws, claims, name)
    content = await snapshots.ready("data", await claims.bound("source"))
    assert has_all(data_of(cluster, content))
