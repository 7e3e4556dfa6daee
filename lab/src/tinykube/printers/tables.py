"""Server-side tables (``meta.k8s.io/v1`` Table): what kubectl prints for ``get``."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, TypeAlias

from tinykube.objects.json_types import Json, lookup

Cell: TypeAlias = str | int | float | bool | None

UNKNOWN: Final = "<unknown>"
NONE: Final = "<none>"
UNSET: Final = "<unset>"

_MINUTE = 60
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
_YEAR = 365 * _DAY


class IncludeObject(StrEnum):
    """How much of each object its row carries (query parameter ``includeObject``)."""

    NONE = "None"
    METADATA = "Metadata"
    OBJECT = "Object"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The head of a column; kubectl shows those with a priority above 0 with ``-o wide`` only."""

    name: str
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Printer:
    """The columns of a kind and the cells of one object in them; ``now`` is what ages count to."""

    columns: tuple[Column, ...]
    cells: Callable[[Json, datetime], list[Cell]]


def columns(*names: str, wide: tuple[str, ...] = (), **types: str) -> tuple[Column, ...]:
    """Columns of text, the first of them the name; ``wide`` ones follow. ``types`` names other types."""
    shown = [Column(name=name, type=types.get(name, "string")) for name in names]
    shown[0] = Column(name=names[0], format="name")
    return (*shown, *(Column(name=name, priority=1) for name in wide))


def table_for(
    printer: Printer,
    objects: Iterable[Json],
    *,
    metadata: Mapping[str, str],
    include_object: IncludeObject,
    now: datetime,
) -> Json:
    """A Table of these objects.

    ``metadata`` is that of the list the table stands for (``resourceVersion``, ``continue``); for one object
    it has the object's resource version.
    """
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": dict(metadata),
        "columnDefinitions": [
            {
                "name": column.name,
                "type": column.type,
                "format": column.format,
                "description": column.description,
                "priority": column.priority,
            }
            for column in printer.columns
        ],
        "rows": [
            {"cells": printer.cells(json_object, now), **_row_object(json_object, include_object)}
            for json_object in objects
        ],
    }


def _row_object(json_object: Json, include_object: IncludeObject) -> Json:
    if include_object is IncludeObject.NONE:
        return {"object": None}
    if include_object is IncludeObject.OBJECT:
        return {"object": json_object}
    metadata = json_object.get("metadata", {})
    return {"object": {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}}


def named(between: Callable[[Json], list[Cell]]) -> Callable[[Json, datetime], list[Cell]]:
    """Cells that begin with the name and end with the age."""
    return lambda json_object, now: [name_of(json_object), *between(json_object), age_of(json_object, now)]


def count(json_object: Json, *fields: str) -> int:
    """How many entries these lists or maps have together."""
    return sum(len(json_object.get(field) or ()) for field in fields)


def text(json_object: Json, *path: str, default: str = "") -> str:
    """The text at this path; the default where there is none or an empty one."""
    return str(lookup(json_object, *path) or default)


def name_of(json_object: Json) -> str:
    """The object's name."""
    return str(lookup(json_object, "metadata", "name") or "")


def age_of(json_object: Json, now: datetime) -> str:
    """How long ago the object was created."""
    return age(lookup(json_object, "metadata", "creationTimestamp"), now)


def age(timestamp: str | None, now: datetime) -> str:
    """How long ago this RFC 3339 time was, as kubectl writes it."""
    moment = parse_time(timestamp)
    return UNKNOWN if moment is None else human_duration(now - moment)


def parse_time(timestamp: object) -> datetime | None:
    """The moment that an RFC 3339 text means; None for anything else. Without a zone it is UTC."""
    if not isinstance(timestamp, str):
        return None
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def human_duration(duration: timedelta) -> str:
    """The duration in two or three significant figures: 5s, 3m20s, 2d3h, 3y45d.

    A duration that is negative by less than two seconds is 0s, since clocks differ a little.
    """
    seconds = int(duration.total_seconds())
    if seconds < -1:
        return "<invalid>"
    if seconds < 2 * _MINUTE:
        return f"{max(seconds, 0)}s"
    for below, unit, sign, rest, rest_sign in (
        (10 * _MINUTE, _MINUTE, "m", 1, "s"),
        (3 * _HOUR, _MINUTE, "m", 0, ""),
        (8 * _HOUR, _HOUR, "h", _MINUTE, "m"),
        (2 * _DAY, _HOUR, "h", 0, ""),
        (8 * _DAY, _DAY, "d", _HOUR, "h"),
        (2 * _YEAR, _DAY, "d", 0, ""),
        (8 * _YEAR, _YEAR, "y", _DAY, "d"),
    ):
        if seconds < below:
            remainder = seconds % unit // rest if rest else 0
            return f"{seconds // unit}{sign}" + (f"{remainder}{rest_sign}" if remainder else "")
    return f"{seconds // _YEAR}y"
