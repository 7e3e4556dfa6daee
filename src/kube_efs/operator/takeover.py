"""Replaces the older operators' drivers, node by node, while pods continue to use their volumes.

The pods of an older driver hold the TLS tunnels of what they have mounted. So they stay where they are when
their DaemonSet goes, and each is removed only when no pod of its node uses a volume of the driver. Affinity
keeps the new driver's pod away from the node until then: two never serve one socket.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
from lightkube.resources.core_v1 import Pod
from lightkube.types import CascadeType

from kube_efs.kube.errors import translated
from kube_efs.model.errors import KubeNotFound
from kube_efs.operator.cluster_csi_driver import DRIVER_NAME, FORCE_TAKEOVER
from kube_efs.operator.kinds import KINDS, ObjectReference, reference_of
from kube_efs.operator.manifests import Manifest
from kube_efs.operator.object_client import ObjectClient
from kube_efs.operator.volumes_in_use import VolumeUse, describe_pods, find_volume_uses

log = structlog.get_logger(__name__)

COMMUNITY_LABEL: Final = "openshift.io/aws-efs-operator-owned"
_PART_OF: Final = "app.kubernetes.io/part-of"
# They would undo what is done here.
_OPERATORS: Final = ("aws-efs-operator", "aws-efs-csi-driver-operator")
# Of the AWS driver's chart, which a user or EKS has installed and has to remove.
_CHART: Final = (("Deployment", "efs-csi-controller"), ("DaemonSet", "efs-csi-node"))
_COMMUNITY_DAEMON_SET: Final = "efs-csi-node"
_DAEMON_SETS: Final = (_COMMUNITY_DAEMON_SET, "aws-efs-csi-driver-node")
_DEPLOYMENT: Final = "aws-efs-csi-driver-controller"
OLDER_WORKLOADS: Final = (*_OPERATORS, *_DAEMON_SETS, _DEPLOYMENT, "efs-csi-controller")
_POD_LABELS: Final = tuple({"app": name} for name in _DAEMON_SETS)
# What is left over when the pods are gone, of both operators.
_LEFT_OVER: Final = (
    ("ServiceAccount", "efs-csi-sa"),
    ("SecurityContextConstraints", "efs-csi-scc"),
    ("ServiceAccount", "aws-efs-csi-driver-node-sa"),
    ("ServiceAccount", "aws-efs-csi-driver-controller-sa"),
    ("ClusterRoleBinding", "efs-node-privileged-binding"),
    ("ClusterRoleBinding", "efs-controller-privileged-binding"),
    ("ClusterRoleBinding", "efs-csi-main-provisioner-binding"),
    ("ClusterRoleBinding", "efs-kube-rbac-proxy-binding"),
    ("ClusterRole", "efs-privileged-role"),
    ("ClusterRole", "efs-kube-rbac-proxy-role"),
    ("RoleBinding", "aws-efs-csi-driver-lease-leader-election"),
    ("Role", "aws-efs-csi-driver-lease-leader-election"),
    # Of openshift-efs-stunnel, whose workloads are taken over under their names.
    ("RoleBinding", "edit-efs-manager"),
    ("RoleBinding", "edit-efs-worker"),
    ("RoleBinding", "view-efs-stunnel"),
    ("ClusterRoleBinding", "system:{namespace}:controller:persistent-volume-binder"),
)
_INHERITED: Final = (("CSIDriver", DRIVER_NAME), ("StorageClass", "efs-sc"))
_CRD_KIND: Final = "CustomResourceDefinition"


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeoverProgress:
    """How far it is. ``obstacle`` keeps everything from being done; ``waits`` says which nodes wait for whom.

    ``done`` when nothing of an older driver is left.
    """

    obstacle: str = ""
    waits: str = ""
    done: bool = False


class OlderSystems:
    """What the older operators have left in the cluster; raises KubeError."""

    def __init__(self, cluster: ObjectClient, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace

    async def obstacle(self) -> str:
        """Why nothing may be changed: another operator still manages the driver. Empty if none does."""
        for name in _OPERATORS:
            for found in await self._cluster.find("Deployment", name=name):
                if found["spec"].get("replicas") != 0:
                    return (
                        f"{reference_of(found)} still runs, and would revert the changes of this "
                        "operator; remove it"
                    )
        for kind, name in _CHART:
            for found in await self._cluster.find(kind, name=name):
                if not _is_older(found) and not _is_own(found):
                    return (
                        f"{reference_of(found)} of the AWS driver still exists;"
                        " remove its release or add-on, its volumes are kept"
                    )
        for name in (*_DAEMON_SETS, _DEPLOYMENT):
            for found in await self._cluster.find(_kind_of(name), name=name):
                namespace = found["metadata"]["namespace"]
                if namespace != self._namespace and not _is_own(found):
                    return f"{reference_of(found)} can be taken over by an operator in its namespace only"
        return ""

    async def release_workloads(self) -> None:
        """Have the older controller go, and leave the pods of the nodes to themselves."""
        for found in await self._cluster.find("Deployment", name=_DEPLOYMENT):
            await self._cluster.delete(reference_of(found), cascade=CascadeType.FOREGROUND)
            log.info("older-object-removed", object=str(reference_of(found)))
        for name in _DAEMON_SETS:
            for found in await self._cluster.find("DaemonSet", name=name):
                if not _is_own(found):
                    await self._cluster.delete(reference_of(found), cascade=CascadeType.ORPHAN)
                    log.info("older-object-released", object=str(reference_of(found)))

    async def inherit(self) -> None:
        """Keep what volumes refer to from going with the older operator's own kind."""
        for kind, name in _INHERITED:
            reference = ObjectReference(kind, "", name)
            found = await self._cluster.get(reference)
            if found is None or not _is_older(found):
                continue
            owners = [
                one for one in found["metadata"].get("ownerReferences") or () if one["kind"] != _CRD_KIND
            ]
            labels = {COMMUNITY_LABEL: None}
            metadata = {
                "resourceVersion": found["metadata"]["resourceVersion"],
                "labels": labels,
                "ownerReferences": owners,
            }
            await self._cluster.merge(reference, {"metadata": metadata})

    async def pods(self) -> tuple[Pod, ...]:
        """The pods of older drivers that are still on nodes."""
        found: list[Pod] = []
        for labels in _POD_LABELS:
            with translated("pods of older drivers"):
                listing = self._cluster.client.list(Pod, namespace="*", labels={**labels})
                found += [pod async for pod in listing if not _is_own(pod.to_dict())]
        return tuple(found)

    async def remove_pod(self, pod: Pod) -> None:
        """Make room on the pod's node for the new driver's."""
        assert pod.metadata  # noqa: S101 - every pod that was listed has it
        name, namespace = pod.metadata.name or "", pod.metadata.namespace or ""
        try:
            with translated(f"Pod {namespace}/{name}"):
                await self._cluster.client.delete(Pod, name, namespace=namespace)
        except KubeNotFound:
            return
        log.info("older-pod-removed", pod=f"{namespace}/{name}")

    async def remove_left_overs(self) -> None:
        """Have everything go that only the older drivers' pods needed."""
        for kind, name in _LEFT_OVER:
            namespace = self._namespace if KINDS[kind].is_namespaced else ""
            reference = ObjectReference(kind, namespace, name.replace("{namespace}", self._namespace))
            if await self._cluster.delete(reference):
                log.info("older-object-removed", object=str(reference))

    async def uses(self) -> tuple[VolumeUse, ...]:
        """Which pods use volumes now."""
        return await find_volume_uses(self._cluster.client)


async def take_over(older: OlderSystems, *, forced: bool, node_set: Manifest | None) -> TakeoverProgress:
    """Go one step further. ``node_set`` is the new driver's DaemonSet, as soon as there is one.

    ``forced`` replaces the driver on nodes whose pods use volumes, too.
    """
    obstacle = await older.obstacle()
    if obstacle:
        return TakeoverProgress(obstacle=obstacle)
    await older.inherit()
    await older.release_workloads()
    pods = await older.pods()
    if not pods:
        await older.remove_left_overs()
        return TakeoverProgress(done=True)
    uses = () if forced else tuple(use for use in await older.uses() if use.by_driver)
    free, waits = choose(pods, uses)
    if free is not None and _works(node_set, except_for=len(pods)):
        await older.remove_pod(free)
    return TakeoverProgress(waits=waits or f"{len(pods)} nodes still have the older driver")


def choose(pods: Sequence[Pod], uses: Iterable[VolumeUse]) -> tuple[Pod | None, str]:
    """The pod that may go next, and what the others wait for; none while one is already going."""
    by_node: dict[str, list[VolumeUse]] = {}
    for use in uses:
        by_node.setdefault(use.node, []).append(use)
    nodes = {(pod.spec and pod.spec.nodeName) or "": pod for pod in pods}
    free = [pod for node, pod in sorted(nodes.items()) if node not in by_node]
    waits = "; ".join(
        f"node {node} keeps the older driver while {describe_pods(by_node[node])} use its volumes"
        for node in sorted(nodes.keys() & by_node.keys())
    )
    if waits:
        waits += f" (drain the node, or set the annotation {FORCE_TAKEOVER})"
    going = any(pod.metadata and pod.metadata.deletionTimestamp for pod in pods)
    return (free[0] if free and not going else None), waits


def _works(node_set: Manifest | None, *, except_for: int) -> bool:
    """Whether every node but so many has a new driver that is ready."""
    status = (node_set or {}).get("status") or {}
    if "desiredNumberScheduled" not in status:
        return False
    return bool(status["desiredNumberScheduled"] - (status.get("numberReady") or 0) <= except_for)


def _kind_of(name: str) -> str:
    return "Deployment" if name == _DEPLOYMENT else "DaemonSet"


def _is_older(found: Manifest) -> bool:
    labels = found["metadata"].get("labels") or {}
    return labels.get(COMMUNITY_LABEL) == "true"


def _is_own(found: Manifest) -> bool:
    labels = found["metadata"].get("labels") or {}
    return labels.get(_PART_OF) == "kube-efs"
