from collections.abc import Callable
from typing import Any

import pytest

from tinykube.controllers.binding import refer_claim, set_claim
from tinykube.controllers.scheduler import Placement, place
from tinykube.controllers.values import (
    BIND_COMPLETED,
    NO_PROVISIONER,
    SELECTED_NODE,
    Claim,
    ClaimReference,
    Key,
    Meta,
    Pod,
    StorageClass,
    Volume,
)

Make = Callable[..., Any]
POD = Pod(meta=Meta(key=Key("team", "web"), uid="pod-uid", version="1"), claim_names=("data",))


def storage_class(*, waits: bool, provisioner: str = "efs") -> StorageClass:
    meta = Meta(key=Key("", "efs"), uid="class-uid", version="1")
    return StorageClass(meta=meta, provisioner=provisioner, waits_for_consumer=waits)


def placed(claim: Claim | None, *volumes: Volume, waits: bool = True, provisioner: str = "efs") -> Any:
    claims = {claim.meta.key: claim} if claim else {}
    classes = {Key("", "efs"): storage_class(waits=waits, provisioner=provisioner)}
    return place(POD, claims, {volume.meta.key: volume for volume in volumes}, classes, node="n")


def test_pod_without_claims_runs() -> None:
    assert place(Pod(meta=POD.meta), {}, {}, {}, node="n") == Placement(runs=True)


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


def test_first_consumer_gets_a_free_volume_if_there_is_one(claim: Make, volume: Make) -> None:
    wanting = claim(class_name="efs")
    free = volume(class_name="efs", phase="Available")
    reference = ClaimReference(key=wanting.meta.key, uid=wanting.meta.uid)
    assert placed(wanting, free) == Placement(writes=(refer_claim(free, reference, by_controller=True),))


def test_reserved_volume_is_left_to_the_binder(claim: Make, volume: Make) -> None:
    reserved = volume(claim=ClaimReference(key=Key("team", "data")))
    assert placed(claim(class_name="efs"), reserved) == Placement()


def test_class_without_provisioner_needs_a_volume(claim: Make) -> None:
    found = placed(claim(class_name="efs"), provisioner=NO_PROVISIONER)
    assert found == Placement(problem="1 node(s) didn't find available persistent volumes to bind")


def test_node_that_takes_no_new_pods() -> None:
    pod = Pod(meta=POD.meta)
    assert place(pod, {}, {}, {}, node="n", cordoned=True) == Placement(
        problem="1 node(s) were unschedulable"
    )


def test_unready_claims_are_reported_before_a_cordon() -> None:
    assert place(POD, {}, {}, {}, node="n", cordoned=True) == Placement(
        problem='persistentvolumeclaim "data" not found'
    )
