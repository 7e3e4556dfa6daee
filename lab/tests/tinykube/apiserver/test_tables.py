from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinykube.printers.printers import NAME_AND_AGE
from tinykube.printers.tables import IncludeObject, age, human_duration, table_for

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
CLAIM = {
    "kind": "Anything",
    "apiVersion": "v1",
    "metadata": {"name": "data", "creationTimestamp": "2026-11-21T11:56:40Z"},
    "spec": {"a": 1},
}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (5, "5s"),
        (119, "119s"),
        (120, "2m"),
        (200, "3m20s"),
        (599, "9m59s"),
        (600, "10m"),
        (3 * 3600 - 1, "179m"),
        (3 * 3600, "3h"),
        (3 * 3600 + 61, "3h1m"),
        (8 * 3600, "8h"),
        (47 * 3600 + 3599, "47h"),
        (48 * 3600, "2d"),
        (51 * 3600, "2d3h"),
        (8 * 86400, "8d"),
        (400 * 86400, "400d"),
        (730 * 86400, "2y"),
        ((3 * 365 + 45) * 86400, "3y45d"),
        (9 * 365 * 86400 + 86400, "9y"),
    ],
)
def test_durations_are_written_as_kubectl_does(seconds: int, text: str) -> None:
    assert human_duration(timedelta(seconds=seconds)) == text


@given(st.integers(min_value=-(10**9), max_value=10**10))
def test_every_duration_has_a_short_text(seconds: int) -> None:
    assert 2 <= len(human_duration(timedelta(seconds=seconds))) <= 9


@pytest.mark.parametrize(
    ("timestamp", "text"),
    [
        pytest.param("2026-11-21T11:59:55Z", "5s", id="seconds"),
        pytest.param("2026-11-21T11:59:55.500000Z", "4s", id="microseconds"),
        pytest.param("2026-11-21T12:59:55+01:00", "5s", id="another zone"),
        pytest.param(None, "<unknown>", id="nothing"),
        pytest.param("yesterday", "<unknown>", id="no time"),
    ],
)
def test_ages(timestamp: str | None, text: str) -> None:
    assert age(timestamp, NOW) == text


@pytest.mark.parametrize(
    ("include", "row_object"),
    [
        (IncludeObject.NONE, {"object": None}),
        (
            IncludeObject.METADATA,
            {
                "object": {
                    "kind": "PartialObjectMetadata",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": CLAIM["metadata"],
                }
            },
        ),
        (IncludeObject.OBJECT, {"object": CLAIM}),
    ],
)
def test_a_table(include: IncludeObject, row_object: dict[str, Any]) -> None:
    table = table_for(
        NAME_AND_AGE, [CLAIM], metadata={"resourceVersion": "7"}, include_object=include, now=NOW
    )
    assert table == {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": "7"},
        "columnDefinitions": [
            {"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0},
            {"name": "Age", "type": "string", "format": "", "description": "", "priority": 0},
        ],
        "rows": [{"cells": ["data", "3m20s"], **row_object}],
    }
