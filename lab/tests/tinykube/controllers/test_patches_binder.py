from collections.abc import Callable
from typing import Any

import pytest

from tinykube.controllers.binding import ReferClaim, SetClaim, SetClaimStatus, SetVolumePhase, on_top_of
from tinykube.controllers.values import (
    BIND_COMPLETED,
    BOUND_BY_CONTROLLER,
    ClaimPhase,
    ClaimReference,
    Key,
    VolumePhase,
)

Make = Callable[..., Any]
REFERENCE = ClaimReference(key=Key("team", "data"), uid="claim-uid")
RENDERED = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "namespace": "team",
    "name": "data",
    "uid": "claim-uid",
}


@pytest.mark.parametrize(
    ("claim_reference", "by_controller", "annotation", "rendered"),
    [
        pytest.param(REFERENCE, True, "yes", RENDERED, id="chosen"),
        pytest.param(REFERENCE, False, None, RENDERED, id="reserved by a person"),
        pytest.param(
            ClaimReference(key=Key("team", "data")), False, None, {**RENDERED, "uid": None}, id="uid removed"
        ),
        pytest.param(None, False, None, None, id="freed"),
    ],
)
def test_claim_of_a_volume(
    volume: Make,
    claim_reference: ClaimReference | None,
    by_controller: bool,
    annotation: str | None,
    rendered: Any,
) -> None:
    step = ReferClaim(volume=volume(), claim=claim_reference, by_controller=by_controller)
    assert step.patch() == {
        "metadata": {"annotations": {BOUND_BY_CONTROLLER: annotation}},
        "spec": {"claimRef": rendered},
    }


def test_phase_of_a_volume(volume: Make) -> None:
    step = SetVolumePhase(volume=volume(), phase=VolumePhase.RELEASED)
    assert step.patch() == {"status": {"phase": "Released"}}


def test_claim_keeps_its_volume_name_unless_one_is_given(claim: Make) -> None:
    step = SetClaim(claim=claim(), annotations={BIND_COMPLETED: "yes"})
    assert step.patch() == {"metadata": {"annotations": {BIND_COMPLETED: "yes"}}}
    bound = SetClaim(claim=claim(), volume_name="vol")
    assert bound.patch()["spec"] == {"volumeName": "vol"}


def test_status_of_a_claim(claim: Make, volume: Make) -> None:
    bound = SetClaimStatus(claim=claim(), phase=ClaimPhase.BOUND, volume=volume(size=5))
    lost = SetClaimStatus(claim=claim(), phase=ClaimPhase.LOST)
    assert bound.patch()["status"] == {
        "phase": "Bound",
        "accessModes": ["ReadWriteMany"],
        "capacity": {"storage": "5"},
    }
    assert lost.patch()["status"] == {"phase": "Lost", "accessModes": None, "capacity": None}


def test_patch_is_for_the_version_that_was_decided_on_or_that_a_step_before_made(claim: Make) -> None:
    step = SetClaim(claim=claim(), annotations={"a": "b"})
    meta = claim().meta
    first = on_top_of(meta, {}, step)["metadata"]
    assert first == {"annotations": {"a": "b"}, "resourceVersion": "1", "uid": "claim-uid"}
    assert on_top_of(meta, {"claim-uid": "9"}, step)["metadata"]["resourceVersion"] == "9"
