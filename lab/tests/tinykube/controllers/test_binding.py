from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pytest

from tinykube.controllers.binding import (
    ReferClaim,
    Report,
    SetClaim,
    SetClaimStatus,
    SetVolumePhase,
    Steps,
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
EXTERNAL = (
    "Waiting for a volume to be created either by the external provisioner 'gnuthought.com/efs-stunnel' or"
    " manually by the system administrator. If volume creation is delayed, please verify that the"
    " provisioner is running and correctly registered."
)


def storage_class(*, waits: bool = False, provisioner: str = PROVISIONER) -> StorageClass:
    meta = Meta(key=Key("", "efs"), uid="class-uid", version="1")
    return StorageClass(meta=meta, provisioner=provisioner, waits_for_consumer=waits)


def by_key(*volumes: Volume) -> Mapping[Key, Volume]:
    return {volume.meta.key: volume for volume in volumes}


def reports(steps: Steps) -> list[tuple[str, str, bool]]:
    return [(step.reason, step.message, step.warning) for step in steps if isinstance(step, Report)]


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
        steps = decide_claim(claim(class_name="efs"), by_key(volume(claim=MINE)), storage_class())
        assert [type(step) for step in steps] == [SetVolumePhase, SetClaim, SetClaimStatus]

    def test_volume_reserved_by_name_gets_the_uid_and_stays_a_persons_choice(
        self, claim: Make, volume: Make
    ) -> None:
        reserved = volume(claim=RESERVED, phase=AVAILABLE)
        first = decide_claim(claim(), by_key(reserved), None)[0]
        assert first == ReferClaim(volume=reserved, claim=MINE, by_controller=False)

    def test_named_volume_is_not_marked_as_chosen_by_the_controller(self, claim: Make, volume: Make) -> None:
        wanting, named = claim(volume_name="vol"), volume(phase=AVAILABLE)
        steps = decide_claim(wanting, by_key(named), None)
        assert SetClaim(claim=wanting, volume_name="vol", annotations={BIND_COMPLETED: "yes"}) in steps

    def test_named_volume_that_is_not_there_is_waited_for(self, claim: Make) -> None:
        assert decide_claim(claim(volume_name="vol"), {}, None) == ()

    def test_named_volume_that_does_not_fit(self, claim: Make, volume: Make) -> None:
        steps = decide_claim(claim(volume_name="vol"), by_key(volume(size=1, phase=AVAILABLE)), None)
        text = 'Cannot bind to requested volume "vol": requested PV is too small'
        assert reports(steps) == [("VolumeMismatch", text, True)]

    def test_named_volume_of_somebody_else(self, claim: Make, volume: Make) -> None:
        steps = decide_claim(claim(volume_name="vol"), by_key(volume(claim=OTHERS, phase=BOUND)), None)
        text = 'volume "vol" already bound to a different claim.'
        assert reports(steps) == [("FailedBinding", text, True)]
        assert len(steps) == 1

    def test_without_class_or_volume(self, claim: Make) -> None:
        text = "no persistent volumes available for this claim and no storage class is set"
        assert reports(decide_claim(claim(), {}, None)) == [("FailedBinding", text, False)]

    def test_external_provisioner_is_called_even_with_a_selector(self, claim: Make) -> None:
        wanting = claim(class_name="efs")
        annotations = {
            "volume.kubernetes.io/storage-provisioner": PROVISIONER,
            "volume.beta.kubernetes.io/storage-provisioner": PROVISIONER,
        }
        write, report = decide_claim(wanting, {}, storage_class())
        assert write == SetClaim(claim=wanting, annotations=annotations)
        assert report == Report(about=wanting, reason="ExternalProvisioning", message=EXTERNAL)

    def test_class_that_is_not_there(self, claim: Make) -> None:
        text = 'storageclass.storage.k8s.io "efs" not found'
        assert reports(decide_claim(claim(class_name="efs"), {}, None)) == [
            ("ProvisioningFailed", text, True)
        ]

    def test_class_without_provisioner(self, claim: Make) -> None:
        found = storage_class(provisioner="kubernetes.io/no-provisioner")
        text = "no volume plugin matched name: kubernetes.io/no-provisioner"
        assert reports(decide_claim(claim(class_name="efs"), {}, found)) == [
            ("ProvisioningFailed", text, True)
        ]

    @pytest.mark.parametrize(
        ("pods", "reason", "text"),
        [
            pytest.param(
                (),
                "WaitForFirstConsumer",
                "waiting for first consumer to be created before binding",
                id="no pod",
            ),
            pytest.param(("a",), "WaitForPodScheduled", "waiting for pod a to be scheduled", id="one pod"),
            pytest.param(
                ("a", "b"), "WaitForPodScheduled", "waiting for pods a,b to be scheduled", id="two pods"
            ),
        ],
    )
    def test_waits_for_its_first_consumer(
        self, claim: Make, volume: Make, pods: tuple[str, ...], reason: str, text: str
    ) -> None:
        free = volume(phase=AVAILABLE, class_name="efs")
        steps = decide_claim(claim(class_name="efs"), by_key(free), storage_class(waits=True), pods)
        assert reports(steps) == [(reason, text, False)]
        assert len(steps) == 1

    def test_is_provisioned_once_a_node_is_selected(self, claim: Make) -> None:
        wanting = claim({"volume.kubernetes.io/selected-node": "n1"}, class_name="efs")
        steps = decide_claim(wanting, {}, storage_class(waits=True))
        assert reports(steps) == [("ExternalProvisioning", EXTERNAL, False)]


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

    @pytest.mark.parametrize(
        ("volumes", "reason", "text"),
        [
            pytest.param(
                [],
                "ClaimLost",
                "Bound claim has lost its PersistentVolume. Data on the volume is lost!",
                id="volume is gone",
            ),
            pytest.param(
                [OTHERS],
                "ClaimMisbound",
                "Two claims are bound to the same volume, this one is bound incorrectly",
                id="volume is somebody else's",
            ),
        ],
    )
    def test_is_lost(
        self, bound: Claim, volume: Make, volumes: list[ClaimReference], reason: str, text: str
    ) -> None:
        steps = decide_claim(bound, by_key(*(volume(claim=owner, phase=BOUND) for owner in volumes)), None)
        assert steps == (
            SetClaimStatus(claim=bound, phase=ClaimPhase.LOST),
            Report(about=bound, reason=reason, message=text, warning=True),
        )

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
        steps = decide_volume(mine, claim(volume_name="vol"))
        assert steps == (SetVolumePhase(volume=mine, phase=BOUND),)

    @pytest.mark.parametrize("owner", ["nobody", "a namesake"])
    @pytest.mark.parametrize(
        ("fields", "phases"),
        [
            pytest.param({}, [RELEASED], id="retained"),
            pytest.param(
                {"reclaim_policy": ReclaimPolicy.DELETE, "annotations": {PROVISIONED_BY: PROVISIONER}},
                [RELEASED],
                id="deleted by its provisioner",
            ),
            pytest.param(
                {"reclaim_policy": ReclaimPolicy.DELETE},
                [RELEASED, VolumePhase.FAILED],
                id="nobody can delete it",
            ),
            pytest.param(
                {"reclaim_policy": ReclaimPolicy.RECYCLE}, [RELEASED, VolumePhase.FAILED], id="recycled"
            ),
        ],
    )
    def test_is_released_when_its_claim_is_gone(
        self, volume: Make, claim: Make, owner: str, fields: dict[str, Any], phases: list[VolumePhase]
    ) -> None:
        gone = ClaimReference(key=Key("team", "data"), uid="gone")
        steps = decide_volume(
            volume(claim=gone, phase=BOUND, **fields), claim() if owner != "nobody" else None
        )
        assert [step.phase for step in steps if isinstance(step, SetVolumePhase)] == phases

    def test_that_nobody_can_delete_says_so(self, volume: Make) -> None:
        steps = decide_volume(volume(claim=MINE, phase=BOUND, reclaim_policy=ReclaimPolicy.DELETE), None)
        text = 'error getting deleter volume plugin for volume "vol": no deletable volume plugin matched'
        assert reports(steps) == [("VolumeFailedDelete", text, True)]

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
        steps = decide_volume(spare, claim(volume_name="elsewhere"))
        assert steps == (SetVolumePhase(volume=spare, phase=RELEASED),)
