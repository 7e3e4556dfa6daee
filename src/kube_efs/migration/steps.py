"""The next step of a claim on its way from one volume to another.

A claim's volume and a volume's source cannot be changed, so the claim is deleted and recreated. The old
volume is kept from being removed with it first, and the new one, which notes everything that is needed to
on or back, is made before. Nothing is remembered between two steps: each follows from what is there.

Going back is the same with source and target exchanged. A late request of one direction must not take effect
in the other one, or a claim could be deleted whose volume has Delete again. So the claim is deleted only when
it is marked and its volume is leaving, and a volume gets Delete only when it is arriving and its claim has no
mark. Each of these marks is written first, and changes the version that a late request contains (``marks``).
"""

from dataclasses import dataclass
from enum import StrEnum

from kube_efs.migration.errors import ClaimInUse, MigrationRefused
from kube_efs.migration.marks import KEPT, Mark
from kube_efs.model.claims import Claim, ClaimPhase, ReclaimPolicy
from kube_efs.model.volumes import FINALIZER, Volume, VolumePhase


class MigrationStep(StrEnum):
    """One change in the cluster, in the order of a migration."""

    MAKE_TARGET = "create the new volume, reserved for the claim"
    KEEP_SOURCE = "set the old volume to Retain"
    RECORD = "record the claim and its reclaim policy"
    REOPEN_TARGET = "make the new volume available again"
    MARK_CLAIM = "mark the claim for its deletion"
    REMOVE_CLAIM = "delete the claim"
    MAKE_CLAIM = "recreate the claim with the new volume"
    KEEP_CLAIM = "remove the mark for the deletion of the claim"
    KEEP_TARGET = "mark the new volume as that of the claim"
    RESTORE_POLICY = "restore the reclaim policy of the new volume"
    REMOVE_SOURCE = "delete the old volume, not its data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Kubernetes must do something first."""

    for_what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The migration of a claim.

    ``policy`` is the final reclaim policy of the target. It was chosen when the source had ``source_policy``,
    and ``source_was_kept`` if that was the Retain of a migration.
    """

    namespace: str
    claim: str
    source: str
    target: str
    source_policy: ReclaimPolicy
    policy: ReclaimPolicy
    source_was_kept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The current objects and their marks.

    ``recorded``: whether the claim can be recreated unchanged. ``policies_recorded``: whether a later run can
    find the final policy. ``recorded_policy`` is what the journal says about that of the target.
    """

    claim: Claim | None = None
    source: Volume | None = None
    target: Volume | None = None
    claim_mark: Mark | None = None
    source_mark: Mark | None = None
    target_mark: Mark | None = None
    users: tuple[str, ...] = ()
    recorded: bool = False
    policies_recorded: bool = True
    recorded_policy: ReclaimPolicy | None = None

    @property
    def is_source_kept(self) -> bool:
        """Whether the source has Retain because the claim leaves it."""
        is_retained = self.source is not None and self.source.reclaim_policy is ReclaimPolicy.RETAIN
        return is_retained and self.source_mark is Mark.LEAVING

    @property
    def is_target_open(self) -> bool:
        """Whether a claim that is created now would be bound to the target, which has Retain."""
        target = self.target
        is_retained = target is not None and target.reclaim_policy is ReclaimPolicy.RETAIN
        return is_retained and self.target_mark is Mark.ARRIVING and _is_open(target)

    def final_policy(self, move: Move) -> ReclaimPolicy:
        """The policy that the target gets. One that the migration has not kept has it already.

        Another command may have recorded Retain since this move was planned.
        """
        if self.target is not None and self.target_mark not in KEPT:
            return self.target.reclaim_policy
        is_retained = ReclaimPolicy.RETAIN in {move.policy, self.recorded_policy}
        return ReclaimPolicy.RETAIN if is_retained else move.policy


def decide(move: Move, seen: Seen) -> MigrationStep | Wait | None:
    """The next step, None when the claim is migrated.

    Raises ClaimInUse while pods refer to the claim, and MigrationRefused when another client has changed
    something in a way that leaves no safe step.
    """
    for volume in (seen.source, seen.target):
        _refuse_other_claim(move, volume)
    claim = seen.claim
    if claim is None:
        return _without_claim(move, seen)
    if claim.phase is ClaimPhase.LOST:
        raise _refused(move, "has lost its volume", "check what happened to it")
    if claim.volume_name == move.target:
        return _arriving(move, seen, claim)
    if claim.volume_name == move.source:
        return _leaving(move, seen, claim)
    if not claim.volume_name and _is_open(seen.target):
        # Another client created the claim in the meantime, a StatefulSet for one; the volume is kept for it.
        return Wait(for_what=f"claim {claim.key} is bound to {move.target}")
    problem = f"was recreated by another client, with volume {claim.volume_name or '(none yet)'}"
    raise _refused(move, problem, "delete that claim, then try again")


def _leaving(move: Move, seen: Seen, claim: Claim) -> MigrationStep | Wait:
    source = seen.source
    if claim.deleting:
        users = f" (used by {', '.join(seen.users)})" if seen.users else ""
        return Wait(for_what=f"claim {claim.key} is gone{users}")
    if source is None:
        raise _refused(move, "has lost its volume", f"recreate volume {move.source}")
    # A move the other way made it a moment ago. Made by a late request, it may never be bound.
    if claim.phase is not ClaimPhase.BOUND and _may_bind(source, claim):
        return Wait(for_what=f"claim {claim.key} is bound to {move.source}")
    if seen.users:
        raise ClaimInUse(
            "is in use", field=f"claim {claim.key}", value=", ".join(seen.users), remedy="end these pods"
        )
    return _keeping(move, seen, source) or _removing(seen)


def _keeping(move: Move, seen: Seen, source: Volume) -> MigrationStep | None:
    """What comes before both volumes have Retain."""
    is_kept = seen.source_mark in KEPT
    # The plan may be hours old. If Retain was chosen since, the claim would take the data with it. Without a
    # target, nothing has begun, and a mark is left from an earlier migration.
    has_changed = source.reclaim_policy is not move.source_policy and not (is_kept and seen.target)
    if has_changed or (move.source_was_kept and not is_kept):
        problem = f"has volume {move.source}, whose reclaim policy was changed to {source.reclaim_policy}"
        raise _refused(move, problem, "run the same command again")
    # Later, nobody could tell who has chosen Retain.
    if not is_kept and not seen.policies_recorded:
        return MigrationStep.RECORD
    if seen.target is None:
        return MigrationStep.MAKE_TARGET
    _refuse_leaving(move, seen.target)
    return None if seen.is_source_kept else MigrationStep.KEEP_SOURCE


def _removing(seen: Seen) -> MigrationStep:
    if not seen.recorded:
        return MigrationStep.RECORD
    if not seen.is_target_open:
        return MigrationStep.REOPEN_TARGET
    return MigrationStep.REMOVE_CLAIM if seen.claim_mark is Mark.LEAVING else MigrationStep.MARK_CLAIM


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
    return MigrationStep.MAKE_CLAIM if seen.is_target_open else MigrationStep.REOPEN_TARGET


def _arriving(move: Move, seen: Seen, claim: Claim) -> MigrationStep | Wait | None:
    target = seen.target
    if claim.deleting:
        raise _refused(move, "is being deleted by another client", "wait until it is gone")
    if target is None:
        raise _refused(move, "has lost its volume", f"recreate volume {move.target}")
    if claim.phase is not ClaimPhase.BOUND or target.phase is not VolumePhase.BOUND:
        if not _may_bind(target, claim):
            return MigrationStep.REOPEN_TARGET
        return Wait(for_what=f"claim {claim.key} is bound to {move.target}")
    if seen.claim_mark is Mark.LEAVING:
        return MigrationStep.KEEP_CLAIM
    return _completing(move, seen)


def _completing(move: Move, seen: Seen) -> MigrationStep | Wait | None:
    source, mark = seen.source, seen.target_mark
    if source is not None and not seen.is_source_kept:
        return MigrationStep.KEEP_SOURCE
    if mark is Mark.LEAVING:
        return MigrationStep.KEEP_TARGET
    # Before the source is removed, because its existence means that something is left to do.
    if mark is Mark.ARRIVING or (mark is None and source is not None):
        return MigrationStep.RESTORE_POLICY
    if source is None:
        return None
    if source.deleting and FINALIZER not in source.finalizers:
        return Wait(for_what=f"volume {move.source} is gone")
    return MigrationStep.REMOVE_SOURCE


def _may_bind(volume: Volume, claim: Claim) -> bool:
    """Whether Kubernetes binds both; not when an earlier claim of the name has had the volume."""
    return volume.claim is None or volume.claim.uid in {None, claim.uid}


def _is_open(volume: Volume | None) -> bool:
    """Whether the volume is reserved for a claim of any uid."""
    return volume is not None and volume.claim is not None and volume.claim.uid is None


def _refuse_leaving(move: Move, target: Volume) -> None:
    if target.deleting:
        # Only the other direction removes its finalizer.
        is_ours = FINALIZER in target.finalizers
        remedy = "first complete the command that deletes it" if is_ours else "try again later"
        raise _refused(move, f"waits for volume {move.target}, which is being deleted", remedy)


def _refuse_other_claim(move: Move, volume: Volume | None) -> None:
    claim = volume.claim if volume else None
    if volume and claim and (claim.namespace, claim.name) != (move.namespace, move.claim):
        raise MigrationRefused(
            f"is another claim than {move.namespace}/{move.claim}",
            field=f"volume {volume.name} spec.claimRef",
            value=f"{claim.namespace}/{claim.name}",
            remedy="keep both claims as they are, or delete that volume if nothing uses it",
        )


def _refused(move: Move, problem: str, remedy: str) -> MigrationRefused:
    return MigrationRefused(problem, field=f"claim {move.namespace}/{move.claim}", remedy=remedy)
