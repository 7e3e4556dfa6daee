r"""The columns that a CustomResourceDefinition asks for (``additionalPrinterColumns``).

Their paths are a subset of JSONPath: ``.spec.size``, ``['key.with.dots']``, ``.a\.b``, ``[0]``, ``[-1]``,
``[*]`` and filters such as ``[?(@.type=="Ready")]``. As in Kubernetes only the first result is shown.
"""

import json
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeAlias

from tinykube.errors import InvalidValue
from tinykube.objects.json_types import Json, JsonValue, json_equal
from tinykube.printers.tables import Cell, Column, Printer, age, name_of, parse_time

_Step: TypeAlias = Callable[[JsonValue], list[JsonValue]]

_STEP = re.compile(
    r"""\.?\[\?\(\s*@(?P<path>[^=!<>\s]*)\s*(?:(?P<operator>==|!=|<=|>=|<|>)\s*(?P<literal>[^)]+?)\s*)?\)\]"""
    r"""|\.?\[(?P<index>-?\d+)\]"""
    r"""|\.?\[\*\]|\.\*"""
    r"""|\.?\[(?P<quote>['"])(?P<quoted>.*?)(?P=quote)\]"""
    r"""|\.(?P<name>(?:[^.\[\]\\]|\\.)+)"""
)
_AGE_COLUMN: Json = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}


def printer_for_definition(additional_columns: Sequence[Json]) -> Printer:
    """A printer of the name and these columns; without any, of the name and the age.

    Raises:
        InvalidValue: a column's path cannot be understood.
    """
    wanted = additional_columns or [_AGE_COLUMN]
    paths = [(column["type"], parse_path(column["jsonPath"])) for column in wanted]
    return Printer(
        columns=(Column(name="Name", format="name"), *(_head(column) for column in wanted)),
        cells=lambda json_object, now: [
            name_of(json_object),
            *(_cell(kind, path(json_object), now) for kind, path in paths),
        ],
    )


def parse_path(text: str) -> _Step:
    """A function that gives all values this path leads to, in order; missing keys lead nowhere.

    Raises:
        InvalidValue: the path cannot be understood.
    """
    steps: list[_Step] = []
    position = 0
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None:
            raise InvalidValue(f'unrecognized column definition "{text}"', field="jsonPath", value=text)
        steps.append(_step(match))
        position = match.end()

    def follow(value: JsonValue) -> list[JsonValue]:
        values = [value]
        for step in steps:
            values = [found for inner in values for found in step(inner)]
        return values

    return follow


def _step(match: re.Match[str]) -> _Step:
    if match["path"] is not None:
        return _filter(match)
    if match["index"] is not None:
        return _element(int(match["index"]))
    if match["name"] is not None:
        return _member(re.sub(r"\\(.)", r"\1", match["name"]))
    return _children if match["quoted"] is None else _member(match["quoted"])


def _member(key: str) -> _Step:
    return lambda value: [value[key]] if isinstance(value, dict) and key in value else []


def _element(index: int) -> _Step:
    # A slice of one is empty when the list is too short; -1 has no end that could be written as a number.
    return lambda value: value[index : index + 1 or None] if isinstance(value, list) else []


def _children(value: JsonValue) -> list[JsonValue]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _filter(match: re.Match[str]) -> _Step:
    path, operator = parse_path(match["path"]), match["operator"]
    literal = _literal(match["literal"]) if operator else None

    def passes(element: JsonValue) -> bool:
        found = path(element)
        return bool(found) if operator is None else bool(found) and _compares(operator, found[0], literal)

    return lambda value: [element for element in _children(value) if passes(element)]


def _compares(operator: str, left: JsonValue, right: JsonValue) -> bool:
    if operator == "==":
        return json_equal(left, right)
    if operator == "!=":
        return not json_equal(left, right)
    numbers = (int, float)
    if not (isinstance(left, numbers) and isinstance(right, numbers)):
        return False
    return {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[operator]


def _literal(text: str) -> JsonValue:
    """The constant of a filter: text in either kind of quotes, a number, true or false."""
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1]
    try:
        return json.loads(text)
    except ValueError:
        raise InvalidValue(f'unrecognized column definition "{text}"', field="jsonPath", value=text) from None


def _head(column: Json) -> Column:
    return Column(
        name=column["name"],
        type=column["type"],
        format=column.get("format", ""),
        description=column.get("description")
        or f"Custom resource definition column (in JSONPath format): {column['jsonPath']}",
        priority=column.get("priority", 0),
    )


def _cell(kind: str, found: list[JsonValue], now: datetime) -> Cell:
    """The cell for the first value found; None, which kubectl shows as nothing, if its type is another."""
    cell: Cell = None
    match kind, found[0] if found else None:
        case ("string", str(text)):
            cell = text
        case ("string", value) if value is not None:
            cell = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        case ("date", str(text)):
            cell = age(text, now) if parse_time(text) else "<invalid>"
        case ("boolean", bool(flag)):
            cell = flag
        case ("integer" | "number", int() | float() as number) if not isinstance(number, bool):
            cell = int(number) if kind == "integer" else float(number)
    return cell
