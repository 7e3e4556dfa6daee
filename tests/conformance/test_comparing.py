"""The comparison of two servers finds exactly the relevant differences."""

from typing import Any

import pytest
from tests.conformance.differential.comparing import differences
from tests.conformance.differential.normalising import normalised
from tests.conformance.differential.player import Answer, Json


def answer(body: Any, status: int = 200) -> Answer:
    return Answer(exchange="get", status=status, content_type="application/json", warnings=(), body=body)


def stored(version: int, uid: str = "0", **fields: Any) -> Json:
    metadata = {"name": "one", "uid": f"{uid * 8}-{uid * 4}-{uid * 4}-{uid * 4}-{uid * 12}"}
    return {"metadata": {**metadata, "resourceVersion": str(version)}, **fields}


def paths(real: list[Any], embedded: list[Any]) -> list[str]:
    found = differences(normalised(map(answer, real)), normalised(map(answer, embedded)))
    return [one.path for one in found]


def test_uids_versions_times_and_random_names_are_ignored() -> None:
    real = stored(17, "a", at="2026-01-02T03:04:05Z", note="made-bcdfg")
    other = stored(4, "b", at="2027-01-02T03:04:05Z", note="made-xvzvx")
    assert paths([real], [other]) == []


@pytest.mark.parametrize(
    ("real", "embedded", "path"),
    [
        pytest.param([stored(1), stored(2)], [stored(7), stored(7)], "resourceVersion", id="no new version"),
        pytest.param([stored(1), stored(1)], [stored(7), stored(8)], "resourceVersion", id="new version"),
        pytest.param([stored(1), stored(1)], [stored(7), stored(7, "a")], "uid", id="another object"),
    ],
)
def test_identity_and_version_of_an_object_are_compared(
    real: list[Json], embedded: list[Json], path: str
) -> None:
    assert f"body.metadata.{path}" in paths(real, embedded)


@pytest.mark.parametrize(
    ("real", "embedded", "path"),
    [
        pytest.param({"a": 1}, {"a": True}, "body.a", id="type"),
        pytest.param({"a": None}, {}, "body.a", id="null"),
        pytest.param({"a": [1]}, {"a": [1, 2]}, "body.a[1]", id="one more"),
        pytest.param({"a": [1, 2]}, {"a": [2, 1]}, "body.a[0]", id="order"),
        pytest.param(
            {"at": "2026-01-02T03:04:05Z"}, {"at": "2026-01-02T03:04:05.5Z"}, "body.at", id="fraction"
        ),
        pytest.param({"cells": ["5s"]}, {"cells": ["<none>"]}, "body.cells[0]", id="age"),
    ],
)
def test_all_other_differences_are_found(real: Json, embedded: Json, path: str) -> None:
    assert path in paths([real], [embedded])


def test_different_status_is_the_only_reported_difference() -> None:
    refused = answer({"kind": "Status", "message": "no"}, 422)
    (found,) = differences([answer(stored(1))], [refused])
    assert (found.path, found.real, found.embedded) == ("status", (200, ""), (422, "no"))


def refusal(message: str, *fields: str, reason: str = "Invalid") -> Json:
    causes = [{"field": field, "message": message, "reason": message} for field in fields]
    status = {"kind": "Status", "status": "Failure", "code": 422, "reason": reason, "message": message}
    return {**status, "details": {"causes": causes}}


def test_texts_of_refusals_are_ignored() -> None:
    assert paths([refusal("one", "spec.a", "spec.b")], [refusal("other", "spec.b", "spec.a", "spec.a")]) == []


@pytest.mark.parametrize(
    ("embedded", "path"),
    [
        pytest.param(refusal("one", "spec.b"), "fields[0]", id="another field"),
        pytest.param(refusal("one", "spec.a", reason="Forbidden"), "reason", id="another reason"),
    ],
)
def test_reason_and_fields_of_a_refusal_are_compared(embedded: Json, path: str) -> None:
    assert paths([refusal("one", "spec.a")], [embedded]) == [f"body.{path}"]
    event = {"type": "ERROR", "object": refusal("one", "spec.a")}
    assert paths([[event]], [[{**event, "object": embedded}]]) == [f"body[0].object.{path}"]
