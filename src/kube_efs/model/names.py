"""The names of the objects of an installation, as its users, role bindings and dashboards know them.

Some names are the same in every installation, because others depend on them:

* Provisioners, annotations, finalizers, tags, the names of volumes and root volumes, and the label of worker
  pods: volumes have them, or a lock depends on them.
* The Lease of the controller: two installations in one namespace must have one leader.
* Roles, policies and metrics, which no older system has.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class NameSet(StrEnum):
    """The names of an installation: those of kube-efs, or those that users of an older system know."""

    KUBE_EFS = "kube-efs"
    OPENSHIFT_EFS_STUNNEL = "openshift-efs-stunnel"
    AWS_EFS_CSI_DRIVER = "aws-efs-csi-driver"

    @property
    def names(self) -> "Names":
        """The names, in the namespace of a new installation."""
        return _NAMES[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The names of one installation.

    ``namespace`` is the one of the installation. ``controller``, ``tunnel`` and ``node`` are the workloads,
    their containers and the label ``component`` of their pods; each name with ``_account`` is a service
    account. ``config_map`` contains the tunnel targets.
    """

    name_set: NameSet
    namespace: str
    controller: str
    controller_account: str
    tunnel: str
    tunnel_account: str
    node: str
    node_account: str
    worker_account: str
    config_map: str
    storage_class: str

    @property
    def older_config_map(self) -> str | None:
        """The ConfigMap that installations with the oldest names have; None with these names."""
        older = OPENSHIFT_EFS_STUNNEL.config_map
        return None if self.config_map == older else older

    @property
    def tunnel_labels(self) -> Mapping[str, str]:
        """The labels of the pods of the tunnels, and of their ConfigMap."""
        return MappingProxyType({"component": self.tunnel})

    @property
    def tunnel_status_labels(self) -> Mapping[str, str]:
        """The labels of the ConfigMaps with the status of the tunnels of each node."""
        return MappingProxyType({"component": self.tunnel_status})

    @property
    def tunnel_status(self) -> str:
        """The beginning of the names of these ConfigMaps; a hyphen and the name of the node follow."""
        return f"{self.tunnel}-status"

    def tunnel_status_of(self, node: str) -> str:
        """The ConfigMap with the status of the tunnels of that node."""
        return f"{self.tunnel_status}-{node}"


# Worker pods are the lock on their directories, so their label is the same in every installation and version.
WORKER_LABELS: Final[Mapping[str, str]] = MappingProxyType({"component": "efs-worker"})
# The names of a new installation.
NEW_INSTALLATION: Final = NameSet.KUBE_EFS
# The names of a process or release that has no choice of names: it is of a version that had only these.
UNNAMED_INSTALLATION: Final = NameSet.OPENSHIFT_EFS_STUNNEL

KUBE_EFS: Final = Names(
    name_set=NameSet.KUBE_EFS,
    namespace="kube-efs",
    controller="kube-efs-controller",
    controller_account="kube-efs-controller",
    tunnel="kube-efs-tunnel",
    tunnel_account="kube-efs-tunnel",
    node="kube-efs-node",
    node_account="kube-efs-node",
    worker_account="kube-efs-worker",
    config_map="kube-efs-tunnels",
    storage_class="kube-efs",
)
OPENSHIFT_EFS_STUNNEL: Final = Names(
    name_set=NameSet.OPENSHIFT_EFS_STUNNEL,
    namespace="openshift-efs-stunnel",
    controller="efs-manager",
    controller_account="efs-manager",
    tunnel="efs-stunnel",
    tunnel_account="efs-stunnel",
    node="efs-csi-node",
    node_account="efs-csi-node",
    worker_account="efs-worker",
    config_map="efs-stunnel",
    storage_class="efs-stunnel",
)
# The AWS driver has neither tunnels nor workers. People bind the role that signs mounts to its account on
# nodes; here, the tunnels sign them. The class is not efs-sc, as in the pages of that driver: its users
# expect other volumes from it.
AWS_EFS_CSI_DRIVER: Final = Names(
    name_set=NameSet.AWS_EFS_CSI_DRIVER,
    namespace="kube-system",
    controller="efs-csi-controller",
    controller_account="efs-csi-controller-sa",
    tunnel="efs-csi-tunnel",
    tunnel_account="efs-csi-node-sa",
    node="efs-csi-node",
    node_account="efs-csi-mounter-sa",
    worker_account="efs-csi-worker-sa",
    config_map="efs-csi-tunnels",
    storage_class="efs-csi-tunnel",
)
# The namespace of OpenShift for CSI drivers, where an operator is installed there.
PLATFORM_NAMESPACE: Final = "openshift-cluster-csi-drivers"
# Where operators usually are, beside the namespaces of the names: the operator installs in its own namespace.
# The second one is OLM's for operators of the whole cluster.
OPERATOR_NAMESPACES: Final = (PLATFORM_NAMESPACE, "openshift-operators")
_NAMES: Final[Mapping[NameSet, Names]] = MappingProxyType(
    {one.name_set: one for one in (KUBE_EFS, OPENSHIFT_EFS_STUNNEL, AWS_EFS_CSI_DRIVER)}
)


def names_in(namespace: str | None) -> NameSet | None:
    """The names of an installation in this namespace, unless others are chosen; None for other namespaces.

    There, an installation of an earlier version may have the older names, and different names would give its
    roles to other service accounts. ``namespace`` None is that of a new installation.
    """
    if namespace is None:
        return NEW_INSTALLATION
    known = (NEW_INSTALLATION, UNNAMED_INSTALLATION)
    return next((one for one in known if one.names.namespace == namespace), None)
