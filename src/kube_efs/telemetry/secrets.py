"""Removes secrets from the fields of a log line, and shortens them.

``kube_efs.model.secrets`` contains the rules for secrets. A shortened value ends with its original length.
"""

import json
from collections.abc import Collection, Mapping
from itertools import islice
from typing import Any, Final

from kube_efs.model.secrets import (
    REMOVED,
    is_secret_name,
    proxy_without_password,
    shortened,
)

_MAX_DEPTH: Final = 8
_MAX_ENTRIES: Final = 100
_MAX_KEY: Final = 200
_MAX_TEXT: Final = 4000
# Of a whole line; container runtimes split lines at 16 KiB.
_MAX_CHARACTERS: Final = 12_000
# The minimum that each entry counts for.
_ENTRY_CHARACTERS: Final = 8
_MAX_JSON: Final = 65_536
# The renderer refuses longer integers.
_MAX_BITS: Final = 1024


def without_secrets(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The same fields with secrets replaced by ``[removed]`` at any depth, and shortened.

    Every value of the result is valid in JSON: one that is neither number, text, mapping nor sequence becomes
    text, so that its ``repr`` cannot contain a secret.
    """
    return _Cleaning().mapping(fields, _MAX_DEPTH)


class _Cleaning:
    """The cleaning of one line, with the number of characters that are left for it."""

    def __init__(self) -> None:
        self._left = _MAX_CHARACTERS

    def mapping(self, found: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        clean: dict[str, Any] = {}
        for key, value in islice(found.items(), _MAX_ENTRIES):
            if self._left <= 0:
                break
            name = self._text(str(key), _MAX_KEY)
            # A huge field leaves half of the characters to the fields after it.
            kept = self._left // 2
            self._left -= kept
            clean[name] = self._field(str(key), value, depth)
            self._left = kept + max(0, self._left)
        if len(clean) < len(found):
            clean["..."] = f"({len(found) - len(clean)} more entries)"
        return clean

    def _field(self, key: str, value: object, depth: int) -> object:
        says_nothing = not value or isinstance(value, bool)
        is_count = isinstance(value, int | float) and key.lower().endswith("s")  # tokens: 3
        if is_secret_name(key) and not says_nothing and not is_count:
            return REMOVED
        return self._value(proxy_without_password(key, value) if isinstance(value, str) else value, depth)

    def _value(self, value: object, depth: int) -> object:
        self._left -= _ENTRY_CHARACTERS
        if isinstance(value, int) and value.bit_length() > _MAX_BITS:
            return f"a huge {type(value).__name__}"
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, Mapping) and depth:
            return self.mapping(value, depth - 1)
        if isinstance(value, list | tuple | set | frozenset) and depth:
            return self._sequence(value, depth - 1)
        if isinstance(value, str) and depth and (inner := _json_in(value)) is not None:
            return self._text(json.dumps(self._value(inner, depth - 1), ensure_ascii=False), _MAX_TEXT)
        return self._text(_text_of(value), _MAX_TEXT)

    def _sequence(self, found: Collection[object], depth: int) -> list[object]:
        clean = []
        for one in islice(found, _MAX_ENTRIES):
            if self._left <= 0:
                break
            clean.append(self._value(one, depth))
        if len(clean) < len(found):
            clean.append(f"... ({len(found) - len(clean)} more entries)")
        return clean

    def _text(self, text: str, limit: int) -> str:
        clean = shortened(text, max(0, min(limit, self._left)))
        self._left -= len(clean)
        return clean


def _text_of(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value)} bytes"
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 - an object without a text must not lose the line
        return f"a {type(value).__name__} that cannot be shown ({type(error).__name__})"


def _json_in(text: str) -> object:
    """The JSON document in the text if it contains the name of a secret; else None."""
    if not (text[:1] in "{[" and text[-1:] in "}]") or len(text) > _MAX_JSON:
        return None
    try:
        document = json.loads(text)
        return document if _names_secrets(document) else None
    except (ValueError, RecursionError):
        return None


def _names_secrets(document: object) -> bool:
    match document:
        case dict():
            return any(is_secret_name(key) or _names_secrets(value) for key, value in document.items())
        case list():
            return any(map(_names_secrets, document))
        case str():
            return _json_in(document) is not None
        case _:
            return False
