from collections.abc import Callable
from typing import Any

import pytest

from tinykube.controllers.scheduler import Prepare, Refuse, Run, place
from tinykube.controllers.values import (
    BIND_COMPLETED,
    NO_PROVISIONER,
    SELECTED_NODE,
    Claim,
    ClaimPhase,
    ClaimReference,
    Key,
    Meta,
    Pod,
    StorageClass,
    Volume,
    VolumePhase,
)

Make = Callable[..., Any]
POD = Pod(meta=Meta(key=Key("team", "web"), uid="pod-uid", version="1"), claim_names=("data",))


def storage_class(*, waits: bool, provisioner: str = "efs") -> StorageClass:
    meta = Meta(key=Key("", "efs"), uid="class-uid", version="1")
    return StorageClass(meta=meta, provisioner=provisioner, waits_for_consumer=waits)


def placed(claim: Claim | None, *volumes: Volume, waits: bool = True, provisioner: str = "efs") -> Any:
    claims = {claim.meta.key: claim} if claim else {}
    classes = {Key("", "efs"): storage_class(waits=waits, provisioner=provisioner)}
    return place(POD, claims, {volume.meta.key: volume for volume in volumes}, classes)


def test_pod_without_claims_runs() -> None:
    assert place(Pod(meta=POD.meta), {}, {}, {}) == Run()


def test_pod_whose_claims_are_bound_runs(claim: Make) -> None:
    assert placed(claim({BIND_COMPLETED: "yes"}, volume_name="vol", phase=ClaimPhase.BOUND)) == Run()


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
            {"phase": ClaimPhase.LOST, "volume_name": "vol"},
            'persistentvolumeclaim "data" bound to non-existent persistentvolume "vol"',
            id="lost",
        ),
    ],
)
def test_pod_waits(claim: Make, fields: dict[str, Any], problem: str) -> None:
    assert placed(claim(**fields), waits=False) == Refuse(problem)


def test_pod_waits_for_a_claim_that_is_not_there() -> None:
    assert placed(None) == Refuse('persistentvolumeclaim "data" not found')


def test_first_consumer_has_its_claim_provisioned_once(claim: Make) -> None:
    wanting = claim(class_name="efs")
    assert placed(wanting) == Prepare((), (wanting,))
    assert placed(claim({SELECTED_NODE: "n"}, class_name="efs")) == Prepare((), ())


def test_first_consumer_gets_a_free_volume_if_there_is_one(claim: Make, volume: Make) -> None:
    wanting = claim(class_name="efs")
    free = volume(class_name="efs", phase=VolumePhase.AVAILABLE)
    assert placed(wanting, free) == Prepare(((wanting, free),), ())


def test_reserved_volume_is_left_to_the_binder(claim: Make, volume: Make) -> None:
    reserved = volume(claim=ClaimReference(key=Key("team", "data")))
    assert placed(claim(class_name="efs"), reserved) == Prepare((), ())


def test_class_without_provisioner_needs_a_volume(claim: Make) -> None:
    found = placed(claim(class_name="efs"), provisioner=NO_PROVISIONER)
    assert found == Refuse("1 node(s) didn't find available persistent volumes to bind")


def test_refusal_in_kubernetes_words() -> None:
    assert Refuse("x").message == (
        "0/1 nodes are available: x. preemption: 0/1 nodes are available:"
        " 1 Preemption is not helpful for scheduling."
    )


def test_node_that_takes_no_new_pods() -> None:
    pod = Pod(meta=POD.meta)
    assert place(pod, {}, {}, {}, cordoned=True) == Refuse("1 node(s) were unschedulable")


def test_unready_claims_are_told_before_a_cordon() -> None:
    assert place(POD, {}, {}, {}, cordoned=True) == Refuse('persistentvolumeclaim "data" not found')
