"""Replaces the driver of an older operator, node by node, while pods continue to use their volumes.

The pods of an older driver contain the TLS tunnels of the mounted volumes. If such a pod ends, every mount of
its node hangs, because the new driver does not start the tunnels of the older one. Each of these pods must
therefore stay until no pod on its node uses a volume of the driver. The operator repeats these steps in every
pass until nothing is left:

1. Nothing is changed while another operator, chart or add-on manages the older driver: it would undo the
   changes, and its deletion would later delete objects that this operator took over.
2. The CSIDriver and the StorageClass lose their owner, the definition of the older operator's SharedVolumes.
   Otherwise the garbage collector would delete them together with it, while volumes refer to them.
3. The older controller is deleted, and the new one is installed when the last pod of the older one has ended:
   two controllers must not create volumes for one claim, and the older one may still remove a directory. The
   older DaemonSets are deleted without their pods (orphaned).
4. The driver of the nodes and the tunnels are installed meanwhile. The anti-affinity of the driver keeps it
   away from nodes with an older pod, since two drivers cannot serve the same socket of the kubelet.
5. One older pod is deleted at a time: a pod on whose node no volume is in use, and only if the new driver is
   ready on all nodes without an older pod. If the new driver does not start, at most one node has no driver.
   This holds also if an administrator forces it: that accepts broken mounts on nodes in use, but pods on a
   node without any driver get no volumes at all. A broken node therefore stops the takeover until it is
   repaired or its Node is deleted, and the status names it. The pods of the node are read once more directly
   before the deletion. No object locks a node, so a pod that starts in that moment can still be missed.
6. When no older pod is left, the objects that only those pods needed are deleted.

A tenant can create a Deployment, a DaemonSet or a pod with any name and labels. These are therefore older
drivers only in namespaces of administrators: that of this operator, the usual ones of drivers, and those
whose service accounts of the older systems have a ClusterRoleBinding. Only pods in the operator's own
namespace are deleted. Those of other namespaces are waited for, because the AWS driver refuses volumes with
tokens of pods.
"""

from collections.abc import Awaitable, Collection, Iterable, Sequence
from typing import Any, Final

import structlog
from lightkube.resources.core_v1 import Pod
from lightkube.types import CascadeType

from kube_efs.kube.errors import translated
from kube_efs.kube.pages import PAGE_SIZE
from kube_efs.model.errors import KubeConflict, KubeDenied, KubeError, KubeInvalid, KubeNotFound
from kube_efs.model.names import AWS_EFS_CSI_DRIVER, OPERATOR_NAMESPACES
from kube_efs.model.volumes import DRIVER
from kube_efs.operator.cluster_csi_driver import FORCE_TAKEOVER
from kube_efs.operator.kinds import (
    KINDS,
    ObjectReference,
    describe_ending,
    has_labels,
    is_part_of_kube_efs,
    reference_of,
)
from kube_efs.operator.manifests import Manifest
from kube_efs.operator.object_client import ObjectClient
from kube_efs.operator.progress import Progress, is_observed
from kube_efs.operator.volumes_in_use import (
    UseOfVolume,
    describe_names,
    describe_pods,
    find_volume_uses,
    find_volume_uses_on,
)

log = structlog.get_logger(__name__)

COMMUNITY_LABEL: Final = "openshift.io/aws-efs-operator-owned"
_OPERATORS: Final = ("aws-efs-operator", "aws-efs-csi-driver-operator")
# The AWS driver's chart. The user who installed it, or EKS for its add-on, must remove it.
_CHART: Final = (("Deployment", "efs-csi-controller"), ("DaemonSet", "efs-csi-node"))
# Of aws-efs-operator and of aws-efs-csi-driver-operator. Their pods have the label app with this name.
_DAEMON_SETS: Final = ("efs-csi-node", "aws-efs-csi-driver-node")
_DEPLOYMENT: Final = "aws-efs-csi-driver-controller"
OLDER_WORKLOADS: Final = (*_OPERATORS, *_DAEMON_SETS, _DEPLOYMENT, "efs-csi-controller")
# The accounts of older drivers and operators.
_ACCOUNTS: Final = frozenset(
    {
        *_OPERATORS,
        "efs-csi-sa",
        "efs-csi-controller-sa",
        "efs-csi-node-sa",
        "aws-efs-csi-driver-node-sa",
        "aws-efs-csi-driver-controller-sa",
    }
)
# The chart of the AWS driver binds these roles, also to accounts with other names.
_CLUSTER_ROLES: Final = frozenset({"efs-csi-external-provisioner-role", "efs-csi-node-role"})
# Where drivers usually are, and only administrators can create pods.
_NAMESPACES: Final = frozenset({AWS_EFS_CSI_DRIVER.namespace, *OPERATOR_NAMESPACES})
# Only the older pods needed these objects. Those of aws-efs-operator have its label.
_LABELED: Final = (("ServiceAccount", "efs-csi-sa"), ("SecurityContextConstraints", "efs-csi-scc"))
# A binding proves whose it is by its subject, an account of the installation's namespace.
_BINDINGS: Final = {
    "efs-node-privileged-binding": "aws-efs-csi-driver-node-sa",
    "efs-controller-privileged-binding": "aws-efs-csi-driver-controller-sa",
    "efs-csi-main-provisioner-binding": "aws-efs-csi-driver-controller-sa",
    "efs-kube-rbac-proxy-binding": "aws-efs-csi-driver-controller-sa",
    "aws-efs-csi-driver-lease-leader-election": "aws-efs-csi-driver-controller-sa",
    # Of openshift-efs-stunnel. Its workloads and accounts have the same names as ours, and are updated.
    "edit-efs-manager": "efs-manager",
    "edit-efs-worker": "efs-worker",
    "view-efs-stunnel": "efs-stunnel",
    "system:{namespace}:controller:persistent-volume-binder": "efs-manager",
}
# Roles that these bindings refer to, and no other installation.
_ROLES: Final = frozenset(
    {"efs-privileged-role", "efs-kube-rbac-proxy-role", "aws-efs-csi-driver-lease-leader-election"}
)
# Objects of aws-efs-csi-driver-operator without an account. Their selector proves whose they are.
_SHARED_NAMES: Final = (
    ("Service", "aws-efs-csi-driver-controller-metrics", ("spec", "selector"), _DEPLOYMENT),
    (
        "ServiceMonitor",
        "aws-efs-csi-driver-controller-monitor",
        ("spec", "selector", "matchLabels"),
        "aws-efs-csi-driver-controller-metrics",
    ),
)
_DISRUPTION_BUDGET: Final = (
    "PodDisruptionBudget",
    "aws-efs-csi-driver-controller-pdb",
    ("spec", "selector", "matchLabels"),
    _DEPLOYMENT,
)
_NODE_CREDENTIALS: Final = ObjectReference(
    "CredentialsRequest", "openshift-cloud-credential-operator", "openshift-aws-efs-csi-driver-node"
)
_NODE_SECRET: Final = "node-aws-efs-cloud-credentials"  # noqa: S105 - the name of one
OLDER_CLASS: Final = "efs-sc"
_INHERITED: Final = (("CSIDriver", DRIVER), ("StorageClass", OLDER_CLASS))
_CRD_KIND: Final = "CustomResourceDefinition"
# After these errors, the object is certainly not deleted.
_REFUSALS: Final = (KubeDenied, KubeInvalid)


class Errors:
    """Collects the errors of single objects, so that the other objects are handled too."""

    def __init__(self) -> None:
        self.texts: tuple[str, ...] = ()

    async def collect(self, work: Awaitable[object]) -> KubeError | None:
        """The error of the work, if any. Raises KubeConflict: the pass is repeated with newer objects."""
        try:
            await work
        except KubeConflict:
            raise
        except KubeError as error:
            self.texts = (*self.texts, str(error))
            return error
        return None


class Takeover:
    """Takes over from older operators in the installation's namespace.

    ``node_name`` is the name of the new driver's DaemonSet.
    """

    def __init__(self, objects: ObjectClient, namespace: str, node_name: str) -> None:
        self._objects = objects
        self._namespace = namespace
        self._node = ObjectReference("DaemonSet", namespace, node_name)

    async def step(self, *, forced: bool) -> Progress:
        """Do what is possible now. ``forced`` replaces the driver also on nodes whose pods use volumes.

        An object that cannot be changed does not stop the others, and its error is part of the progress.
        Raises KubeError only if the new driver must not be installed: another one may be active.
        """
        namespaces = await self._list_namespaces()
        blocked = await self._find_manager(namespaces)
        if blocked:
            return Progress(blocked=blocked)
        errors = Errors()
        await self._remove_owner_references(errors)
        controller = await self._delete_workloads()
        await self._delete_shared_names(errors)
        found = await self._list_pods(namespaces)
        uses: tuple[UseOfVolume, ...] = ()
        if found and not forced:
            uses = await find_volume_uses(self._objects.client)
            # Again: in a large cluster, that took many seconds, and one of these pods may be ending by now.
            found = await self._list_pods(namespaces)
        if not found:
            await self._delete_remaining_objects(errors)
            return Progress(controller=controller, errors=errors.texts)
        pods = [one for one in found if one.metadata and one.metadata.namespace == self._namespace]
        # Tunnel volumes do not count: their mounts do not depend on the older pods.
        unused, waiting = select_pods(pods, [use for use in uses if use.by_driver])
        missing = await self._describe_missing(found) if unused else ""
        if not missing:
            await self._delete_one(unused, errors, forced=forced)
        others = sorted(
            f"{one.metadata.namespace}/{one.metadata.name}"
            for one in found
            if one.metadata and one.metadata.namespace != self._namespace
        )
        reasons = [waiting or f"{len(pods)} nodes still have the older driver"] if pods else []
        if missing:
            reasons.append(f"the next older pod is deleted when {missing}")
        ending = sorted(_node_of(one) for one in pods if one.metadata and one.metadata.deletionTimestamp)
        if ending:
            reasons.append(
                f"older pods are ending on {describe_names(ending)}: if such a machine is permanently off,"
                " delete its Node"
            )
        if others:
            reasons.append(
                "this operator does not delete older pods of other namespaces: drain the nodes of"
                f" {describe_names(others)}, then delete these pods"
            )
        return Progress(waiting="; ".join(reasons), controller=controller, errors=errors.texts)

    async def find_manager(self) -> str:
        """What manages an older driver, and the remedy; empty if nothing does; raises KubeError."""
        return await self._find_manager(await self._list_namespaces())

    async def _list_namespaces(self) -> frozenset[str]:
        """The namespaces in which an older driver can only be that of an administrator or of OLM."""
        installed = {
            subject.get("namespace", "")
            for binding in await self._objects.list("ClusterRoleBinding")
            for subject in binding.get("subjects") or ()
            if subject["name"] in _ACCOUNTS or binding["roleRef"]["name"] in _CLUSTER_ROLES
        }
        return frozenset({self._namespace, *_NAMESPACES, *installed})

    async def _list_workloads(self, kind: str, name: str, namespaces: Collection[str]) -> list[Manifest]:
        found = await self._objects.list(kind, name=name)
        return [one for one in found if one["metadata"]["namespace"] in namespaces]

    async def _find_manager(self, namespaces: Collection[str]) -> str:
        for name in _OPERATORS:
            for found in await self._list_workloads("Deployment", name, namespaces):
                if found["spec"].get("replicas") != 0:
                    return (
                        f"{reference_of(found)} still runs, and would revert the changes of this "
                        "operator; remove it"
                    )
        for kind, name in _CHART:
            for found in await self._list_workloads(kind, name, namespaces):
                if not _is_community_operators(found) and not is_part_of_kube_efs(found):
                    return (
                        f"{reference_of(found)} of the AWS driver still exists;"
                        " remove its release or add-on, its volumes are kept"
                    )
        for kind, name in (*(("DaemonSet", name) for name in _DAEMON_SETS), ("Deployment", _DEPLOYMENT)):
            for found in await self._list_workloads(kind, name, namespaces):
                namespace = found["metadata"]["namespace"]
                if namespace != self._namespace and not is_part_of_kube_efs(found):
                    return f"{reference_of(found)} can be taken over by an operator in its namespace only"
        return ""

    async def _remove_owner_references(self, errors: Errors) -> None:
        for kind, name in _INHERITED:
            await errors.collect(self._remove_owner_reference(ObjectReference(kind, "", name)))

    async def _remove_owner_reference(self, reference: ObjectReference) -> None:
        found = await self._objects.get(reference)
        if found is None or not _is_community_operators(found):
            return
        owners = found["metadata"].get("ownerReferences") or ()
        metadata = {
            "resourceVersion": found["metadata"]["resourceVersion"],
            "labels": {COMMUNITY_LABEL: None},
            "ownerReferences": [one for one in owners if one["kind"] != _CRD_KIND],
        }
        await self._objects.merge_patch(reference, {"metadata": metadata})

    async def _delete_workloads(self) -> str:
        """Delete the workloads; gives what the new controller must wait for.

        Raises KubeError, because two controllers would create volumes.
        """
        controller = ""
        for found in await self._objects.list("Deployment", name=_DEPLOYMENT, namespace=self._namespace):
            # It is listed until its last pod has ended.
            await self._delete(found, CascadeType.FOREGROUND)
            controller = describe_ending(found)
        for name in _DAEMON_SETS:
            for found in await self._objects.list("DaemonSet", name=name, namespace=self._namespace):
                # The new DaemonSet has the name of the community operator's. Without ORPHAN, Kubernetes would
                # delete the pods too, and every mount of every node would hang at once.
                if not is_part_of_kube_efs(found):
                    await self._delete(found, CascadeType.ORPHAN)
        return controller

    async def _delete_shared_names(self, errors: Errors) -> None:
        """Delete objects whose names the new ones have. An apply would keep their selectors, too."""
        for kind, name, path, app in _SHARED_NAMES:
            await errors.collect(self._delete_by_selector(kind, name, path, app))

    async def _delete_by_selector(self, kind: str, name: str, path: tuple[str, ...], app: str) -> None:
        found = await self._find(kind, name)
        selector: Any = found or {}
        for part in path:
            selector = selector.get(part) or {}
        if found is not None and selector.get("app") == app:
            await self._delete(found)

    async def _list_pods(self, namespaces: Collection[str]) -> tuple[Pod, ...]:
        with translated("pods of older drivers"):
            listing = self._objects.client.list(
                Pod, namespace="*", labels={"app": _DAEMON_SETS}, chunk_size=PAGE_SIZE
            )
            found = [pod async for pod in listing if _is_older_driver(pod)]
        return tuple(one for one in found if one.metadata and one.metadata.namespace in namespaces)

    async def _describe_missing(self, older: Sequence[Pod]) -> str:
        """Until when no older pod is deleted; empty if the new driver is ready on all nodes without one.

        The desired number includes the nodes with an older pod, because Kubernetes computes it without the
        anti-affinity. So each older pod explains one pod that is missing. After an older pod is deleted, one
        more is missing until the new driver is ready on that node.
        """
        # Read now: a watch can be late, and pods that were ready can fail while all volumes are listed.
        found = await self._objects.get(self._node)
        # The community operator's has the same name as ours in some installations.
        if found is None or found["metadata"].get("deletionTimestamp") or not is_part_of_kube_efs(found):
            return "the new driver is installed"
        if not is_observed(found):
            return f"Kubernetes has read {self._node} of the new driver"
        status = found["status"]
        missing = status["desiredNumberScheduled"] - (status.get("numberReady") or 0) - len(older)
        if missing <= 0:
            return ""
        try:
            names = await self._find_nodes_without_driver(found, {_node_of(one) for one in older})
        except KubeError as error:
            log.warning("pods-of-driver-unknown", reason=str(error))
            names = []
        nodes = describe_names(names) if names else f"{missing} of the other nodes"
        return (
            f"the new driver is ready on {nodes}: see the pods of {self._node}, and repair broken nodes or"
            " delete their Nodes"
        )

    async def _find_nodes_without_driver(self, daemon_set: Manifest, of_older: Collection[str]) -> list[str]:
        """The nodes for which there is a pod of the new driver that is not ready; raises KubeError."""
        labels = daemon_set["spec"]["selector"]["matchLabels"]
        with translated("pods of the new driver"):
            listing = self._objects.client.list(
                Pod, namespace=self._namespace, labels=labels, chunk_size=PAGE_SIZE
            )
            nodes = {_node_of(pod) async for pod in listing if not _is_ready(pod)}
        return sorted(nodes - {"", *of_older})

    async def _delete_one(self, unused: Iterable[Pod], errors: Errors, *, forced: bool) -> None:
        """Delete one of these older pods; raises KubeError."""
        for pod in unused:
            # The list of all pods can be many seconds old, and this node can have a new pod since then.
            if not forced and await self._is_in_use(_node_of(pod)):
                continue
            # The next one follows only a refusal: after any other error, such as a lost answer, this pod may
            # be deleted.
            if not isinstance(await errors.collect(self._delete_pod(pod)), _REFUSALS):
                return

    async def _is_in_use(self, node: str) -> bool:
        """Whether a pod on the node uses a volume of the driver now; raises KubeError."""
        return any(use.by_driver for use in await find_volume_uses_on(self._objects.client, node))

    async def _delete_pod(self, pod: Pod) -> None:
        assert pod.metadata  # noqa: S101 - every pod that was listed has it
        name, namespace = pod.metadata.name or "", pod.metadata.namespace or ""
        try:
            with translated(f"Pod {namespace}/{name}"):
                await self._objects.client.delete(Pod, name, namespace=namespace)
        except KubeNotFound:
            return
        log.info("older-pod-deleted", pod=f"{namespace}/{name}")

    async def _delete_remaining_objects(self, errors: Errors) -> None:
        """Delete what the older pods needed, and each binding last: it proves whose the other objects are."""
        for kind, name in _LABELED:
            await errors.collect(self._delete_labeled(kind, name))
        for name, account in _BINDINGS.items():
            for kind in ("ClusterRoleBinding", "RoleBinding"):
                await errors.collect(self._delete_granted(kind, name, account))
        await errors.collect(self._delete_by_selector(*_DISRUPTION_BUDGET))
        await errors.collect(self._delete_node_credentials())

    async def _delete_labeled(self, kind: str, name: str) -> None:
        found = await self._find(kind, name)
        if found is not None and _is_community_operators(found):
            await self._delete(found)

    async def _delete_granted(self, kind: str, name: str, account: str) -> None:
        binding = await self._find(kind, name.replace("{namespace}", self._namespace))
        if binding is None or not self._is_older(binding, account):
            return
        role = binding["roleRef"]
        for granted_kind, granted_name in (("ServiceAccount", account), (role["kind"], role["name"])):
            if granted_name in _ACCOUNTS | _ROLES:
                found = await self._find(granted_kind, granted_name)
                if found is not None and not is_part_of_kube_efs(found):
                    await self._delete(found)
        await self._delete(binding)

    async def _delete_node_credentials(self) -> None:
        """Delete the request for credentials of the older nodes; OpenShift then deletes their AWS user."""
        found = await self._objects.get(_NODE_CREDENTIALS)
        if found is not None and not is_part_of_kube_efs(found):
            secret = (found.get("spec") or {}).get("secretRef") or {}
            if secret.get("name") == _NODE_SECRET:
                await self._delete(found)

    def _is_older(self, binding: Manifest, account: str) -> bool:
        """Whether a binding is for exactly this account of the operator's namespace, and is not ours."""
        subjects = [(one["kind"], one.get("namespace"), one["name"]) for one in binding.get("subjects") or ()]
        is_ours = is_part_of_kube_efs(binding)
        return not is_ours and subjects == [("ServiceAccount", self._namespace, account)]

    async def _find(self, kind: str, name: str) -> Manifest | None:
        namespace = self._namespace if KINDS[kind].is_namespaced else ""
        return await self._objects.get(ObjectReference(kind, namespace, name))

    async def _delete(self, found: Manifest, cascade: CascadeType = CascadeType.BACKGROUND) -> None:
        if found["metadata"].get("deletionTimestamp"):
            return
        if await self._objects.delete(found, cascade=cascade):
            log.info("older-object-deleted", object=str(reference_of(found)))


def select_pods(pods: Sequence[Pod], uses: Iterable[UseOfVolume]) -> tuple[tuple[Pod, ...], str]:
    """The older pods of which one can be deleted, none while one is; and which nodes wait for which pods."""
    by_node: dict[str, list[UseOfVolume]] = {}
    for use in uses:
        by_node.setdefault(use.node, []).append(use)
    nodes = {(pod.spec and pod.spec.nodeName) or "": pod for pod in pods}
    unused = tuple(pod for node, pod in sorted(nodes.items()) if node not in by_node)
    waiting = "; ".join(
        f"node {node} keeps the older driver while {describe_pods(by_node[node])} use its volumes"
        for node in sorted(nodes.keys() & by_node.keys())
    )
    if waiting:
        waiting += f" (drain the node, or set the annotation {FORCE_TAKEOVER})"
    is_deleting = any(pod.metadata and pod.metadata.deletionTimestamp for pod in pods)
    return (() if is_deleting else unused), waiting


def _is_older_driver(pod: Pod) -> bool:
    """Whether a pod with the label of an older driver is one that runs: by its account, not by the label.

    The pod has no owner any more, because its DaemonSet was deleted without its pods. A pod that has ended
    serves no mount. It can stay as an object for a long time, if it has a finalizer.
    """
    account = pod.spec and pod.spec.serviceAccountName
    has_ended = pod.status and pod.status.phase in {"Succeeded", "Failed"}
    return account in _ACCOUNTS and not has_ended and not is_part_of_kube_efs(pod.to_dict())


def _node_of(pod: Pod) -> str:
    """The node that a pod of a DaemonSet runs on, or is meant for; empty if it names none."""
    spec = pod.spec
    if spec and spec.nodeName:
        return spec.nodeName
    affinity = spec and spec.affinity and spec.affinity.nodeAffinity
    required = affinity and affinity.requiredDuringSchedulingIgnoredDuringExecution
    terms = (required and required.nodeSelectorTerms) or ()
    names = [name for term in terms for field in term.matchFields or () for name in field.values or ()]
    return next(iter(names), "")


def _is_ready(pod: Pod) -> bool:
    conditions = (pod.status and pod.status.conditions) or ()
    return any(one.type == "Ready" and one.status == "True" for one in conditions)


def _is_community_operators(found: Manifest) -> bool:
    return has_labels(found, {COMMUNITY_LABEL: "true"})
