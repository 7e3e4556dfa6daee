from collections.abc import Callable
from typing import Any

import pytest

from tinykube.controllers.binding import set_claim
from tinykube.controllers.scheduler import Placement, place
from tinykube.controllers.values import (
    BIND_COMPLETED,
    SELECTED_NODE,
    Claim,
    Key,
    Meta,
    Pod,
    StorageClass,
)

Make = Callable[..., Any]
POD = Pod(meta=Meta(key=Key("team", "web"), uid="pod-uid", version="1"), claim_names=("data",))


def storage_class(*, waits: bool, provisioner: str = "efs") -> StorageClass:
    meta = Meta(key=Key("", "efs"), uid="class-uid", version="1")
    return StorageClass(meta=meta, provisioner=provisioner, waits_for_consumer=waits)


def placed(claim: Claim | None, *, waits: bool = True) -> Placement:
    claims = {claim.meta.key: claim} if claim else {}
    return place(POD, claims, {Key("", "efs"): storage_class(waits=waits)}, node="n")


def test_pod_without_claims_runs() -> None:
    assert place(Pod(meta=POD.meta), {}, {}, node="n") == Placement(runs=True)


def test_pod_whose_claims_are_bound_runs(claim: Make) -> None:
    assert placed(claim({BIND_COMPLETED: "yes"}, volume_name="vol", phase="Bound")) == Placement(runs=True)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        pytest.param({}, "pod has unbound immediate PersistentVolumeClaims", id="unbound"),
        pytest.param(
            {"class_name": "efs"},
            "pod has unbound immediate PersistentVolumeClaims",
            id="class binds at once",
        ),
        pytest.param(
            {"phase": "Lost", "volume_name": "vol"},
            'persistentvolumeclaim "data" bound to non-existent persistentvolume "vol"',
            id="lost",
        ),
    ],
)
def test_pod_waits(claim: Make, fields: dict[str, Any], problem: str) -> None:
    assert placed(claim(**fields), waits=False) == Placement(problem=problem)


def test_pod_waits_for_a_claim_that_is_not_there() -> None:
    assert placed(None) == Placement(problem='persistentvolumeclaim "data" not found')


def test_first_consumer_has_its_claim_provisioned_once(claim: Make) -> None:
    wanting = claim(class_name="efs")
    assert placed(wanting) == Placement(writes=(set_claim(wanting, {SELECTED_NODE: "n"}),))
    assert placed(claim({SELECTED_NODE: "n"}, class_name="efs")) == Placement()


def test_node_that_takes_no_new_pods() -> None:
    pod = Pod(meta=POD.meta)
    assert place(pod, {}, {}, node="n", cordoned=True) == Placement(problem="1 node(s) were unschedulable")


def test_unready_claims_are_reported_before_a_cordon() -> None:
    assert place(POD, {}, {}, node="n", cordoned=True) == Placement(
        problem='persistentvolumeclaim "data" not found'
    )
