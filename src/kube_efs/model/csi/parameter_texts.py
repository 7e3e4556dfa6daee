"""Booleans, ids and modes in parameters, attributes and secrets of the CSI driver."""

import re

from kube_efs.model.csi.errors import InvalidArgument
from kube_efs.model.go_texts import read_boolean, read_integer

ID_MAX = 2**32 - 1  # EFS: user and group ids of an access point

_OCTAL = re.compile(r"[0-7]{3,4}")


def parse_boolean(text: str, *, field: str) -> bool:
    """The boolean; raises InvalidArgument for any other text, also an empty one."""
    value = read_boolean(text)
    if value is None:
        raise InvalidArgument("is not a boolean", field=field, value=text, remedy="use true or false")
    return value


def parse_id(text: str, *, field: str, least: int = 0) -> int:
    """A user or group id from ``least`` to 4294967295; raises InvalidArgument."""
    number = read_integer(text)
    if number is None or not least <= number <= ID_MAX:
        remedy = f"use a whole number from {least} to {ID_MAX}"
        raise InvalidArgument("is not a valid user or group ID", field=field, value=text, remedy=remedy)
    return number


def parse_mode(text: str, *, field: str) -> int:
    """The mode of a directory; raises InvalidArgument."""
    if not _OCTAL.fullmatch(text):
        problem = "is not a valid octal mode" if text else "is missing"
        raise InvalidArgument(
            problem, field=field, value=text, remedy="use three or four octal digits, such as 700"
        )
    return int(text, 8)
