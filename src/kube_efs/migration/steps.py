"""The next step of a claim on its way from one volume to another.

A claim's volume and a volume's source cannot be changed, so the claim is deleted and recreated. The old
volume is kept from being removed with it first, and the new one, which notes everything that is needed to
on or back, is made before. Nothing is remembered between two steps: each follows from what is there.

Going back is the same with source and target exchanged.
"""

from dataclasses import dataclass
from enum import StrEnum

from kube_efs.migration.errors import ClaimInUse, MigrationRefused
from kube_efs.model.claims import Claim, ClaimPhase, ReclaimPolicy
from kube_efs.model.volumes import FINALIZER, Volume, VolumePhase


class MigrationStep(StrEnum):
    """One change in the cluster, in the order of a migration."""

    MAKE_TARGET = "create the new volume, reserved for the claim"
    KEEP_SOURCE = "set the old volume to Retain"
    RECORD = "record the claim and its reclaim policy"
    REOPEN_TARGET = "make the new volume available again"
    REMOVE_CLAIM = "delete the claim"
    MAKE_CLAIM = "recreate the claim with the new volume"
    RESTORE_POLICY = "restore the reclaim policy of the new volume"
    REMOVE_SOURCE = "delete the old volume, not its data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Kubernetes must do something first."""

    for_what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The migration of a claim.

    ``policy`` is the final reclaim policy of the target. It was chosen when the source had ``source_policy``.
    """

    namespace: str
    claim: str
    source: str
    target: str
    source_policy: ReclaimPolicy
    policy: ReclaimPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The current objects.

    ``recorded``: whether the claim can be recreated unchanged. ``policies_recorded``: whether a later run can
    find the final policy.
    """

    claim: Claim | None = None
    source: Volume | None = None
    target: Volume | None = None
    users: tuple[str, ...] = ()
    recorded: bool = False
    policies_recorded: bool = True


def decide(move: Move, seen: Seen) -> MigrationStep | Wait | None:
    """The next step, None when the claim is migrated.

    Raises ClaimInUse while pods refer to the claim, and MigrationRefused when another client has changed
    something in a way that leaves no safe step.
    """
    claim = seen.claim
    if claim is None:
        return _without_claim(move, seen)
    if claim.phase is ClaimPhase.LOST:
        raise _refused(move, "has lost its volume", "check what happened to it")
    if claim.volume_name == move.target:
        return _arriving(move, seen, claim)
    if claim.volume_name == move.source:
        return _leaving(move, seen, claim)
    if not claim.volume_name and seen.target and _is_open(seen.target):
        # Another client created the claim in the meantime, a StatefulSet for one; the volume is kept for it.
        return Wait(for_what=f"claim {claim.key} is bound to {move.target}")
    problem = f"was recreated by another client, with volume {claim.volume_name or '(none yet)'}"
    raise _refused(move, problem, "delete that claim, then try again")


def _leaving(move: Move, seen: Seen, claim: Claim) -> MigrationStep | Wait:
    source, target = seen.source, seen.target
    if claim.deleting:
        users = f" (used by {', '.join(seen.users)})" if seen.users else ""
        return Wait(for_what=f"claim {claim.key} is gone{users}")
    if source is None:
        raise _refused(move, "has lost its volume", f"recreate volume {move.source}")
    if claim.phase is not ClaimPhase.BOUND:  # made a moment ago, by a move the other way
        return Wait(for_what=f"claim {claim.key} is bound to {move.source}")
    if seen.users:
        raise ClaimInUse(
            "is in use", field=f"claim {claim.key}", value=", ".join(seen.users), remedy="end these pods"
        )
    if target is None:
        # The plan may be hours old. If Retain was chosen since, the claim would take the data with it.
        if source.reclaim_policy is not move.source_policy:
            problem = f"has volume {move.source}, whose reclaim policy was changed to {source.reclaim_policy}"
            raise _refused(move, problem, "run the same command again")
        # Before the target exists: later, both volumes have Retain, and nobody could tell who has chosen it.
        return MigrationStep.MAKE_TARGET if seen.policies_recorded else MigrationStep.RECORD
    _refuse_leaving(move, target)
    if source.reclaim_policy is not ReclaimPolicy.RETAIN:
        return MigrationStep.KEEP_SOURCE
    if not seen.recorded:
        return MigrationStep.RECORD
    return MigrationStep.REMOVE_CLAIM if _is_open(target) else MigrationStep.REOPEN_TARGET


def _without_claim(move: Move, seen: Seen) -> MigrationStep:
    source, target = seen.source, seen.target
    # A claim is deleted here only when both volumes exist and its volume is kept; else by another client.
    if source is None or target is None or source.reclaim_policy is not ReclaimPolicy.RETAIN:
        raise _refused(
            move,
            "does not exist any more, and was not deleted by this command",
            "nothing is left to migrate",
        )
    _refuse_leaving(move, target)
    return MigrationStep.MAKE_CLAIM if _is_open(target) else MigrationStep.REOPEN_TARGET


def _arriving(move: Move, seen: Seen, claim: Claim) -> MigrationStep | Wait | None:
    source, target = seen.source, seen.target
    if claim.deleting:
        raise _refused(move, "is being deleted by another client", "wait until it is gone")
    if target is None:
        raise _refused(move, "has lost its volume", f"recreate volume {move.target}")
    if claim.phase is not ClaimPhase.BOUND or target.phase is not VolumePhase.BOUND:
        return Wait(for_what=f"claim {claim.key} is bound to {move.target}")
    if source is None:
        return None
    if source.reclaim_policy is not ReclaimPolicy.RETAIN:
        return MigrationStep.KEEP_SOURCE
    # Before the source is removed, because its existence means that something is left to do.
    if target.reclaim_policy is not move.policy:
        return MigrationStep.RESTORE_POLICY
    if source.deleting and FINALIZER not in source.finalizers:
        return Wait(for_what=f"volume {move.source} is gone")
    return MigrationStep.REMOVE_SOURCE


def _is_open(volume: Volume) -> bool:
    """Whether a claim that is created now would be bound to it."""
    return volume.claim is not None and volume.claim.uid is None


def _refuse_leaving(move: Move, target: Volume) -> None:
    if target.deleting:
        raise _refused(move, f"waits for volume {move.target}, which is being deleted", "try again later")


def _refused(move: Move, problem: str, remedy: str) -> MigrationRefused:
    return MigrationRefused(problem, field=f"claim {move.namespace}/{move.claim}", remedy=remedy)
