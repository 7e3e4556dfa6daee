from datetime import UTC, datetime

import pytest

from tinykube.printers import printer_for_definition

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
    ("kind", "path", "cell"),
    [
        ("string", ".spec.size", "3"),
        ("string", ".spec.on", "true"),
        ("string", ".spec.names", '["a","b"]'),
        ("string", ".spec.missing.deep", None),
        ("string", ".spec.size.deep", None),
        ("string", '.status.conditions[?(@.type=="Ready")].status', "False"),
        ("string", ".status.conditions[?(@.type == 'Failed')].status", "True"),
        ("integer", ".spec.size", "3"),
        ("number", ".spec.ratio", "0.5"),
        ("boolean", ".spec.on", "true"),
        ("date", ".metadata.creationTimestamp", "2m"),
        ("date", ".metadata.name", "<unknown>"),
        ("date", ".spec.missing", None),
    ],
)
def test_cells_by_type(kind: str, path: str, cell: str | None) -> None:
    printer = printer_for_definition([{"name": "C", "type": kind, "jsonPath": path, "priority": 1}])
    assert printer.cells(SHARED_VOLUME, NOW) == ["x", cell]
    assert [(column.name, column.type, column.priority) for column in printer.columns] == [
        ("Name", "string", 0),
        ("C", kind, 1),
    ]


def test_without_columns_the_age_is_shown() -> None:
    printer = printer_for_definition([])
    assert [column.name for column in printer.columns] == ["Name", "Age"]
    assert printer.cells(SHARED_VOLUME, NOW) == ["x", "2m"]
