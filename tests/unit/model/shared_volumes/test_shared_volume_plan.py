"""The next step for a SharedVolume, for every state of it, its volume and its claim."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.model.claims import Claim, ClaimPhase
from kube_efs.model.efs.ids import ClaimUid
from kube_efs.model.shared_volumes.plan import Found, Step, decide, failed
from kube_efs.model.shared_volumes.shared_volume import (
    FINALIZER,
    OWNED,
    MarkedClaim,
    MarkedVolume,
    Marks,
    Owner,
    SharedVolume,
    SharedVolumePhase,
    SharedVolumeSource,
    Status,
    marks_of,
)
from kube_efs.model.volumes import ClaimReference, CsiSource, Volume

OWNER = Owner(namespace="proj2", name="sv1")
SOURCE = SharedVolumeSource(file_system_id="fs-1234cdef", access_point_id="fsap-0123456789abcdef")
OTHER = SharedVolumeSource(file_system_id="fs-1234cdef", access_point_id="fsap-fedcba9876543210")
UID = ClaimUid("claim-1")
PENDING = Status(phase=SharedVolumePhase.PENDING)

NEW = SharedVolume(owner=OWNER, uid="u", generation=1, source=SOURCE)
HELD = replace(NEW, finalizers=(FINALIZER,))
INVALID = replace(NEW, source=replace(SOURCE, access_point_id="fsap-1"))
BEGUN = replace(HELD, status=PENDING)
LEAVING = replace(BEGUN, deleting=True)

VOLUME = MarkedVolume(
    volume=Volume(
        name=OWNER.volume_name,
        uid="v",
        csi=CsiSource(handle=SOURCE.handle),
        claim=ClaimReference(namespace="proj2", name="pvc-sv1", uid=UID),
        finalizers=("kubernetes.io/pv-protection",),
    ),
    marks=marks_of(OWNER),
)
CLAIM = MarkedClaim(
    claim=Claim(
        namespace="proj2",
        name="pvc-sv1",
        uid=UID,
        phase=ClaimPhase.BOUND,
        storage_class="efs-sc",
        volume_name=OWNER.volume_name,
    ),
    marks=marks_of(OWNER),
)


def volume(marks: Marks | None = None, **fields: object) -> MarkedVolume:
    changed = replace(VOLUME.volume, **fields)  # type: ignore[arg-type]
    return MarkedVolume(volume=changed, marks=VOLUME.marks if marks is None else marks)


def claim(marks: Marks | None = None, **fields: object) -> MarkedClaim:
    changed = replace(CLAIM.claim, **fields)  # type: ignore[arg-type]
    return MarkedClaim(claim=changed, marks=CLAIM.marks if marks is None else marks)


def reference(**fields: object) -> ClaimReference:
    assert VOLUME.volume.claim
    return replace(VOLUME.volume.claim, **fields)  # type: ignore[arg-type]


FOREIGN = Marks()
HALF = Marks(labels={OWNED: "true"})
LEGACY = volume(
    csi=CsiSource(handle="fs-1234cdef"), mount_options=("tls", f"accesspoint={SOURCE.access_point_id}")
)


@pytest.mark.parametrize(
    ("found", "step"),
    [
        pytest.param(Found(shared=NEW), Step.HOLD, id="finalizer is first"),
        pytest.param(Found(shared=HELD), Step.BEGIN, id="then the first status"),
        pytest.param(Found(shared=BEGUN), Step.MAKE_VOLUME, id="then the volume"),
        pytest.param(Found(shared=BEGUN, claim=CLAIM), Step.MAKE_VOLUME, id="lost volume is recreated"),
        pytest.param(
            Found(shared=BEGUN, volume=volume(claim=reference(uid=None))),
            Step.MAKE_CLAIM,
            id="then the claim",
        ),
        pytest.param(
            Found(shared=BEGUN, volume=VOLUME), Step.TIE_VOLUME, id="reference to a deleted claim is removed"
        ),
        pytest.param(
            Found(shared=BEGUN, volume=volume(claim=None)), Step.TIE_VOLUME, id="free volume is reserved"
        ),
        pytest.param(
            Found(shared=BEGUN, volume=volume(claim=reference(uid=ClaimUid("old"))), claim=CLAIM),
            Step.TIE_VOLUME,
            id="claim was recreated",
        ),
        pytest.param(
            Found(shared=BEGUN, volume=volume(claim=reference(uid=None)), claim=claim(phase=ClaimPhase.LOST)),
            Step.TIE_VOLUME,
            id="volume does not name a Lost claim",
        ),
        pytest.param(
            Found(shared=BEGUN, volume=volume(HALF), claim=CLAIM),
            Step.MARK_VOLUME,
            id="volume's lost labels",
        ),
        pytest.param(
            Found(shared=BEGUN, volume=VOLUME, claim=claim(HALF)), Step.MARK_CLAIM, id="claim's lost labels"
        ),
        pytest.param(
            Found(shared=replace(BEGUN, source=OTHER), volume=VOLUME, claim=CLAIM), Step.RESTORE, id="edit"
        ),
        pytest.param(
            Found(shared=replace(BEGUN, source=replace(SOURCE, file_system_id="fs-1")), volume=VOLUME),
            Step.RESTORE,
            id="edit to an invalid value",
        ),
        pytest.param(
            Found(shared=replace(NEW, source=OTHER), volume=LEGACY), Step.RESTORE, id="edit, old volume"
        ),
        pytest.param(
            Found(shared=LEAVING, volume=VOLUME, claim=CLAIM), Step.REMOVE_CLAIM, id="claim is deleted first"
        ),
        pytest.param(
            Found(shared=LEAVING, volume=VOLUME, claim=claim(deleting=True)),
            Step.REMOVE_VOLUME,
            id="then the volume is deleted",
        ),
        pytest.param(Found(shared=LEAVING), Step.RELEASE, id="finalizer is removed after both"),
        pytest.param(
            Found(shared=LEAVING, volume=volume(FOREIGN), claim=claim(FOREIGN)),
            Step.RELEASE,
            id="foreign objects are kept",
        ),
        pytest.param(
            Found(shared=replace(LEAVING, source=SharedVolumeSource(file_system_id="", access_point_id=""))),
            Step.RELEASE,
            id="deletion without a spec",
        ),
    ],
)
def test_next_step_depends_on_the_found_objects(found: Found, step: Step) -> None:
    assert decide(found) is step


@pytest.mark.parametrize(
    ("found", "is_lasting"),
    [
        pytest.param(Found(shared=replace(NEW, owner=replace(OWNER, name="x" * 250))), True, id="long name"),
        pytest.param(Found(shared=INVALID), True, id="invalid ID"),
        # Not every such object is watched.
        pytest.param(Found(shared=INVALID, volume=volume(FOREIGN)), False, id="foreign volume, invalid ID"),
        pytest.param(Found(shared=INVALID, claim=claim(FOREIGN)), False, id="foreign claim, invalid ID"),
        pytest.param(Found(shared=BEGUN, refusal="is not allowed"), False, id="limit"),
        pytest.param(Found(shared=BEGUN, volume=VOLUME, claim=CLAIM), False, id="complete"),
    ],
)
def test_only_an_invalid_shared_volume_is_refused_for_good(found: Found, is_lasting: bool) -> None:
    status = decide(found)
    assert isinstance(status, Status)
    assert status.is_lasting is is_lasting
    later = decide(replace(found, shared=replace(BEGUN, status=status), volume=VOLUME, claim=CLAIM))
    assert isinstance(later, Status)
    assert not later.is_lasting


@pytest.mark.parametrize(
    ("found", "phase", "told"),
    [
        pytest.param(
            Found(shared=BEGUN, volume=VOLUME, claim=CLAIM), SharedVolumePhase.READY, "", id="complete"
        ),
        pytest.param(
            Found(shared=BEGUN, volume=LEGACY, claim=CLAIM), SharedVolumePhase.READY, "", id="old volume"
        ),
        pytest.param(
            Found(shared=BEGUN, volume=volume(csi=None), claim=CLAIM),
            SharedVolumePhase.READY,
            "",
            id="volume without an access point",
        ),
        pytest.param(
            Found(shared=replace(NEW, owner=replace(OWNER, name="x" * 250))),
            SharedVolumePhase.FAILED,
            "metadata.name: ",
            id="name that is too long",
        ),
        pytest.param(
            Found(shared=INVALID),
            SharedVolumePhase.FAILED,
            "spec.accessPointID: 'fsap-1'",
            id="invalid ID",
        ),
        pytest.param(
            Found(shared=NEW, volume=volume(FOREIGN)),
            SharedVolumePhase.FAILED,
            "PersistentVolume: 'pv-proj2-sv1' exists already and was not created for this SharedVolume",
            id="foreign volume",
        ),
        pytest.param(
            Found(shared=NEW, claim=claim(FOREIGN)),
            SharedVolumePhase.FAILED,
            "PersistentVolumeClaim: 'pvc-sv1' exists already",
            id="foreign claim",
        ),
        pytest.param(
            Found(shared=BEGUN, volume=volume(claim=reference(namespace="thief", name="data")), claim=CLAIM),
            SharedVolumePhase.FAILED,
            "is bound to claim thief/data",
            id="volume bound to another claim",
        ),
        pytest.param(
            Found(shared=BEGUN, volume=VOLUME, claim=claim(volume_name="pv-x")),
            SharedVolumePhase.FAILED,
            "is for volume pv-x, not pv-proj2-sv1",
            id="claim bound to another volume",
        ),
        pytest.param(
            Found(shared=BEGUN, refusal="not here"), SharedVolumePhase.FAILED, "not here", id="not allowed"
        ),
        pytest.param(
            Found(shared=BEGUN, volume=VOLUME, claim=CLAIM, refusal="not here"),
            SharedVolumePhase.READY,
            "",
            id="limit does not affect an existing volume",
        ),
        pytest.param(
            Found(shared=BEGUN, volume=VOLUME, claim=claim(deleting=True), users=("a", "b")),
            SharedVolumePhase.PENDING,
            "waits until claim pvc-sv1 is gone, which pods a, b use; then it is created again",
            id="claim that is being deleted",
        ),
        pytest.param(
            Found(shared=BEGUN, volume=volume(deleting=True), claim=CLAIM),
            SharedVolumePhase.PENDING,
            "delete claim pvc-sv1 when no pod uses it; then both are created again",
            id="volume in use that is being deleted",
        ),
        pytest.param(
            Found(
                shared=replace(NEW, finalizers=(FINALIZER,), status=PENDING, source=OTHER),
                volume=volume(deleting=True),
            ),
            SharedVolumePhase.PENDING,
            "waits until volume pv-proj2-sv1 is gone, which kubernetes.io/pv-protection holds",
            id="volume of an earlier SharedVolume",
        ),
        pytest.param(
            Found(
                shared=LEAVING,
                volume=volume(deleting=True),
                claim=claim(deleting=True),
                users=("a", "b", "c", "d", "e", "f", "g"),
            ),
            SharedVolumePhase.DELETING,
            "waits until claim pvc-sv1 is gone, which pods a, b, c, d, e and 2 more use",
            id="deletion waits for pods",
        ),
        pytest.param(
            Found(shared=LEAVING, volume=volume(deleting=True)),
            SharedVolumePhase.DELETING,
            "waits until volume pv-proj2-sv1 is gone",
            id="deletion waits for the volume",
        ),
    ],
)
def test_status_reports_why_no_step_is_possible(found: Found, phase: SharedVolumePhase, told: str) -> None:
    status = decide(found)
    assert isinstance(status, Status)
    assert status.phase is phase
    assert status.message == told if not told else told in status.message
    assert status.generation == found.shared.generation


def test_ready_names_the_claim_and_clears_the_error() -> None:
    before = replace(PENDING, phase=SharedVolumePhase.FAILED, message="was wrong")
    found = Found(shared=replace(BEGUN, status=before), volume=VOLUME, claim=CLAIM)
    assert decide(found) == Status(
        phase=SharedVolumePhase.READY, claim_name="pvc-sv1", bound=True, matches=True, generation=1
    )


def test_ready_does_not_mean_bound() -> None:
    status = decide(Found(shared=BEGUN, volume=VOLUME, claim=claim(phase=ClaimPhase.PENDING)))
    assert isinstance(status, Status)
    assert (status.phase, status.bound) == (SharedVolumePhase.READY, False)


def test_failure_keeps_the_claim_name() -> None:
    found = Found(shared=replace(BEGUN, status=replace(PENDING, claim_name="pvc-sv1")))
    assert failed(found, "no quota").claim_name == "pvc-sv1"
    assert failed(found, "no quota").message == "no quota"
    assert failed(replace(found, shared=LEAVING), "x").phase is SharedVolumePhase.DELETING


def test_object_with_another_finalizer_is_not_changed() -> None:
    leaving = replace(LEAVING, finalizers=("example.com/backup",))
    assert decide(Found(shared=leaving, volume=VOLUME, claim=CLAIM)) is None


MARKS = st.sampled_from([marks_of(OWNER), HALF, FOREIGN, marks_of(Owner(namespace="proj2-sv1", name="x"))])
volumes = st.none() | st.builds(
    volume,
    MARKS,
    deleting=st.booleans(),
    csi=st.sampled_from([CsiSource(handle=SOURCE.handle), CsiSource(handle=OTHER.handle), None]),
    claim=st.sampled_from(
        [None, reference(), reference(uid=None), reference(uid="old"), reference(name="x")]
    ),
)
claims = st.none() | st.builds(
    claim,
    MARKS,
    deleting=st.booleans(),
    phase=st.sampled_from(ClaimPhase),
    volume_name=st.sampled_from([OWNER.volume_name, "pv-x"]),
)


@given(st.sampled_from([NEW, HELD, BEGUN, LEAVING]), volumes, claims)
def test_steps_terminate_and_change_no_foreign_objects(
    shared: SharedVolume, found_volume: MarkedVolume | None, found_claim: MarkedClaim | None
) -> None:
    found: Found | None = Found(shared=shared, volume=found_volume, claim=found_claim)
    for _ in range(12):
        assert found
        decision = decide(found)
        if not isinstance(decision, Step):
            return
        if decision in (Step.MARK_VOLUME, Step.TIE_VOLUME, Step.REMOVE_VOLUME, Step.RESTORE):
            assert found.volume
            assert found.volume.belongs_to(OWNER)
        if decision in (Step.MARK_CLAIM, Step.REMOVE_CLAIM):
            assert found.claim
            assert found.claim.is_ours
        found = _after(decision, found)
        if found is None:
            return
    raise AssertionError("there is always something left to do")


def _after(step: Step, found: Found) -> Found | None:
    """The objects after the step, without other changes."""
    shared, there, claimed = found.shared, found.volume or VOLUME, found.claim or CLAIM
    own = reference(uid=found.claim.claim.uid if found.claim else None)
    changes: dict[Step, dict[str, Any]] = {
        Step.HOLD: {"shared": replace(shared, finalizers=(FINALIZER,))},
        Step.BEGIN: {"shared": replace(shared, status=PENDING)},
        Step.RESTORE: {"shared": replace(shared, source=there.source or SOURCE)},
        Step.MAKE_VOLUME: {"volume": volume(claim=own)},
        Step.MAKE_CLAIM: {"claim": CLAIM},
        Step.TIE_VOLUME: {"volume": replace(there, volume=replace(there.volume, claim=own))},
        Step.MARK_VOLUME: {"volume": replace(there, marks=marks_of(OWNER))},
        Step.MARK_CLAIM: {"claim": replace(claimed, marks=marks_of(OWNER))},
        Step.REMOVE_VOLUME: {"volume": None},
        Step.REMOVE_CLAIM: {"claim": replace(claimed, claim=replace(claimed.claim, deleting=True))},
    }
    return replace(found, **changes[step]) if step in changes else None
