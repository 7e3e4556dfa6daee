"""Installs and removes kube-efs as an administrator does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.conformance.installing import render
from tests.kubelet.cluster import NAMES, NODE, PATIENCE, Cluster, Workload, claim, pod
from tests.scenarios.steps import eventually

from kube_efs.model.names import WORKER_LABELS

DRIVER = "efs.csi.aws.com"
DIRECTORIES = "example.com/aws-efs"
WORKLOADS = (f"daemonset/{NAMES.tunnel}", f"daemonset/{NAMES.node}", f"deployment/{NAMES.controller}")


def manifests(image: str) -> str:
    """The output of ``kube-efs render`` with all backends and this image."""
    return render("--for", "kubernetes", "--csi", "--region", "us-east-1", "--image", image)


async def install(cluster: Cluster) -> None:
    """Install kube-efs by ``kube-efs render``, with all backends, and wait until it is ready.

    Tests that only need kube-efs use the fixture ``installed``, because this takes a minute.
    """
    await cluster.kubectl("apply", "-f", "-", stdin=manifests(cluster.image))
    settings = (f"FILE_SYSTEM_ID={cluster.file_system}", f"PROVISIONER_NAME={DIRECTORIES}")
    await cluster.kubectl("set", "env", f"deployment/{NAMES.controller}", "-n", NAMES.namespace, *settings)
    await rolled_out(cluster)


async def rolled_out(cluster: Cluster) -> None:
    """Wait until the workloads of kube-efs run their newest templates."""
    for workload in WORKLOADS:
        await cluster.kubectl("rollout", "status", workload, "-n", NAMES.namespace, PATIENCE)


@asynccontextmanager
async def workloads(cluster: Cluster) -> AsyncIterator[tuple[Workload, ...]]:
    """A pod for each way of data: the tunnel of an access point, and that of the whole file system.

    At the end, their namespace and volumes are removed.
    """
    namespace = await cluster.new_namespace()
    access_points = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": namespace},
        "provisioner": DRIVER,
        "parameters": {
            "provisioningMode": "efs-ap",
            "fileSystemId": cluster.file_system,
            "directoryPerms": "700",
        },
    }
    by_name = {"selector": {"matchLabels": {"volume_name": "tunnel"}}}
    claims = (
        claim("access-point", namespace, namespace),
        claim("tunnel", namespace, NAMES.storage_class, **by_name),
    )
    pods = [pod(one, namespace, one, image=cluster.image) for one in ("access-point", "tunnel")]
    await cluster.apply(access_points, *claims, *pods)
    found = tuple(Workload(cluster, namespace, one) for one in ("access-point", "tunnel"))
    for one in found:
        await one.continues()
    yield found
    await cluster.kubectl("delete", "namespace", namespace, "--ignore-not-found", PATIENCE)
    await cluster.kubectl("delete", "storageclass", namespace)

    async def nothing_is_left() -> bool:
        volumes = (await cluster.get("pv"))["items"]
        ours = [
            one
            for one in volumes
            if one["spec"].get("claimRef", {}).get("namespace") == namespace
            and one["spec"]["persistentVolumeReclaimPolicy"] == "Delete"
        ]
        return not ours and await cluster.is_nothing_mounted()

    await eventually(nothing_is_left, what="their volumes are removed, and nothing is mounted", seconds=600)


async def end_controller(cluster: Cluster) -> None:
    """Delete the controller, then its worker pods, which can only end while the node has the driver."""
    ours = ("-n", NAMES.namespace, "--ignore-not-found", PATIENCE)
    await cluster.kubectl("delete", f"deployment/{NAMES.controller}", "--cascade=foreground", *ours)
    await cluster.kubectl("delete", "pod", "-l", f"component={WORKER_LABELS['component']}", *ours)


async def uninstall(cluster: Cluster) -> None:
    """Remove kube-efs in the documented order if it is there, and wait until its driver is not registered."""
    await end_controller(cluster)
    await cluster.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=manifests(cluster.image))

    async def look() -> bool:
        return not (await cluster.get("csinode", NODE))["spec"]["drivers"]

    await eventually(look, what="the node has no driver", seconds=600)
