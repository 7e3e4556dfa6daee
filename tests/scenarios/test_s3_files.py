"""Volumes of S3 Files: claims, own volumes of users, and pods that mount them."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml
from lightkube.models.core_v1 import CSIPersistentVolumeSource, ObjectReference, PersistentVolumeSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, PersistentVolume
from tests.scenarios import csi_steps, steps
from tests.scenarios.csi_steps import DRIVER
from tests.scenarios.directory_steps import Claims
from tests.scenarios.steps import Cluster
from tests.scenarios.test_csi_pods import create, failed_mount, grows, in_phase, pod_with, pods_gone

from fake_efs.aws_api import AwsClient, aws_client
from fake_efs.policy import managed_policy
from kube_efs.model.efs.targets import S3_FILES_KEY
from kube_efs.provisioning.workers.trash import TRASH

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(os.geteuid() != 0, reason="the kubelet makes namespaces and mounts: root only"),
]

# The class of the page has the parameters of the AWS driver's example of dynamic provisioning.
_PAGE = Path(__file__).parents[2] / "docs/s3-files.md"
_CLASS = yaml.safe_load(_PAGE.read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0])
EXAMPLE: dict[str, str] = _CLASS["parameters"]


@pytest.fixture(scope="module")
def driver_policy() -> str:
    """The managed policies, and the call with which nodes need no DNS."""
    policy = json.loads(managed_policy())
    policy["Statement"].append({"Effect": "Allow", "Action": "s3files:ListMountTargets", "Resource": "*"})
    return json.dumps(policy)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(cluster: Cluster) -> str:
    return await cluster.efs.create_s3_file_system("photos")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def s3_files(cluster: Cluster) -> AsyncIterator[AwsClient]:
    async with aws_client("s3files", cluster.efs.endpoint_url, cluster.efs.region) as client:
        yield client


async def own_volume(cluster: Cluster, claims: Claims, name: str, handle: str, *options: str) -> None:
    """A volume that a user has written, bound to a claim of the same name."""
    volume, body = f"{claims.namespace}-{name}", claims.body(name, "")
    assert body.spec
    body.spec.volumeName = volume
    spec = PersistentVolumeSpec(
        accessModes=["ReadWriteMany"],
        capacity={"storage": "5Gi"},
        persistentVolumeReclaimPolicy="Retain",
        mountOptions=list(options),
        csi=CSIPersistentVolumeSource(driver=DRIVER, volumeHandle=handle),
        claimRef=ObjectReference(
            apiVersion="v1", kind="PersistentVolumeClaim", namespace=claims.namespace, name=name
        ),
    )
    await cluster.client.create(PersistentVolume(metadata=ObjectMeta(name=volume), spec=spec))
    await cluster.client.create(body)
    await claims.bound(name)


async def test_claim_gets_an_access_point_that_pods_mount(
    cluster: Cluster, system: str, s3_files: AwsClient
) -> None:
    claims = await Claims.of(cluster)
    name = await csi_steps.new_class(cluster.client, parameters={**EXAMPLE, "fileSystemId": system})

    volume = await claims.provisioned(name, "data")

    handle = csi_steps.handle_of(volume)
    point = handle.access_point_id
    assert str(handle) == f"s3files:{system}::{point}"
    assert point
    assert volume.csi
    assert dict(volume.csi.attributes) == {}
    made = await s3_files.call("GetAccessPoint", accessPointId=point)
    directory = made["rootDirectory"]["path"]
    assert directory.startswith(f"/dynamic_provisioning/{claims.namespace}/data-")
    assert (made["posixUser"], made["clientToken"]) == ({"uid": 1000, "gid": 1000}, volume.name)

    await create(cluster, claims.namespace, pod_with("data", "echo $(date -u) > /data/out1", name="writer"))
    await in_phase(cluster, claims.namespace, "writer", "Succeeded")
    folder = cluster.efs.folder(system) / directory.lstrip("/")
    assert "UTC" in await grows(folder / "out1")
    assert (folder.stat().st_uid, folder.stat().st_mode & 0o777) == (1000, 0o700)
    await pods_gone(cluster, claims.namespace, "writer")

    await csi_steps.removed(cluster, claims, "data")
    left = await s3_files.list_all("ListAccessPoints", "accessPoints", fileSystemId=system)
    assert point not in {one["accessPointId"] for one in left}
    # As on EFS, the directory stays by default.
    assert (folder / "out1").exists()


async def test_unused_directories_are_removed_with_access_points_if_configured(
    cluster: Cluster, system: str, s3_files: AwsClient
) -> None:
    """With the managed policy and ListMountTargets alone, and real mounts by worker pods."""
    claims, base = await Claims.of(cluster), "/removed"
    as_it_is = {"ensureUniqueDirectory": "false"}
    classes = {
        "own": {"subPathPattern": "${.PVC.name}"},
        "shared": {"subPathPattern": "both", **as_it_is},
        "above": {"subPathPattern": "deep", **as_it_is},
        "below": {"basePath": f"{base}/deep", "subPathPattern": "er", **as_it_is},
        "by-hand": {"subPathPattern": "known", **as_it_is},
        "root": {"basePath": "", "subPathPattern": "", **as_it_is},
    }
    names = {
        key: await csi_steps.new_class(
            cluster.client,
            parameters={**EXAMPLE, "fileSystemId": system, "uid": "0", "gid": "0", "basePath": base, **given},
        )
        for key, given in classes.items()
    }
    settings = {"KUBE_EFS_DELETE_ACCESS_POINT_ROOT_DIR": "true", "KUBE_EFS_WORKER_MOUNTS": "csi"}
    async with csi_steps.controller_with(cluster, **settings):
        folders = {}
        for claim, key in {**{key: key for key in classes}, "twin": "shared"}.items():
            point = csi_steps.handle_of(await claims.provisioned(names[key], claim)).access_point_id
            made = await s3_files.call("GetAccessPoint", accessPointId=point)
            folders[claim] = cluster.efs.folder(system) / made["rootDirectory"]["path"].lstrip("/")
            folders[claim].mkdir(parents=True, exist_ok=True)
            (folders[claim] / f"of-{claim}").write_text("x")
        await own_volume(cluster, claims, "user", f"s3files:{system}:{base}/known/sub")

        # The root contains everything, so while it exists, all directories are shared.
        await csi_steps.removed(cluster, claims, "root")
        assert (folders["root"] / "of-root").exists()
        await csi_steps.removed(cluster, claims, "own")
        assert not folders["own"].exists()
        await csi_steps.removed(cluster, claims, "shared")
        assert (folders["twin"] / "of-shared").exists()
        await csi_steps.removed(cluster, claims, "twin")
        assert not folders["twin"].exists()
        await csi_steps.removed(cluster, claims, "above")
        assert (folders["below"] / "of-below").exists()
        await csi_steps.removed(cluster, claims, "below")
        assert not folders["below"].exists()
        assert folders["above"].exists()
        await csi_steps.removed(cluster, claims, "by-hand")
        assert (folders["by-hand"] / "of-by-hand").exists()

        async def is_emptied() -> bool:
            return not list((cluster.efs.folder(system) / TRASH).iterdir())

        await steps.eventually(is_emptied, what="the trash of S3 Files is empty")
    left = await s3_files.list_all("ListAccessPoints", "accessPoints", fileSystemId=system)
    assert not {one["accessPointId"] for one in left if one["rootDirectory"]["path"].startswith(base)}
    await cluster.client.delete(PersistentVolume, f"{claims.namespace}-user")
    (folders["root"] / "of-root").unlink()


async def test_worker_pods_measure_volumes(cluster: Cluster, system: str) -> None:
    claims, folder = await Claims.of(cluster), cluster.efs.folder(system) / "measured"
    folder.mkdir()
    (folder / "file").write_bytes(b"x" * 100_000)
    settings = {"KUBE_EFS_USAGE_INTERVAL_SECONDS": "2", "KUBE_EFS_WORKER_MOUNTS": "csi"}
    async with csi_steps.controller_with(cluster, **settings) as controller:
        await own_volume(cluster, claims, "measured", f"s3files:{system}:/measured")

        async def used() -> float | None:
            found = await steps.samples(controller, "kube_efs_volume_used_bytes")
            ours = [one for one in found if claims.namespace in one]
            return next((float(one.rpartition(" ")[2]) for one in ours), None)

        assert await steps.eventually(used, what="the volume is measured", seconds=120) >= 100_000


async def test_volumes_of_users_lead_to_the_root_a_directory_and_an_access_point(
    cluster: Cluster, system: str, s3_files: AwsClient
) -> None:
    claims, root = await Claims.of(cluster), cluster.efs.folder(system)
    (root / "dir1").mkdir()
    made = await s3_files.call(
        "CreateAccessPoint",
        fileSystemId=system,
        posixUser={"uid": 7, "gid": 7},
        rootDirectory={
            "path": "/of-seven",
            "creationPermissions": {"ownerUid": 7, "ownerGid": 7, "permissions": "0755"},
        },
    )
    handles = {
        "root": f"s3files:{system}",
        "directory": f"s3files:{system}:/dir1",
        "point": f"s3files:{system}::{made['accessPointId']}",
    }
    for name, handle in handles.items():
        await own_volume(cluster, claims, name, handle, *(["azid=use1-az1"] if name == "root" else []))
        await create(cluster, claims.namespace, pod_with(name, f"echo {name} > /data/file", name=name))
    for name in handles:
        await in_phase(cluster, claims.namespace, name, "Succeeded")
    texts = [await grows(root / path / "file") for path in ("", "dir1", "of-seven")]
    assert texts == ["root\n", "directory\n", "point\n"]
    await pods_gone(cluster, claims.namespace, *handles)


async def test_nodes_learn_the_mount_targets(cluster: Cluster, system: str) -> None:
    claims = await Claims.of(cluster)
    await own_volume(cluster, claims, "known", f"s3files:{system}")
    targets = await cluster.efs.s3_files_mount_targets(system)

    async def look() -> bool:
        found = await cluster.client.get(ConfigMap, cluster.names.config_map, namespace=cluster.namespace)
        text = (found.data or {}).get(S3_FILES_KEY, "")
        return all(f"{one.zone}: {one.address}" in text for one in targets)

    await steps.eventually(look, what="the ConfigMap has the mount targets of S3 Files")


async def test_unknown_file_system_is_reported_with_the_name_that_dns_does_not_know(
    cluster: Cluster,
) -> None:
    claims = await Claims.of(cluster)
    await own_volume(cluster, claims, "missing", "s3files:fs-0123456789abcdef0")
    await create(cluster, claims.namespace, pod_with("missing", "true", name="waiting"))
    name = "use1-az"
    told = await failed_mount(cluster, claims.namespace, "waiting", "fs-0123456789abcdef0.s3files.us-east-1")
    assert name in told
    await pods_gone(cluster, claims.namespace, "waiting")


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        pytest.param({"az": "us-east-1a"}, "az: 'us-east-1a' is only supported for EFS", id="zone"),
        pytest.param(
            {"reuseAccessPoint": "false"}, "reuseAccessPoint: 'false' is only supported for EFS", id="reuse"
        ),
        pytest.param({"fileSystemId": "arn:aws:s3files"}, "is not a valid file system ID", id="ARN"),
    ],
)
async def test_parameters_that_are_only_for_efs_are_refused(
    cluster: Cluster, system: str, parameters: dict[str, str], told: str
) -> None:
    claims = await Claims.of(cluster)
    name = await csi_steps.new_class(
        cluster.client, parameters={**EXAMPLE, "fileSystemId": system, **parameters}
    )
    await claims.create(name, "data")
    assert told in await claims.warning("data")
    await claims.delete("data")


async def test_burst_of_claims_shares_no_number(cluster: Cluster, system: str, s3_files: AwsClient) -> None:
    claims = await Claims.of(cluster)
    name = await csi_steps.new_class(cluster.client, parameters={**EXAMPLE, "fileSystemId": system})
    names = [f"data-{number}" for number in range(10)]
    await claims.create(name, *names)
    volumes = await asyncio.gather(*(claims.bound(one) for one in names))
    points = {csi_steps.handle_of(one).access_point_id for one in volumes}
    found = await s3_files.list_all("ListAccessPoints", "accessPoints", fileSystemId=system)
    users = [one["posixUser"]["gid"] for one in found if one["accessPointId"] in points]
    assert len(set(users)) == len(names) == len(points)
    await claims.delete(*names)
    await claims.no_volumes()
