"""Events of both groups: one set of objects, two sets of rules."""

from typing import Any

import pytest
from lab.tests.tinykube.apiserver.inside import Inside, refused

from tinykube.objects.json_types import Json
from tinykube.objects.service import WriteOptions
from tinykube.objects.storage import ObjectKey

EVENTS = ("events.k8s.io", "v1", "events")


def core(**fields: Any) -> Json:
    about = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "data"}
    return {"metadata": {"name": "old"}, "involvedObject": about, "reason": "Because", **fields}


def new(**fields: Any) -> Json:
    return {
        "metadata": {"name": "new"},
        "regarding": {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "data"},
        "eventTime": "2026-01-02T03:04:05.678901Z",
        "reason": "Because",
        "action": "Provision",
        "note": "found",
        "type": "Normal",
        "reportingController": "example.com/kube-efs",
        "reportingInstance": "kube-efs-0",
        **fields,
    }


def create_new(inside: Inside, body: Json) -> Json:
    return inside.service.create(
        inside.registry.get(*EVENTS), "default", body, WriteOptions(manager="tests")
    ).json


def test_fields_are_owned_under_the_names_of_the_group_that_was_written(inside: Inside) -> None:
    (entry,) = create_new(inside, new())["metadata"]["managedFields"]
    assert entry["apiVersion"] == "events.k8s.io/v1"
    assert {"f:note", "f:regarding", "f:reportingController"} <= entry["fieldsV1"].keys()
    assert not {"f:message", "f:involvedObject", "f:deprecatedSource"} & entry["fieldsV1"].keys()


def test_what_a_core_event_leaves_out_has_no_owner(inside: Inside) -> None:
    create = inside.service.create
    stored = create(inside.registry.get("", "v1", "events"), "default", core(), WriteOptions(manager="tests"))
    (entry,) = stored.json["metadata"]["managedFields"]
    assert entry["fieldsV1"].keys() == {"f:involvedObject", "f:reason"}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        pytest.param({"action": ""}, "action: Required value", id="no action"),
        pytest.param(
            {"reason": "x" * 129}, 'reason: Invalid value: "": can have at most 128', id="long reason"
        ),
        pytest.param({"type": "Loud"}, 'type: Invalid value: "": has invalid value: Loud', id="type"),
        pytest.param({"note": "x" * 1025}, "can have at most 1024 characters", id="long note"),
        pytest.param({"reportingController": ""}, "reportingController: Required value", id="controller"),
        pytest.param({"eventTime": None}, "eventTime: Required value", id="no time"),
        pytest.param(
            {"deprecatedCount": 2}, 'count: Invalid value: "": needs to be unset', id="an old field"
        ),
        pytest.param(
            {"regarding": {"namespace": "other", "name": "x"}},
            'involvedObject.namespace: Invalid value: "other": does not match event.namespace',
            id="another namespace",
        ),
    ],
)
def test_an_event_of_the_group_is_complete(inside: Inside, fields: Json, problem: str) -> None:
    with refused(422, problem):
        create_new(inside, new(**fields))


def test_only_the_series_of_an_event_of_the_group_changes(inside: Inside) -> None:
    create_new(inside, new())
    resource, key = inside.registry.get(*EVENTS), ObjectKey("default", "new")
    series = {"count": 2, "lastObservedTime": "2026-01-02T03:04:06.000000Z"}
    counted = inside.service.change(resource, key, lambda wire: {**wire, "series": series}, WriteOptions())
    assert counted.json["series"]["count"] == 2
    with refused(422, 'Event "new" is invalid: message: Invalid value: "other": field is immutable'):
        inside.service.change(resource, key, lambda wire: {**wire, "note": "other"}, WriteOptions())
