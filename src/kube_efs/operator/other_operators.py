"""Finds another operator of kube-efs, or another installation, in another namespace.

Two operators would revert each other's changes to the objects of the cluster, and two drivers would use the
same sockets and ports of the nodes. A cluster gets a second operator, for example, by OLM beside one that
was installed manually. There are two signs:

1. The annotation of the ClusterCSIDriver with the namespace of its operator. An operator writes it together
   with its finalizer, and with the resource version that it has read. Of two operators at the same moment,
   only one can write it. It does not apply if that namespace does not exist any more.
2. Workloads of kube-efs. An operator has installed them that was removed, or is of a version without the
   annotation; or an administrator has, with ``kube-efs render`` or Helm. A tenant can create a workload with
   any name and labels, so only namespaces are searched whose service accounts have a ClusterRoleBinding of an
   installation.
"""

from typing import Final

import structlog
from lightkube.resources.core_v1 import Namespace

from kube_efs.kube.errors import translated
from kube_efs.model.errors import KubeDenied, KubeNotFound
from kube_efs.model.names import NameSet
from kube_efs.model.volumes import DRIVER
from kube_efs.operator.cluster_csi_driver import OPERATOR_NAMESPACE, DriverResource
from kube_efs.operator.kinds import MANAGED_BY, has_labels, is_part_of_kube_efs, reference_of
from kube_efs.operator.object_client import ObjectClient

log = structlog.get_logger(__name__)

# Each installation binds it.
_TUNNEL_ROLE: Final = "kube-efs-tunnel"
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
    """The other operators and installations of the cluster; ``namespace`` is that of this operator."""

    def __init__(self, objects: ObjectClient, namespace: str) -> None:
        self._objects = objects
        self._namespace = namespace
        self._has_read = False

    async def find(self, driver: DriverResource) -> str:
        """Which other one there is, and the remedy; empty if there is none; raises KubeError."""
        owner = driver.operator_namespace
        if owner not in {"", self._namespace} and await self._exists(owner):
            return (
                f"the operator in namespace {owner} manages the ClusterCSIDriver, so the one in namespace "
                f"{self._namespace} does nothing; remove one of them. If the other one does not "
                f"exist any more: kubectl annotate clustercsidriver {DRIVER} {OPERATOR_NAMESPACE}-"
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
        try:
            namespaces = await self._list_namespaces()
            found = [one for kind, name in _WORKLOADS for one in await self._objects.list(kind, name=name)]
        except KubeDenied as error:
            if self._has_read:  # An API server that has just started denies calls, too, for some seconds.
                raise
            # The role of this operator is of an earlier version.
            log.warning("other-installations-unknown", reason=str(error))
            return ""
        self._has_read = True
        ours = [one for one in found if is_part_of_kube_efs(one)]
        is_installed = any(
            one["metadata"]["namespace"] == self._namespace and "deletionTimestamp" not in one["metadata"]
            for one in ours
        )
        for one in ours:
            namespace = one["metadata"]["namespace"]
            # The driver of this operator continues beside an installation that no operator manages.
            if namespace in namespaces and (has_labels(one, MANAGED_BY) or not is_installed):
                return (
                    f"{reference_of(one)} is of another installation of kube-efs, so the operator in "
                    f"namespace {self._namespace} does nothing; install the operator in namespace "
                    f"{namespace} instead (kube-efs render --operator --namespace {namespace}), or end all "
                    "pods that use volumes of the driver, and remove that installation"
                )
        return ""

    async def _list_namespaces(self) -> set[str]:
        """The other namespaces where an administrator has installed kube-efs."""
        found = {
            subject.get("namespace") or ""
            for binding in await self._objects.list("ClusterRoleBinding")
            for subject in binding.get("subjects") or ()
            if has_labels(binding, MANAGED_BY) or binding["roleRef"]["name"] == _TUNNEL_ROLE
        }
        return found - {"", self._namespace}
