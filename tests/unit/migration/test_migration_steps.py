"""The steps of a migration: each is chosen from the existing objects, and none can lose data."""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kube_efs.migration.errors import ClaimInUse, MigrationRefused
from kube_efs.migration.marks import Mark
from kube_efs.migration.steps import MigrationStep, Move, Seen, Wait, decide
from kube_efs.model.claims import Claim, ClaimPhase, ReclaimPolicy
from kube_efs.model.efs.ids import ClaimUid
from kube_efs.model.volumes import FINALIZER, ClaimReference, Volume, VolumePhase

DELETE = ReclaimPolicy.DELETE
MOVE = Move(namespace="team", claim="data", source="old", target="new", source_policy=DELETE, policy=DELETE)
FIRST = ClaimUid("first")


def _claim(volume: str = "old", **fields: object) -> Claim:
    claim = Claim(namespace="team", name="data", uid=FIRST, phase=ClaimPhase.BOUND, volume_name=volume)
    return replace(claim, **fields)  # type: ignore[arg-type]


def _volume(
    name: str, uid: ClaimUid | None = FIRST, *, phase: str = "Bound", policy: str = "Retain", **fields: object
) -> Volume:
    volume = Volume(
        name=name,
        phase=VolumePhase(phase),
        reclaim_policy=ReclaimPolicy(policy),
        claim=ClaimReference(namespace="team", name="data", uid=uid),
    )
    return replace(volume, **fields)  # type: ignore[arg-type]


OLD, KEPT = _volume("old", policy="Delete"), _volume("old")
RESERVED, NEW = _volume("new", None, phase="Available"), _volume("new")
RELEASED = _volume("old", phase="Released")
READY = _volume("new", policy="Delete")
STALE = _volume("new", ClaimUid("gone"), phase="Released")
# The marks of a move that has not made its last step.
MARKS: dict[str, Any] = {"source_mark": Mark.LEAVING, "target_mark": Mark.ARRIVING}
RESTORED: dict[str, Any] = {"source_mark": Mark.LEAVING, "target_mark": Mark.ARRIVED}


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(Seen(claim=_claim(), source=OLD), MigrationStep.MAKE_TARGET, id="not started"),
        pytest.param(
            Seen(claim=_claim(), source=OLD, policies_recorded=False),
            MigrationStep.RECORD,
            id="another policy was chosen",
        ),
        pytest.param(
            Seen(claim=_claim(), source=OLD, target=RESERVED), MigrationStep.KEEP_SOURCE, id="target exists"
        ),
        pytest.param(
            Seen(claim=_claim(), source=OLD, target=RESERVED, policies_recorded=False),
            MigrationStep.RECORD,
            id="another policy was chosen, target exists",
        ),
        pytest.param(
            Seen(claim=_claim(), source=KEPT, target=RESERVED, recorded=True, source_mark=Mark.ARRIVING),
            MigrationStep.KEEP_SOURCE,
            id="other direction has kept the source",
        ),
        pytest.param(
            Seen(claim=_claim(), source=KEPT, target=RESERVED, **MARKS),
            MigrationStep.RECORD,
            id="claim changed",
        ),
        pytest.param(
            Seen(claim=_claim(), source=KEPT, target=RESERVED, recorded=True, **MARKS),
            MigrationStep.MARK_CLAIM,
            id="everything is recorded",
        ),
        pytest.param(
            Seen(
                claim=_claim(), source=KEPT, target=RESERVED, recorded=True, claim_mark=Mark.LEAVING, **MARKS
            ),
            MigrationStep.REMOVE_CLAIM,
            id="claim is marked",
        ),
        pytest.param(
            Seen(claim=_claim(), source=KEPT, target=STALE, recorded=True, **MARKS),
            MigrationStep.REOPEN_TARGET,
            id="target has another claim recorded",
        ),
        pytest.param(
            Seen(claim=_claim(), source=KEPT, target=replace(RESERVED, claim=None), recorded=True, **MARKS),
            MigrationStep.REOPEN_TARGET,
            id="target has no claim recorded",
        ),
        pytest.param(
            Seen(
                claim=_claim(),
                source=KEPT,
                target=replace(RESERVED, reclaim_policy=DELETE),
                recorded=True,
                **MARKS,
            ),
            MigrationStep.REOPEN_TARGET,
            id="target has Delete",
        ),
        pytest.param(
            Seen(claim=_claim(), source=KEPT, target=RESERVED, recorded=True, source_mark=Mark.LEAVING),
            MigrationStep.REOPEN_TARGET,
            id="target has no mark",
        ),
        pytest.param(
            Seen(source=RELEASED, target=RESERVED, **MARKS), MigrationStep.MAKE_CLAIM, id="claim is deleted"
        ),
        pytest.param(
            Seen(source=RELEASED, target=STALE, **MARKS),
            MigrationStep.REOPEN_TARGET,
            id="claim is deleted, target has another recorded",
        ),
        pytest.param(
            Seen(claim=_claim("new"), source=OLD, target=NEW),
            MigrationStep.KEEP_SOURCE,
            id="not retained yet",
        ),
        pytest.param(
            Seen(claim=_claim("new"), source=RELEASED, target=NEW, claim_mark=Mark.LEAVING, **MARKS),
            MigrationStep.KEEP_CLAIM,
            id="other direction has marked the claim",
        ),
        pytest.param(
            Seen(claim=_claim("new"), source=RELEASED, target=NEW, source_mark=Mark.ARRIVING),
            MigrationStep.KEEP_SOURCE,
            id="other direction has kept the source, which is left",
        ),
        pytest.param(
            Seen(
                claim=_claim("new"),
                source=RELEASED,
                target=NEW,
                source_mark=Mark.LEAVING,
                target_mark=Mark.LEAVING,
            ),
            MigrationStep.KEEP_TARGET,
            id="other direction has kept the target",
        ),
        pytest.param(
            Seen(claim=_claim("new"), source=RELEASED, target=NEW, **MARKS),
            MigrationStep.RESTORE_POLICY,
            id="bound to target",
        ),
        pytest.param(
            Seen(claim=_claim("new"), source=RELEASED, target=READY, source_mark=Mark.LEAVING),
            MigrationStep.RESTORE_POLICY,
            id="policy was never changed",
        ),
        pytest.param(
            Seen(claim=_claim("new"), source=RELEASED, target=READY, **RESTORED),
            MigrationStep.REMOVE_SOURCE,
            id="policy restored",
        ),
        pytest.param(
            Seen(claim=_claim("new"), source=RELEASED, target=NEW, **RESTORED),
            MigrationStep.REMOVE_SOURCE,
            id="another policy was chosen after it was restored",
        ),
        pytest.param(
            Seen(
                claim=_claim("new"),
                source=replace(RELEASED, deleting=True, finalizers=(FINALIZER,)),
                target=READY,
                **RESTORED,
            ),
            MigrationStep.REMOVE_SOURCE,
            id="source has the finalizer",
        ),
        pytest.param(
            Seen(claim=_claim("new"), target=NEW, target_mark=Mark.ARRIVING),
            MigrationStep.RESTORE_POLICY,
            id="source is gone before the policy was restored",
        ),
        pytest.param(
            Seen(claim=_claim("new", phase=ClaimPhase.PENDING), source=RELEASED, target=STALE, **MARKS),
            MigrationStep.REOPEN_TARGET,
            id="claim was created late, target has another recorded",
        ),
        pytest.param(
            Seen(
                claim=_claim(uid=ClaimUid("late"), phase=ClaimPhase.PENDING),
                source=RELEASED,
                target=RESERVED,
                recorded=True,
                **MARKS,
            ),
            MigrationStep.MARK_CLAIM,
            id="claim was created late, source has another recorded",
        ),
        pytest.param(Seen(claim=_claim("new"), target=READY), None, id="completed"),
        pytest.param(Seen(claim=_claim("new"), target=NEW), None, id="completed with another policy"),
    ],
)
def test_each_state_has_one_next_step(seen: Seen, expected: MigrationStep | None) -> None:
    assert decide(MOVE, seen) == expected


@pytest.mark.parametrize(
    ("seen", "about"),
    [
        pytest.param(
            Seen(claim=_claim(deleting=True), source=KEPT, target=RESERVED, users=("web",)),
            "claim team/data is gone (used by web)",
            id="claim is held by a pod",
        ),
        pytest.param(
            Seen(claim=_claim("new", phase=ClaimPhase.PENDING), source=RELEASED, target=RESERVED),
            "claim team/data is bound to new",
            id="not bound yet",
        ),
        pytest.param(
            Seen(claim=_claim("new"), source=RELEASED, target=RESERVED),
            "claim team/data is bound to new",
            id="volume is not bound yet",
        ),
        pytest.param(
            Seen(claim=_claim("", phase=ClaimPhase.PENDING), source=RELEASED, target=RESERVED),
            "claim team/data is bound to new",
            id="claim recreated by a StatefulSet",
        ),
        pytest.param(
            Seen(claim=_claim(phase=ClaimPhase.PENDING), source=KEPT, target=RESERVED),
            "claim team/data is bound to old",
            id="created recently",
        ),
        pytest.param(
            Seen(claim=_claim("new"), source=replace(RELEASED, deleting=True), target=READY, **RESTORED),
            "volume old is gone",
            id="source is being deleted",
        ),
    ],
)
def test_migration_waits_for_kubernetes(seen: Seen, about: str) -> None:
    assert decide(MOVE, seen) == Wait(for_what=about)


@pytest.mark.parametrize(
    ("seen", "about"),
    [
        pytest.param(
            Seen(source=OLD),
            "does not exist any more, and was not deleted by this command",
            id="no claim, no target",
        ),
        pytest.param(
            Seen(source=OLD, target=RESERVED),
            "does not exist any more, and was not deleted by this command",
            id="deleted before it was retained",
        ),
        pytest.param(
            Seen(target=READY),
            "does not exist any more, and was not deleted by this command",
            id="deleted after the migration",
        ),
        pytest.param(
            Seen(claim=_claim("other"), source=KEPT, target=RESERVED),
            "was recreated by another client, with volume other",
            id="bound to another volume",
        ),
        pytest.param(
            Seen(claim=_claim("", phase=ClaimPhase.PENDING), source=RELEASED, target=STALE),
            r"was recreated by another client, with volume \(none yet\)",
            id="recreated while the target is in use",
        ),
        pytest.param(
            Seen(claim=_claim(phase=ClaimPhase.LOST), target=RESERVED), "has lost its volume", id="lost"
        ),
        pytest.param(
            Seen(claim=_claim("new"), source=RELEASED), "has lost its volume", id="target is deleted"
        ),
        pytest.param(
            Seen(claim=_claim("new", deleting=True), source=RELEASED, target=NEW),
            "is being deleted by another client",
            id="deleted on the target",
        ),
        pytest.param(
            Seen(claim=_claim(), source=KEPT, target=replace(RESERVED, deleting=True), **MARKS),
            "waits for volume new, which is being deleted",
            id="target is being deleted",
        ),
        pytest.param(Seen(claim=_claim(), target=RESERVED), "has lost its volume", id="source is deleted"),
        pytest.param(
            Seen(claim=_claim(), source=KEPT),
            "has volume old, whose reclaim policy was changed to Retain",
            id="retained since the plan",
        ),
        pytest.param(
            Seen(claim=_claim(), source=KEPT, target=RESERVED),
            "has volume old, whose reclaim policy was changed to Retain",
            id="retained since the plan, target exists",
        ),
    ],
)
def test_foreign_changes_are_refused(seen: Seen, about: str) -> None:
    with pytest.raises(MigrationRefused, match=about) as caught:
        decide(MOVE, seen)
    assert caught.value.field == "claim team/data"
    assert caught.value.remedy


def test_claim_in_use_is_refused_in_every_state() -> None:
    for target in (None, RESERVED):
        with pytest.raises(ClaimInUse) as caught:
            decide(MOVE, Seen(claim=_claim(), source=KEPT, target=target, users=("web-0", "web-1")))
        assert caught.value.value == "web-0, web-1"


OTHER = ClaimReference(namespace="other", name="db", uid=ClaimUid("another"))
RESERVED_FOR_OTHER = replace(OTHER, uid=None)


@pytest.mark.parametrize(
    ("seen", "volume"),
    [
        pytest.param(
            Seen(claim=_claim("new"), source=replace(KEPT, claim=OTHER), target=READY, **RESTORED),
            "old",
            id="source is bound to another claim",
        ),
        pytest.param(
            Seen(claim=_claim("new"), source=replace(OLD, claim=OTHER), target=READY),
            "old",
            id="source of another claim has Delete",
        ),
        pytest.param(
            Seen(claim=_claim(), source=KEPT, target=replace(READY, claim=OTHER), recorded=True, **MARKS),
            "new",
            id="target is bound to another claim",
        ),
        pytest.param(
            Seen(
                claim=_claim(),
                source=KEPT,
                target=replace(RESERVED, claim=RESERVED_FOR_OTHER),
                recorded=True,
                **MARKS,
            ),
            "new",
            id="target is reserved for another claim",
        ),
        pytest.param(
            Seen(source=RELEASED, target=replace(READY, claim=OTHER), **MARKS),
            "new",
            id="claim is deleted, target is bound to another claim",
        ),
    ],
)
def test_volume_of_another_claim_is_refused(seen: Seen, volume: str) -> None:
    with pytest.raises(MigrationRefused) as caught:
        decide(MOVE, seen)
    assert (caught.value.field, caught.value.value) == (f"volume {volume} spec.claimRef", "other/db")
    assert caught.value.remedy


def test_target_that_the_migration_has_not_kept_keeps_its_policy() -> None:
    for mark in (None, Mark.ARRIVED):
        assert Seen(target=NEW, target_mark=mark).final_policy(MOVE) is ReclaimPolicy.RETAIN
    for mark in (Mark.LEAVING, Mark.ARRIVING):
        assert Seen(target=NEW, target_mark=mark).final_policy(MOVE) is DELETE


# --- a cluster of one claim, in which anybody does anything at any time


class ConflictError(Exception):
    """The object is not the one that the request was made for, or has changed since."""


@dataclass(frozen=True)
class Request:
    """A step for objects that were seen at some time; ``edits`` are those of the claim that was seen."""

    step: MigrationStep
    move: Move
    seen: Seen
    edits: int


@dataclass
class World:
    """A claim, its volumes and its data.

    ``edits`` counts manual changes of the claim. ``late`` are requests whose clients have given up. ``ticks``
    are versions and uids. ``chosen``: an administrator has chosen Retain.
    """

    claim: Claim | None = field(default_factory=_claim)
    volumes: dict[str, Volume] = field(
        default_factory=lambda: {"old": _volume("old", policy="Delete", uid=FIRST)}
    )
    marks: dict[str, Mark | None] = field(default_factory=dict)
    pods: int = 0
    edits: int = 0
    recorded: int = 0
    data: bool = True
    ticks: int = 0
    late: list[Request] = field(default_factory=list)
    is_planned_again: bool = False

    def see(self, move: Move) -> Seen:
        return Seen(
            claim=self.claim,
            source=self.volumes.get(move.source),
            target=self.volumes.get(move.target),
            claim_mark=self.marks.get("claim"),
            source_mark=self.marks.get(move.source),
            target_mark=self.marks.get(move.target),
            users=("pod",) * self.pods,
            recorded=self.recorded == self.edits,
        )

    def take(self, request: Request) -> None:
        """Apply a step as the API server does; raises ConflictError."""
        move, seen = request.move, request.seen
        match request.step:
            case MigrationStep.MAKE_TARGET:
                self._create(move.target, request.edits)
            case MigrationStep.KEEP_SOURCE:
                self._patch(seen.source, Mark.LEAVING, reclaim_policy=ReclaimPolicy.RETAIN)
            case MigrationStep.RECORD:
                self._patch(seen.target if move.target == "new" else seen.source, self.marks.get("new"))
                self.recorded = request.edits
            case MigrationStep.MARK_CLAIM | MigrationStep.KEEP_CLAIM as step:
                self._patch_claim(seen.claim, Mark.LEAVING if step is MigrationStep.MARK_CLAIM else None)
            case MigrationStep.REMOVE_CLAIM:
                self._patch_claim(seen.claim, Mark.LEAVING, deleting=True)
            case MigrationStep.MAKE_CLAIM:
                self._create_claim(move.target, request.edits)
            case MigrationStep.REMOVE_SOURCE:
                self._patch(seen.source, self.marks.get(move.source), deleting=True, finalizers=())
            case _:
                self._change_target(request.step, move, seen)

    def _change_target(self, step: MigrationStep, move: Move, seen: Seen) -> None:
        match step:
            case MigrationStep.REOPEN_TARGET:
                reference = ClaimReference(namespace="team", name="data")
                fields = {"claim": reference, "phase": VolumePhase.AVAILABLE}
                self._patch(seen.target, Mark.ARRIVING, reclaim_policy=ReclaimPolicy.RETAIN, **fields)
            case MigrationStep.KEEP_TARGET:
                self._patch(seen.target, Mark.ARRIVING)
            case MigrationStep.RESTORE_POLICY:
                self._patch(seen.target, Mark.ARRIVED, reclaim_policy=seen.final_policy(move))

    def _tick(self) -> str:
        self.ticks += 1
        return str(self.ticks)

    def _create(self, name: str, edits: int) -> None:
        if name in self.volumes:
            raise ConflictError
        self.volumes[name] = replace(_volume(name, None, phase="Available"), uid=self._tick())
        self.marks[name] = Mark.ARRIVING
        if name == "new":
            self.recorded = edits

    def _create_claim(self, volume: str, edits: int) -> None:
        if self.claim:
            raise ConflictError
        self.edits = edits
        self.marks["claim"] = None
        self.claim = _claim(volume, uid=ClaimUid(f"claim-{self._tick()}"), phase=ClaimPhase.PENDING)

    def _patch(self, seen: Volume | None, mark: Mark | None, **fields: object) -> None:
        assert seen
        found = self.volumes.get(seen.name)
        if found is None or (found.uid, found.resource_version) != (seen.uid, seen.resource_version):
            raise ConflictError
        self.marks[seen.name] = mark
        self._change(seen.name, **fields)

    def _patch_claim(self, seen: Claim | None, mark: Mark | None, **fields: object) -> None:
        assert seen
        found = self.claim
        if found is None or (found.uid, found.resource_version) != (seen.uid, seen.resource_version):
            raise ConflictError
        self.marks["claim"] = mark
        self._change_claim(**fields)

    def _change(self, name: str, **fields: object) -> None:
        volume = replace(self.volumes[name], resource_version=self._tick())
        self.volumes[name] = replace(volume, **fields)  # type: ignore[arg-type]

    def _change_claim(self, **fields: object) -> None:
        assert self.claim
        claim = replace(self.claim, resource_version=self._tick())
        self.claim = replace(claim, **fields)  # type: ignore[arg-type]

    def kubernetes(self) -> None:
        """Bind, release and protect, and let provisioners remove the data of released volumes."""
        if self.claim and self.claim.deleting and not self.pods:
            self.claim = None
        for name, volume in list(self.volumes.items()):
            self._bind_or_release(name, volume)
            self._reclaim(self.volumes[name])

    def _bind_or_release(self, name: str, volume: Volume) -> None:
        assert volume.claim
        if self.claim and volume.claim.uid is None and self.claim.volume_name == name:
            self._change(name, claim=replace(volume.claim, uid=self.claim.uid), phase=VolumePhase.BOUND)
            self._change_claim(phase=ClaimPhase.BOUND)
        elif volume.phase is VolumePhase.BOUND and (self.claim is None or self.claim.uid != volume.claim.uid):
            self._change(name, phase=VolumePhase.RELEASED)

    def _reclaim(self, volume: Volume) -> None:
        if volume.to_be_reclaimed:
            self.data = False
        if volume.to_be_reclaimed or (volume.deleting and volume.phase is not VolumePhase.BOUND):
            del self.volumes[volume.name]
            self.marks.pop(volume.name, None)

    def advance(self, move: Move, *, is_late: bool = False) -> bool:
        """Take a step of the command, or let it be late; returns whether the migration is complete."""
        seen = self.see(move)
        decision = decide(move, seen)
        if isinstance(decision, MigrationStep):
            is_claim = decision is MigrationStep.MAKE_CLAIM
            request = Request(decision, move, seen, self.recorded if is_claim else self.edits)
            if is_late:
                self.late.append(request)
            else:
                self.take(request)
        return decision is None

    def act(self, action: str) -> None:
        """Apply an action of a user; a rollback is possible while the CSI volume exists."""
        match action:
            case "forward" | "late forward":
                with suppress(ClaimInUse, MigrationRefused):
                    self.advance(MOVE, is_late=action.startswith("late"))
            case "back" | "late back" if "new" in self.volumes:
                with suppress(ClaimInUse, MigrationRefused):
                    self.advance(BACK, is_late=action.startswith("late"))
            case "first arrives" | "last arrives" if self.late:
                with suppress(ConflictError):
                    self.take(self.late.pop(0 if action.startswith("first") else -1))
            case "kubernetes":
                self.kubernetes()
            case "pod" if self.claim and not self.claim.deleting:
                self.pods = 1
            case "no pod":
                self.pods = 0
            case "edit" if self.claim and not self.claim.deleting:
                self._change_claim()
                self.edits += 1


BACK = replace(MOVE, source="new", target="old")
ACTIONS = ["forward", "back", "kubernetes", "pod", "no pod", "edit"]
LATE_ACTIONS = ["late forward", "late back", "first arrives", "last arrives"]


@given(st.lists(st.sampled_from(ACTIONS), max_size=40), st.booleans())
def test_any_sequence_of_events_ends_with_the_claim_and_its_data(actions: list[str], goes_on: bool) -> None:
    world = _after(actions)
    volume = _complete(world, goes_on=goes_on)
    assert not world.is_planned_again
    assert volume.reclaim_policy is ReclaimPolicy.DELETE


FORWARD_AND_BACK = [("forward", 3), ("back", 2)]
FIRST_ARRIVES = [("first arrives", 1), ("kubernetes", 2)]


@given(
    st.lists(st.tuples(st.sampled_from([*ACTIONS, *LATE_ACTIONS]), st.integers(1, 4)), max_size=40),
    st.booleans(),
)
# The mark of the claim and its deletion, after the way back.
@example([("forward", 2), ("late forward", 1), ("back", 5), ("kubernetes", 1), *FIRST_ARRIVES], True)
@example([("forward", 3), ("late forward", 1), ("back", 5), ("kubernetes", 1), *FIRST_ARRIVES], True)
# The mark of the NFS volume and its policy, while the claim is deleted on the way forward.
@example([*FORWARD_AND_BACK, ("late back", 1), ("forward", 3), *FIRST_ARRIVES], True)
@example([*FORWARD_AND_BACK, ("back", 1), ("late back", 1), ("forward", 4), *FIRST_ARRIVES], True)
# The deletion of the CSI volume, after the deletion of the claim on the way forward.
@example(
    [("forward", 2), ("back", 3), ("late back", 1), ("forward", 4), ("kubernetes", 1), *FIRST_ARRIVES], True
)
# The creation of the claim, after it was deleted on the way back.
@example(
    [
        *[("forward", 4), ("kubernetes", 1), ("late forward", 1), ("forward", 1), ("kubernetes", 1)],
        *[("back", 4), ("kubernetes", 1), *FIRST_ARRIVES],
    ],
    True,
)
# The policy of the NFS volume, after the way back has removed the CSI volume.
@example([("forward", 1), ("back", 2), ("late forward", 1), ("back", 1)], True)
def test_late_requests_remove_neither_the_claim_nor_its_data(
    actions: list[tuple[str, int]], goes_on: bool
) -> None:
    world = _after([action for action, times in actions for _ in range(times)])
    while world.late:
        world.act("first arrives")
    volume = _complete(world, goes_on=goes_on)
    # If the last request back and the first one forward are late, the NFS volume is kept without a journal. A
    # plan that is made after that finds a volume with Retain, so the next one gets it, too.
    is_left_kept = world.is_planned_again or (volume.name == "old" and world.marks.get("old") is Mark.LEAVING)
    assert is_left_kept or volume.reclaim_policy is ReclaimPolicy.DELETE


def _after(actions: list[str]) -> World:
    world = World()
    for action in actions:
        world.act(action)
        assert world.data
    return world


def _complete(world: World, *, goes_on: bool) -> Volume:
    """Run the command to its end in one direction; returns the only volume that is left."""
    edits, world.pods = world.edits, 0
    last = MOVE if goes_on or "new" not in world.volumes else BACK
    for _ in range(30):
        world.kubernetes()
        try:
            if world.advance(last):
                break
        except MigrationRefused as refused:
            if world.is_planned_again or refused.remedy != "run the same command again":
                raise
            found = world.volumes[last.source].reclaim_policy
            last, world.is_planned_again = replace(last, source_policy=found, policy=found), True
    assert set(world.volumes) == {last.target}
    assert world.claim
    assert (world.claim.volume_name, world.claim.phase) == (last.target, ClaimPhase.BOUND)
    assert (world.data, world.edits) == (True, edits)
    return world.volumes[last.target]
