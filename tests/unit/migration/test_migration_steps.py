"""The steps of a migration: each is chosen from the existing objects, and none can lose data."""

from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.migration.errors import ClaimInUse, MigrationRefused
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
            Seen(claim=_claim(), source=KEPT, target=RESERVED), MigrationStep.RECORD, id="claim changed"
        ),
        pytest.param(
            Seen(claim=_claim(), source=KEPT, target=RESERVED, recorded=True),
            MigrationStep.REMOVE_CLAIM,
            id="everything is recorded",
        ),
        pytest.param(
            Seen(claim=_claim(), source=KEPT, target=STALE, recorded=True),
            MigrationStep.REOPEN_TARGET,
            id="target has another claim recorded",
        ),
        pytest.param(Seen(source=RELEASED, target=RESERVED), MigrationStep.MAKE_CLAIM, id="claim is deleted"),
        pytest.param(
            Seen(source=RELEASED, target=STALE),
            MigrationStep.REOPEN_TARGET,
            id="claim is deleted, target has another recorded",
        ),
        pytest.param(
            Seen(claim=_claim("new"), source=OLD, target=NEW),
            MigrationStep.KEEP_SOURCE,
            id="not retained yet",
        ),
        pytest.param(
            Seen(claim=_claim("new"), source=RELEASED, target=NEW),
            MigrationStep.RESTORE_POLICY,
            id="bound to target",
        ),
        pytest.param(
            Seen(claim=_claim("new"), source=RELEASED, target=READY),
            MigrationStep.REMOVE_SOURCE,
            id="policy restored",
        ),
        pytest.param(
            Seen(
                claim=_claim("new"),
                source=replace(RELEASED, deleting=True, finalizers=(FINALIZER,)),
                target=READY,
            ),
            MigrationStep.REMOVE_SOURCE,
            id="source has the finalizer",
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
            Seen(claim=_claim("new"), source=replace(RELEASED, deleting=True), target=READY),
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
            Seen(claim=_claim(), source=KEPT, target=replace(RESERVED, deleting=True)),
            "waits for volume new, which is being deleted",
            id="target is being deleted",
        ),
        pytest.param(Seen(claim=_claim(), target=RESERVED), "has lost its volume", id="source is deleted"),
        pytest.param(
            Seen(claim=_claim(), source=KEPT),
            "has volume old, whose reclaim policy was changed to Retain",
            id="retained since the plan",
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


# --- a cluster of one claim, in which anybody does anything at any time


@dataclass
class World:
    """A claim, its volumes and its data; ``edits`` counts manual changes of the claim."""

    claim: Claim | None = field(default_factory=_claim)
    volumes: dict[str, Volume] = field(
        default_factory=lambda: {"old": _volume("old", policy="Delete", uid=FIRST)}
    )
    pods: int = 0
    edits: int = 0
    recorded: int = 0
    data: bool = True
    deletions: int = 0

    def see(self, move: Move) -> Seen:
        return Seen(
            claim=self.claim,
            source=self.volumes.get(move.source),
            target=self.volumes.get(move.target),
            users=("pod",) * self.pods,
            recorded=self.recorded == self.edits,
        )

    def take(self, step: MigrationStep, move: Move) -> None:
        """Apply a step as the API server does."""
        match step:
            case MigrationStep.MAKE_TARGET:
                self.volumes[move.target] = _volume(move.target, None, phase="Available")
                self.recorded = self.edits
            case MigrationStep.KEEP_SOURCE:
                self._change(move.source, reclaim_policy=ReclaimPolicy.RETAIN)
            case MigrationStep.RECORD:
                self.recorded = self.edits
            case MigrationStep.REOPEN_TARGET:
                reference = ClaimReference(namespace="team", name="data")
                self._change(move.target, claim=reference, phase=VolumePhase.AVAILABLE)
            case MigrationStep.REMOVE_CLAIM:
                assert self.claim
                self.claim = replace(self.claim, deleting=True)
            case MigrationStep.MAKE_CLAIM:
                self.deletions += 1
                uid = ClaimUid(f"claim-{self.deletions}")
                self.edits = self.recorded
                self.claim = _claim(move.target, uid=uid, phase=ClaimPhase.PENDING)
            case MigrationStep.RESTORE_POLICY:
                self._change(move.target, reclaim_policy=move.policy)
            case MigrationStep.REMOVE_SOURCE:
                self._change(move.source, deleting=True, finalizers=())

    def _change(self, name: str, **fields: object) -> None:
        self.volumes[name] = replace(self.volumes[name], **fields)  # type: ignore[arg-type]

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
            self.claim = replace(self.claim, phase=ClaimPhase.BOUND)
        elif volume.claim.uid is not None and (self.claim is None or self.claim.uid != volume.claim.uid):
            self._change(name, phase=VolumePhase.RELEASED)

    def _reclaim(self, volume: Volume) -> None:
        if volume.to_be_reclaimed:
            self.data = False
        if volume.to_be_reclaimed or (volume.deleting and volume.phase is not VolumePhase.BOUND):
            del self.volumes[volume.name]

    def advance(self, move: Move) -> bool:
        """Take a step of the command; returns whether the migration is complete."""
        decision = decide(move, self.see(move))
        if isinstance(decision, MigrationStep):
            self.take(decision, move)
        return decision is None

    def act(self, action: str) -> None:
        """Apply an action of a user; a rollback is possible while the CSI volume exists."""
        match action:
            case "forward":
                with suppress(ClaimInUse, MigrationRefused):
                    self.advance(MOVE)
            case "back" if "new" in self.volumes:
                with suppress(ClaimInUse, MigrationRefused):
                    self.advance(BACK)
            case "kubernetes":
                self.kubernetes()
            case "pod" if self.claim and not self.claim.deleting:
                self.pods = 1
            case "no pod":
                self.pods = 0
            case "edit" if self.claim and not self.claim.deleting:
                self.edits += 1


BACK = replace(MOVE, source="new", target="old")
ACTIONS = st.sampled_from(["forward", "back", "kubernetes", "pod", "no pod", "edit"])


@given(st.lists(ACTIONS, max_size=40), st.booleans())
def test_any_sequence_of_events_ends_with_the_claim_and_its_data(actions: list[str], goes_on: bool) -> None:
    world = World()
    for action in actions:
        world.act(action)
        assert world.data

    edits, world.pods = world.edits, 0
    last = MOVE if goes_on or "new" not in world.volumes else BACK
    for _ in range(20):
        world.kubernetes()
        if world.advance(last):
            break
    assert set(world.volumes) == {last.target}
    assert world.volumes[last.target].reclaim_policy is ReclaimPolicy.DELETE
    assert world.claim
    assert (world.claim.volume_name, world.claim.phase) == (last.target, ClaimPhase.BOUND)
    assert (world.data, world.edits) == (True, edits)
