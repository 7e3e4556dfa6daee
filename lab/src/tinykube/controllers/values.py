"""Claims, volumes, classes and pods as the controllers see them: only the fields they decide by."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

# Kubernetes' well-known annotations (component-helpers/storage/volume/pv_helpers.go).
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
STORAGE_PROVISIONER = "volume.kubernetes.io/storage-provisioner"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
BETA_STORAGE_PROVISIONER = "volume.beta.kubernetes.io/storage-provisioner"
BETA_STORAGE_CLASS = "volume.beta.kubernetes.io/storage-class"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
# The taint that stands for a node's ``spec.unschedulable`` (core/v1, TaintNodeUnschedulable).
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
NO_PROVISIONER = "kubernetes.io/no-provisioner"
CLAIM_PROTECTION = "kubernetes.io/pvc-protection"
VOLUME_PROTECTION = "kubernetes.io/pv-protection"


def nothing() -> Mapping[str, str]:
    """No labels, no annotations."""
    return MappingProxyType({})


class Key(NamedTuple):
    """The namespace, empty for kinds without one, and the name of an object."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class ClaimPhase(StrEnum):
    """``status.phase`` of a claim."""

    PENDING = "Pending"
    BOUND = "Bound"
    LOST = "Lost"


class VolumePhase(StrEnum):
    """``status.phase`` of a volume."""

    PENDING = "Pending"
    AVAILABLE = "Available"
    BOUND = "Bound"
    RELEASED = "Released"
    FAILED = "Failed"


class ReclaimPolicy(StrEnum):
    """What becomes of a volume when its claim is deleted (``persistentVolumeReclaimPolicy``)."""

    DELETE = "Delete"
    RETAIN = "Retain"
    RECYCLE = "Recycle"


class Operator(StrEnum):
    """The operators of a label selector's expressions."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One expression of a label selector."""

    label: str
    operator: Operator
    values: frozenset[str] = frozenset()

    def accepts(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels meets it; NotIn accepts an object without the label."""
        match self.operator:
            case Operator.IN:
                return labels.get(self.label) in self.values
            case Operator.NOT_IN:
                return labels.get(self.label) not in self.values
            case Operator.EXISTS:
                return self.label in labels
            case Operator.DOES_NOT_EXIST:
                return self.label not in labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """What every object has."""

    key: Key
    uid: str
    version: str
    labels: Mapping[str, str] = field(default_factory=nothing)
    annotations: Mapping[str, str] = field(default_factory=nothing)
    finalizers: tuple[str, ...] = ()
    deleting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A PersistentVolumeClaim; ``class_name`` is None when it names no class, which differs from ``""``."""

    meta: Meta
    phase: ClaimPhase = ClaimPhase.PENDING
    class_name: str | None = None
    volume_name: str = ""
    volume_mode: str = "Filesystem"
    access_modes: tuple[str, ...] = ()
    request_bytes: Decimal = Decimal(0)
    selector: tuple[Requirement, ...] = ()
    status_modes: tuple[str, ...] = ()
    status_bytes: Decimal | None = None

    @property
    def bind_completed(self) -> bool:
        """Whether the binder has once finished with this claim."""
        return BIND_COMPLETED in self.meta.annotations


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimReference:
    """``PersistentVolume.spec.claimRef``; an empty uid reserves the volume for any claim of that name."""

    key: Key
    uid: str = ""

    def means(self, claim: Claim) -> bool:
        """Whether it is this claim that is referred to."""
        return self.key == claim.meta.key and self.uid in {"", claim.meta.uid}


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A PersistentVolume; ``capacity`` keeps the wording in which statuses repeat it."""

    meta: Meta
    phase: VolumePhase = VolumePhase.PENDING
    class_name: str = ""
    volume_mode: str = "Filesystem"
    access_modes: tuple[str, ...] = ()
    capacity: str = "0"
    capacity_bytes: Decimal = Decimal(0)
    reclaim_policy: ReclaimPolicy = ReclaimPolicy.RETAIN
    claim: ClaimReference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageClass:
    """A StorageClass; ``waits_for_consumer`` is its binding mode WaitForFirstConsumer."""

    meta: Meta
    provisioner: str
    waits_for_consumer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A Node; ``cordoned`` is its ``spec.unschedulable``."""

    meta: Meta
    cordoned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """The object that an object was made by and is looked after by: its controlling owner."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A Pod, its claims by name, and whether it is kept back from or refused by the scheduler.

    ``required_node`` is the only node that its affinity allows, as that of every DaemonSet's pod does;
    ``tolerates_cordon`` says whether it may go to a node that takes no other new pods.
    """

    meta: Meta
    node_name: str = ""
    scheduler_name: str = "default-scheduler"
    finished: bool = False
    ready: bool = False
    gated: bool = False
    unschedulable_message: str = ""
    claim_names: tuple[str, ...] = ()
    controller: Controller | None = None
    required_node: str = ""
    tolerates_cordon: bool = False
