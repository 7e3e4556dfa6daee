"""Booleans and whole numbers as Go's strconv reads them, and with it all the older systems.

It takes less than Python does: no blanks, no underscores, no digits of other scripts, no ``yes``.
"""

import re

_BOOLEANS = dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True) | dict.fromkeys(
    ("0", "f", "F", "FALSE", "false", "False"), False
)
# Leading zeros are fine; ten digits hold every number of 32 bits, and keep int() cheap.
_INTEGER = re.compile(r"([+-]?)0*([0-9]{1,10})")


def read_boolean(text: str) -> bool | None:
    """What ``strconv.ParseBool`` gives; None for what it does not take."""
    return _BOOLEANS.get(text)


def read_integer(text: str) -> int | None:
    """What ``strconv.ParseInt`` with base 10 gives; None for what it does not take, or is past ten digits."""
    match = _INTEGER.fullmatch(text)
    return int(match[1] + match[2]) if match else None
