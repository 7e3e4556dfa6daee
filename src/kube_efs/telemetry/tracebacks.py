"""Tracebacks for logs: frames, classes and texts without secrets, no local variables."""

import traceback
from collections.abc import Iterable
from typing import Final

from kube_efs.model.secrets import shortened, text_without_secrets

# Characters of the text of one exception, or of one frame.
_MAX_PART: Final = 2000
# Characters of a long traceback: its beginning has the first cause, its end the last exception.
_MAX_BEGINNING: Final = 8000
_MAX_END: Final = 8000
# Parts of nested groups of exceptions.
_MAX_PARTS: Final = 2000


def rendered(error: BaseException) -> str:
    """The traceback of an exception with its causes, and with the exceptions in a group."""
    parts = traceback.format_exception(error)
    left_out = len(parts) - _MAX_PARTS
    if left_out > 0:
        half = _MAX_PARTS // 2
        parts = [*parts[:half], f"... ({left_out} more parts)\n", *parts[-half:]]
    # Again for the whole text: each line of a note is a part, and a private key has several lines.
    text = text_without_secrets("".join(_shortened_parts(parts))).rstrip("\n")
    if len(text) <= _MAX_BEGINNING + _MAX_END:
        return text
    return f"{text[:_MAX_BEGINNING]}\n... ({len(text)} characters)\n{text[-_MAX_END:]}"


def _shortened_parts(parts: Iterable[str]) -> Iterable[str]:
    for part in parts:
        clean = shortened(part, _MAX_PART)
        yield clean if clean.endswith("\n") else f"{clean}\n"
