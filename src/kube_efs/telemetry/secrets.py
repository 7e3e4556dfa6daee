"""Removal of secrets from whatever is about to be logged or shown.

Fields are judged by their name; texts are searched for the shapes that secrets have. The last line of
defence: code does not log secrets in the first place.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

REMOVED: Final = "[removed]"

_SENSITIVE = r"(?:token|secret|password|passwd|authorization|private_?key|secret_?key|access_?key|api_?key)"
_SECRET_KEY: Final = re.compile(rf".*{_SENSITIVE}", re.IGNORECASE)
# Idempotency tokens of the EFS API and the IMDS hop are no secrets, and are needed to follow a volume.
_HARMLESS_KEYS: Final = re.compile(r"(?:client|creation)_?token", re.IGNORECASE)
_MAX_DEPTH: Final = 8

_TEXT_PATTERNS: Final = (
    (
        re.compile(
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
        ),
        REMOVED,
    ),
    (re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]{6,}", re.IGNORECASE), rf"\1 {REMOVED}"),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"), REMOVED),
    (
        re.compile(r"\b(Signature=|X-Amz-Signature=|X-Amz-Security-Token[=:]\s*)[\w%.~+/=-]+", re.IGNORECASE),
        rf"\1{REMOVED}",
    ),
    # name=value, name: value and "name": "value"; the value ends where a quote, comma or blank does.
    (
        re.compile(
            rf"(?P<name>(?<![A-Za-z_-])(?!client_?token|creation_?token)[A-Za-z_-]{{0,40}}{_SENSITIVE})"
            r"(?P<between>[\"']?\s*[=:]\s*[\"']?)(?!\[removed\]|(?:Bearer|Basic)\s)[^\s\"',;&]+",
            re.IGNORECASE,
        ),
        rf"\g<name>\g<between>{REMOVED}",
    ),
    # An AWS secret access key standing alone: 40 characters of base 64, of all three kinds.
    (
        re.compile(
            r"(?<![A-Za-z0-9/+=])(?=[A-Za-z0-9/+]*[A-Z])(?=[A-Za-z0-9/+]*[a-z])(?=[A-Za-z0-9/+]*[0-9])"
            r"[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])"
        ),
        REMOVED,
    ),
)


def without_secrets(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The same fields with secrets replaced by ``[removed]`` at any depth.

    Every value comes back as something JSON can express: what is neither number, text, mapping nor
    sequence becomes its text, so that no secret hides behind a ``repr``.
    """
    return {str(key): _clean_field(str(key), value, _MAX_DEPTH) for key, value in fields.items()}


def text_without_secrets(text: str) -> str:
    """The text with everything that has the shape of a secret replaced by ``[removed]``."""
    for pattern, replacement in _TEXT_PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def _clean_field(key: str, value: object, depth: int) -> object:
    name = key.replace("-", "_")
    if value and _SECRET_KEY.fullmatch(name) and not _HARMLESS_KEYS.fullmatch(name):
        return REMOVED
    return _clean(value, depth)


def _clean(value: object, depth: int) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping) and depth:
        return {str(key): _clean_field(str(key), inner, depth - 1) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset) and depth:
        return [_clean(inner, depth - 1) for inner in value]
    return text_without_secrets(str(value))
