"""The next step for a SharedVolume, or its status if there is none.

After each step, the next one is chosen from the objects that exist then. Therefore a crash between two steps
changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from kube_efs.model.claims import ClaimPhase
from kube_efs.model.errors import InvalidValue
from kube_efs.model.shared_volumes.shared_volume import (
    FINALIZER,
    InvalidSharedVolume,
    MarkedClaim,
    MarkedVolume,
    SharedVolume,
    SharedVolumePhase,
    Status,
)

_SHOWN = 5


class Step(Enum):
    """One write."""

    HOLD = auto()
    """Add the finalizer to the SharedVolume."""
    BEGIN = auto()
    """Write the phase Pending."""
    RESTORE = auto()
    """Reset the spec to the access point of the volume."""
    MAKE_VOLUME = auto()
    MAKE_CLAIM = auto()
    TIE_VOLUME = auto()
    """Reserve the volume for the existing claim, or for the next one."""
    MARK_VOLUME = auto()
    MARK_CLAIM = auto()
    REMOVE_VOLUME = auto()
    REMOVE_CLAIM = auto()
    RELEASE = auto()
    """Remove the finalizer from the SharedVolume."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Everything that the decision depends on.

    ``refusal`` is the reason why no volume may be created. ``users`` are the pods that delay the deletion of
    the claim. Both are read only if they matter.
    """

    shared: SharedVolume
    volume: MarkedVolume | None = None
    claim: MarkedClaim | None = None
    refusal: str = ""
    users: tuple[str, ...] = ()

    @property
    def own_volume(self) -> MarkedVolume | None:
        """The volume, if it was made for this SharedVolume."""
        return self.volume if self.volume and self.volume.belongs_to(self.shared.owner) else None

    @property
    def own_claim(self) -> MarkedClaim | None:
        """The claim, if it was made for this SharedVolume."""
        return self.claim if self.claim and self.claim.is_ours else None


def decide(found: Found) -> Step | Status | None:
    """The next step; the status if no step is necessary or possible.

    None for one that is deleted and only others hold: nothing is left to do for it.
    """
    if found.shared.deleting:
        return _end(found)
    try:
        return _prepare(found) or _keep(found)
    except InvalidValue as error:
        return replace(failed(found, str(error)), is_lasting=isinstance(error, InvalidSharedVolume))


def failed(found: Found, message: str) -> Status:
    """The status after a failure, also of a deletion."""
    phase = SharedVolumePhase.DELETING if found.shared.deleting else SharedVolumePhase.FAILED
    return _status(found, phase, message)


def _end(found: Found) -> Step | Status | None:
    if FINALIZER not in found.shared.finalizers:
        return None
    claim, volume = found.own_claim, found.own_volume
    # The claim first: Kubernetes keeps it while pods use it, and the volume while the claim is bound to it.
    if claim and not claim.claim.deleting:
        return Step.REMOVE_CLAIM
    if volume and not volume.volume.deleting:
        return Step.REMOVE_VOLUME
    if claim or volume:
        return _wait(found, SharedVolumePhase.DELETING)
    return Step.RELEASE


def _prepare(found: Found) -> Step | None:
    """The steps before volume and claim are changed; raises InvalidValue for an invalid request."""
    shared, volume = found.shared, found.own_volume
    shared.owner.check()
    if found.volume and not volume:
        raise _foreign("PersistentVolume", found.volume.volume.name)
    if found.claim and not found.own_claim:
        raise _foreign("PersistentVolumeClaim", found.claim.claim.name)
    # A volume that is being deleted may be that of an earlier SharedVolume.
    if volume and volume.source not in (None, shared.source) and not volume.volume.deleting:
        return Step.RESTORE
    shared.source.check()
    # Before anything is created. Otherwise a SharedVolume that is deleted now would leave a volume behind.
    if FINALIZER not in shared.finalizers:
        return Step.HOLD
    return Step.BEGIN if shared.status.phase is None else None


def _keep(found: Found) -> Step | Status:
    volume, claim = found.own_volume, found.own_claim
    if (volume and volume.volume.deleting) or (claim and claim.claim.deleting):
        return _wait(found, SharedVolumePhase.PENDING)
    if volume is None:
        return failed(found, found.refusal) if found.refusal else Step.MAKE_VOLUME
    _check_binding(found, volume)
    if _is_loose(found, volume):
        return Step.TIE_VOLUME
    return Step.MAKE_CLAIM if claim is None else _finish(found, volume, claim)


def is_lost(found: Found) -> bool:
    """Whether Kubernetes considers the claim Lost: it was bound, and its volume does not refer to it."""
    return found.own_claim is not None and found.own_claim.claim.phase is ClaimPhase.LOST


def _finish(found: Found, volume: MarkedVolume, claim: MarkedClaim) -> Step | Status:
    owner = found.shared.owner
    if not volume.marks.suffice_for(owner):
        return Step.MARK_VOLUME
    if not claim.marks.suffice_for(owner):
        return Step.MARK_CLAIM
    return _status(found, SharedVolumePhase.READY, "")


def _check_binding(found: Found, volume: MarkedVolume) -> None:
    """Raises InvalidValue if the volume or the claim is bound to another object."""
    owner, reference = found.shared.owner, volume.volume.claim
    if reference and (reference.namespace, reference.name) != (owner.namespace, owner.claim_name):
        other = f"{reference.namespace}/{reference.name}"
        remedy = "delete that claim, then this SharedVolume, and create it again"
        raise InvalidValue(
            f"is bound to claim {other}", field="PersistentVolume", value=owner.volume_name, remedy=remedy
        )
    if found.own_claim and found.own_claim.claim.volume_name != owner.volume_name:
        raise InvalidValue(
            f"is for volume {found.own_claim.claim.volume_name or 'any'}, not {owner.volume_name}",
            field="PersistentVolumeClaim",
            value=owner.claim_name,
            remedy="delete it; it is created again",
        )


def _is_loose(found: Found, volume: MarkedVolume) -> bool:
    """Whether its reservation is missing, is for a deleted claim, or does not name a Lost claim.

    Without a reservation, any claim could bind the volume. Kubernetes does not bind a Lost claim again before
    the reference has its UID, for example after both objects were restored from a backup. No data is at risk:
    the claim names only this volume, and the volume names only this claim.
    """
    reference = volume.volume.claim
    if reference is None:
        return True
    if reference.uid is None:
        return is_lost(found)
    return found.claim is None or found.claim.claim.uid != reference.uid


def _status(found: Found, phase: SharedVolumePhase, message: str) -> Status:
    shared, volume, claim = found.shared, found.own_volume, found.own_claim
    is_made = phase is SharedVolumePhase.READY
    return replace(
        shared.status,
        phase=phase,
        message=message,
        claim_name=shared.owner.claim_name if is_made else shared.status.claim_name,
        bound=bool(claim and volume and claim.claim.phase is ClaimPhase.BOUND),
        matches=bool(volume and volume.source == shared.source),
        generation=shared.generation,
        is_lasting=False,
        is_waiting=False,
    )


def _wait(found: Found, phase: SharedVolumePhase) -> Status:
    return replace(_status(found, phase, _waiting(found)), is_waiting=True)


def _foreign(kind: str, name: str) -> InvalidValue:
    problem = "exists already and was not created for this SharedVolume"
    return InvalidValue(problem, field=kind, value=name, remedy="delete it, or use another name")


def _waiting(found: Found) -> str:
    claim, volume = found.own_claim, found.own_volume
    goal = "" if found.shared.deleting else "; then it is created again"
    if claim and claim.claim.deleting:
        pods = f", which {_listed(found.users)}" if found.users else ""
        return f"waits until claim {claim.claim.name} is gone{pods}{goal}"
    if volume and claim:
        remedy = f"; delete claim {claim.claim.name} when no pod uses it; then both are created again"
        return f"volume {volume.volume.name} is being deleted and is removed with its claim{remedy}"
    if volume and found.claim and volume.volume.claim and volume.volume.claim.uid == found.claim.claim.uid:
        name = found.claim.claim.name
        return (
            f"waits until volume {volume.volume.name} is gone, which claim {name} uses; that claim was not "
            "created for this SharedVolume, so delete it"
        )
    if volume:
        held = ", ".join(volume.volume.finalizers)
        why = f", which {held} holds" if held else ""
        return f"waits until volume {volume.volume.name} is gone{why}{goal}"
    return ""


def _listed(pods: Sequence[str]) -> str:
    more = f" and {len(pods) - _SHOWN} more" if len(pods) > _SHOWN else ""
    noun, verb = ("pod", "uses") if len(pods) == 1 else ("pods", "use")
    return f"{noun} {', '.join(pods[:_SHOWN])}{more} {verb}"
