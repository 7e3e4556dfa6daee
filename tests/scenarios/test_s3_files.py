"""Volumes of S3 Files: claims, own volumes of users, and pods that mount them."""

import asyncio
import json
import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import yaml
from lightkube.models.core_v1 import CSIPersistentVolumeSource, PersistentVolumeSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apps_v1 import StatefulSet
from lightkube.resources.core_v1 import ConfigMap, PersistentVolume
from lightkube.resources.storage_v1 import StorageClass
from tests.docs.blocks import blocks_of
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

# The parameters of the AWS driver's example of dynamic provisioning, word for word.
EXAMPLE: dict[str, str] = yaml.safe_load("""
  provisioningMode: s3files-ap
  fileSystemId: fs-0123456789abcdef0
  directoryPerms: "700"
  gidRangeStart: "1000"
  gidRangeEnd: "2000"
  basePath: "/dynamic_provisioning"
  subPathPattern: "${.PVC.namespace}/${.PVC.name}"
  ensureUniqueDirectory: "true"
""")
# As in its example with several replicas, which share the volume of a claim.
REPLICAS = """
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: replica
spec:
  serviceName: replica
  replicas: 3
  selector:
    matchLabels: {app: replica}
  template:
    metadata:
      labels: {app: replica}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: app
        image: centos
        command: [/bin/sh]
        args: [-c, "while true; do date -u >> /data/$NAME; sleep 5; done"]
        env:
        - name: NAME
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        volumeMounts:
        - {name: persistent-storage, mountPath: /data}
      volumes:
      - name: persistent-storage
        persistentVolumeClaim: {claimName: shared}
"""


@pytest.fixture(scope="module")
def driver_policy() -> str:
    """The managed policies, also for mounts, and the call with which nodes need no DNS."""
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


async def own_volume(
    cluster: Cluster, claims: Claims, name: str, handle: str, *options: str, mode: str = "ReadWriteMany"
) -> None:
    """A volume that a user has written, bound to a claim of the same name.

    As in the AWS driver's examples, they have a class of the driver without parameters.
    """
    volume = f"{claims.namespace}-{name}"
    await cluster.client.create(StorageClass(metadata=ObjectMeta(name=volume), provisioner=DRIVER))
    spec = PersistentVolumeSpec(
        accessModes=[mode],
        capacity={"storage": "5Gi"},
        persistentVolumeReclaimPolicy="Retain",
        storageClassName=volume,
        mountOptions=list(options),
        csi=CSIPersistentVolumeSource(driver=DRIVER, volumeHandle=handle),
    )
    await cluster.client.create(PersistentVolume(metadata=ObjectMeta(name=volume), spec=spec))
    body = claims.body(name, volume)
    assert body.spec
    body.spec.accessModes = [mode]
    await cluster.client.create(body)
    await claims.bound(name)


async def test_claim_gets_an_access_point_that_pods_mount(
    cluster: Cluster, system: str, s3_files: AwsClient
) -> None:
    claims = await Claims.of(cluster)
    name = await csi_steps.new_class(cluster.client, parameters={**EXAMPLE, "fileSystemId": system})
    (block,) = (one for one in blocks_of("docs/s3-files.md") if one.language == "yaml")
    assert yaml.safe_load(block.text)["parameters"] == EXAMPLE

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


async def access_point(s3_files: AwsClient, system: str, directory: str) -> str:
    """A new access point, made by a user."""
    made = await s3_files.call(
        "CreateAccessPoint",
        fileSystemId=system,
        posixUser={"uid": 7, "gid": 7},
        rootDirectory={
            "path": directory,
            "creationPermissions": {"ownerUid": 7, "ownerGid": 7, "permissions": "0755"},
        },
    )
    return str(made["accessPointId"])


async def test_volumes_of_users_lead_to_the_root_a_directory_and_an_access_point(
    cluster: Cluster, system: str, s3_files: AwsClient
) -> None:
    """The volumes of the AWS driver's examples, with their modes and options."""
    claims, root = await Claims.of(cluster), cluster.efs.folder(system)
    for directory in ("dir1", "dir2", "of-seven/my/subpath"):
        (root / directory).mkdir(parents=True)
    points = [await access_point(s3_files, system, path) for path in ("/of-seven", "/also-of-seven")]
    await own_volume(cluster, claims, "static", f"s3files:{system}", mode="ReadWriteOnce")
    await own_volume(cluster, claims, "zone", f"s3files:{system}", "azid=use1-az1", mode="ReadWriteOnce")
    handles = {
        "dir1": f"s3files:{system}:/dir1",
        "dir2": f"s3files:{system}:/dir2",
        "of-seven": f"s3files:{system}::{points[0]}",
        "also-of-seven": f"s3files:{system}::{points[1]}",
        "subpath": f"s3files:{system}:/my/subpath:{points[0]}",
    }
    for name, handle in handles.items():
        await own_volume(cluster, claims, name, handle)
    names = ("static", "zone", *handles)
    for name in names:
        await create(cluster, claims.namespace, pod_with(name, f"echo > /data/by-{name}", name=name))
    for name in names:
        await in_phase(cluster, claims.namespace, name, "Succeeded")
    folders = {"static": "", "zone": "", "subpath": "of-seven/my/subpath"}
    for name in names:
        await grows(root / folders.get(name, name) / f"by-{name}")
    await pods_gone(cluster, claims.namespace, *names)


async def test_pods_and_replicas_share_a_volume(cluster: Cluster, system: str) -> None:
    """As in the AWS driver's examples: two pods, and a StatefulSet, with one claim."""
    claims, root = await Claims.of(cluster), cluster.efs.folder(system)
    await own_volume(cluster, claims, "shared", f"s3files:{system}")
    pods = ["app1", "app2"]
    for name in pods:
        script = f"while true; do date -u >> /data/{name}; sleep 5; done"
        await create(cluster, claims.namespace, pod_with("shared", script, name=name))
    await create(cluster, claims.namespace, yaml.safe_load(REPLICAS))
    replicas = [f"replica-{number}" for number in range(3)]
    for name in (*pods, *replicas):
        assert "UTC" in await grows(root / name)
    await cluster.client.delete(StatefulSet, "replica", namespace=claims.namespace)
    await pods_gone(cluster, claims.namespace, *pods, *replicas)


async def test_pod_on_a_node_without_the_id_of_its_zone_is_told_what_helps(cluster: Cluster) -> None:
    claims = await Claims.of(cluster)
    # The ConfigMap contains neither its addresses nor the ID of the zone.
    await own_volume(cluster, claims, "nowhere", "s3files:fs-00000000000000000")
    agent = cluster.tunnel.replica(cluster.folder / "nowhere.log", {"KUBE_EFS_ZONE": "us-east-1z"})
    await cluster.tunnel.stop()
    try:
        await agent.start()
        await agent.ready()
        await create(cluster, claims.namespace, pod_with("nowhere", "true", name="waiting"))
        told = await failed_mount(cluster, claims.namespace, "waiting", "KUBE_EFS_ZONE_ID")
        assert "neither the instance metadata nor the labels of the Node contain it" in told
        assert "or set azid or mounttargetip in the volume" in told
        await pods_gone(cluster, claims.namespace, "waiting")
    finally:
        await agent.stop()
        await cluster.tunnel.start()
        await cluster.tunnel.ready()


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
