import json
from datetime import UTC, datetime
from typing import Any

import pytest

from tinykube.custom.custom_columns import parse_path, printer_for_definition
from tinykube.errors import InvalidValue

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
SHARED_VOLUME = {
    "metadata": {
        "name": "x",
        "creationTimestamp": "2026-11-21T11:58:00Z",
        "annotations": {"example.com/a": "1"},
    },
    "spec": {"size": 3, "on": True, "ratio": 0.5, "names": ["a", "b"]},
    "status": {
        "conditions": [
            {"type": "Ready", "status": "False", "weight": 2},
            {"type": "Failed", "status": "True", "weight": 5},
        ]
    },
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        pytest.param(".spec.size", [3], id="members"),
        pytest.param(".spec.missing.deep", [], id="missing"),
        pytest.param(".spec.size.deep", [], id="into a number"),
        pytest.param(".metadata.annotations['example.com/a']", ["1"], id="quoted member"),
        pytest.param('.metadata.annotations["example.com/a"]', ["1"], id="member in double quotes"),
        pytest.param(r".metadata.annotations.example\.com/a", ["1"], id="escaped dot"),
        pytest.param(".spec.names[1]", ["b"], id="element"),
        pytest.param(".spec.names[-1]", ["b"], id="last element"),
        pytest.param(".spec.names[7]", [], id="element that is not there"),
        pytest.param(".spec.names[*]", ["a", "b"], id="all elements"),
        pytest.param('.status.conditions[?(@.type=="Ready")].status', ["False"], id="filter"),
        pytest.param(
            ".status.conditions[?(@.type == 'Failed')].status", ["True"], id="single quotes, spaces"
        ),
        pytest.param('.status.conditions[?(@.type!="Ready")].type', ["Failed"], id="unequal"),
        pytest.param(".status.conditions[?(@.weight>2)].type", ["Failed"], id="greater"),
        pytest.param(".status.conditions[?(@.weight>=2)].type", ["Ready", "Failed"], id="greater or equal"),
        pytest.param(".status.conditions[?(@.type>2)].type", [], id="text is not greater than a number"),
        pytest.param(".status.conditions[?(@.status)].type", ["Ready", "Failed"], id="exists"),
    ],
)
def test_paths(path: str, found: list[Any]) -> None:
    assert parse_path(path)(SHARED_VOLUME) == found


@pytest.mark.parametrize("path", ["spec", ".spec[", ".spec[a]", ".a..b", ".a[?(@.b==x)]"])
def test_paths_that_cannot_be_understood(path: str) -> None:
    with pytest.raises(InvalidValue, match="unrecognized column definition"):
        parse_path(path)


@pytest.mark.parametrize(
    ("kind", "path", "cell"),
    [
        ("string", ".spec.size", "3"),
        ("string", ".spec.on", "true"),
        ("string", ".spec.names", '["a","b"]'),
        ("string", ".spec.missing", None),
        ("integer", ".spec.size", 3),
        ("integer", ".spec.on", None),
        ("number", ".spec.ratio", 0.5),
        ("boolean", ".spec.on", True),
        ("boolean", ".spec.size", None),
        ("date", ".metadata.creationTimestamp", "2m"),
        ("date", ".metadata.name", "<invalid>"),
        ("date", ".spec.size", None),
    ],
)
def test_cells_by_type(kind: str, path: str, cell: Any) -> None:
    printer = printer_for_definition([{"name": "C", "type": kind, "jsonPath": path, "priority": 1}])
    shown = printer.cells(SHARED_VOLUME, NOW)
    assert json.dumps(shown) == json.dumps(["x", cell])
    assert [(column.name, column.type, column.priority) for column in printer.columns] == [
        ("Name", "string", 0),
        ("C", kind, 1),
    ]


def test_without_columns_the_age_is_shown() -> None:
    printer = printer_for_definition([])
    assert [column.name for column in printer.columns] == ["Name", "Age"]
    assert printer.cells(SHARED_VOLUME, NOW) == ["x", "2m"]
