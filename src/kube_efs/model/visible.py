"""Texts from a cluster for a terminal, which would carry out the control sequences in them."""

import unicodedata
from typing import Final

# Control characters, also those of C1; and characters without a shape, which hide or reorder others.
_HIDDEN: Final = frozenset({"Cc", "Cf"})


def visible(text: str, *, may_have_lines: bool = True) -> str:
    r"""The text with a visible escape, such as ``\x1b``, for each character that controls a terminal."""
    if text.isprintable():
        return text
    return "".join(_escaped(one) if _is_hidden(one, may_have_lines) else one for one in text)


def _is_hidden(character: str, may_have_lines: bool) -> bool:
    is_line = may_have_lines and character == "\n"
    return unicodedata.category(character) in _HIDDEN and not is_line


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
