from collections.abc import Callable
from typing import Any

import pytest

from tinykube.controllers.matching import best_match, fits
from tinykube.controllers.values import ClaimReference, Key, Operator, Requirement, VolumePhase

Make = Callable[..., Any]
AVAILABLE = VolumePhase.AVAILABLE
MINE = ClaimReference(key=Key("team", "data"))


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
    reserved = volume("reserved", size=9000, claim=MINE, class_name="other")
    assert best_match(claim(), [free, reserved]) == reserved


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"phase": VolumePhase.PENDING}, id="not available yet"),
        pytest.param({"phase": VolumePhase.RELEASED}, id="released"),
        pytest.param({"class_name": "efs"}, id="of another class"),
        pytest.param({"size": 999}, id="too small"),
        pytest.param({"volume_mode": "Block"}, id="a block device"),
        pytest.param({"access_modes": ("ReadWriteOnce",)}, id="for one node only"),
        pytest.param({"deleting": True}, id="being deleted"),
        pytest.param({"claim": ClaimReference(key=Key("team", "other"))}, id="reserved for another claim"),
        pytest.param({"claim": ClaimReference(key=Key("other", "data"))}, id="reserved in another namespace"),
        pytest.param({"claim": ClaimReference(key=MINE.key, uid="old")}, id="bound to an older namesake"),
        pytest.param({"claim": MINE, "size": 10}, id="reserved but too small"),
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
    free, reserved = volume("free", phase=AVAILABLE), volume("reserved", claim=MINE)
    assert best_match(claim(), [free], reserved_only=True) is None
    assert best_match(claim(), [free, reserved], reserved_only=True) == reserved


@pytest.mark.parametrize(
    ("operator", "values", "labels", "taken"),
    [
        (Operator.IN, {"x", "y"}, {"k": "x"}, True),
        (Operator.IN, {"y"}, {"k": "x"}, False),
        (Operator.IN, {"y"}, {}, False),
        (Operator.NOT_IN, {"y"}, {"k": "x"}, True),
        (Operator.NOT_IN, {"x"}, {"k": "x"}, False),
        (Operator.NOT_IN, {"x"}, {}, True),
        (Operator.EXISTS, set(), {"k": "x"}, True),
        (Operator.EXISTS, set(), {}, False),
        (Operator.DOES_NOT_EXIST, set(), {}, True),
        (Operator.DOES_NOT_EXIST, set(), {"k": "x"}, False),
    ],
)
def test_selector(
    claim: Make, volume: Make, operator: Operator, values: set[str], labels: dict[str, str], taken: bool
) -> None:
    wanting = claim(selector=(Requirement(label="k", operator=operator, values=frozenset(values)),))
    found = best_match(wanting, [volume(phase=AVAILABLE, labels=labels)])
    assert (found is not None) is taken


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
