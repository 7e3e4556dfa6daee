"""The columns that a CustomResourceDefinition asks for (``additionalPrinterColumns``).

Of JSONPath, their paths have members such as ``.spec.size`` and filters such as ``[?(@.type=="Ready")]``. As
in Kubernetes only the first result is shown.
"""

import json
import re
from collections.abc import Sequence
from datetime import datetime
from itertools import chain

from tinykube.errors import InvalidValue
from tinykube.objects.json_types import Json, JsonValue
from tinykube.printers.tables import Cell, Column, Printer, age, name_of

_STEP = re.compile(
    r"""\.(?P<name>[^.\[\]\\]+)|\[\?\(\s*@\.(?P<key>\w+)\s*==\s*(?P<quote>['"])(?P<value>[^'"]*)(?P=quote)\s*\)\]"""
)
_AGE_COLUMN: Json = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}


def printer_for_definition(additional_columns: Sequence[Json]) -> Printer:
    """A printer of the name and these columns; without any, of the name and the age.

    Raises:
        InvalidValue: a column's path cannot be understood.
    """
    wanted = additional_columns or [_AGE_COLUMN]
    paths = [(column["type"], _parse_path(column["jsonPath"])) for column in wanted]
    return Printer(
        columns=(
            Column("Name"),
            *(Column(one["name"], one["type"], one.get("priority", 0)) for one in wanted),
        ),
        cells=lambda json_object, now: [
            name_of(json_object),
            *(_cell(kind, _first(json_object, steps), now) for kind, steps in paths),
        ],
    )


def _parse_path(text: str) -> list[re.Match[str]]:
    steps = list(_STEP.finditer(text))
    if "".join(step[0] for step in steps) != text:
        raise InvalidValue("is not a path that is understood here", field="jsonPath", value=text)
    return steps


def _first(value: JsonValue, steps: list[re.Match[str]]) -> JsonValue:
    """The first value that the steps lead to; None where they lead nowhere."""
    found = [value]
    for step in steps:
        found = list(chain.from_iterable(_step(one, step) for one in found))
    return found[0] if found else None


def _step(value: JsonValue, step: re.Match[str]) -> list[JsonValue]:
    if name := step["name"]:
        return [value[name]] if isinstance(value, dict) and name in value else []
    elements = value if isinstance(value, list) else []
    return [one for one in elements if isinstance(one, dict) and one.get(step["key"]) == step["value"]]


def _cell(kind: str, found: JsonValue, now: datetime) -> Cell:
    """The cell for a value; None, which kubectl shows as nothing, if its type is another."""
    cell: Cell = None
    match kind, found:
        case ("string", str(text)):
            cell = text
        case ("string", value) if value is not None:
            cell = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        case ("date", str(text)):
            cell = age(text, now)
        case ("boolean", bool(flag)):
            cell = flag
        case ("integer" | "number", int() | float() as number) if not isinstance(number, bool):
            cell = int(number) if kind == "integer" else float(number)
    return cell
