"""Claims that are copies of other claims: every kind of volume, killed controllers, deleted claims."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from lightkube.models.meta_v1 import LabelSelector
from lightkube.resources.core_v1 import Pod
from tests.scenarios import csi_steps, directory_steps, steps
from tests.scenarios.copy_steps import (
    copy_of,
    folder_of,
    has_all,
    mounted_once,
    new_class,
    stopped_copy,
    volume_name,
    with_many_files,
)
from tests.scenarios.csi_steps import Aws
from tests.scenarios.directory_steps import Claims
from tests.scenarios.steps import Cluster

from fake_efs.policy import managed_policy
from kube_efs.model.copies import COPIES
from kube_efs.model.names import WORKER_LABELS
from kube_efs.model.volumes import VolumePhase

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture(scope="module")
def driver_policy() -> str:
    """That of AWS, which is all that copies need."""
    return managed_policy()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def aws(cluster: Cluster) -> AsyncIterator[Aws]:
    async with Aws.of(cluster) as aws:
        yield aws


@pytest.mark.parametrize("kind", ["efs-ap", "efs-dir", "tunnel", "directory"])
async def test_claim_gets_a_copy_of_another_claim(cluster: Cluster, aws: Aws, kind: str) -> None:
    claims, name = await Claims.of(cluster), await new_class(cluster, kind)
    labels = {"volume_name": "source"} if kind == "tunnel" else None
    await cluster.client.create(steps.claim(claims.namespace, "source", name, labels))
    volume = await claims.bound("source")
    source = await mounted_once(cluster, aws, volume)
    own = source.stat()
    (source / "sub").mkdir()
    (source / "sub/file").write_text("data")
    os.chown(source / "sub/file", own.st_uid, own.st_gid)
    (source / "of another user").write_text("x")
    os.chown(source / "of another user", 4444, 4445)
    (source / "link").symlink_to("sub/file")

    copied = copy_of(claims, "copy", name, "source")
    assert copied.spec
    copied.spec.selector = LabelSelector(matchLabels={"volume_name": "copy"}) if labels else None
    await cluster.client.create(copied)
    copy = await folder_of(cluster, aws, await claims.bound("copy"))

    assert sorted(path.name for path in copy.iterdir()) == ["link", "of another user", "sub"]
    assert (copy / "sub/file").read_text() == "data"
    assert (copy / "link").readlink() == Path("sub/file")
    file, top, other = (copy / "sub/file").stat(), copy.stat(), (copy / "of another user").stat()
    assert (other.st_uid, other.st_gid) == (4444, 4445)
    assert (file.st_uid, file.st_gid) == (top.st_uid, top.st_gid)
    # Volumes with an identity have one of their own.
    assert kind == "tunnel" or top.st_gid != own.st_gid
    assert (copy / "sub").stat().st_mtime_ns == (source / "sub").stat().st_mtime_ns
    told = await csi_steps.events(cluster, claims, "copy", "Copying")
    assert any(text.startswith("Copied 4 files and directories (5 B) to ") for text in told), told

    await csi_steps.removed(cluster, claims, "source")
    (copy / "sub/file").write_text("still there")
    await csi_steps.removed(cluster, claims, "copy")


async def test_copy_of_a_volume_that_was_never_mounted_is_empty(cluster: Cluster, aws: Aws) -> None:
    claims, name = await Claims.of(cluster), await new_class(cluster, "efs-ap")
    await claims.provisioned(name, "source")
    await cluster.client.create(copy_of(claims, "copy", name, "source"))
    assert list((await folder_of(cluster, aws, await claims.bound("copy"))).iterdir()) == []


async def test_copy_waits_for_its_source(cluster: Cluster) -> None:
    claims, name = await Claims.of(cluster), await new_class(cluster, "efs-ap")
    await cluster.client.create(copy_of(claims, "copy", name, "source"))
    told = await claims.warning("copy", "spec.dataSource")
    assert told == f"spec.dataSource: '{claims.namespace}/source' does not exist; it is waited for"
    await claims.provisioned(name, "source")
    await claims.bound("copy")


async def test_copy_on_another_file_system_is_refused(cluster: Cluster, aws: Aws) -> None:
    claims, name = await Claims.of(cluster), await new_class(cluster, "efs-ap")
    await claims.provisioned(name, "source")
    other = await csi_steps.new_class(cluster.client, parameters={"fileSystemId": cluster.file_system_ids[1]})
    await cluster.client.create(copy_of(claims, "copy", other, "source"))
    told = await claims.warning("copy", "data source")
    assert f"is not on a file system of the class ({cluster.file_system_ids[1]})" in told
    assert not await aws.ids(cluster.file_system_ids[1])
    await claims.delete("copy")


async def test_directory_with_data_is_not_filled(cluster: Cluster, aws: Aws) -> None:
    claims = await Claims.of(cluster)
    shared = {"subPathPattern": "${.PVC.namespace}", "ensureUniqueDirectory": "false"}
    name, into = await new_class(cluster, "efs-ap"), await new_class(cluster, "efs-ap", **shared)
    source = await folder_of(cluster, aws, await claims.provisioned(name, "source"))
    source.mkdir()
    (source / "file").write_text("source")
    target = cluster.efs.folder(cluster.file_system_ids[0]) / claims.namespace
    target.mkdir()
    (target / "file").write_text("of somebody else")
    await cluster.client.create(copy_of(claims, "copy", into, "source"))
    assert "exists and is not empty" in await claims.warning("copy", "not empty")
    assert (target / "file").read_text() == "of somebody else"
    await claims.delete("copy")


async def test_copy_continues_after_its_pod_was_deleted(cluster: Cluster, aws: Aws) -> None:
    claims, name = await Claims.of(cluster), await new_class(cluster, "efs-dir")
    await with_many_files(cluster, aws, claims, name)
    await cluster.client.create(copy_of(claims, "copy", name, "source"))
    async with stopped_copy(await volume_name(claims)):
        pods = cluster.client.list(Pod, namespace=cluster.namespace, labels=dict(WORKER_LABELS))
        # The kubelet reports that a pod runs a moment later.
        current = [
            one async for one in pods if one.status and one.status.phase not in {"Succeeded", "Failed"}
        ]
        names = [one.metadata.name or "" for one in current if one.metadata]
        (pod,) = (one for one in names if one.startswith("efs-copy-"))
        await cluster.client.delete(Pod, pod, namespace=cluster.namespace)
    assert pod in await claims.warning("copy", "worker pod")
    assert has_all(await folder_of(cluster, aws, await claims.bound("copy")))
    await claims.delete("copy")


async def test_source_is_removed_only_after_the_copy(cluster: Cluster, aws: Aws) -> None:
    claims, name = await Claims.of(cluster), await new_class(cluster, "efs-dir")
    source = await with_many_files(cluster, aws, claims, name)
    volume = await claims.bound("source")
    await cluster.client.create(copy_of(claims, "copy", name, "source"))
    async with stopped_copy(await volume_name(claims)):
        await claims.delete("source")
        await directory_steps.reaches_phase(cluster, volume.name, VolumePhase.RELEASED)
        assert has_all(source)
    assert has_all(await folder_of(cluster, aws, await claims.bound("copy")))
    await steps.gone(cluster.client, volume.name)
    assert not source.exists()
    await claims.delete("copy")


@pytest.mark.parametrize("kind", ["efs-ap", "directory"])
async def test_copy_of_a_deleted_claim_is_stopped_and_discarded(
    cluster: Cluster, aws: Aws, kind: str
) -> None:
    claims, name = await Claims.of(cluster), await new_class(cluster, kind)
    await with_many_files(cluster, aws, claims, name)
    await cluster.client.create(copy_of(claims, "copy", name, "source"))
    copy = await volume_name(claims)
    async with stopped_copy(await volume_name(claims)):
        await claims.delete("copy")
        key = f"{claims.namespace}/copy"
        await directory_steps.has_logged(cluster.controller, "copy-discarded", claim=key)
    await steps.gone(cluster.client, copy)

    async def is_discarded() -> bool:
        unfinished = cluster.efs.folder(cluster.file_system_ids[0]) / COPIES / copy
        return not unfinished.exists() and len(await claims.volumes()) == 1

    await steps.eventually(is_discarded, what="the unfinished copy is gone")
    await claims.delete("source")
    await claims.no_volumes()


# Last, because a new leader removes no volume while volumes of the earlier one may still appear.
async def test_copy_survives_the_controller(cluster: Cluster, aws: Aws) -> None:
    claims, name = await Claims.of(cluster), await new_class(cluster, "efs-ap")
    await with_many_files(cluster, aws, claims, name)
    await cluster.client.create(copy_of(claims, "copy", name, "source"))
    async with stopped_copy(await volume_name(claims)):
        await cluster.controller.kill()
        await cluster.controller.start()
        await cluster.controller.ready()
    assert has_all(await folder_of(cluster, aws, await claims.bound("copy")))
    # The new leader waits for the worker of the former one.
    assert await steps.messages(cluster.client, claims.namespace, "copy", "ProvisioningFailed") == []
