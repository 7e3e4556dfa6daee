import pytest

from kube_efs.model.claims import Claim, ClaimPhase
from kube_efs.model.efs.ids import ClaimUid


def test_claim_key_is_namespace_and_name() -> None:
    assert Claim(namespace="team", name="data", uid=ClaimUid("u")).key == "team/data"


@pytest.mark.parametrize(
    ("phase", "volume_name", "deleting", "wants"),
    [
        pytest.param(ClaimPhase.PENDING, "", False, True, id="pending"),
        pytest.param(ClaimPhase.PENDING, "pv", False, False, id="with a volume name"),
        pytest.param(ClaimPhase.PENDING, "", True, False, id="being deleted"),
        pytest.param(ClaimPhase.BOUND, "", False, False, id="bound"),
        pytest.param(ClaimPhase.LOST, "", False, False, id="lost"),
    ],
)
def test_claim_wants_a_volume_only_while_pending_and_unbound(
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
