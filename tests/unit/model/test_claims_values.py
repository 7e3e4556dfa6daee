import pytest

from kube_efs.model.claims import Claim, ClaimPhase
from kube_efs.model.efs.ids import ClaimUid


def test_key_is_what_people_call_it() -> None:
    assert Claim(namespace="team", name="data", uid=ClaimUid("u")).key == "team/data"


@pytest.mark.parametrize(
    ("phase", "volume_name", "deleting", "wants"),
    [
        pytest.param(ClaimPhase.PENDING, "", False, True, id="pending"),
        pytest.param(ClaimPhase.PENDING, "pv", False, False, id="tied to a volume by its owner"),
        pytest.param(ClaimPhase.PENDING, "", True, False, id="being deleted"),
        pytest.param(ClaimPhase.BOUND, "", False, False, id="bound"),
        pytest.param(ClaimPhase.LOST, "", False, False, id="lost"),
    ],
)
def test_a_volume_is_wanted_only_while_it_is_missing(
    phase: ClaimPhase, volume_name: str, deleting: bool, wants: bool
) -> None:
    claim = Claim(
        namespace="team",
        name="data",
        uid=ClaimUid("u"),
        phase=phase,
        volume_name=volume_name,
        deleting=deleting,
    )
    assert claim.wants_volume is wants
