"""Replaces the driver of an older operator, node by node, while pods continue to use their volumes.

The pods of an older driver contain the TLS tunnels of the mounted volumes. If such a pod ends, every mount of
its node hangs, because the new driver does not start the tunnels of the older one. Each of these pods must
therefore stay until no pod on its node uses a volume of the driver. The operator repeats these steps in every
pass until nothing is left:

1. Nothing is changed while another operator, chart or add-on manages the older driver: it would undo the
   changes, and its deletion would later delete objects that this operator took over.
2. The CSIDriver and the StorageClass lose their owner, the definition of the older operator's SharedVolumes.
   Otherwise the garbage collector would delete them together with it, while volumes refer to them.
3. The older controller is deleted, because two controllers must not create volumes for one claim. The older
   DaemonSets are deleted without their pods (orphaned).
4. The new driver is installed meanwhile. Its anti-affinity keeps it away from nodes with an older pod, since
   two drivers cannot serve the same socket of the kubelet.
5. One older pod is deleted at a time: a pod on whose node no volume is in use, and only if the new driver is
   ready on all nodes without an older pod. If the new driver does not start, at most one node has no driver.
6. When no older pod is left, the objects that only those pods needed are deleted.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import structlog
from lightkube.resources.core_v1 import Pod
from lightkube.types import CascadeType

from kube_efs.kube.errors import translated
from kube_efs.model.errors import KubeNotFound
from kube_efs.operator.cluster_csi_driver import DRIVER_NAME, FORCE_TAKEOVER
from kube_efs.operator.kinds import KINDS, ObjectReference, has_labels, is_part_of_kube_efs, reference_of
from kube_efs.operator.manifests import Manifest
from kube_efs.operator.object_client import ObjectClient
from kube_efs.operator.progress import Progress
from kube_efs.operator.volumes_in_use import VolumeUse, describe_pods, find_volume_uses

log = structlog.get_logger(__name__)

COMMUNITY_LABEL: Final = "openshift.io/aws-efs-operator-owned"
_OPERATORS: Final = ("aws-efs-operator", "aws-efs-csi-driver-operator")
# The AWS driver's chart. The user who installed it, or EKS for its add-on, must remove it.
_CHART: Final = (("Deployment", "efs-csi-controller"), ("DaemonSet", "efs-csi-node"))
# Of aws-efs-operator and of aws-efs-csi-driver-operator. Their pods have the label app with this name.
_DAEMON_SETS: Final = ("efs-csi-node", "aws-efs-csi-driver-node")
_DEPLOYMENT: Final = "aws-efs-csi-driver-controller"
OLDER_WORKLOADS: Final = (*_OPERATORS, *_DAEMON_SETS, _DEPLOYMENT, "efs-csi-controller")
# Only the older pods needed these objects of both operators.
_REMAINING: Final = (
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
    # Of openshift-efs-stunnel. Its workloads have the same names as ours, and are updated in place.
    ("RoleBinding", "edit-efs-manager"),
    ("RoleBinding", "edit-efs-worker"),
    ("RoleBinding", "view-efs-stunnel"),
    ("ClusterRoleBinding", "system:{namespace}:controller:persistent-volume-binder"),
)
_INHERITED: Final = (("CSIDriver", DRIVER_NAME), ("StorageClass", "efs-sc"))
_CRD_KIND: Final = "CustomResourceDefinition"


class Takeover:
    """Takes over from older operators in the installation's namespace; every method raises KubeError."""

    def __init__(self, objects: ObjectClient, namespace: str) -> None:
        self._objects = objects
        self._namespace = namespace

    async def step(self, *, forced: bool, node_daemon_set: Manifest | None) -> Progress:
        """Do what is possible now. ``node_daemon_set`` is the new driver's, None before it exists.

        ``forced`` replaces the driver also on nodes whose pods use volumes.
        """
        blocked = await self._find_manager()
        if blocked:
            return Progress(blocked=blocked)
        await self._remove_owner_references()
        await self._delete_workloads()
        pods = await self._list_pods()
        if not pods:
            await self._delete_remaining_objects()
            return Progress()
        uses = () if forced else await find_volume_uses(self._objects.client)
        pod, waiting = select_pod(pods, [use for use in uses if use.by_driver])
        if pod is not None and _is_ready_elsewhere(node_daemon_set, older_pods=len(pods)):
            await self._delete_pod(pod)
        return Progress(waiting=waiting or f"{len(pods)} nodes still have the older driver")

    async def _find_manager(self) -> str:
        """What manages the older driver, and the remedy; empty if nothing does."""
        for name in _OPERATORS:
            for found in await self._objects.list("Deployment", name=name):
                if found["spec"].get("replicas") != 0:
                    return (
                        f"{reference_of(found)} still runs, and would revert the changes of this "
                        "operator; remove it"
                    )
        for kind, name in _CHART:
            for found in await self._objects.list(kind, name=name):
                if not _is_community_operators(found) and not is_part_of_kube_efs(found):
                    return (
                        f"{reference_of(found)} of the AWS driver still exists;"
                        " remove its release or add-on, its volumes are kept"
                    )
        for kind, name in (*(("DaemonSet", name) for name in _DAEMON_SETS), ("Deployment", _DEPLOYMENT)):
            for found in await self._objects.list(kind, name=name):
                namespace = found["metadata"]["namespace"]
                if namespace != self._namespace and not is_part_of_kube_efs(found):
                    return f"{reference_of(found)} can be taken over by an operator in its namespace only"
        return ""

    async def _remove_owner_references(self) -> None:
        for kind, name in _INHERITED:
            reference = ObjectReference(kind, "", name)
            found = await self._objects.get(reference)
            if found is None or not _is_community_operators(found):
                continue
            owners = found["metadata"].get("ownerReferences") or ()
            metadata = {
                "resourceVersion": found["metadata"]["resourceVersion"],
                "labels": {COMMUNITY_LABEL: None},
                "ownerReferences": [one for one in owners if one["kind"] != _CRD_KIND],
            }
            await self._objects.merge_patch(reference, {"metadata": metadata})

    async def _delete_workloads(self) -> None:
        for found in await self._objects.list("Deployment", name=_DEPLOYMENT):
            await self._objects.delete(reference_of(found), cascade=CascadeType.FOREGROUND)
            log.info("older-object-deleted", object=str(reference_of(found)))
        for name in _DAEMON_SETS:
            for found in await self._objects.list("DaemonSet", name=name):
                # The new DaemonSet has the name of the community operator's.
                if not is_part_of_kube_efs(found):
                    await self._objects.delete(reference_of(found), cascade=CascadeType.ORPHAN)
                    log.info("older-object-deleted", object=str(reference_of(found)), pods="orphaned")

    async def _list_pods(self) -> tuple[Pod, ...]:
        found: list[Pod] = []
        for name in _DAEMON_SETS:
            with translated("pods of older drivers"):
                listing = self._objects.client.list(Pod, namespace="*", labels={"app": name})
                found += [pod async for pod in listing if not is_part_of_kube_efs(pod.to_dict())]
        return tuple(found)

    async def _delete_pod(self, pod: Pod) -> None:
        assert pod.metadata  # noqa: S101 - every pod that was listed has it
        name, namespace = pod.metadata.name or "", pod.metadata.namespace or ""
        try:
            with translated(f"Pod {namespace}/{name}"):
                await self._objects.client.delete(Pod, name, namespace=namespace)
        except KubeNotFound:
            return
        log.info("older-pod-deleted", pod=f"{namespace}/{name}")

    async def _delete_remaining_objects(self) -> None:
        for kind, name in _REMAINING:
            namespace = self._namespace if KINDS[kind].is_namespaced else ""
            reference = ObjectReference(kind, namespace, name.replace("{namespace}", self._namespace))
            if await self._objects.delete(reference):
                log.info("older-object-deleted", object=str(reference))


def select_pod(pods: Sequence[Pod], uses: Iterable[VolumeUse]) -> tuple[Pod | None, str]:
    """The older pod to delete next, None while one is being deleted; and which nodes wait for which pods."""
    by_node: dict[str, list[VolumeUse]] = {}
    for use in uses:
        by_node.setdefault(use.node, []).append(use)
    nodes = {(pod.spec and pod.spec.nodeName) or "": pod for pod in pods}
    unused = [pod for node, pod in sorted(nodes.items()) if node not in by_node]
    waiting = "; ".join(
        f"node {node} keeps the older driver while {describe_pods(by_node[node])} use its volumes"
        for node in sorted(nodes.keys() & by_node.keys())
    )
    if waiting:
        waiting += f" (drain the node, or set the annotation {FORCE_TAKEOVER})"
    is_deleting = any(pod.metadata and pod.metadata.deletionTimestamp for pod in pods)
    return (unused[0] if unused and not is_deleting else None), waiting


def _is_ready_elsewhere(node_daemon_set: Manifest | None, *, older_pods: int) -> bool:
    """Whether the new driver is ready on as many nodes as have no older pod."""
    status = (node_daemon_set or {}).get("status") or {}
    if "desiredNumberScheduled" not in status:
        return False
    return bool(status["desiredNumberScheduled"] - (status.get("numberReady") or 0) <= older_pods)


def _is_community_operators(found: Manifest) -> bool:
    return has_labels(found, {COMMUNITY_LABEL: "true"})
