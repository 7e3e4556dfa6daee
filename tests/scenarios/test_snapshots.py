"""Snapshots of volumes: created, restored and deleted without csi-snapshotter.

The tests do what snapshot-controller does, which is tested with its real program in tests/conformance.
"""

import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from lightkube.models.core_v1 import CSIPersistentVolumeSource, PersistentVolumeSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import PersistentVolume
from tests.scenarios import csi_steps, steps
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
from tests.scenarios.snapshot_steps import Snapshots, data_of, install_kinds
from tests.scenarios.steps import Cluster, eventually

from fake_efs.policy import managed_policy
from kube_efs.model.copies import COPIES, SNAPSHOTS

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture(scope="module")
def driver_policy() -> str:
    """That of AWS, which is all that copies need."""
    return managed_policy()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def aws(cluster: Cluster) -> AsyncIterator[Aws]:
    """The account of a cluster that has the kinds of snapshots."""
    await install_kinds(cluster)
    async with Aws.of(cluster) as aws:
        yield aws


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


async def test_snapshot_that_is_deleted_early_leaves_nothing_although_the_controller_is_killed(
    cluster: Cluster, aws: Aws
) -> None:
    claims, name = await Claims.of(cluster), await new_class(cluster, "efs-dir")
    snapshots = Snapshots(cluster, claims)
    await with_many_files(cluster, aws, claims, name)
    content = await snapshots.take("data", await claims.bound("source"))
    request = (await snapshots.content(content)).request_name
    async with stopped_copy(f"snapshot.{request}"):
        assert (await snapshots.content(content)).is_being_created
        # The next controller stops the pod of the one before, and removes what it has copied.
        await cluster.controller.kill()
        await snapshots.delete(content)
        await cluster.controller.start()
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
