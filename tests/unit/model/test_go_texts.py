"""Booleans and numbers as Go parses them, compared with its documentation."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kube_efs.model.go_texts import read_boolean, read_integer

DIGITS = "0123456789"
NUMBERS = st.one_of(
    st.text(),
    st.text(alphabet="+-_0 19\n٣x.e"),
    st.integers().map(str),
    st.tuples(st.sampled_from(["", "+", "-", "--"]), st.text("0", max_size=9), st.integers(0, 2**33)).map(
        lambda parts: "".join(map(str, parts))
    ),
)


def go_integer(text: str) -> int | None:
    """``strconv.ParseInt(text, 10, 64)``, written from its documentation."""
    sign, digits = (-1 if text[0] == "-" else 1, text[1:]) if text[:1] in {"+", "-"} else (1, text)
    number = 0
    for digit in digits:
        if digit not in DIGITS:
            return None
        number = number * 10 + DIGITS.index(digit)
    return sign * number if digits else None


@given(NUMBERS)
@example("+2000")
@example("-0")
@example("+")
@example("2_000")
@example("٢٠٠٠")
@example("2000\n")
@example("0" * 5000 + "2000")
@example("9" * 5000)
def test_integers_match_go_up_to_ten_digits(text: str) -> None:
    expected = go_integer(text)
    if expected is not None and abs(expected) >= 10**10:
        expected = None
    assert read_integer(text) == expected


@pytest.mark.parametrize("text", ["1", "t", "T", "TRUE", "true", "True"])
def test_go_spelling_of_true_is_read(text: str) -> None:
    assert read_boolean(text) is True


@pytest.mark.parametrize("text", ["0", "f", "F", "FALSE", "false", "False"])
def test_go_spelling_of_false_is_read(text: str) -> None:
    assert read_boolean(text) is False


@pytest.mark.parametrize("text", ["", " ", "yes", "no", "tRUE", "true ", "on", "01", "2", "none"])
def test_text_that_is_not_a_boolean_gives_none(text: str) -> None:
    assert read_boolean(text) is None
