"""Objects of the Kubernetes API as the controllers' values.

Raises InvalidValue or ValueError for an object that no API server would have taken.
"""

from collections.abc import Mapping
from decimal import Decimal
from types import MappingProxyType

from lightkube.models.core_v1 import (
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimStatus,
    PersistentVolumeSpec,
    PodSpec,
    PodStatus,
    Toleration,
)
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.resources import core_v1, storage_v1
from lightkube.utils.quantity import parse_quantity

from tinykube.controllers.values import (
    BETA_STORAGE_CLASS,
    UNSCHEDULABLE,
    Claim,
    ClaimPhase,
    ClaimReference,
    Controller,
    Key,
    Meta,
    Node,
    Operator,
    Pod,
    ReclaimPolicy,
    Requirement,
    StorageClass,
    Volume,
    VolumePhase,
)
from tinykube.errors import InvalidValue


def read_meta(found: ObjectMeta | None) -> Meta:
    """The metadata of any object."""
    meta = found or ObjectMeta()
    return Meta(
        key=Key(meta.namespace or "", meta.name or ""),
        uid=meta.uid or "",
        version=meta.resourceVersion or "",
        labels=_frozen(meta.labels),
        annotations=_frozen(meta.annotations),
        finalizers=tuple(meta.finalizers or ()),
        deleting=meta.deletionTimestamp is not None,
    )


def read_controller(found: ObjectMeta | None) -> Controller | None:
    """The owner that controls the object, if it has one."""
    for owner in (found and found.ownerReferences) or ():
        if owner.controller:
            return Controller(kind=owner.kind, name=owner.name, uid=owner.uid)
    return None


def read_claim(found: core_v1.PersistentVolumeClaim) -> Claim:
    """A PersistentVolumeClaim."""
    meta = read_meta(found.metadata)
    spec = found.spec or PersistentVolumeClaimSpec()
    status = found.status or PersistentVolumeClaimStatus()
    requests = (spec.resources.requests if spec.resources else None) or {}
    held = (status.capacity or {}).get("storage")
    return Claim(
        meta=meta,
        phase=ClaimPhase(status.phase or ClaimPhase.PENDING),
        class_name=meta.annotations.get(BETA_STORAGE_CLASS, spec.storageClassName),
        volume_name=spec.volumeName or "",
        volume_mode=spec.volumeMode or "Filesystem",
        access_modes=tuple(spec.accessModes or ()),
        request_bytes=_bytes(requests.get("storage"), "resources.requests.storage"),
        selector=read_selector(spec.selector),
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
        phase=VolumePhase((found.status and found.status.phase) or VolumePhase.PENDING),
        class_name=meta.annotations.get(BETA_STORAGE_CLASS, spec.storageClassName or ""),
        volume_mode=spec.volumeMode or "Filesystem",
        access_modes=tuple(spec.accessModes or ()),
        capacity=str(capacity),
        capacity_bytes=_bytes(capacity, "spec.capacity.storage"),
        reclaim_policy=ReclaimPolicy(spec.persistentVolumeReclaimPolicy or ReclaimPolicy.RETAIN),
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
        scheduler_name=spec.schedulerName or "default-scheduler",
        finished=status.phase in {"Succeeded", "Failed"},
        ready=ready is not None and ready.status == "True",
        gated=bool(spec.schedulingGates),
        unschedulable_message=(scheduled.message or "") if scheduled and scheduled.status == "False" else "",
        claim_names=tuple(claim.claimName for claim in claims if claim is not None),
        controller=read_controller(found.metadata),
        required_node=_required_node(spec),
        tolerates_cordon=any(_tolerates_cordon(one) for one in spec.tolerations or ()),
    )


def read_node(found: core_v1.Node) -> Node:
    """A Node."""
    return Node(meta=read_meta(found.metadata), cordoned=bool(found.spec and found.spec.unschedulable))


def read_selector(found: LabelSelector | None) -> tuple[Requirement, ...]:
    """All that an object must have which a selector selects."""
    if found is None:
        return ()
    equal = (
        Requirement(label=label, operator=Operator.IN, values=frozenset({value}))
        for label, value in (found.matchLabels or {}).items()
    )
    expressions = (
        Requirement(label=item.key, operator=Operator(item.operator), values=frozenset(item.values or ()))
        for item in found.matchExpressions or ()
    )
    return (*equal, *expressions)


def _tolerates_cordon(found: Toleration) -> bool:
    if found.effect not in {None, "", "NoSchedule"}:
        return False
    if found.operator == "Exists":
        return found.key in {None, "", UNSCHEDULABLE}
    return found.key == UNSCHEDULABLE and not found.value


def _required_node(spec: PodSpec) -> str:
    """The node that a required affinity names, in the form in which DaemonSets have it."""
    affinity = spec.affinity and spec.affinity.nodeAffinity
    required = affinity and affinity.requiredDuringSchedulingIgnoredDuringExecution
    for term in (required and required.nodeSelectorTerms) or ():
        for field in term.matchFields or ():
            if field.key == "metadata.name" and field.operator == "In" and field.values:
                return field.values[0]
    return ""


def _frozen(found: Mapping[str, str] | None) -> Mapping[str, str]:
    return MappingProxyType(dict(found or {}))


def _bytes(quantity: object, field: str) -> Decimal:
    try:
        return parse_quantity(None if quantity is None else str(quantity)) or Decimal(0)
    except ValueError as error:
        raise InvalidValue("is no quantity", field=field, value=quantity) from error
