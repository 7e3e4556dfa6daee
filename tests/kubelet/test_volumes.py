"""Volumes of each kind on a real kubelet, from an installation to a node with nothing left."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
import yaml
from tests.kubelet.cluster import NAMES, NODE, PATIENCE, Cluster, Workload, claim, pod
from tests.kubelet.images import SHELL
from tests.kubelet.installing import DIRECTORIES, DRIVER
from tests.scenarios.steps import eventually

from kube_efs.model.names import WORKER_LABELS

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Of a user of the volume who is not the one that the image runs as.
STRANGER = {"runAsUser": 4711, "runAsGroup": 4711, "runAsNonRoot": True}
# The last are pods on the volume of another one.
WORKLOADS = (
    *("tunnel", "directory", "access-point", "plain-directory", "static", "shared-volume", "later"),
    *("neighbor", "sub-path", "fs-group", "stateful-0", "stateful-1"),
)


@dataclass(frozen=True, slots=True)
class Users:
    """The pods of the users, all of which run at the same time."""

    cluster: Cluster
    namespace: str
    kept_access_point: str

    def workload(self, name: str) -> Workload:
        """The pod of that name."""
        return Workload(self.cluster, self.namespace, name)


@pytest_asyncio.fixture(scope="module", loop_scope="session", autouse=True)
async def users(installed: Cluster) -> AsyncIterator[Users]:
    cluster = installed
    namespace = await cluster.new_namespace()
    access_point = await cluster.create_access_point("/kept", uid=7000)
    users = Users(cluster, namespace, access_point)
    await cluster.apply(*_classes(users), *_claims(users))
    await cluster.apply(*_pods(users), _stateful_set(users))
    yield users
    await cluster.kubectl("delete", "namespace", namespace, PATIENCE)
    await cluster.kubectl("delete", "pv/static", PATIENCE)
    await cluster.kubectl("delete", "-f", "-", stdin=yaml.safe_dump_all(_classes(users)))


def _classes(users: Users) -> list[dict[str, Any]]:
    file_system = {"fileSystemId": users.cluster.file_system}
    access_points = {"provisioningMode": "efs-ap", **file_system, "directoryPerms": "700"}
    plain = {"provisioningMode": "efs-dir", **file_system, "directoryPerms": "777"}
    later = {"volumeBindingMode": "WaitForFirstConsumer"}
    return [
        _class("access-points", DRIVER, access_points),
        _class("later", DRIVER, access_points, **later),
        _class("plain-directories", DRIVER, plain),
        _class("directories", DIRECTORIES, {"tls": "true"}),
    ]


def _class(name: str, provisioner: str, parameters: dict[str, str], **more: str) -> dict[str, Any]:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": provisioner,
        "parameters": parameters,
        **more,
    }


def _claims(users: Users) -> list[dict[str, Any]]:
    handle = f"{users.cluster.file_system}::{users.kept_access_point}"
    source = {"driver": DRIVER, "volumeHandle": handle}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "static"},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": "1Gi"},
            "storageClassName": "",
            "mountOptions": ["tls", "iam"],
            "csi": source,
        },
    }
    shared = {
        "apiVersion": "aws-efs.managed.openshift.io/v1alpha1",
        "kind": "SharedVolume",
        "metadata": {"name": "shared", "namespace": users.namespace},
        "spec": {"accessPointID": users.kept_access_point, "fileSystemID": users.cluster.file_system},
    }
    tunnel = {"selector": {"matchLabels": {"volume_name": "tunnel"}}}
    classes = {
        "directory": "directories",
        "access-point": "access-points",
        "plain-directory": "plain-directories",
        "later": "later",
    }
    claims = [claim(name, users.namespace, one) for name, one in classes.items()]
    return [
        volume,
        claim("static", users.namespace, "", volumeName="static"),
        shared,
        claim("tunnel", users.namespace, NAMES.storage_class, **tunnel),
        *claims,
    ]


def _pods(users: Users) -> list[dict[str, Any]]:
    image = users.cluster.image

    def one(name: str, its_claim: str = "", **more: Any) -> dict[str, Any]:
        return pod(name, users.namespace, its_claim or name, image=image, **more)

    return [
        one("tunnel"),
        one("directory", security=STRANGER),
        one("access-point", security=STRANGER),
        one("plain-directory"),
        one("static", security=STRANGER),
        one("shared-volume", "pvc-shared"),
        one("later"),
        one("neighbor", "access-point"),
        one("sub-path", "access-point", mount={"subPath": "below/it"}),
        one("fs-group", "access-point", security={**STRANGER, "fsGroup": 4712}),
    ]


def _stateful_set(users: Users) -> dict[str, Any]:
    template = pod("stateful", users.namespace, "data", image=users.cluster.image)
    spec = template["spec"]
    del spec["volumes"]
    spec["restartPolicy"] = "Always"
    (container,) = spec["containers"]
    # Each pod of the set writes to a file of its own name.
    container["command"][-1] = f"/data/{users.namespace}.$(POD)"
    container["env"] = [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    labels = {"app": "stateful"}
    claims = claim("data", users.namespace, "access-points")
    del claims["metadata"]["namespace"]
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "stateful", "namespace": users.namespace},
        "spec": {
            "replicas": 2,
            "podManagementPolicy": "Parallel",
            "serviceName": "stateful",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
            "volumeClaimTemplates": [claims],
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete"},
        },
    }


async def test_driver_is_registered_and_the_taint_is_removed(cluster: Cluster) -> None:
    (driver,) = (await cluster.get("csinode", NODE))["spec"]["drivers"]
    node = await cluster.get("node", NODE)
    assert driver == {
        "name": DRIVER,
        "nodeID": cluster.efs.instance_id,
        "topologyKeys": ["topology.kubernetes.io/zone"],
    }
    assert node["spec"]["providerID"].endswith(f"/{cluster.efs.instance_id}")
    assert "taints" not in node["spec"]
    assert node["metadata"]["labels"]["topology.kubernetes.io/zone"] == "us-east-1a"


@pytest.mark.parametrize("name", WORKLOADS)
async def test_pod_writes_and_reads_back(users: Users, name: str) -> None:
    workload = users.workload(name)
    # All pods start at the same time, on one processor.
    await workload.continues(seconds=600)
    await workload.has_seen_no_error()


async def test_files_belong_to_the_user_of_the_access_point(users: Users) -> None:
    file = users.workload("static").file
    assert file
    assert (file.stat().st_uid, file.stat().st_gid) == (7000, 7000)


async def test_directory_volume_has_a_group_that_the_pod_is_given(users: Users) -> None:
    file = users.workload("directory").file
    assert file
    assert file.stat().st_uid == STRANGER["runAsUser"]
    assert file.parent.stat().st_gid not in (0, STRANGER["runAsGroup"])


async def test_read_only_volume_can_be_read_and_not_written(users: Users) -> None:
    command = ("/bin/sh", "-c", f"cat /data/{users.namespace}.access-point >/dev/null && ! touch /data/mine")
    reader = pod(
        *("reader", users.namespace, "access-point"),
        image=SHELL,
        command=command,
        source={"readOnly": True},
    )
    await users.workload("access-point").continues(1)
    await users.cluster.apply(reader)
    await users.cluster.kubectl(
        *("wait", "pod/reader", "-n", users.namespace, PATIENCE),
        "--for=jsonpath={.status.phase}=Succeeded",
    )


async def test_pods_are_deleted_without_an_error_and_nothing_is_left(users: Users) -> None:
    cluster = users.cluster
    for name in WORKLOADS:
        await users.workload(name).has_seen_no_error()
    await cluster.kubectl("delete", "pod,statefulset", "--all", "-n", users.namespace, PATIENCE)
    await eventually(cluster.is_nothing_mounted, what="nothing is mounted on the node", seconds=600)

    await cluster.kubectl("delete", "sharedvolume,pvc", "--all", "-n", users.namespace, PATIENCE)

    async def only_what_is_kept() -> bool:
        return (await cluster.volumes(), await cluster.access_points()) == (
            {"static"},
            {users.kept_access_point},
        )

    await eventually(only_what_is_kept, what="only the kept volume and access point are left", seconds=600)

    async def data_is_removed() -> bool:
        # A worker pod empties the trash a little later.
        return not any(users.workload(name).file for name in ("tunnel", "directory", "plain-directory"))

    await eventually(data_is_removed, what="the data of deleted volumes is removed", seconds=600)
    # By default, the contents of access points stay, as with the driver of AWS.
    assert all(users.workload(name).file for name in ("static", "shared-volume"))

    workers = ("pods", "-n", NAMES.namespace, "-l", f"component={WORKER_LABELS['component']}")

    async def all_work_is_done() -> bool:
        # The last pods that failed stay, for their logs.
        return all(one["status"]["phase"] == "Failed" for one in (await cluster.get(*workers))["items"])

    await eventually(
        all_work_is_done,
        what="all worker pods have ended",
        seconds=600,
        explain=lambda: cluster.kubectl("describe", *workers),
    )

    async def directories_of_deleted_pods() -> set[str]:
        # A pod that the kubelet has rejected, or not seen yet, has none.
        directories = await cluster.node.pod_directories()
        return directories - {one["metadata"]["uid"] for one in (await cluster.get("pods", "-A"))["items"]}

    async def no_directory_is_left() -> bool:
        # The kubelet removes that of a deleted pod a little later.
        return not await directories_of_deleted_pods()

    async def describe_directories() -> str:
        left = await directories_of_deleted_pods()
        return "\n".join([await cluster.node.describe_pod_directory(one) for one in left])

    await eventually(
        no_directory_is_left,
        what="no directory of a deleted pod is left",
        seconds=600,
        explain=describe_directories,
    )
