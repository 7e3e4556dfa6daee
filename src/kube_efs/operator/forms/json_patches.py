"""The difference of two JSON documents as a JSON patch (RFC 6902)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Step = Mapping[str, Any]


def difference(before: Any, after: Any) -> list[Step]:  # noqa: ANN401 - any JSON
    """The steps; none if both are equal. A list gets items at its end, or is replaced."""
    return list(_steps(before, after, ""))


def _steps(before: Any, after: Any, path: str) -> Iterator[Step]:  # noqa: ANN401 - any JSON
    if before == after:
        return
    match before, after:
        case Mapping(), Mapping():
            yield from _of_mappings(before, after, path)
        case list(), list() if len(before) <= len(after):
            yield from _of_lists(before, after, path)
        case _:
            yield {"op": "replace", "path": path, "value": after}


def _of_mappings(before: Mapping[str, Any], after: Mapping[str, Any], path: str) -> Iterator[Step]:
    for key in before:
        if key not in after:
            yield {"op": "remove", "path": f"{path}/{_escaped(key)}"}
    for key, value in after.items():
        place = f"{path}/{_escaped(key)}"
        if key in before:
            yield from _steps(before[key], value, place)
        else:
            yield {"op": "add", "path": place, "value": value}


def _of_lists(before: Sequence[Any], after: Sequence[Any], path: str) -> Iterator[Step]:
    for index, (old, new) in enumerate(zip(before, after, strict=False)):
        yield from _steps(old, new, f"{path}/{index}")
    for value in after[len(before) :]:
        yield {"op": "add", "path": f"{path}/-", "value": value}


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
