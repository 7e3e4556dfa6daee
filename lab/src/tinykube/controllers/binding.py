"""What the volume binder does about one claim or one volume, as a list of writes.

The rules are those of Kubernetes' persistent volume controller (pkg/controller/volume/persistentvolume/
pv_controller.go), without events, in-tree provisioners, recyclers and CSI migration. The writes of a list
are made one after the other, and the rest is dropped when one fails: each is harmless by itself, and the
next look at the objects decides again. Node affinity is not looked at: the embedded cluster has one node.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tinykube.controllers.values import (
    BETA_STORAGE_PROVISIONER,
    BIND_COMPLETED,
    BOUND_BY_CONTROLLER,
    NO_PROVISIONER,
    PROVISIONED_BY,
    SELECTED_NODE,
    STORAGE_PROVISIONER,
    Claim,
    ClaimReference,
    Key,
    StorageClass,
    Volume,
    selects,
)


@dataclass(frozen=True, slots=True)
class Write:
    """A merge patch of a claim or volume, or of the status of one."""

    target: Claim | Volume
    patch: Mapping[str, Any]


Writes = tuple[Write, ...]


def refer_claim(volume: Volume, claim: ClaimReference | None, *, by_controller: bool) -> Write:
    """Make the volume point at the claim, or at none."""
    reference = claim and {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": claim.key.namespace,
        "name": claim.key.name,
        "uid": claim.uid or None,
    }
    annotation = {BOUND_BY_CONTROLLER: "yes" if by_controller else None}
    return Write(volume, {"metadata": {"annotations": annotation}, "spec": {"claimRef": reference}})


def set_claim(claim: Claim, annotations: Mapping[str, str], *, volume_name: str = "") -> Write:
    """Write the claim's annotations and, unless it is empty, volume name."""
    spec = {"spec": {"volumeName": volume_name}} if volume_name else {}
    return Write(claim, {"metadata": {"annotations": dict(annotations)}, **spec})


def decide_claim(claim: Claim, volumes: Mapping[Key, Volume], storage_class: StorageClass | None) -> Writes:
    """What to do about a claim; ``storage_class`` is the one that it names, if there is one."""
    named = volumes.get(Key("", claim.volume_name))
    if claim.bind_completed:
        held = named is not None and (named.claim is None or named.claim.uid == claim.meta.uid)
        return bind(named, claim) if named and held else _claim_status(claim, "Lost", None)
    waits = storage_class is not None and storage_class.waits_for_consumer
    if not claim.volume_name:
        volume = best_match(claim, volumes.values(), reserved_only=waits)
    elif named and (named.claim.means(claim) if named.claim else fits(named, claim)):
        volume = named
    else:
        volume = None
    if volume is not None:
        return bind(volume, claim)
    pending = _claim_status(claim, "Pending", None)
    waits = waits and SELECTED_NODE not in claim.meta.annotations
    if claim.volume_name or storage_class is None or waits:
        return pending
    return (*_provision(claim, storage_class.provisioner), *pending)


def decide_volume(volume: Volume, claim: Claim | None) -> Writes:
    """What to do about a volume; ``claim`` is the one of the name that it refers to, if there is one."""
    if volume.claim is None or not volume.claim.uid:
        return _phase(volume, "Available")
    if claim is None or claim.meta.uid != volume.claim.uid:
        return _release(volume)
    if not claim.volume_name:
        return ()  # half-way; the claim's own turn continues it
    if claim.volume_name == volume.meta.key.name:
        return _phase(volume, "Bound")
    if PROVISIONED_BY in volume.meta.annotations and volume.reclaim_policy == "Delete":
        return _release(volume)
    return unbind(volume)


def bind(volume: Volume, claim: Claim) -> Writes:
    """The writes still missing to bind both, the volume's first, so that no other claim can take it."""
    wanted = ClaimReference(key=claim.meta.key, uid=claim.meta.uid)
    writes: list[Write] = []
    if volume.claim != wanted:
        chosen = volume.claim is None or BOUND_BY_CONTROLLER in volume.meta.annotations
        writes.append(refer_claim(volume, wanted, by_controller=chosen))
    writes += _phase(volume, "Bound")
    annotations = {BIND_COMPLETED: "yes"}
    if claim.volume_name != volume.meta.key.name:
        annotations[BOUND_BY_CONTROLLER] = "yes"
    if annotations.keys() - claim.meta.annotations.keys():
        writes.append(set_claim(claim, annotations, volume_name=volume.meta.key.name))
    return (*writes, *_claim_status(claim, "Bound", volume))


def unbind(volume: Volume) -> Writes:
    """Take a binding back; a volume that was reserved by a person stays reserved."""
    by_controller = BOUND_BY_CONTROLLER in volume.meta.annotations
    kept = None if by_controller or volume.claim is None else ClaimReference(key=volume.claim.key)
    return (
        refer_claim(volume, kept, by_controller=False),
        *_phase(volume, "Available"),
    )


def _provision(claim: Claim, provisioner: str) -> Writes:
    wanted = {STORAGE_PROVISIONER: provisioner, BETA_STORAGE_PROVISIONER: provisioner}
    if provisioner == NO_PROVISIONER or wanted.items() <= claim.meta.annotations.items():
        return ()
    return (set_claim(claim, wanted),)


def _release(volume: Volume) -> Writes:
    return () if volume.phase == "Failed" else _phase(volume, "Released")


def _phase(volume: Volume, phase: str) -> Writes:
    return () if volume.phase == phase else (Write(volume, {"status": {"phase": phase}}),)


def _claim_status(claim: Claim, phase: str, volume: Volume | None) -> Writes:
    """With the modes and capacity of the volume, or none.

    The capacity of a claim that is Bound already is left to the program that expands its volume.
    """
    modes = volume.access_modes if volume else ()
    has_capacity = claim.status_bytes is not None
    if (claim.phase, claim.status_modes, has_capacity) == (phase, modes, volume is not None):
        return ()
    status = {
        "phase": phase,
        "accessModes": list(modes) or None,
        "capacity": {"storage": volume.capacity} if volume else None,
    }
    return (Write(claim, {"status": status}),)


def best_match(claim: Claim, volumes: Iterable[Volume], *, reserved_only: bool = False) -> Volume | None:
    """The volume that is reserved for the claim, else the smallest free one that will do; None for none.

    As ``FindMatchingVolume`` of component-helpers/storage/volume/pv_helpers.go.
    A reserved volume may be of any class. ``reserved_only`` is for claims that wait for a consumer:
    choosing for those is the scheduler's part.
    """
    free: list[Volume] = []
    for volume in volumes:
        if volume.claim is not None and not volume.claim.means(claim):
            continue
        if volume.meta.deleting or not _suffices(volume, claim):
            continue
        if volume.claim is not None:
            return volume
        if not reserved_only and _is_free_for(volume, claim):
            free.append(volume)
    return min(free, key=_preference, default=None)


def fits(volume: Volume, claim: Claim) -> bool:
    """Whether a volume that the claim names can serve it."""
    same_class = volume.class_name == (claim.class_name or "")
    return not volume.meta.deleting and same_class and _suffices(volume, claim)


def _suffices(volume: Volume, claim: Claim) -> bool:
    return (
        volume.capacity_bytes >= claim.request_bytes
        and volume.volume_mode == claim.volume_mode
        and set(claim.access_modes) <= set(volume.access_modes)
    )


def _is_free_for(volume: Volume, claim: Claim) -> bool:
    return (
        volume.phase == "Available"
        and volume.class_name == (claim.class_name or "")
        and selects(claim.selector, volume.meta.labels)
    )


def _preference(volume: Volume) -> tuple[int, Decimal, str]:
    # As in Kubernetes, a volume with fewer access modes comes first, whatever its size.
    return len(volume.access_modes), volume.capacity_bytes, volume.meta.key.name
