from fractions import Fraction

import pytest

from kube_efs.kube.quantities import parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1Gi", 2**30),
        ("1.5Gi", 3 * 2**29),
        ("1Ki", 1024),
        ("1k", 1000),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("100m", Fraction(1, 10)),
        ("1n", Fraction(1, 10**9)),
        ("1e3", 1000),
        ("100E-1", 10),
        ("-2Ki", -2048),
        (5, 5),
        (0.25, Fraction(1, 4)),
    ],
)
def test_valid_quantity_has_a_value(text: object, value: Fraction) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1gi", "1.2.3", "0x1", "1Gi ", None, True, ["1"]])
def test_invalid_quantity_is_none(text: object) -> None:
    assert parse_quantity(text) is None
