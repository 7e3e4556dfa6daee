"""What the volume binder does about one claim or one volume, as a list of writes.

The rules are those of Kubernetes' persistent volume controller (pkg/controller/volume/persistentvolume/
pv_controller.go), without events, in-tree provisioners, recyclers and CSI migration. The writes of a list
are made one after the other, and the rest is dropped when one fails: each is harmless by itself, and the
next look at the objects decides anew.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tinykube.controllers.matching import best_match, fits
from tinykube.controllers.values import (
    BETA_STORAGE_PROVISIONER,
    BIND_COMPLETED,
    BOUND_BY_CONTROLLER,
    NO_PROVISIONER,
    PROVISIONED_BY,
    SELECTED_NODE,
    STORAGE_PROVISIONER,
    Claim,
    ClaimPhase,
    ClaimReference,
    Key,
    Meta,
    ReclaimPolicy,
    StorageClass,
    Volume,
    VolumePhase,
    nothing,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferClaim:
    """Make the volume point at the claim, or at none."""

    volume: Volume
    claim: ClaimReference | None
    by_controller: bool

    def patch(self) -> dict[str, Any]:
        """The change as a merge patch."""
        reference = self.claim and {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": self.claim.key.namespace,
            "name": self.claim.key.name,
            "uid": self.claim.uid or None,
        }
        annotation = {BOUND_BY_CONTROLLER: "yes" if self.by_controller else None}
        return {"metadata": {"annotations": annotation}, "spec": {"claimRef": reference}}


@dataclass(frozen=True, slots=True, kw_only=True)
class SetVolumePhase:
    """Write the volume's status."""

    volume: Volume
    phase: VolumePhase

    def patch(self) -> dict[str, Any]:
        """The change as a merge patch."""
        return {"status": {"phase": self.phase}}


@dataclass(frozen=True, slots=True, kw_only=True)
class SetClaim:
    """Write the claim's volume name, unless it is empty, and annotations."""

    claim: Claim
    volume_name: str = ""
    annotations: Mapping[str, str] = field(default_factory=nothing)

    def patch(self) -> dict[str, Any]:
        """The change as a merge patch."""
        spec = {"spec": {"volumeName": self.volume_name}} if self.volume_name else {}
        return {"metadata": {"annotations": dict(self.annotations)}, **spec}


@dataclass(frozen=True, slots=True, kw_only=True)
class SetClaimStatus:
    """Write the claim's status; modes and capacity are those of ``volume``, or none."""

    claim: Claim
    phase: ClaimPhase
    volume: Volume | None = None

    def patch(self) -> dict[str, Any]:
        """The change as a merge patch."""
        modes = list(self.volume.access_modes) if self.volume else None
        capacity = {"storage": self.volume.capacity} if self.volume else None
        return {"status": {"phase": self.phase, "accessModes": modes, "capacity": capacity}}


Write = ReferClaim | SetVolumePhase | SetClaim | SetClaimStatus
Writes = tuple[Write, ...]


def on_top_of(meta: Meta, versions: Mapping[str, str], write: Write) -> dict[str, Any]:
    """The patch of a write, which the server refuses when the object is no longer what was decided on.

    ``versions`` has the newer version of an object that an earlier write has already changed, by its uid.
    """
    patch = write.patch()
    metadata = {"resourceVersion": versions.get(meta.uid, meta.version), "uid": meta.uid}
    return {**patch, "metadata": {**patch.get("metadata", {}), **metadata}}


def decide_claim(claim: Claim, volumes: Mapping[Key, Volume], storage_class: StorageClass | None) -> Writes:
    """What to do about a claim; ``storage_class`` is the one that it names, if there is one."""
    named = volumes.get(Key("", claim.volume_name))
    if claim.bind_completed:
        held = named is not None and (named.claim is None or named.claim.uid == claim.meta.uid)
        return bind(named, claim) if named and held else _claim_status(claim, ClaimPhase.LOST, None)
    waits = storage_class is not None and storage_class.waits_for_consumer
    if not claim.volume_name:
        volume = best_match(claim, volumes.values(), reserved_only=waits)
    elif named and (named.claim.means(claim) if named.claim else fits(named, claim)):
        volume = named
    else:
        volume = None
    if volume is not None:
        return bind(volume, claim)
    pending = _claim_status(claim, ClaimPhase.PENDING, None)
    waits = waits and SELECTED_NODE not in claim.meta.annotations
    if claim.volume_name or storage_class is None or waits:
        return pending
    return (*_provision(claim, storage_class.provisioner), *pending)


def decide_volume(volume: Volume, claim: Claim | None) -> Writes:
    """What to do about a volume; ``claim`` is the one of the name that it refers to, if there is one."""
    if volume.claim is None or not volume.claim.uid:
        return _phase(volume, VolumePhase.AVAILABLE)
    if claim is None or claim.meta.uid != volume.claim.uid:
        return _release(volume)
    if not claim.volume_name:
        return ()  # half-way; the claim's own turn goes on with it
    if claim.volume_name == volume.meta.key.name:
        return _phase(volume, VolumePhase.BOUND)
    if PROVISIONED_BY in volume.meta.annotations and volume.reclaim_policy is ReclaimPolicy.DELETE:
        return _release(volume)
    return unbind(volume)


def bind(volume: Volume, claim: Claim) -> Writes:
    """The writes still missing to bind both, the volume's first, so that no other claim can take it."""
    wanted = ClaimReference(key=claim.meta.key, uid=claim.meta.uid)
    writes: list[Write] = []
    if volume.claim != wanted:
        chosen = volume.claim is None or BOUND_BY_CONTROLLER in volume.meta.annotations
        writes.append(ReferClaim(volume=volume, claim=wanted, by_controller=chosen))
    writes += _phase(volume, VolumePhase.BOUND)
    annotations = {BIND_COMPLETED: "yes"}
    if claim.volume_name != volume.meta.key.name:
        annotations[BOUND_BY_CONTROLLER] = "yes"
    if annotations.keys() - claim.meta.annotations.keys():
        writes.append(SetClaim(claim=claim, volume_name=volume.meta.key.name, annotations=annotations))
    return (*writes, *_claim_status(claim, ClaimPhase.BOUND, volume))


def unbind(volume: Volume) -> Writes:
    """Take a binding back; a volume that was reserved by a person stays reserved."""
    by_controller = BOUND_BY_CONTROLLER in volume.meta.annotations
    kept = None if by_controller or volume.claim is None else ClaimReference(key=volume.claim.key)
    return (
        ReferClaim(volume=volume, claim=kept, by_controller=False),
        *_phase(volume, VolumePhase.AVAILABLE),
    )


def _provision(claim: Claim, provisioner: str) -> Writes:
    wanted = MappingProxyType({STORAGE_PROVISIONER: provisioner, BETA_STORAGE_PROVISIONER: provisioner})
    if provisioner == NO_PROVISIONER or wanted.items() <= claim.meta.annotations.items():
        return ()
    return (SetClaim(claim=claim, annotations=wanted),)


def _release(volume: Volume) -> Writes:
    return () if volume.phase is VolumePhase.FAILED else _phase(volume, VolumePhase.RELEASED)


def _phase(volume: Volume, phase: VolumePhase) -> Writes:
    return () if volume.phase is phase else (SetVolumePhase(volume=volume, phase=phase),)


def _claim_status(claim: Claim, phase: ClaimPhase, volume: Volume | None) -> Writes:
    modes = volume.access_modes if volume else ()
    capacity = volume.capacity_bytes if volume else None
    if (claim.phase, claim.status_modes, claim.status_bytes) == (phase, modes, capacity):
        return ()
    return (SetClaimStatus(claim=claim, phase=phase, volume=volume),)
