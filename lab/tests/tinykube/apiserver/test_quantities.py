from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinykube.objects.quantities import canonical_quantity, parse_quantity


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("1Gi", "1Gi"),
        ("1024Mi", "1Gi"),
        ("1.5Gi", "1536Mi"),
        ("0.5Ki", "512"),
        ("1000m", "1"),
        ("0.1", "100m"),
        (".5", "500m"),
        ("1000", "1k"),
        ("1500", "1500"),
        ("1e3", "1e3"),
        ("100e1", "1e3"),
        ("0", "0"),
        ("-2Ki", "-2Ki"),
        ("1n", "1n"),
        ("0.1n", "1n"),
        (5, "5"),
        (0.25, "250m"),
    ],
)
def test_quantities_are_written_canonically(text: object, canonical: str) -> None:
    assert canonical_quantity(text) == canonical


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1gi", "1.2.3", "0x1", "1Gi ", None, True, ["1"]])
def test_what_is_no_quantity_is_none(text: object) -> None:
    assert parse_quantity(text) is None
    assert canonical_quantity(text) is None


@given(
    st.integers(-(10**6), 10**6),
    st.sampled_from(["", "m", "k", "M", "G", "Ki", "Mi", "Gi", "Ti", "e3", "e-2"]),
)
def test_the_canonical_form_means_the_same_and_is_final(number: int, suffix: str) -> None:
    canonical = canonical_quantity(f"{number}{suffix}")
    assert parse_quantity(canonical) == parse_quantity(f"{number}{suffix}")
    assert canonical_quantity(canonical) == canonical


def test_binary_and_decimal_suffixes_differ() -> None:
    assert parse_quantity("1Ki") == Fraction(1024)
    assert parse_quantity("1k") == Fraction(1000)
