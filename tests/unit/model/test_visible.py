"""Texts for a terminal."""

import sys
import unicodedata

import pytest

from kube_efs.model.visible import visible


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fs-1: größer als 5 %", "fs-1: größer als 5 %"),
        ("first\nsecond", "first\nsecond"),
        ("\x1b[2J", r"\x1b[2J"),
        ("a\r\tb\x7f", r"a\r\tb\x7f"),
        ("\x9b8m", r"\x9b8m"),
        ("\u202etxt\u200b\u2066", r"\u202etxt\u200b\u2066"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_characters_that_control_a_terminal_are_escaped(text: str, expected: str) -> None:
    assert visible(text) == expected


def test_end_of_a_line_is_escaped_where_only_one_is_allowed() -> None:
    assert visible("first\nsecond", may_have_lines=False) == r"first\nsecond"


def test_no_character_of_unicode_that_controls_a_terminal_is_left() -> None:
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    left = {unicodedata.category(one) for one in visible(every, may_have_lines=False)}
    assert not {"Cc", "Cf"} & left
