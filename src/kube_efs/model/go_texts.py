"""Booleans and integers as Go's strconv, and therefore every older system, parses them.

It accepts less than Python: no blanks, no underscores, no digits of other scripts, no ``yes``.
"""

import re

_BOOLEANS = dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True) | dict.fromkeys(
    ("0", "f", "F", "FALSE", "false", "False"), False
)
# Leading zeros are valid. Ten digits are enough for 32 bits, and keep int() cheap.
_INTEGER = re.compile(r"([+-]?)0*([0-9]{1,10})")


def read_boolean(text: str) -> bool | None:
    """The result of ``strconv.ParseBool``; None for an error."""
    return _BOOLEANS.get(text)


def read_integer(text: str) -> int | None:
    """The result of ``strconv.ParseInt`` with base 10; None for an error or more than ten digits."""
    match = _INTEGER.fullmatch(text)
    return int(match[1] + match[2]) if match else None
