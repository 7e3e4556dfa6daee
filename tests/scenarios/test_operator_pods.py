"""The operator on a cluster with running pods: installed by kubectl, upgraded with mounts, and removed.

It also passes with ``--cluster real``, but takes minutes there. ``make conformance`` omits it, because other
scenarios test the operator and the permissions of accounts there.
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
import yaml
from lightkube.operators import not_equal
from lightkube.resources.core_v1 import Pod
from tests.conformance.kubectl import Kubectl
from tests.scenarios import steps
from tests.scenarios.nfs import SlowReader

from kube_efs.model.names import NEW_INSTALLATION
from kube_efs.mounts.mountinfo import MountEntry, read_mountinfo
from kube_efs.operator.kinds import ClusterCSIDriver
from kube_efs.operator.manifests import RenderOptions
from kube_efs.operator.object_client import manifest_of
from kube_efs.operator.operator_manifests import render_operator
from kube_efs.operator.platforms import Platform
from kube_efs.settings.base import own_image
from kube_efs.tunnels.api.client import connect_tunnels
from kube_efs_lab.cluster import EmbeddedCluster
from kube_efs_lab.control_plane import ControlPlane
from kube_efs_lab.node import IMAGE

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(os.geteuid() != 0, reason="the kubelet makes namespaces and mounts: root only"),
]

DRIVER = "efs.csi.aws.com"
REQUEST = {
    "apiVersion": "operator.openshift.io/v1",
    "kind": "ClusterCSIDriver",
    "metadata": {"name": DRIVER},
    "spec": {"managementState": "Managed"},
}
USING = Path(__file__).with_name("using-both.yaml")
NAMES = NEW_INSTALLATION.names
IN_NAMESPACE = ("-n", NAMES.namespace)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(plane: ControlPlane, cluster_folder: Path) -> AsyncGenerator[EmbeddedCluster, None]:
    settings = {"KUBE_EFS_RESYNC_SECONDS": "2"}
    async with EmbeddedCluster(
        cluster_folder, settings=settings, control_plane=plane, installed=False
    ) as running:
        yield running


@pytest.fixture(scope="module")
def kubectl(cluster: EmbeddedCluster) -> Kubectl:
    return Kubectl(cluster.kubeconfig)


async def apply_operator(kubectl: Kubectl, image: str) -> None:
    """Apply the operator, for an installation or an upgrade."""
    manifests = render_operator(
        RenderOptions(platform=Platform.KUBERNETES, namespace=NAMES.namespace, image=image, csi=True)
    )
    await kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(map(dict, manifests)))
    await kubectl("rollout", "status", "deployment/kube-efs-operator", *IN_NAMESPACE, "--timeout=100s")


async def installed(cluster: EmbeddedCluster, kubectl: Kubectl, image: str) -> None:
    """Apply the operator, and wait until all pods have this image."""

    async def look() -> bool:
        found = await cluster.client.get(ClusterCSIDriver, DRIVER)
        driver = manifest_of(found, "ClusterCSIDriver")
        conditions = {one["type"]: one["status"] for one in driver.get("status", {}).get("conditions", ())}
        settled = (conditions.get("Available"), conditions.get("Progressing")) == ("True", "False")
        images = await images_of_pods(cluster)
        return settled and set(images) == {image} and len(images) == 4

    await apply_operator(kubectl, image)
    await kubectl("apply", "-f", "-", stdin=yaml.safe_dump(REQUEST))
    await steps.eventually(look, what=f"the driver is installed with {image}", seconds=120, pause_seconds=0.3)


async def images_of_pods(cluster: EmbeddedCluster) -> list[str]:
    """The image of each pod of the operator and of the installed processes."""
    # Worker pods come and go.
    pods = cluster.client.list(Pod, namespace=NAMES.namespace, labels={"component": not_equal("efs-worker")})
    return [one.spec.containers[0].image or "" async for one in pods if one.spec]


async def number_in(cluster: EmbeddedCluster, folder: str) -> int:
    """The last number that the pod wrote to that volume."""
    pod = await cluster.client.get(Pod, "web", namespace="default")
    assert pod.status
    assert pod.status.phase == "Running", "the pod has ended: it could not write"
    found = await asyncio.to_thread(
        lambda: list(cluster.efs.folder(cluster.file_system_ids[0]).rglob("number"))
    )
    of_folder = [one for one in found if (folder == "tunnel") == (one.parent.name == "tunnel")]
    newest = max(of_folder, key=lambda path: path.stat().st_mtime_ns)
    return int(await asyncio.to_thread(newest.read_text) or 0)


@asynccontextmanager
async def writing_pod(cluster: EmbeddedCluster, kubectl: Kubectl) -> AsyncGenerator[None, None]:
    """Claims of both classes, and a pod that writes to them while the context is open."""
    text = await asyncio.to_thread(USING.read_text)
    text = text.replace("{file_system}", cluster.file_system_ids[0])
    await kubectl("apply", "-f", "-", stdin=text)
    try:
        await kubectl("wait", "pod/web", "--for=condition=Ready", "--timeout=100s")
        yield
    finally:
        await kubectl("delete", "-f", "-", "--ignore-not-found", "--timeout=100s", stdin=text)


async def writes(cluster: EmbeddedCluster) -> None:
    """Wait until the pod has written again to both of its volumes."""
    for folder in ("tunnel", "csi"):
        before = await number_in(cluster, folder)

        async def look(folder: str = folder, before: int = before) -> bool:
            return await number_in(cluster, folder) > before

        await steps.eventually(look, what=f"the pod writes to its volume {folder}")


async def uid_of_pod(cluster: EmbeddedCluster) -> str:
    pod = await cluster.client.get(Pod, "web", namespace="default")
    assert pod.metadata
    assert pod.metadata.uid
    return pod.metadata.uid


async def csi_mount(cluster: EmbeddedCluster, uid: str) -> MountEntry:
    """The mount of the pod's CSI volume on the node."""
    place = cluster.folder / "kubelet/pods" / uid / "volumes/kubernetes.io~csi"
    (found,) = [one for one in read_mountinfo() if one.mount_point.is_relative_to(place.resolve())]
    return found


async def held_ports(cluster: EmbeddedCluster, uid: str) -> dict[str, int]:
    """The ports of the tunnels that mounts of the pod hold, by their names. Worker pods hold others."""
    async with connect_tunnels(cluster.tunnel_socket) as client:
        tunnels = await client.tunnels()
    return {one.name: one.port for one in tunnels if any(uid in holder for holder in one.holders)}


async def test_upgrade_keeps_mounts_and_data(cluster: EmbeddedCluster, kubectl: Kubectl) -> None:
    await installed(cluster, kubectl, own_image())
    async with (
        writing_pod(cluster, kubectl),
        SlowReader(cluster, cluster.file_system_ids[0], size_bytes=64 << 20) as reader,
    ):
        phases = await kubectl("get", "pvc", "tunnel", "csi", "-o", "jsonpath={.items[*].status.phase}")
        assert phases == "Bound Bound"
        await writes(cluster)
        uid = await uid_of_pod(cluster)
        mount, ports = await csi_mount(cluster, uid), await held_ports(cluster, uid)
        assert len(ports) == 1
        async with reader.meanwhile():
            await installed(cluster, kubectl, IMAGE)
        assert await csi_mount(cluster, uid) == mount
        assert await held_ports(cluster, uid) == ports
        await writes(cluster)
        await reader.finish()
    assert await held_ports(cluster, uid) == {}


async def test_removal_waits_for_mounts_and_leaves_nothing_behind(
    cluster: EmbeddedCluster, kubectl: Kubectl
) -> None:
    await installed(cluster, kubectl, IMAGE)
    async with writing_pod(cluster, kubectl):
        await kubectl("delete", "clustercsidriver", DRIVER, "--wait=false")

        await kubectl("wait", "clustercsidriver", DRIVER, "--for=condition=VolumesInUse", "--timeout=100s")
        await writes(cluster)
        assert len(await images_of_pods(cluster)) == 4
        await kubectl("delete", "pod", "web", "--timeout=100s")
        await kubectl("wait", "clustercsidriver", DRIVER, "--for=delete", "--timeout=100s")
    (pod,) = (await kubectl("get", "pods", *IN_NAMESPACE, "-o", "name")).split()
    assert pod.startswith("pod/kube-efs-operator-")
    left = await kubectl("get", "daemonsets,deployments,configmaps", *IN_NAMESPACE, "-o", "name")
    # The ConfigMap has the ports that volumes carry.
    assert set(left.split()) == {
        "deployment.apps/kube-efs-operator",
        f"configmap/{NAMES.config_map}",
        "configmap/kube-root-ca.crt",
    }
    assert await kubectl("get", "csidrivers", "-o", "name") == ""

    async def is_forgotten() -> bool:
        return await kubectl("get", "csinode", "-o", "jsonpath={.items[*].spec.drivers[*].name}") == ""

    # The kubelet looks for the socket of the driver from time to time.
    await steps.eventually(is_forgotten, what="the driver is forgotten")
