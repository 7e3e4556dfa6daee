"""File systems for claims (``provisioningMode: efs-fs``), with the IAM policy of their page."""

import os
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio
from lightkube.models.core_v1 import CSIPersistentVolumeSource, PersistentVolumeSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import PersistentVolume
from lightkube.types import PatchType
from tests.scenarios import csi_steps, steps
from tests.scenarios.csi_steps import Aws
from tests.scenarios.directory_steps import Claims
from tests.scenarios.steps import Cluster
from tests.scenarios.test_csi_pods import create, failed_mount, in_phase, pod_with, pods_gone

from kube_efs.aws.connection import Service

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture(scope="module")
def cluster_settings() -> dict[str, str]:
    """As ``kube-efs render --csi`` installs the controller: worker pods have the identity of the node."""
    return {"KUBE_EFS_WORKER_MOUNTS": "csi"}


@pytest.fixture(scope="module")
def driver_policy() -> str:
    """The policies of both pages, and nothing else."""
    return csi_steps.policy_of_pages("docs/csi.md", "docs/file-systems.md")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def aws(cluster: Cluster) -> AsyncIterator[Aws]:
    async with Aws.of(cluster) as aws:
        yield aws


async def _file_systems(aws: Aws) -> dict[str, Any]:
    found = await aws.connection.list_all(Service.EFS, "DescribeFileSystems", "FileSystems")
    return {one["FileSystemId"]: one for one in found}


def _subnets(cluster: Cluster) -> str:
    return ",".join(one.subnet_id for one in cluster.efs.subnets)


async def _remove(cluster: Cluster, aws: Aws, claims: Claims, name: str) -> None:
    """Delete a claim, and wait until everything that was created for it is deleted."""
    volume = await claims.bound(name)
    file_system_id = csi_steps.handle_of(volume).file_system_id
    made = (await _file_systems(aws))[file_system_id]
    await csi_steps.removed(cluster, claims, name)
    await _gone(aws, made)


async def _gone(aws: Aws, made: Mapping[str, Any]) -> None:
    async def look() -> bool:
        return made["FileSystemId"] not in await _file_systems(aws)

    await steps.eventually(look, what=f"{made['FileSystemId']} is deleted")
    groups = await aws.connection.list_all(Service.EC2, "DescribeSecurityGroups", "SecurityGroups")
    assert made["CreationToken"] not in {one["GroupName"] for one in groups}


async def test_claim_gets_a_file_system_and_its_events_tell_the_steps(cluster: Cluster, aws: Aws) -> None:
    claims, before = await Claims.of(cluster), await _file_systems(aws)
    storage_class = await csi_steps.new_class(
        cluster.client,
        parameters={
            "provisioningMode": "efs-fs",
            "subnetIds": _subnets(cluster),
            "transitionToIA": "AFTER_30_DAYS",
            "fileSystemTags": "team=storage",
        },
    )
    await claims.create(storage_class, "data")
    volume = await claims.bound("data")
    handle = csi_steps.handle_of(volume)
    assert handle.file_system_id not in before
    made = (await _file_systems(aws))[handle.file_system_id]
    assert (made["NumberOfMountTargets"], made["Encrypted"], made["ThroughputMode"]) == (3, True, "elastic")
    tags = {one["Key"]: one["Value"] for one in made["Tags"]}
    assert (tags["Name"], tags["team"]) == (f"{claims.namespace}/data", "storage")
    texts = await csi_steps.events(cluster, claims, "data", "CreatingFileSystem")
    assert any("Creating a file system (" in one for one in texts)
    assert any("mount targets 3 of 3" in one for one in texts)
    policy = await aws.connection.call(
        Service.EFS, "DescribeFileSystemPolicy", FileSystemId=handle.file_system_id
    )
    assert "aws:SecureTransport" in policy["Policy"]

    await _remove(cluster, aws, claims, "data")


async def test_claims_of_a_namespace_share_a_file_system(cluster: Cluster, aws: Aws) -> None:
    claims, others = await Claims.of(cluster), await Claims.of(cluster)
    parameters = {"provisioningMode": "efs-fs", "scope": "namespace", "subnetIds": _subnets(cluster)}
    storage_class = await csi_steps.new_class(cluster.client, parameters=parameters)
    for one, name in ((claims, "a"), (claims, "b"), (others, "a")):
        await one.create(storage_class, name)
    first, second, other = [
        csi_steps.handle_of(await one.bound(name))
        for one, name in ((claims, "a"), (claims, "b"), (others, "a"))
    ]
    assert first.file_system_id == second.file_system_id != other.file_system_id
    await csi_steps.removed(cluster, claims, "a")
    assert await aws.ids(first.file_system_id) == {second.access_point_id}
    await _remove(cluster, aws, claims, "b")
    await _remove(cluster, aws, others, "a")


async def test_subnets_are_those_of_the_nodes(cluster: Cluster, aws: Aws) -> None:
    claims = await Claims.of(cluster)
    storage_class = await csi_steps.new_class(cluster.client, parameters={"provisioningMode": "efs-fs"})
    volume = await claims.provisioned(storage_class, "data")
    targets = await aws.connection.list_all(
        Service.EFS,
        "DescribeMountTargets",
        "MountTargets",
        FileSystemId=csi_steps.handle_of(volume).file_system_id,
    )
    # The only node is a machine in the first subnet.
    assert [one["SubnetId"] for one in targets] == [cluster.efs.subnets[0].subnet_id]
    await _remove(cluster, aws, claims, "data")


async def test_retained_volume_keeps_its_file_system(cluster: Cluster, aws: Aws) -> None:
    claims = await Claims.of(cluster)
    parameters = {"provisioningMode": "efs-fs", "subnetIds": _subnets(cluster)}
    storage_class = await csi_steps.new_class(cluster.client, parameters=parameters, reclaim_policy="Retain")
    await claims.create(storage_class, "data")
    volume = await claims.bound("data")
    name = csi_steps.handle_of(volume).file_system_id
    await claims.delete("data")

    async def is_released() -> bool:
        found = await cluster.client.get(PersistentVolume, volume.name)
        return bool(found.status and found.status.phase == "Released")

    await steps.eventually(is_released, what="the volume is Released")
    await cluster.client.delete(PersistentVolume, volume.name)
    await steps.gone(cluster.client, volume.name)
    found = (await _file_systems(aws))[name]
    assert (found["LifeCycleState"], found["NumberOfMountTargets"]) == ("available", 3)
    assert len(await aws.ids(name)) == 1


async def test_volume_of_somebody_else_on_the_file_system_stops_the_removal(
    cluster: Cluster, aws: Aws
) -> None:
    claims = await Claims.of(cluster)
    parameters = {"provisioningMode": "efs-fs", "subnetIds": _subnets(cluster)}
    storage_class = await csi_steps.new_class(cluster.client, parameters=parameters)
    await claims.create(storage_class, "data")
    volume = await claims.bound("data")
    name = csi_steps.handle_of(volume).file_system_id
    backup = PersistentVolume(
        metadata=ObjectMeta(name="backup-of-a-claim"),
        spec=PersistentVolumeSpec(
            capacity={"storage": "1Gi"},
            accessModes=["ReadOnlyMany"],
            csi=CSIPersistentVolumeSource(driver=csi_steps.DRIVER, volumeHandle=name),
        ),
    )
    await cluster.client.create(backup)
    await claims.delete("data")

    async def refusals() -> list[str]:
        found = await steps.messages(cluster.client, "default", volume.name, "VolumeFailedDelete")
        return [one for one in found if "backup-of-a-claim" in one]

    texts = await steps.eventually(refusals, what="the removal is refused")
    assert "is also used by volume backup-of-a-claim; delete those first" in texts[0]
    made = (await _file_systems(aws))[name]
    assert made["NumberOfMountTargets"] == 3
    await cluster.client.delete(PersistentVolume, "backup-of-a-claim")
    await cluster.client.patch(
        PersistentVolume, volume.name, {"metadata": {"labels": {"try": "again"}}}, patch_type=PatchType.MERGE
    )
    await steps.gone(cluster.client, volume.name)
    await _gone(aws, made)


@pytest.mark.skipif(os.geteuid() != 0, reason="the kubelet makes namespaces and mounts: root only")
async def test_file_system_that_needs_an_identity_is_mounted_with_iam_only(
    cluster: Cluster, aws: Aws
) -> None:
    claims = await Claims.of(cluster)
    parameters = {
        "provisioningMode": "efs-fs",
        "subnetIds": _subnets(cluster),
        "fileSystemPolicy": "tls-and-iam",
    }
    for name, options in (("signed", ["iam"]), ("anonymous", [])):
        storage_class = await csi_steps.new_class(
            cluster.client, mount_options=options, parameters=parameters
        )
        await claims.create(storage_class, name)
        await claims.bound(name)
        script = "echo balanced > /data/book && grep balanced /data/book"
        await create(cluster, claims.namespace, pod_with(name, script, name=name))
    await in_phase(cluster, claims.namespace, "signed", "Succeeded")
    assert await failed_mount(cluster, claims.namespace, "anonymous", "access denied")
    told = await csi_steps.events(cluster, claims, "anonymous", "ParameterIgnored")
    assert told == [
        "mountOptions: iam is missing, so no pod can mount the volumes (fileSystemPolicy: tls-and-iam)"
    ]
    assert await steps.messages(cluster.client, claims.namespace, "signed", "ParameterIgnored") == []

    await pods_gone(cluster, claims.namespace, "signed", "anonymous")
    # A worker pod looks for snapshots before, with the identity of the node.
    await _remove(cluster, aws, claims, "signed")
    await _remove(cluster, aws, claims, "anonymous")
