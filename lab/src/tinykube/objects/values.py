"""JSON and times, as the API server holds them.

Objects are plain dictionaries and are immutable by convention: code that gets one never changes it,
and a function that "changes" an object returns a new one, which may share parts with the old one.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]
"""A JSON object, most often a whole Kubernetes object."""

JsonValue: TypeAlias = Any
"""Any JSON value: None, bool, int, float, str, a list of values, or an object."""


class Undecodable(Exception):
    """A value is not of the type that its field has."""


def json_equal(left: JsonValue, right: JsonValue) -> bool:
    """Whether two values are the same JSON; unlike ``==``, ``true`` is not ``1``."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(json_equal(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(json_equal, left, right))
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def without(json_object: Mapping[str, JsonValue], *keys: str) -> Json:
    """A copy of the object that lacks these keys."""
    return {key: value for key, value in json_object.items() if key not in keys}


def lookup(value: JsonValue, *path: str) -> JsonValue:
    """The value at this path of keys, or None where something on the way is missing or no object."""
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def timestamp(moment: datetime) -> str:
    """The moment to the second, as all times of metadata are."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: object) -> datetime | None:
    """The moment that an RFC 3339 text means; None for anything else."""
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return moment if moment and moment.tzinfo else None


def canonical_time(text: str) -> str:
    """The time in UTC, to the microsecond where it is not a whole second; raises Undecodable."""
    moment = parse_time(text)
    if moment is None:
        raise Undecodable(f"{text!r} is not a time in RFC 3339")
    moment = moment.astimezone(UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if moment.microsecond else timestamp(moment)
