"""Finds another operator of kube-efs, in another namespace, that manages the ClusterCSIDriver.

Two operators would revert each other's changes to the objects of the cluster, and two drivers would use the
same sockets and ports of the nodes. A cluster gets a second operator, for example, by OLM beside one that
was installed manually. There are two signs of another one:

1. The annotation of the ClusterCSIDriver with the namespace of its operator. An operator writes it together
   with its finalizer, and with the resource version that it has read. Of two operators at the same moment,
   only one can write it. It does not apply if that namespace does not exist any more.
2. Workloads that another operator has installed, also if that operator was removed, or is of a version
   without the annotation. A tenant can create a workload with any name and labels, so only namespaces are
   searched whose service accounts have a ClusterRoleBinding of an operator.
"""

from typing import Final

from lightkube.resources.core_v1 import Namespace

from kube_efs.kube.errors import translated
from kube_efs.model.errors import KubeNotFound
from kube_efs.model.names import NameSet
from kube_efs.operator.cluster_csi_driver import DRIVER_NAME, OPERATOR_NAMESPACE, DriverResource
from kube_efs.operator.kinds import MANAGED_BY, has_labels, reference_of
from kube_efs.operator.object_client import ObjectClient

_WORKLOADS: Final = tuple(
    dict.fromkeys(
        found
        for one in NameSet
        for found in (
            ("DaemonSet", one.names.tunnel),
            ("DaemonSet", one.names.node),
            ("Deployment", one.names.controller),
        )
    )
)
INSTALLED_WORKLOADS: Final = tuple(dict.fromkeys(name for _, name in _WORKLOADS))


class OtherOperators:
    """The other operators of the cluster; ``namespace`` is that of this one."""

    def __init__(self, objects: ObjectClient, namespace: str) -> None:
        self._objects = objects
        self._namespace = namespace

    async def find(self, driver: DriverResource) -> str:
        """Which other one manages the driver, and the remedy; empty if there is none; raises KubeError."""
        owner = driver.operator_namespace
        if owner not in {"", self._namespace} and await self._exists(owner):
            return (
                f"the operator in namespace {owner} manages the ClusterCSIDriver, so the one in namespace "
                f"{self._namespace} does nothing; remove one of them. If the other one does not "
                f"exist any more: kubectl annotate clustercsidriver {DRIVER_NAME} {OPERATOR_NAMESPACE}-"
            )
        return await self._find_installed()

    async def _exists(self, namespace: str) -> bool:
        try:
            with translated(f"Namespace {namespace}"):
                await self._objects.client.get(Namespace, namespace)
        except KubeNotFound:
            return False
        return True

    async def _find_installed(self) -> str:
        namespaces = {
            subject.get("namespace") or ""
            for binding in await self._objects.list("ClusterRoleBinding", labels=MANAGED_BY)
            for subject in binding.get("subjects") or ()
        } - {"", self._namespace}
        if not namespaces:
            return ""
        for kind, name in _WORKLOADS:
            for found in await self._objects.list(kind, name=name):
                namespace = found["metadata"]["namespace"]
                if namespace in namespaces and has_labels(found, MANAGED_BY):
                    return (
                        f"{reference_of(found)} was installed by an operator in namespace {namespace}, so "
                        f"the one in namespace {self._namespace} does nothing; install the operator in "
                        f"namespace {namespace} instead, or end all pods that use volumes of the driver, and "
                        "delete its Deployment and DaemonSets there"
                    )
        return ""
