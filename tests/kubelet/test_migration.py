"""From a running aws-efs-csi-driver to kube-efs, with the commands of docs/how-to.

Real are the kubelet with its registration, calls, directories and ``vol_data.json``, the kernel's NFS mounts,
and the objects of that driver with the names, labels, directories and sockets of its chart. What runs in its
DaemonSet is the tests' own program (``aws_driver.py``), which does to the node what that driver does: one
stunnel for each mount, which ends with the pod. Its Deployment runs nothing, and the volume and the access
point that csi-provisioner would have made are made by the tests.
"""

import json
import re
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.conformance.installing import render
from tests.kubelet import aws_driver, installing
from tests.kubelet.cluster import NAMES, NODE, PATIENCE, Cluster, Workload, claim, pod
from tests.kubelet.images import SHELL
from tests.kubelet.installing import DRIVER
from tests.scenarios.steps import eventually

from fake_efs.aws_api import aws_client

pytestmark = pytest.mark.asyncio(loop_scope="session")

_PROGRAM = Path(aws_driver.__file__).read_text()
_SYSTEM = "kube-system"
_CLASS = "efs-sc"
_FINALIZER = "external-provisioner.volume.kubernetes.io/finalizer"
_OPTIONS = ("--for", "kubernetes", "--csi", "--region", "us-east-1")
# Of a pod's volume in the mount table of the node.
_MOUNT = re.compile(r"/pods/(?P<uid>[^/]+)/volumes/kubernetes\.io~csi/[^/]+/mount nfs4 \S*port=(?P<port>\d+)")
# The pods that write before kube-efs is there. Drained nodes lose the first one, which comes back.
# The other ones stay until the new driver has taken over the node.
MOVED, STAYS, IDLE = "moved", "stays", "idle"
_RESTORED = "/run/efs/restored"
_DRIVER_POD = ("-n", NAMES.namespace, f"daemonset/{NAMES.node}", "--")


@dataclass(frozen=True, slots=True)
class Users:
    """The pods with volumes of the older driver."""

    cluster: Cluster
    namespace: str
    access_point: str
    workloads: dict[str, Workload]

    async def write(self) -> None:
        """Fail unless all pods write on, and have seen no error."""
        for one in self.workloads.values():
            await one.continues()
        for name in self.workloads.keys() - {MOVED}:
            await self.workloads[name].has_seen_no_error()
        (moved,) = await self.pods(MOVED)
        (container,) = moved["status"]["containerStatuses"]
        assert container["restartCount"] == 0
        self.workloads[MOVED].holds_what_was_written()

    async def pods(self, name: str) -> list[dict[str, Any]]:
        """The pods that run under this name."""
        found = await self.cluster.get("pods", "-n", self.namespace, "-l", f"app={name}")
        return [one for one in found["items"] if "deletionTimestamp" not in one["metadata"]]

    async def port(self, name: str) -> int:
        """The loopback port of the mount of this pod's volume."""
        (one,) = await self.pods(name)
        mounted = _MOUNT.finditer(await self.cluster.node.run("cat", "/proc/mounts"))
        (port,) = [int(mount["port"]) for mount in mounted if mount["uid"] == one["metadata"]["uid"]]
        return port

    async def uses_older_driver(self, name: str) -> bool:
        """Whether the mount of this pod's volume goes through a tunnel of the older driver."""
        # The ports of kube-efs overlap these, but none of its tunnels has one of the first ones.
        return await self.port(name) in range(aws_driver.FIRST_PORT, aws_driver.FIRST_PORT + 100)

    async def start(self, name: str, its_claim: str) -> None:
        """Start a pod with this claim."""
        await self.cluster.apply(pod(name, self.namespace, its_claim, image=self.cluster.image))
        self.workloads[name] = Workload(self.cluster, self.namespace, name)


@pytest_asyncio.fixture(scope="module", loop_scope="session", autouse=True)
async def users(cluster: Cluster) -> AsyncIterator[Users]:
    """The older driver, and pods with its volumes that write."""
    await installing.uninstall(cluster)
    targets = await cluster.efs.mount_targets(cluster.file_system)
    await cluster.apply(*_older_driver(cluster, targets[0].address))
    await cluster.kubectl("rollout", "status", "daemonset/efs-csi-node", "-n", _SYSTEM, PATIENCE)
    await eventually(lambda: _is_registered(cluster), what="the older driver is registered", seconds=600)
    # It would remove the startup taint of the node itself, which is there if no driver has run yet.
    await cluster.kubectl.run("taint", "node", NODE, "efs.csi.aws.com/agent-not-ready-")
    namespace = await cluster.new_namespace()
    access_point = await _create_access_point(cluster)
    (cluster.data / "shared").mkdir(mode=0o777)
    (cluster.data / "shared").chmod(0o777)
    await cluster.apply(*_volumes(cluster, namespace, access_point))
    pods = {name: Workload(cluster, namespace, name) for name in (MOVED, STAYS)}
    users = Users(cluster, namespace, access_point, pods)
    await cluster.apply(
        _replica_set(cluster, namespace),
        pod(STAYS, namespace, "shared", image=cluster.image),
        pod(IDLE, namespace, "shared", image=SHELL, command=("/bin/sh", "-c", "ls /data; sleep 1000000")),
    )
    await users.write()
    await cluster.kubectl("wait", f"pod/{IDLE}", "-n", namespace, "--for=condition=Ready", PATIENCE)
    for name in (*pods, IDLE):
        assert await users.uses_older_driver(name)
    yield users
    await cluster.kubectl("delete", "namespace", namespace, PATIENCE)
    await cluster.kubectl("delete", "pv", "--all", PATIENCE)
    await installing.uninstall(cluster)
    left = ("serviceaccount/efs-csi-controller-sa", "serviceaccount/efs-csi-node-sa")
    await cluster.kubectl("delete", "-n", _SYSTEM, *left)
    await cluster.kubectl(
        "delete", f"storageclass/{_CLASS}", "clusterrolebinding/efs-csi-provisioner-binding"
    )


async def _is_registered(cluster: Cluster) -> bool:
    return bool((await cluster.get("csinode", NODE))["spec"]["drivers"])


async def _create_access_point(cluster: Cluster) -> str:
    """An access point as AWS' driver creates it; only with its tag, its policy allows the deletion."""
    async with aws_client("efs", cluster.efs.endpoint_url, cluster.efs.region) as api:
        made = await api.call(
            "CreateAccessPoint",
            ClientToken="pvc-of-the-older-driver",
            FileSystemId=cluster.file_system,
            PosixUser={"Uid": 50000, "Gid": 50000},
            RootDirectory={
                "Path": "/provisioned",
                "CreationInfo": {"OwnerUid": 50000, "OwnerGid": 50000, "Permissions": "700"},
            },
            Tags=[{"Key": "efs.csi.aws.com/cluster", "Value": "true"}],
        )
    return str(made["AccessPointId"])


def _older_driver(cluster: Cluster, mount_target: str) -> list[dict[str, Any]]:
    """The objects of the chart of aws-efs-csi-driver that matter to the node, and to what takes over."""
    kubelet = "/var/lib/kubelet"
    folders = {
        "kubelet-dir": (kubelet, kubelet),
        "plugin-dir": (f"{kubelet}/plugins/{DRIVER}/", "/csi"),
        "registration-dir": (f"{kubelet}/plugins_registry/", "/registration"),
        "efs-state-dir": ("/var/run/efs", "/var/run/efs"),
    }
    mounts: list[dict[str, Any]] = [
        {"name": name, "mountPath": inside} for name, (_, inside) in folders.items()
    ]
    mounts[0]["mountPropagation"] = "Bidirectional"
    plugin = {
        "name": "efs-plugin",
        "image": cluster.image,
        "command": ["/opt/kube-efs/bin/python", "-c", _PROGRAM, cluster.efs.instance_id],
        "env": [{"name": "MOUNT_TARGETS", "value": json.dumps({cluster.file_system: mount_target})}],
        "securityContext": {"privileged": True, "runAsUser": 0},
        "volumeMounts": mounts,
    }
    node = {
        "serviceAccountName": "efs-csi-node-sa",
        "priorityClassName": "system-node-critical",
        "hostNetwork": True,
        "terminationGracePeriodSeconds": 30,
        "tolerations": [{"operator": "Exists"}],
        "containers": [plugin],
        "volumes": [
            {"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
            for name, (path, _) in folders.items()
        ],
    }
    controller = {
        "serviceAccountName": "efs-csi-controller-sa",
        "containers": [{"name": "efs-plugin", "image": SHELL}],
    }
    accounts = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": _SYSTEM}}
        for name in ("efs-csi-controller-sa", "efs-csi-node-sa")
    ]
    return [
        *accounts,
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "efs-csi-provisioner-binding"},
            "subjects": [{"kind": "ServiceAccount", "name": "efs-csi-controller-sa", "namespace": _SYSTEM}],
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "efs-csi-external-provisioner-role",
            },
        },
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIDriver",
            "metadata": {"name": DRIVER},
            "spec": {"attachRequired": False},
        },
        _workload("Deployment", "efs-csi-controller", controller, {"replicas": 1}),
        _workload("DaemonSet", "efs-csi-node", node, {}),
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": _CLASS},
            "provisioner": DRIVER,
            "parameters": {
                "provisioningMode": "efs-ap",
                "fileSystemId": cluster.file_system,
                "directoryPerms": "700",
            },
        },
    ]


def _workload(kind: str, name: str, spec: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    labels = {"app": name, "app.kubernetes.io/name": "aws-efs-csi-driver"}
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": _SYSTEM},
        "spec": {"selector": {"matchLabels": labels}, "template": template, **more},
    }


def _volumes(cluster: Cluster, namespace: str, access_point: str) -> list[dict[str, Any]]:
    """A volume as csi-provisioner makes it, and one of a directory as people write it; with their claims."""
    spec = {"accessModes": ["ReadWriteMany"], "capacity": {"storage": "1Gi"}}
    provisioned = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": f"pvc-{namespace}",
            "annotations": {"pv.kubernetes.io/provisioned-by": DRIVER},
            "finalizers": [_FINALIZER],
        },
        "spec": {
            **spec,
            "storageClassName": _CLASS,
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"namespace": namespace, "name": "provisioned"},
            "csi": {
                "driver": DRIVER,
                "volumeHandle": f"{cluster.file_system}::{access_point}",
                "volumeAttributes": {
                    "storage.kubernetes.io/csiProvisionerIdentity": f"1700000000000-8081-{DRIVER}"
                },
            },
        },
    }
    shared = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "shared"},
        "spec": {
            **spec,
            "storageClassName": "",
            "csi": {"driver": DRIVER, "volumeHandle": f"{cluster.file_system}:/shared"},
        },
    }
    return [
        provisioned,
        claim("provisioned", namespace, _CLASS, volumeName=f"pvc-{namespace}"),
        shared,
        claim("shared", namespace, "", volumeName="shared"),
    ]


def _replica_set(cluster: Cluster, namespace: str) -> dict[str, Any]:
    template = pod(MOVED, namespace, "provisioned", image=cluster.image)
    labels = template["metadata"]["labels"]
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": MOVED, "namespace": namespace},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": template["spec"]},
        },
    }


async def test_pods_write_while_kube_efs_is_installed_beside_the_older_driver(users: Users) -> None:
    cluster, in_system = users.cluster, ("-n", _SYSTEM)
    # Steps 1 to 3 of the page. A claim is made while nobody serves it.
    await cluster.kubectl("scale", "deployment", *in_system, "efs-csi-controller", "--replicas=0")
    await cluster.apply(claim("waiting", users.namespace, _CLASS))
    await cluster.kubectl("delete", "daemonset", *in_system, "efs-csi-node", "--cascade=orphan")
    without_tokens = render(*_OPTIONS, "--image", cluster.image, "--no-pod-tokens")
    await cluster.kubectl("apply", "-f", "-", stdin=without_tokens)

    for workload in (f"daemonset/{NAMES.tunnel}", f"deployment/{NAMES.controller}"):
        await cluster.kubectl("rollout", "status", workload, "-n", NAMES.namespace, PATIENCE)
    await users.write()
    drivers = await cluster.get("pods", "-n", NAMES.namespace, "-l", f"component={NAMES.node}")
    assert [one["status"]["phase"] for one in drivers["items"]] == ["Pending"]


async def test_claim_that_waited_is_served_and_mounted_by_the_older_driver(users: Users) -> None:
    bound = ("pvc/waiting", "-n", users.namespace, "--for=jsonpath={.status.phase}=Bound")
    await users.cluster.kubectl("wait", *bound, PATIENCE)
    await users.start("early", "waiting")
    await users.write()
    assert await users.uses_older_driver("early")
    await users.workloads.pop("early").delete()


async def test_drained_pod_returns_through_a_tunnel_of_kube_efs(users: Users) -> None:
    cluster = users.cluster
    moved = users.workloads[MOVED]
    older = ("-n", _SYSTEM, "-l", "app=efs-csi-node")
    # Step 5 of the page. Two pods are not drained, so their mounts are there when the new driver takes over.
    await cluster.kubectl("drain", NODE, "--ignore-daemonsets", f"--pod-selector=app={MOVED}", PATIENCE)
    moved.holds_what_was_written()
    before = moved.blocks
    await cluster.kubectl("delete", "pod", *older, "--field-selector", f"spec.nodeName={NODE}")
    await cluster.kubectl("delete", "deployment", "-n", _SYSTEM, "efs-csi-controller")
    await cluster.kubectl("uncordon", NODE)
    await installing.rolled_out(cluster)

    await moved.reach(before + 3)
    moved.holds_what_was_written()
    assert not await users.uses_older_driver(MOVED)


async def test_mount_of_an_idle_pod_is_unmounted_by_the_new_driver(users: Users) -> None:
    await users.cluster.kubectl("delete", "pod", IDLE, "-n", users.namespace, PATIENCE)


async def test_pod_whose_tunnel_ended_with_the_older_driver_writes_when_it_is_restored(
    users: Users,
) -> None:
    """The first remedy of the doctor. Until then the kernel waits, and the program sees no error."""
    cluster, stays = users.cluster, users.workloads.pop(STAYS)
    await stays.has_seen_no_error()
    port = await users.port(STAYS)
    doctor = ("kube-efs", "doctor", "node", "--output", "json")
    answer = await cluster.kubectl.run("exec", *_DRIVER_POD, *doctor)
    (found,) = [one for one in json.loads(answer.output)["findings"] if one["id"] == "mount/dead-port"]
    assert f"port {port}, where nothing listens" in found["problem"]
    assert found["remedy"].startswith("restore the tunnel on the same port")

    # From the files that efs-utils leaves on the node, too. The authority is that of the image there.
    shutil.copy(cluster.efs.ca_file, cluster.node.folder / "efs.crt")
    own = f"sed 's,^CAfile.*,CAfile = /run/node/efs.crt,' /run/efs/stunnel-config.*.{port}"
    await cluster.node.run("sh", "-c", f"{own} >{_RESTORED} && setsid stunnel {_RESTORED} >/dev/null 2>&1 &")
    await stays.continues()
    await stays.has_seen_no_error()

    await stays.delete()
    await cluster.node.run("pkill", "-f", _RESTORED)


async def test_later_pod_of_the_volume_goes_through_a_tunnel_of_kube_efs(users: Users) -> None:
    await users.start("later", "shared")
    await users.write()
    mounted = await users.cluster.node.run("cat", "/proc/mounts")
    assert mounted.count(" nfs4 ") == len(users.workloads)
    assert not await users.uses_older_driver("later")


async def test_pods_write_when_tokens_of_pods_are_given_again(users: Users) -> None:
    # Step 6 of the page.
    cluster = users.cluster
    await cluster.kubectl("apply", "-f", "-", stdin=installing.manifests(cluster.image))
    await installing.rolled_out(cluster)
    await users.write()


async def test_volume_of_the_older_driver_is_removed_with_its_claim(users: Users) -> None:
    cluster, in_namespace = users.cluster, ("-n", users.namespace)
    for one in users.workloads.values():
        one.holds_what_was_written()
    await cluster.kubectl("delete", "pod,replicaset", "--all", *in_namespace, PATIENCE)
    await eventually(cluster.is_nothing_mounted, what="nothing is mounted on the node", seconds=600)
    await cluster.kubectl("delete", "pvc", "--all", *in_namespace, PATIENCE)

    async def only_the_volume_that_people_wrote() -> bool:
        return await cluster.volumes() == {"shared"}

    await eventually(only_the_volume_that_people_wrote, what="the volumes are removed", seconds=600)
    assert users.access_point not in await cluster.access_points()
