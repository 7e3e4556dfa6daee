"""JSON as clients send it, which may name a field twice."""

import json
from collections.abc import Iterator
from typing import NamedTuple

from tinykube.objects.json_types import Json, JsonValue


class ParsedJson(NamedTuple):
    """A value, and the paths of the fields that were given more than once; the last one counts."""

    value: JsonValue
    duplicates: list[str]


def parse_json(content: bytes) -> ParsedJson:
    """The value; raises ValueError where the text is no JSON."""
    repeated: dict[int, list[str]] = {}

    def collect(pairs: list[tuple[str, JsonValue]]) -> Json:
        result = dict(pairs)
        if len(result) < len(pairs):
            names = [name for name, _ in pairs]
            repeated[id(result)] = sorted({name for name in names if names.count(name) > 1})
        return result

    value = json.loads(content, object_pairs_hook=collect)
    return ParsedJson(value, list(_paths(value, "", repeated)) if repeated else [])


def _paths(value: JsonValue, at: str, repeated: dict[int, list[str]]) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (f"{at}{name}" for name in repeated.get(id(value), ()))
        for name, inner in value.items():
            yield from _paths(inner, f"{at}{name}.", repeated)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _paths(inner, f"{at.removesuffix('.')}[{index}].", repeated)
