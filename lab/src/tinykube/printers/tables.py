"""Server-side tables (``meta.k8s.io/v1`` Table): what kubectl prints for ``get``."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, TypeAlias

from tinykube.objects.json_types import Json, lookup
from tinykube.objects.times import parse_time

Cell: TypeAlias = str | int | float | bool | None

_UNITS: Final = (("d", 24 * 3600), ("h", 3600), ("m", 60))


class IncludeObject(StrEnum):
    """How much of each object its row carries (query parameter ``includeObject``)."""

    NONE = "None"
    METADATA = "Metadata"
    OBJECT = "Object"


@dataclass(frozen=True, slots=True)
class Column:
    """The head of a column; kubectl shows those with a priority above 0 with ``-o wide`` only."""

    name: str
    type: str = "string"
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Printer:
    """The columns of a kind, and the cells of one object in them; ``now`` is what ages count to."""

    columns: tuple[Column, ...]
    cells: Callable[[Json, datetime], list[Cell]]


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
                "format": "" if index else "name",
                "description": "",
                "priority": column.priority,
            }
            for index, column in enumerate(printer.columns)
        ],
        "rows": [
            {"cells": printer.cells(json_object, now), "object": _shown(json_object, include_object)}
            for json_object in objects
        ],
    }


def _shown(json_object: Json, include_object: IncludeObject) -> Json | None:
    if include_object is IncludeObject.NONE:
        return None
    if include_object is IncludeObject.OBJECT:
        return json_object
    metadata = json_object["metadata"]
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}


def text(json_object: Json, *path: str, default: str = "") -> str:
    """The text at this path; the default where there is none or an empty one."""
    return str(lookup(json_object, *path) or default)


def name_of(json_object: Json) -> str:
    """The object's name."""
    return text(json_object, "metadata", "name")


def age_of(json_object: Json, now: datetime) -> str:
    """How long ago the object was created."""
    return age(lookup(json_object, "metadata", "creationTimestamp"), now)


def age(timestamp: str | None, now: datetime) -> str:
    """How long ago this RFC 3339 time was, in the largest unit that fits: 5s, 3m, 2d."""
    moment = parse_time(timestamp)
    if moment is None:
        return "<unknown>"
    seconds = max(int((now - moment).total_seconds()), 0)
    unit, length = next((one for one in _UNITS if seconds >= one[1]), ("s", 1))
    return f"{seconds // length}{unit}"
