from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pytest

from tinykube.controllers.binding import (
    ReferClaim,
    SetClaim,
    SetClaimStatus,
    SetVolumePhase,
    decide_claim,
    decide_volume,
)
from tinykube.controllers.values import (
    BIND_COMPLETED,
    BOUND_BY_CONTROLLER,
    PROVISIONED_BY,
    Claim,
    ClaimPhase,
    ClaimReference,
    Key,
    Meta,
    ReclaimPolicy,
    StorageClass,
    Volume,
    VolumePhase,
)

Make = Callable[..., Any]
AVAILABLE, BOUND, RELEASED = VolumePhase.AVAILABLE, VolumePhase.BOUND, VolumePhase.RELEASED
RESERVED = ClaimReference(key=Key("team", "data"))
MINE = ClaimReference(key=Key("team", "data"), uid="claim-uid")
OTHERS = ClaimReference(key=Key("team", "other"), uid="other-uid")
PROVISIONER = "gnuthought.com/efs-stunnel"


def storage_class(*, waits: bool = False, provisioner: str = PROVISIONER) -> StorageClass:
    meta = Meta(key=Key("", "efs"), uid="class-uid", version="1")
    return StorageClass(meta=meta, provisioner=provisioner, waits_for_consumer=waits)


def by_key(*volumes: Volume) -> Mapping[Key, Volume]:
    return {volume.meta.key: volume for volume in volumes}


class TestUnboundClaim:
    def test_chosen_volume_is_bound_in_four_writes_the_volume_first(self, claim: Make, volume: Make) -> None:
        wanting, free = claim(), volume(phase=AVAILABLE)
        assert decide_claim(wanting, by_key(free), None) == (
            ReferClaim(volume=free, claim=MINE, by_controller=True),
            SetVolumePhase(volume=free, phase=BOUND),
            SetClaim(
                claim=wanting,
                volume_name="vol",
                annotations={BIND_COMPLETED: "yes", BOUND_BY_CONTROLLER: "yes"},
            ),
            SetClaimStatus(claim=wanting, phase=ClaimPhase.BOUND, volume=free),
        )

    def test_volume_reserved_with_uid_needs_no_reference(self, claim: Make, volume: Make) -> None:
        writes = decide_claim(claim(class_name="efs"), by_key(volume(claim=MINE)), storage_class())
        assert [type(step) for step in writes] == [SetVolumePhase, SetClaim, SetClaimStatus]

    def test_volume_reserved_by_name_gets_the_uid_and_stays_a_persons_choice(
        self, claim: Make, volume: Make
    ) -> None:
        reserved = volume(claim=RESERVED, phase=AVAILABLE)
        first = decide_claim(claim(), by_key(reserved), None)[0]
        assert first == ReferClaim(volume=reserved, claim=MINE, by_controller=False)

    def test_named_volume_is_not_marked_as_chosen_by_the_controller(self, claim: Make, volume: Make) -> None:
        wanting, named = claim(volume_name="vol"), volume(phase=AVAILABLE)
        writes = decide_claim(wanting, by_key(named), None)
        assert SetClaim(claim=wanting, volume_name="vol", annotations={BIND_COMPLETED: "yes"}) in writes

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
        write = SetClaim(claim=wanting, annotations=annotations)
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
        assert isinstance(write, SetClaim)


class TestBoundClaim:
    @pytest.fixture
    def bound(self, claim: Make) -> Claim:
        made: Claim = claim(
            {BIND_COMPLETED: "yes", BOUND_BY_CONTROLLER: "yes"},
            volume_name="vol",
            phase=ClaimPhase.BOUND,
            status_modes=("ReadWriteMany",),
            status_bytes=Decimal(1000),
        )
        return made

    def test_nothing_is_left_to_do(self, bound: Claim, volume: Make) -> None:
        assert decide_claim(bound, by_key(volume(claim=MINE, phase=BOUND)), None) == ()

    def test_new_capacity_of_the_volume_is_taken_over(self, bound: Claim, volume: Make) -> None:
        grown = volume(claim=MINE, phase=BOUND, size=5000)
        expected = SetClaimStatus(claim=bound, phase=ClaimPhase.BOUND, volume=grown)
        assert decide_claim(bound, by_key(grown), None) == (expected,)

    @pytest.mark.parametrize("owners", [[], [OTHERS]], ids=["volume is gone", "volume is somebody else's"])
    def test_is_lost(self, bound: Claim, volume: Make, owners: list[ClaimReference]) -> None:
        writes = decide_claim(bound, by_key(*(volume(claim=owner, phase=BOUND) for owner in owners)), None)
        assert writes == (SetClaimStatus(claim=bound, phase=ClaimPhase.LOST),)

    def test_is_lost_only_once(self, claim: Make) -> None:
        lost = claim({BIND_COMPLETED: "yes"}, volume_name="vol", phase=ClaimPhase.LOST)
        assert decide_claim(lost, {}, None) == ()


class TestVolume:
    @pytest.mark.parametrize("owner", [None, RESERVED], ids=["free", "reserved by name"])
    def test_becomes_available(self, volume: Make, owner: ClaimReference | None) -> None:
        free = volume(claim=owner)
        assert decide_volume(free, None) == (SetVolumePhase(volume=free, phase=AVAILABLE),)

    def test_half_bound_is_left_to_its_claim(self, volume: Make, claim: Make) -> None:
        assert decide_volume(volume(claim=MINE), claim()) == ()

    def test_of_its_claim_is_bound(self, volume: Make, claim: Make) -> None:
        mine = volume(claim=MINE)
        writes = decide_volume(mine, claim(volume_name="vol"))
        assert writes == (SetVolumePhase(volume=mine, phase=BOUND),)

    @pytest.mark.parametrize("owner", ["nobody", "a namesake"])
    def test_is_released_when_its_claim_is_gone(self, volume: Make, claim: Make, owner: str) -> None:
        held = volume(claim=ClaimReference(key=Key("team", "data"), uid="gone"), phase=BOUND)
        writes = decide_volume(held, claim() if owner != "nobody" else None)
        assert writes == (SetVolumePhase(volume=held, phase=RELEASED),)

    def test_released_stays_as_it_is(self, volume: Make) -> None:
        assert decide_volume(volume(claim=MINE, phase=RELEASED), None) == ()

    def test_whose_claim_went_elsewhere_is_free_again(self, volume: Make, claim: Make) -> None:
        chosen = volume(claim=MINE, phase=BOUND, annotations={BOUND_BY_CONTROLLER: "yes"})
        assert decide_volume(chosen, claim(volume_name="elsewhere")) == (
            ReferClaim(volume=chosen, claim=None, by_controller=False),
            SetVolumePhase(volume=chosen, phase=AVAILABLE),
        )

    def test_reserved_by_a_person_stays_reserved(self, volume: Make, claim: Make) -> None:
        reserved = volume(claim=MINE, phase=AVAILABLE)
        expected = ReferClaim(volume=reserved, claim=RESERVED, by_controller=False)
        assert decide_volume(reserved, claim(volume_name="elsewhere")) == (expected,)

    def test_provisioned_for_a_claim_that_went_elsewhere_is_released(self, volume: Make, claim: Make) -> None:
        spare = volume(
            claim=MINE,
            phase=BOUND,
            reclaim_policy=ReclaimPolicy.DELETE,
            annotations={PROVISIONED_BY: PROVISIONER},
        )
        writes = decide_volume(spare, claim(volume_name="elsewhere"))
        assert writes == (SetVolumePhase(volume=spare, phase=RELEASED),)
