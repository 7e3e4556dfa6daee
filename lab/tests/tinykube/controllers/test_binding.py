from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pytest
from lightkube.models.meta_v1 import LabelSelector, LabelSelectorRequirement

from tinykube.controllers.binding import (
    Write,
    best_match,
    decide_claim,
    decide_volume,
    fits,
    refer_claim,
    set_claim,
)
from tinykube.controllers.values import (
    BIND_COMPLETED,
    BOUND_BY_CONTROLLER,
    PROVISIONED_BY,
    Claim,
    ClaimReference,
    Key,
    Meta,
    StorageClass,
    Volume,
)

Make = Callable[..., Any]
AVAILABLE, BOUND, RELEASED = "Available", "Bound", "Released"
RESERVED = ClaimReference(key=Key("team", "data"))
MINE = ClaimReference(key=Key("team", "data"), uid="claim-uid")
OTHERS = ClaimReference(key=Key("team", "other"), uid="other-uid")
PROVISIONER = "gnuthought.com/efs-stunnel"


def storage_class(*, waits: bool = False, provisioner: str = PROVISIONER) -> StorageClass:
    meta = Meta(key=Key("", "efs"), uid="class-uid", version="1")
    return StorageClass(meta=meta, provisioner=provisioner, waits_for_consumer=waits)


def phase_of(volume: Volume, phase: str) -> Write:
    return Write(volume, {"status": {"phase": phase}})


def bound_to(claim: Claim, size: str = "1000") -> Write:
    status = {"phase": "Bound", "accessModes": ["ReadWriteMany"], "capacity": {"storage": size}}
    return Write(claim, {"status": status})


def by_key(*volumes: Volume) -> Mapping[Key, Volume]:
    return {volume.meta.key: volume for volume in volumes}


class TestUnboundClaim:
    def test_chosen_volume_is_bound_in_four_writes_the_volume_first(self, claim: Make, volume: Make) -> None:
        wanting, free = claim(), volume(phase=AVAILABLE)
        assert decide_claim(wanting, by_key(free), None) == (
            refer_claim(free, MINE, by_controller=True),
            phase_of(free, BOUND),
            set_claim(wanting, {BIND_COMPLETED: "yes", BOUND_BY_CONTROLLER: "yes"}, volume_name="vol"),
            bound_to(wanting),
        )

    def test_volume_reserved_with_uid_needs_no_reference(self, claim: Make, volume: Make) -> None:
        writes = decide_claim(claim(class_name="efs"), by_key(volume(claim=MINE)), storage_class())
        assert [list(write.patch) for write in writes] == [["status"], ["metadata", "spec"], ["status"]]

    def test_volume_reserved_by_name_gets_the_uid_and_stays_a_persons_choice(
        self, claim: Make, volume: Make
    ) -> None:
        reserved = volume(claim=RESERVED, phase=AVAILABLE)
        first = decide_claim(claim(), by_key(reserved), None)[0]
        assert first == refer_claim(reserved, MINE, by_controller=False)

    def test_named_volume_is_not_marked_as_chosen_by_the_controller(self, claim: Make, volume: Make) -> None:
        wanting, named = claim(volume_name="vol"), volume(phase=AVAILABLE)
        writes = decide_claim(wanting, by_key(named), None)
        assert set_claim(wanting, {BIND_COMPLETED: "yes"}, volume_name="vol") in writes

    def test_named_volume_that_is_not_there_is_waited_for(self, claim: Make) -> None:
        assert decide_claim(claim(volume_name="vol"), {}, None) == ()

    @pytest.mark.parametrize(
        "fields",
        [{"size": 1}, {"claim": OTHERS, "phase": BOUND}, {"class_name": "efs"}, {"deleting": True}],
        ids=["too small", "somebody else's", "another class", "being deleted"],
    )
    def test_named_volume_that_cannot_serve_it(
        self, claim: Make, volume: Make, fields: dict[str, Any]
    ) -> None:
        named = volume(**{"phase": AVAILABLE, **fields})
        assert decide_claim(claim(volume_name="vol"), by_key(named), None) == ()

    def test_external_provisioner_is_called_even_with_a_selector(self, claim: Make) -> None:
        wanting = claim(class_name="efs")
        annotations = {
            "volume.kubernetes.io/storage-provisioner": PROVISIONER,
            "volume.beta.kubernetes.io/storage-provisioner": PROVISIONER,
        }
        write = set_claim(wanting, annotations)
        assert decide_claim(wanting, {}, storage_class()) == (write,)
        assert decide_claim(claim(annotations, class_name="efs"), {}, storage_class()) == ()

    def test_nobody_is_called_for_a_class_without_provisioner(self, claim: Make) -> None:
        found = storage_class(provisioner="kubernetes.io/no-provisioner")
        assert decide_claim(claim(class_name="efs"), {}, found) == ()
        assert decide_claim(claim(class_name="efs"), {}, None) == ()

    def test_waits_for_its_first_consumer(self, claim: Make, volume: Make) -> None:
        free = volume(phase=AVAILABLE, class_name="efs")
        assert decide_claim(claim(class_name="efs"), by_key(free), storage_class(waits=True)) == ()

    def test_is_provisioned_once_a_node_is_selected(self, claim: Make) -> None:
        wanting = claim({"volume.kubernetes.io/selected-node": "n1"}, class_name="efs")
        (write,) = decide_claim(wanting, {}, storage_class(waits=True))
        assert "volume.kubernetes.io/storage-provisioner" in write.patch["metadata"]["annotations"]


class TestBoundClaim:
    @pytest.fixture
    def bound(self, claim: Make) -> Claim:
        made: Claim = claim(
            {BIND_COMPLETED: "yes", BOUND_BY_CONTROLLER: "yes"},
            volume_name="vol",
            phase="Bound",
            status_modes=("ReadWriteMany",),
            status_bytes=Decimal(1000),
        )
        return made

    def test_nothing_is_left_to_do(self, bound: Claim, volume: Make) -> None:
        assert decide_claim(bound, by_key(volume(claim=MINE, phase=BOUND)), None) == ()

    def test_new_capacity_of_the_volume_is_left_to_the_program_that_expands_it(
        self, bound: Claim, volume: Make
    ) -> None:
        grown = volume(claim=MINE, phase=BOUND, size=5000)
        assert decide_claim(bound, by_key(grown), None) == ()

    @pytest.mark.parametrize("owners", [[], [OTHERS]], ids=["volume is gone", "volume is somebody else's"])
    def test_is_lost(self, bound: Claim, volume: Make, owners: list[ClaimReference]) -> None:
        writes = decide_claim(bound, by_key(*(volume(claim=owner, phase=BOUND) for owner in owners)), None)
        assert writes == (Write(bound, {"status": {"phase": "Lost", "accessModes": None, "capacity": None}}),)

    def test_is_lost_only_once(self, claim: Make) -> None:
        lost = claim({BIND_COMPLETED: "yes"}, volume_name="vol", phase="Lost")
        assert decide_claim(lost, {}, None) == ()


class TestVolume:
    @pytest.mark.parametrize("owner", [None, RESERVED], ids=["free", "reserved by name"])
    def test_becomes_available(self, volume: Make, owner: ClaimReference | None) -> None:
        free = volume(claim=owner)
        assert decide_volume(free, None) == (phase_of(free, AVAILABLE),)

    def test_half_bound_is_left_to_its_claim(self, volume: Make, claim: Make) -> None:
        assert decide_volume(volume(claim=MINE), claim()) == ()

    def test_of_its_claim_is_bound(self, volume: Make, claim: Make) -> None:
        mine = volume(claim=MINE)
        writes = decide_volume(mine, claim(volume_name="vol"))
        assert writes == (phase_of(mine, BOUND),)

    @pytest.mark.parametrize("owner", ["nobody", "a namesake"])
    def test_is_released_when_its_claim_is_gone(self, volume: Make, claim: Make, owner: str) -> None:
        held = volume(claim=ClaimReference(key=Key("team", "data"), uid="gone"), phase=BOUND)
        writes = decide_volume(held, claim() if owner != "nobody" else None)
        assert writes == (phase_of(held, RELEASED),)

    def test_released_stays_as_it_is(self, volume: Make) -> None:
        assert decide_volume(volume(claim=MINE, phase=RELEASED), None) == ()

    def test_whose_claim_went_elsewhere_is_free_again(self, volume: Make, claim: Make) -> None:
        chosen = volume(claim=MINE, phase=BOUND, annotations={BOUND_BY_CONTROLLER: "yes"})
        assert decide_volume(chosen, claim(volume_name="elsewhere")) == (
            refer_claim(chosen, None, by_controller=False),
            phase_of(chosen, AVAILABLE),
        )

    def test_reserved_by_a_person_stays_reserved(self, volume: Make, claim: Make) -> None:
        reserved = volume(claim=MINE, phase=AVAILABLE)
        expected = refer_claim(reserved, RESERVED, by_controller=False)
        assert decide_volume(reserved, claim(volume_name="elsewhere")) == (expected,)

    def test_provisioned_for_a_claim_that_went_elsewhere_is_released(self, volume: Make, claim: Make) -> None:
        spare = volume(
            claim=MINE,
            phase=BOUND,
            reclaim_policy="Delete",
            annotations={PROVISIONED_BY: PROVISIONER},
        )
        writes = decide_volume(spare, claim(volume_name="elsewhere"))
        assert writes == (phase_of(spare, RELEASED),)


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
        pytest.param(MINE, True, "yes", RENDERED, id="chosen"),
        pytest.param(MINE, False, None, RENDERED, id="reserved by a person"),
        pytest.param(RESERVED, False, None, {**RENDERED, "uid": None}, id="uid removed"),
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
    assert refer_claim(volume(), claim_reference, by_controller=by_controller).patch == {
        "metadata": {"annotations": {BOUND_BY_CONTROLLER: annotation}},
        "spec": {"claimRef": rendered},
    }


def test_claim_keeps_its_volume_name_unless_one_is_given(claim: Make) -> None:
    assert set_claim(claim(), {"a": "b"}).patch == {"metadata": {"annotations": {"a": "b"}}}
    assert set_claim(claim(), {}, volume_name="vol").patch["spec"] == {"volumeName": "vol"}


def test_smallest_sufficient_volume_wins(claim: Make, volume: Make) -> None:
    volumes = [
        volume(name, size=size, phase=AVAILABLE) for name, size in [("a", 900), ("b", 4000), ("c", 2000)]
    ]
    assert best_match(claim(), volumes) == volumes[2]


def test_fewer_access_modes_win_over_size(claim: Make, volume: Make) -> None:
    small = volume("small", phase=AVAILABLE, access_modes=("ReadWriteMany", "ReadOnlyMany"))
    exact = volume("exact", size=9000, phase=AVAILABLE)
    assert best_match(claim(), [small, exact]) == exact


def test_reserved_volume_wins_over_a_better_free_one(claim: Make, volume: Make) -> None:
    free = volume("free", phase=AVAILABLE)
    reserved = volume("reserved", size=9000, claim=RESERVED, class_name="other")
    assert best_match(claim(), [free, reserved]) == reserved


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"phase": "Pending"}, id="not available yet"),
        pytest.param({"phase": "Released"}, id="released"),
        pytest.param({"class_name": "efs"}, id="of another class"),
        pytest.param({"size": 999}, id="too small"),
        pytest.param({"volume_mode": "Block"}, id="a block device"),
        pytest.param({"access_modes": ("ReadWriteOnce",)}, id="for one node only"),
        pytest.param({"deleting": True}, id="being deleted"),
        pytest.param({"claim": ClaimReference(key=Key("team", "other"))}, id="reserved for another claim"),
        pytest.param({"claim": ClaimReference(key=Key("other", "data"))}, id="reserved in another namespace"),
        pytest.param({"claim": ClaimReference(key=RESERVED.key, uid="old")}, id="bound to an older namesake"),
        pytest.param({"claim": RESERVED, "size": 10}, id="reserved but too small"),
    ],
)
def test_volume_that_will_not_do(claim: Make, volume: Make, fields: dict[str, Any]) -> None:
    assert best_match(claim(), [volume(**{"phase": AVAILABLE, **fields})]) is None


@pytest.mark.parametrize("class_name", [None, ""], ids=["claim without class", "claim with empty class"])
def test_claim_without_class_takes_volume_without_class(
    claim: Make, volume: Make, class_name: str | None
) -> None:
    free = volume(phase=AVAILABLE)
    assert best_match(claim(class_name=class_name), [free]) == free


def test_claim_that_waits_takes_only_what_is_reserved(claim: Make, volume: Make) -> None:
    free, reserved = volume("free", phase=AVAILABLE), volume("reserved", claim=RESERVED)
    assert best_match(claim(), [free], reserved_only=True) is None
    assert best_match(claim(), [free, reserved], reserved_only=True) == reserved


@pytest.mark.parametrize(
    ("operator", "values", "labels", "taken"),
    [
        ("In", ["x", "y"], {"k": "x"}, True),
        ("In", ["y"], {"k": "x"}, False),
        ("In", ["y"], {}, False),
        ("NotIn", ["y"], {"k": "x"}, True),
        ("NotIn", ["x"], {"k": "x"}, False),
        ("NotIn", ["x"], {}, True),
        ("Exists", None, {"k": "x"}, True),
        ("Exists", None, {}, False),
        ("DoesNotExist", None, {}, True),
        ("DoesNotExist", None, {"k": "x"}, False),
    ],
)
def test_selector(
    claim: Make, volume: Make, operator: str, values: list[str] | None, labels: dict[str, str], taken: bool
) -> None:
    expression = LabelSelectorRequirement(key="k", operator=operator, values=values)
    wanting = claim(selector=LabelSelector(matchExpressions=[expression]))
    found = best_match(wanting, [volume(phase=AVAILABLE, labels=labels)])
    assert (found is not None) is taken


def test_labels_of_a_selector(claim: Make, volume: Make) -> None:
    wanting = claim(selector=LabelSelector(matchLabels={"k": "x"}))
    free = [volume(name, phase=AVAILABLE, labels={"k": name}) for name in ("x", "y")]
    assert best_match(wanting, free) == free[0]
    assert best_match(wanting, free[1:]) is None


@pytest.mark.parametrize(
    ("fields", "fitting"),
    [
        pytest.param({}, True, id="fits"),
        pytest.param({"size": 1}, False, id="small"),
        pytest.param({"class_name": "x"}, False, id="class"),
        pytest.param({"volume_mode": "Block"}, False, id="mode"),
        pytest.param({"access_modes": ()}, False, id="access"),
        pytest.param({"deleting": True}, False, id="deleting"),
    ],
)
def test_volume_that_a_claim_names(claim: Make, volume: Make, fields: dict[str, Any], fitting: bool) -> None:
    assert fits(volume(**fields), claim()) is fitting
