"""The facts that the checks use. ``None`` means that a fact is not known."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType

from kube_efs.aws.interfaces import Interface
from kube_efs.aws.network_acls import NetworkAcl
from kube_efs.aws.security_groups import Network, SecurityGroup
from kube_efs.doctor.constraints import Constraints, HostAccess
from kube_efs.doctor.grants import Grant
from kube_efs.doctor.node_facts import NodeFacts
from kube_efs.model.claims import Claim, StorageClass
from kube_efs.model.csi.made_file_systems import MadeFileSystem, Stage
from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.model.efs.file_systems import FileSystem
from kube_efs.model.efs.ids import FileSystemId, MountTargetId, SubnetId
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.efs.targets import Rejection, TunnelTargets
from kube_efs.model.names import Names
from kube_efs.model.shared_volumes.shared_volume import SharedVolume
from kube_efs.model.volumes import Volume
from kube_efs.tunnels.status import TunnelsStatus


class Area(StrEnum):
    """A kind of gap."""

    PROBE = "probe"
    AWS = "AWS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Something that could not be checked, why, and the remedy if it is known."""

    what: str
    reason: str
    area: Area = Area.PROBE
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A Deployment or DaemonSet. ``command`` is the first argument of its first container.

    ``environment`` has the variables that are given as text, ``references`` those that are in a ConfigMap,
    with its name and the key. ``ours`` means that it runs kube-efs, ``needs`` is what its pods want of their
    nodes, ``account`` the name of their service account, ``failure`` why a Deployment's are not made.
    """

    kind: str
    namespace: str
    name: str
    command: str = ""
    image: str = ""
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    references: Mapping[str, tuple[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    ours: bool = False
    wanted: int = 0
    ready: int = 0
    uid: str = ""
    failure: str = ""
    account: str = ""
    needs: frozenset[HostAccess] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """A pod; ``claims`` are those that it uses, ``waiting`` is why containers do not run.

    ``finished`` is when its last container ended, None while one runs. ``restarts`` counts those of its
    containers, ``ended`` says why the last one was needed.
    """

    namespace: str
    name: str
    uid: str = ""
    node: str = ""
    phase: str = ""
    created: datetime | None = None
    deleting_since: datetime | None = None
    finished: datetime | None = None
    component: str = ""
    claims: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    restarts: int = 0
    ended: str = ""
    message: str = ""

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def has_ended(self) -> bool:
        """Whether it has no mounts any more."""
        return self.phase in {"Succeeded", "Failed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """The last event of the type Warning with that reason about an object."""

    kind: str
    uid: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressEvent:
    """The last event of the type Normal about the progress of a claim."""

    uid: str
    reason: str
    message: str
    time: datetime | None = None

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckTrash:
    """A file system whose trash cannot be emptied, and the object of the event about it."""

    file_system_id: str
    kind: str
    namespace: str
    name: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeObject:
    """A node. ``drivers`` are the CSI drivers that its kubelet knows.

    ``compute`` is the kind of machine, where it is not an ordinary one: ``fargate``, ``hybrid``, ``windows``.
    """

    name: str
    ready: bool = True
    zone: str = ""
    region: str = ""
    addresses: tuple[str, ...] = ()
    instance_id: str = ""
    compute: str = ""
    drivers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseFacts:
    """A Lease; ``holder`` is empty when it has none."""

    name: str
    holder: str = ""
    renewed: datetime | None = None
    duration_seconds: int = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFacts:
    """A claim with its times; its ``finalizers`` delay its deletion."""

    claim: Claim
    created: datetime | None = None
    deleting_since: datetime | None = None
    finalizers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeFacts:
    """A volume; ``changed`` is the time of its phase, ``message`` the message of Kubernetes about it."""

    volume: Volume
    created: datetime | None = None
    changed: datetime | None = None
    deleting_since: datetime | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedVolumeFacts:
    """A SharedVolume, and the time of its deletion."""

    shared: SharedVolume
    deleting_since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedCondition:
    """A condition of the ClusterCSIDriver."""

    type: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetsFacts:
    """The ConfigMap of the tunnel targets. Without one ``found`` is False; ``problem`` is of the whole."""

    found: bool = True
    targets: TunnelTargets = field(default_factory=TunnelTargets)
    rejections: tuple[Rejection, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedStatus:
    """The status that a node's tunnel agent has published; ``status`` is None if it is not valid."""

    node: str
    time: datetime | None = None
    status: TunnelsStatus | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """The facts from the Kubernetes API. ``names`` are those of kube-efs.

    ``uid`` distinguishes the cluster from all others; empty if it is not known.

    ``degraded`` are the operator's conditions by which something is wrong. ``constraints`` None also means
    that this is not OpenShift; ``missing_uses`` are the permissions to use some that no role gives.
    ``other_config_maps`` are those of the tunnel targets of other names, each as namespace and name.
    """

    names: Names
    uid: str = ""
    workloads: tuple[Workload, ...] | None = None
    pods: tuple[PodFacts, ...] | None = None
    nodes: tuple[NodeObject, ...] | None = None
    leases: tuple[LeaseFacts, ...] | None = None
    classes: tuple[StorageClass, ...] | None = None
    claims: tuple[ClaimFacts, ...] | None = None
    volumes: tuple[VolumeFacts, ...] | None = None
    shared_volumes: tuple[SharedVolumeFacts, ...] = ()
    degraded: tuple[ReportedCondition, ...] = ()
    warnings: tuple[Warned, ...] = ()
    progress: tuple[ProgressEvent, ...] = ()
    stuck_trash: tuple[StuckTrash, ...] = ()
    targets: TargetsFacts | None = None
    other_config_maps: tuple[tuple[str, str], ...] = ()
    statuses: tuple[PublishedStatus, ...] | None = None
    missing_rights: tuple[Grant, ...] = ()
    constraints: tuple[Constraints, ...] | None = None
    missing_uses: tuple[Grant, ...] | None = None

    @property
    def namespace(self) -> str:
        """The namespace of kube-efs."""
        return self.names.namespace

    def warnings_of(self, kind: str, uid: str) -> tuple[Warned, ...]:
        """The events about that object."""
        return tuple(one for one in self.warnings if one.kind == kind and one.uid == uid)

    def progress_of(self, uid: str) -> ProgressEvent | None:
        """The last event about the progress of the claim with that uid."""
        return next((one for one in self.progress if one.uid == uid), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsFacts:
    """The facts from AWS about a region's file systems; mount targets for those that the cluster names.

    ``listed`` are the kinds of which all file systems are known. ``made`` are those that the driver has
    created for claims, also of other clusters. ``access_points`` has the access points of some EFS file
    systems: those that the cluster uses, and those in ``made`` that may be unused.

    ``policies`` are those of file systems that have one, as JSON. ``groups_by_target`` has the ids of
    security groups, ``groups`` what each lets in, ``prefix_lists`` the networks of those that they name.
    ``interfaces`` are those of instances, ``acls`` the network ACLs of subnets. What could not be asked for
    is not there.
    """

    region: str
    listed: frozenset[FileSystemKind] = frozenset({FileSystemKind.EFS})
    file_systems: Mapping[FileSystemId, FileSystem] = field(default_factory=lambda: MappingProxyType({}))
    looked_into: frozenset[FileSystemId] = frozenset()
    made: Mapping[FileSystemId, MadeFileSystem] = field(default_factory=lambda: MappingProxyType({}))
    access_points: Mapping[FileSystemId, frozenset[AccessPointId]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    policies: Mapping[FileSystemId, str] = field(default_factory=lambda: MappingProxyType({}))
    groups_by_target: Mapping[MountTargetId, tuple[str, ...]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    groups: Mapping[str, SecurityGroup] = field(default_factory=lambda: MappingProxyType({}))
    prefix_lists: Mapping[str, tuple[Network, ...]] = field(default_factory=lambda: MappingProxyType({}))
    interfaces: Mapping[str, tuple[Interface, ...]] = field(default_factory=lambda: MappingProxyType({}))
    acls: Mapping[SubnetId, NetworkAcl] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def in_transition(self) -> frozenset[FileSystemId]:
        """The file systems that are being created for claims, or removed: their mount targets come and go."""
        return frozenset(fs for fs, one in self.made.items() if one.stage is not Stage.READY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All facts; a part that was not requested is None.

    ``claim`` is the one that was asked about, as ``namespace/name``.
    """

    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    claim: str = ""
    cluster: ClusterFacts | None = None
    aws: AwsFacts | None = None
    node: NodeFacts | None = None
    gaps: tuple[Gap, ...] = ()
