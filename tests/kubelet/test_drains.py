"""Administrators drain the node, delete namespaces, and delete pods by force while EFS does not answer."""

from typing import Any

import pytest
from tests.kubelet import network
from tests.kubelet.cluster import NAMES, NODE, PATIENCE, Cluster, Workload, pod
from tests.kubelet.installing import workloads
from tests.scenarios.steps import eventually

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("installed")]


async def _tunnel_pods(cluster: Cluster) -> set[str]:
    found = await cluster.get("pods", "-n", NAMES.namespace, "-l", f"component={NAMES.tunnel}")
    return {one["metadata"]["uid"] for one in found["items"]}


async def test_drained_node_has_no_volume_and_gets_its_pods_back(cluster: Cluster) -> None:
    async with workloads(cluster) as (first, _):
        namespace = first.namespace
        set_of_one = _replica_set(cluster, namespace)
        budget = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "moved", "namespace": namespace},
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "moved"}}},
        }
        await cluster.apply(set_of_one, budget)
        moved = Workload(cluster, namespace, "moved")
        await moved.continues()
        tunnels = await _tunnel_pods(cluster)

        options = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", PATIENCE)
        await cluster.kubectl("drain", NODE, *options)

        assert await _tunnel_pods(cluster) == tunnels
        await eventually(cluster.is_nothing_mounted, what="nothing is mounted on the node", seconds=600)
        moved.holds_what_was_written()
        before = moved.blocks
        await cluster.kubectl("uncordon", NODE)
        # The pod that the set makes in its place continues behind what is there.
        await moved.reach(before + 3)
        moved.holds_what_was_written()


def _replica_set(cluster: Cluster, namespace: str) -> dict[str, Any]:
    template = pod("moved", namespace, "access-point", image=cluster.image)
    labels = template["metadata"]["labels"]
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": "moved", "namespace": namespace},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": template["spec"]},
        },
    }


async def test_namespace_is_deleted_with_its_pods_claims_and_data(cluster: Cluster) -> None:
    kept = await cluster.access_points()
    async with workloads(cluster) as pods:
        assert all(one.blocks for one in pods)
        assert len(await cluster.access_points() - kept) == 1
        await cluster.kubectl("delete", "namespace", pods[0].namespace, PATIENCE)

        async def nothing_is_left() -> bool:
            volumes = await cluster.volumes()
            return not volumes and await cluster.access_points() == kept and pods[1].file is None

        await eventually(nothing_is_left, what="no volume, access point and file is left", seconds=600)


async def test_pod_deleted_by_force_while_efs_does_not_answer_leaves_nothing(cluster: Cluster) -> None:
    async with workloads(cluster) as pods:
        neighbor = pod("neighbor", pods[0].namespace, "access-point", image=cluster.image)
        await cluster.apply(neighbor)
        other = Workload(cluster, pods[0].namespace, "neighbor")
        await other.continues()
        network.cut_off_aws()
        try:
            options = ("--force", "--grace-period=0", PATIENCE)
            await cluster.kubectl("delete", "pod", pods[0].name, "-n", pods[0].namespace, *options)
        finally:
            network.connect_aws()
        # Both have waited, and the one that stays has seen no error.
        await other.continues()
        await other.has_seen_no_error()
        await pods[1].continues()
        await pods[1].has_seen_no_error()

        async def only_the_others_are_mounted() -> bool:
            mounted = await cluster.node.run("cat", "/proc/mounts")
            return mounted.count(" nfs4 ") == len((other, pods[1]))

        await eventually(only_the_others_are_mounted, what="the pod's volume is unmounted", seconds=600)
