"""Makes the text of an answer of the API server one that Python can decode, whatever is in its objects.

Everybody who can write an object can also write its ``metadata.managedFields``, and some other times. The API
server stores values there that Python does not have: times before the year 1 and after 9999, and fields that
are nested thousands of levels deep. An answer with one such value cannot be decoded at all. So one claim of
one namespace would end the watch of all claims, and each list of them, until somebody deletes it.

Therefore no such value reaches the decoder. ``managedFields`` becomes an empty list: it is half of a typical
object, and only the operator reads it, of the workloads in its own namespace, where tenants cannot write. A
time becomes the first or the last one that Python has. It does not disappear, because some kinds require it,
and because a ``deletionTimestamp`` means something even if its value does not.

Both are replaced in the text, because only this works for all depths and all kinds. They are found in a copy
in which escaped characters are blanked. There, each quote begins or ends a string.
"""

import re
from typing import Final

_ESCAPED: Final = ((b"\\\\", b"__"), (b'\\"', b"__"))
_MANAGED_FIELDS: Final = re.compile(rb'"managedFields"\s*:\s*\[')
# Texts and strings up to the next bracket. Not more at a time, because each string takes memory meanwhile.
_TO_BRACKET: Final = re.compile(rb'[^"\[\]]*+(?:"[^"]*+"[^"\[\]]*+){0,999}')
_OPENING, _CLOSING = b"[", b"]"
_UNKNOWN_TIME: Final = re.compile(rb'":\s*+"(?:(-\d+|0000)|\d{5,})-\d\d-\d\dT[\d:.]+Z"')
# The names of all fields with a time. Keys of annotations usually have a prefix, and then do not match.
_NAME_OF_TIME: Final = re.compile(rb"[A-Za-z]*(?:[Tt]ime(?:stamp|Added)?|At)|notBefore|notAfter")
_FIRST_TIME: Final = b'":"0001-01-01T00:00:00Z"'
_LAST_TIME: Final = b'":"9999-12-31T23:59:59Z"'


def decodable(content: bytes) -> bytes:
    """JSON with empty ``managedFields``, and only with times that Python has."""
    return with_known_times(_without_managed_fields(content))


def with_known_times(content: bytes) -> bytes:
    """The same, with the ``managedFields``."""
    if not _UNKNOWN_TIME.search(content):
        return content
    text, kept, begin = _blanked(content), [], 0
    for found in _UNKNOWN_TIME.finditer(text):
        name = text[text.rfind(b'"', 0, found.start()) + 1 : found.start()]
        if _NAME_OF_TIME.fullmatch(name):
            kept += [content[begin : found.start()], _FIRST_TIME if found[1] else _LAST_TIME]
            begin = found.end()
    return b"".join([*kept, content[begin:]])


def _without_managed_fields(content: bytes) -> bytes:
    text, kept, begin = _blanked(content), [], 0
    while found := _MANAGED_FIELDS.search(text, begin):
        kept.append(content[begin : found.end()])
        begin = _closing_bracket(text, found.end())
    return b"".join([*kept, content[begin:]])


def _blanked(content: bytes) -> bytes:
    """The text, as long as before, in which no quote is escaped."""
    for escaped, blank in _ESCAPED:
        content = content.replace(escaped, blank)
    return content


def _closing_bracket(text: bytes, begin: int) -> int:
    """The place of the bracket that closes the list which begins there; the end if the text is cut off."""
    depth = 1
    while found := _TO_BRACKET.match(text, begin):
        begin = found.end()
        bracket = text[begin : begin + 1]
        if bracket in {_OPENING, _CLOSING}:
            depth += 1 if bracket == _OPENING else -1
            if not depth:
                return begin
            begin += 1
        elif not found[0]:
            break
    return len(text)
