"""What the volume binder does about one claim or one volume, as a list of writes.

The rules are those of Kubernetes' persistent volume controller (pkg/controller/volume/persistentvolume/
pv_controller.go), in its order and its words, without in-tree provisioners, recyclers and CSI migration.
The writes of a list are made one after the other, and the rest is dropped when one fails: each is
harmless by itself, and the next look at the objects decides anew.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from tinykube.controllers.matching import best_match, mismatch
from tinykube.controllers.values import (
    BETA_STORAGE_PROVISIONER,
    BIND_COMPLETED,
    BOUND_BY_CONTROLLER,
    PROVISIONED_BY,
    SELECTED_NODE,
    STORAGE_PROVISIONER,
    Claim,
    ClaimPhase,
    ClaimReference,
    Key,
    ReclaimPolicy,
    StorageClass,
    Volume,
    VolumePhase,
    nothing,
)

_NO_DELETER = 'error getting deleter volume plugin for volume "{}": no deletable volume plugin matched'


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferClaim:
    """Make the volume point at the claim, or at none."""

    volume: Volume
    claim: ClaimReference | None
    by_controller: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SetVolumePhase:
    """Write the volume's status."""

    volume: Volume
    phase: VolumePhase
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetClaim:
    """Write the claim's volume name, unless it is empty, and annotations."""

    claim: Claim
    volume_name: str = ""
    annotations: Mapping[str, str] = field(default_factory=nothing)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetClaimStatus:
    """Write the claim's status; modes and capacity are those of ``volume``, or none."""

    claim: Claim
    phase: ClaimPhase
    volume: Volume | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Post an event on the claim or volume."""

    about: Claim | Volume
    reason: str
    message: str
    warning: bool = False


Step = ReferClaim | SetVolumePhase | SetClaim | SetClaimStatus | Report
Steps = tuple[Step, ...]


def decide_claim(
    claim: Claim,
    volumes: Mapping[Key, Volume],
    storage_class: StorageClass | None,
    waiting_pods: tuple[str, ...] = (),
) -> Steps:
    """What to do about a claim; ``waiting_pods`` are those that use it and are not scheduled yet."""
    if claim.bind_completed:
        return _decide_bound_claim(claim, volumes)
    if claim.volume_name:
        return _decide_claim_for(claim, volumes.get(Key("", claim.volume_name)))
    waits = storage_class is not None and storage_class.waits_for_consumer
    volume = best_match(claim, volumes.values(), reserved_only=waits)
    if volume is not None:
        return bind(volume, claim)
    if waits and SELECTED_NODE not in claim.meta.annotations:
        return (_waiting(claim, waiting_pods), *_pending(claim))
    if claim.class_name:
        return _provision(claim, claim.class_name, storage_class)
    problem = "no persistent volumes available for this claim and no storage class is set"
    return (Report(about=claim, reason="FailedBinding", message=problem), *_pending(claim))


def decide_volume(volume: Volume, claim: Claim | None) -> Steps:
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


def bind(volume: Volume, claim: Claim) -> Steps:
    """The writes still missing to bind both, the volume's first, so that no other claim can take it."""
    wanted = ClaimReference(key=claim.meta.key, uid=claim.meta.uid)
    steps: list[Step] = []
    if volume.claim != wanted:
        chosen = volume.claim is None or BOUND_BY_CONTROLLER in volume.meta.annotations
        steps.append(ReferClaim(volume=volume, claim=wanted, by_controller=chosen))
    steps += _phase(volume, VolumePhase.BOUND)
    annotations = {BIND_COMPLETED: "yes"}
    if claim.volume_name != volume.meta.key.name:
        annotations[BOUND_BY_CONTROLLER] = "yes"
    if annotations.keys() - claim.meta.annotations.keys():
        steps.append(SetClaim(claim=claim, volume_name=volume.meta.key.name, annotations=annotations))
    return (*steps, *_claim_status(claim, ClaimPhase.BOUND, volume))


def unbind(volume: Volume) -> Steps:
    """Take a binding back; a volume that was reserved by a person stays reserved."""
    by_controller = BOUND_BY_CONTROLLER in volume.meta.annotations
    kept = None if by_controller or volume.claim is None else ClaimReference(key=volume.claim.key)
    return (
        ReferClaim(volume=volume, claim=kept, by_controller=False),
        *_phase(volume, VolumePhase.AVAILABLE),
    )


def _decide_bound_claim(claim: Claim, volumes: Mapping[Key, Volume]) -> Steps:
    if not claim.volume_name:
        problem = "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!"
        return _lose(claim, "ClaimLost", problem)
    volume = volumes.get(Key("", claim.volume_name))
    if volume is None:
        problem = "Bound claim has lost its PersistentVolume. Data on the volume is lost!"
        return _lose(claim, "ClaimLost", problem)
    if volume.claim is None or volume.claim.uid == claim.meta.uid:
        return bind(volume, claim)
    problem = "Two claims are bound to the same volume, this one is bound incorrectly"
    return _lose(claim, "ClaimMisbound", problem)


def _decide_claim_for(claim: Claim, volume: Volume | None) -> Steps:
    """For a claim that names its volume."""
    if volume is None:
        return _pending(claim)
    if volume.claim is None:
        problem = mismatch(volume, claim)
        if not problem:
            return bind(volume, claim)
        message = f'Cannot bind to requested volume "{volume.meta.key}": {problem}'
        report = Report(about=claim, reason="VolumeMismatch", message=message, warning=True)
        return (report, *_pending(claim))
    if volume.claim.means(claim):
        return bind(volume, claim)
    message = f'volume "{volume.meta.key}" already bound to a different claim.'
    report = Report(about=claim, reason="FailedBinding", message=message, warning=True)
    return (report, *_pending(claim))


def _provision(claim: Claim, class_name: str, storage_class: StorageClass | None) -> Steps:
    if storage_class is None:
        problem = f'storageclass.storage.k8s.io "{class_name}" not found'
        return (Report(about=claim, reason="ProvisioningFailed", message=problem, warning=True),)
    provisioner = storage_class.provisioner
    if provisioner.startswith("kubernetes.io/"):
        problem = f"no volume plugin matched name: {provisioner}"
        return (Report(about=claim, reason="ProvisioningFailed", message=problem, warning=True),)
    wanted = MappingProxyType({STORAGE_PROVISIONER: provisioner, BETA_STORAGE_PROVISIONER: provisioner})
    message = (
        f"Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually"
        " by the system administrator. If volume creation is delayed, please verify that the provisioner is"
        " running and correctly registered."
    )
    report = Report(about=claim, reason="ExternalProvisioning", message=message)
    if wanted.items() <= claim.meta.annotations.items():
        return (report,)
    return (SetClaim(claim=claim, annotations=wanted), report)


def _waiting(claim: Claim, pods: tuple[str, ...]) -> Report:
    if not pods:
        message = "waiting for first consumer to be created before binding"
        return Report(about=claim, reason="WaitForFirstConsumer", message=message)
    noun = "pod" if len(pods) == 1 else "pods"
    message = f"waiting for {noun} {','.join(pods)} to be scheduled"
    return Report(about=claim, reason="WaitForPodScheduled", message=message)


def _release(volume: Volume) -> Steps:
    if volume.phase is VolumePhase.FAILED:
        return ()
    released = _phase(volume, VolumePhase.RELEASED)
    if volume.reclaim_policy is ReclaimPolicy.RECYCLE:
        return (*released, *_fail(volume, "VolumeFailedRecycle", "No recycler plugin found for the volume!"))
    if volume.reclaim_policy is ReclaimPolicy.DELETE and not _has_external_deleter(volume):
        return (*released, *_fail(volume, "VolumeFailedDelete", _NO_DELETER.format(volume.meta.key)))
    return released


def _has_external_deleter(volume: Volume) -> bool:
    provisioner = volume.meta.annotations.get(PROVISIONED_BY, "")
    return bool(provisioner) and not provisioner.startswith("kubernetes.io/")


def _fail(volume: Volume, reason: str, message: str) -> Steps:
    return (
        SetVolumePhase(volume=volume, phase=VolumePhase.FAILED, message=message),
        Report(about=volume, reason=reason, message=message, warning=True),
    )


def _phase(volume: Volume, phase: VolumePhase) -> Steps:
    return () if volume.phase is phase else (SetVolumePhase(volume=volume, phase=phase),)


def _pending(claim: Claim) -> Steps:
    return _claim_status(claim, ClaimPhase.PENDING, None)


def _lose(claim: Claim, reason: str, message: str) -> Steps:
    if claim.phase is ClaimPhase.LOST:
        return ()
    report = Report(about=claim, reason=reason, message=message, warning=True)
    return (SetClaimStatus(claim=claim, phase=ClaimPhase.LOST), report)


def _claim_status(claim: Claim, phase: ClaimPhase, volume: Volume | None) -> Steps:
    modes = volume.access_modes if volume else ()
    capacity = volume.capacity_bytes if volume else None
    if (claim.phase, claim.status_modes, claim.status_bytes) == (phase, modes, capacity):
        return ()
    return (SetClaimStatus(claim=claim, phase=phase, volume=volume),)
