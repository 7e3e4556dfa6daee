"""Tracebacks as logs show them: frames, classes, texts without secrets, and no local variables."""

import traceback
from collections.abc import Iterable
from typing import Final

from kube_efs.model.secrets import shortened, text_without_secrets

# Of one exception's text, or one frame.
_MAX_PART: Final = 2000
# Of all of it: the beginning has the first cause, the end what came of it.
_MAX_BEGINNING: Final = 8000
_MAX_END: Final = 8000
# Of groups of groups of exceptions, so many parts are shown.
_MAX_PARTS: Final = 2000


def rendered(error: BaseException) -> str:
    """The traceback of an exception with its causes and, of a group, the exceptions in it."""
    parts = traceback.format_exception(error)
    left_out = len(parts) - _MAX_PARTS
    if left_out > 0:
        half = _MAX_PARTS // 2
        parts = [*parts[:half], f"... ({left_out} more parts)\n", *parts[-half:]]
    # Again as a whole: notes of exceptions come line by line, and so may private keys in them.
    text = text_without_secrets("".join(_shortened_parts(parts))).rstrip("\n")
    if len(text) <= _MAX_BEGINNING + _MAX_END:
        return text
    return f"{text[:_MAX_BEGINNING]}\n... ({len(text)} characters)\n{text[-_MAX_END:]}"


def _shortened_parts(parts: Iterable[str]) -> Iterable[str]:
    for part in parts:
        clean = shortened(part, _MAX_PART)
        yield clean if clean.endswith("\n") else f"{clean}\n"
