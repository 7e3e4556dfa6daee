"""Claims, volumes, classes, nodes and pods as the controllers see them: only the fields they decide by.

Reading an object raises InvalidValue or ValueError for one that no API server would have accepted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple

from lightkube.models.core_v1 import (
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimStatus,
    PersistentVolumeSpec,
    PodSpec,
    PodStatus,
)
from lightkube.models.meta_v1 import LabelSelector, LabelSelectorRequirement, ObjectMeta
from lightkube.resources import core_v1, storage_v1
from lightkube.utils.quantity import parse_quantity

from tinykube.errors import InvalidValue

# Kubernetes' well-known annotations (component-helpers/storage/volume/pv_helpers.go).
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
STORAGE_PROVISIONER = "volume.kubernetes.io/storage-provisioner"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
BETA_STORAGE_PROVISIONER = "volume.beta.kubernetes.io/storage-provisioner"
BETA_STORAGE_CLASS = "volume.beta.kubernetes.io/storage-class"
NO_PROVISIONER = "kubernetes.io/no-provisioner"
DEFAULT_SCHEDULER = "default-scheduler"
CLAIM_PROTECTION = "kubernetes.io/pvc-protection"
VOLUME_PROTECTION = "kubernetes.io/pv-protection"


class Key(NamedTuple):
    """The namespace, empty for kinds without one, and the name of an object."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """What every object has."""

    key: Key
    uid: str
    version: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    finalizers: tuple[str, ...] = ()
    deleting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A PersistentVolumeClaim; ``class_name`` is None when it names no class, which differs from ``""``."""

    meta: Meta
    phase: str = "Pending"
    class_name: str | None = None
    volume_name: str = ""
    volume_mode: str = "Filesystem"
    access_modes: tuple[str, ...] = ()
    request_bytes: Decimal = Decimal(0)
    selector: LabelSelector | None = None
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
    phase: str = "Pending"
    class_name: str = ""
    volume_mode: str = "Filesystem"
    access_modes: tuple[str, ...] = ()
    capacity: str = "0"
    capacity_bytes: Decimal = Decimal(0)
    reclaim_policy: str = "Retain"
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
    """The object that created and manages an object: its controlling owner."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A Pod, its claims by name, and whether it is kept back from or refused by the scheduler.

    ``required_node`` is the only node that its affinity allows, as that of every DaemonSet's pod does.
    """

    meta: Meta
    node_name: str = ""
    finished: bool = False
    ready: bool = False
    gated: bool = False
    scheduler: str = DEFAULT_SCHEDULER
    unschedulable_message: str = ""
    claim_names: tuple[str, ...] = ()
    controller: Controller | None = None
    required_node: str = ""


def read_meta(found: ObjectMeta | None) -> Meta:
    """The metadata of any object."""
    meta = found or ObjectMeta()
    return Meta(
        key=Key(meta.namespace or "", meta.name or ""),
        uid=meta.uid or "",
        version=meta.resourceVersion or "",
        labels=meta.labels or {},
        annotations=meta.annotations or {},
        finalizers=tuple(meta.finalizers or ()),
        deleting=meta.deletionTimestamp is not None,
    )


def read_claim(found: core_v1.PersistentVolumeClaim) -> Claim:
    """A PersistentVolumeClaim."""
    meta = read_meta(found.metadata)
    spec = found.spec or PersistentVolumeClaimSpec()
    status = found.status or PersistentVolumeClaimStatus()
    requests = (spec.resources.requests if spec.resources else None) or {}
    held = (status.capacity or {}).get("storage")
    return Claim(
        meta=meta,
        phase=status.phase or "Pending",
        class_name=meta.annotations.get(BETA_STORAGE_CLASS, spec.storageClassName),
        volume_name=spec.volumeName or "",
        volume_mode=spec.volumeMode or "Filesystem",
        access_modes=tuple(spec.accessModes or ()),
        request_bytes=_bytes(requests.get("storage"), "resources.requests.storage"),
        selector=spec.selector,
        status_modes=tuple(status.accessModes or ()),
        status_bytes=None if held is None else _bytes(held, "status.capacity.storage"),
    )


def read_volume(found: core_v1.PersistentVolume) -> Volume:
    """A PersistentVolume."""
    meta = read_meta(found.metadata)
    spec = found.spec or PersistentVolumeSpec()
    capacity = (spec.capacity or {}).get("storage", "0")
    claim = spec.claimRef
    return Volume(
        meta=meta,
        phase=(found.status and found.status.phase) or "Pending",
        class_name=meta.annotations.get(BETA_STORAGE_CLASS, spec.storageClassName or ""),
        volume_mode=spec.volumeMode or "Filesystem",
        access_modes=tuple(spec.accessModes or ()),
        capacity=str(capacity),
        capacity_bytes=_bytes(capacity, "spec.capacity.storage"),
        reclaim_policy=spec.persistentVolumeReclaimPolicy or "Retain",
        claim=ClaimReference(key=Key(claim.namespace or "", claim.name or ""), uid=claim.uid or "")
        if claim
        else None,
    )


def read_storage_class(found: storage_v1.StorageClass) -> StorageClass:
    """A StorageClass."""
    return StorageClass(
        meta=read_meta(found.metadata),
        provisioner=found.provisioner,
        waits_for_consumer=found.volumeBindingMode == "WaitForFirstConsumer",
    )


def read_pod(found: core_v1.Pod) -> Pod:
    """A Pod."""
    spec = found.spec or PodSpec(containers=[])
    status = found.status or PodStatus()
    claims = (volume.persistentVolumeClaim for volume in spec.volumes or ())
    conditions = {condition.type: condition for condition in status.conditions or ()}
    scheduled, ready = conditions.get("PodScheduled"), conditions.get("Ready")
    return Pod(
        meta=read_meta(found.metadata),
        node_name=spec.nodeName or "",
        finished=status.phase in {"Succeeded", "Failed"},
        ready=ready is not None and ready.status == "True",
        gated=bool(spec.schedulingGates),
        scheduler=spec.schedulerName or DEFAULT_SCHEDULER,
        unschedulable_message=(scheduled.message or "") if scheduled and scheduled.status == "False" else "",
        claim_names=tuple(claim.claimName for claim in claims if claim is not None),
        controller=_controller(found.metadata),
        required_node=_required_node(spec),
    )


def read_node(found: core_v1.Node) -> Node:
    """A Node."""
    return Node(meta=read_meta(found.metadata), cordoned=bool(found.spec and found.spec.unschedulable))


def selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Whether a selector selects an object with these labels; no selector selects everything."""
    if selector is None:
        return True
    equal = all(labels.get(label) == value for label, value in (selector.matchLabels or {}).items())
    return equal and all(_accepts(one, labels.get(one.key)) for one in selector.matchExpressions or ())


def _accepts(expression: LabelSelectorRequirement, value: str | None) -> bool:
    match expression.operator:
        case "In":
            return value in (expression.values or ())
        case "NotIn":
            return value not in (expression.values or ())
        case "Exists":
            return value is not None
        case _:
            return value is None


def _required_node(spec: PodSpec) -> str:
    """The node that a required affinity names, in the form in which DaemonSets have it."""
    affinity = spec.affinity and spec.affinity.nodeAffinity
    required = affinity and affinity.requiredDuringSchedulingIgnoredDuringExecution
    for term in (required and required.nodeSelectorTerms) or ():
        for wanted in term.matchFields or ():
            if wanted.key == "metadata.name" and wanted.operator == "In" and wanted.values:
                return wanted.values[0]
    return ""


def _controller(found: ObjectMeta | None) -> Controller | None:
    for owner in (found and found.ownerReferences) or ():
        if owner.controller:
            return Controller(kind=owner.kind, name=owner.name, uid=owner.uid)
    return None


def _bytes(quantity: object, field: str) -> Decimal:
    try:
        return parse_quantity(None if quantity is None else str(quantity)) or Decimal(0)
    except ValueError as error:
        raise InvalidValue("is not a quantity", field=field, value=quantity) from error
