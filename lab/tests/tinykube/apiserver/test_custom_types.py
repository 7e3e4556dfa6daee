from typing import Any

import pytest
from lab.tests.tinykube.apiserver.inside import Inside, refused

from tinykube.objects.service import WriteOptions
from tinykube.objects.values import Json

SCHEMA: Json = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {"size": {"type": "integer", "minimum": 1, "default": 3}},
        },
        "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
}


def version(name: str, **more: Any) -> Json:
    given: Json = {
        "name": name,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": SCHEMA},
        "subresources": {"status": {}},
    }
    return {**given, **more}


def definition() -> Json:
    return {
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [version("v1")],
        },
    }


def widget(name: str = "one", **fields: Any) -> Json:
    return {"kind": "Widget", "apiVersion": "example.com/v1", "metadata": {"name": name}, **fields}


@pytest.fixture
def defined(inside: Inside) -> Inside:
    inside.create("customresourcedefinitions", definition())
    return inside


def test_a_definition_is_established_at_once(defined: Inside) -> None:
    found = defined.get("customresourcedefinitions", "widgets.example.com")
    conditions = {one["type"]: one["status"] for one in found["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}
    assert found["status"]["storedVersions"] == ["v1"]
    assert found["spec"]["names"]["listKind"] == "WidgetList"
    assert defined.registry.get("example.com", "v1", "widgets").singular == "widget"


def test_custom_objects_are_pruned_defaulted_and_checked(defined: Inside) -> None:
    created = defined.create("widgets", widget(spec={}, extra=1))
    assert created["spec"] == {"size": 3}
    assert "extra" not in created
    with refused(422, "spec.size"):
        defined.create("widgets", widget("two", spec={"size": 0}))


def test_unknown_fields_are_named_when_the_client_is_strict(defined: Inside) -> None:
    resource = defined.type_of("widgets")
    with refused(400, 'unknown field "spec.colour"'):
        body = widget(spec={"colour": "red"})
        defined.service.create(resource, "default", body, WriteOptions(strict=True))


def test_an_object_of_another_kind_is_refused(defined: Inside) -> None:
    with refused(400, "kind must be Widget, not Gadget"):
        defined.create("widgets", {**widget(), "kind": "Gadget"})


def test_custom_objects_name_their_kind(defined: Inside) -> None:
    with refused(400, "kind must be Widget"):
        defined.create("widgets", {"metadata": {"name": "one"}})


def test_the_status_of_custom_objects_changes_nothing_else(defined: Inside) -> None:
    created = defined.create("widgets", widget(spec={}, status={"ready": True}))
    assert "status" not in created
    changed = {**created, "spec": {"size": 9}, "status": {"ready": True}}
    changed["metadata"] = {**created["metadata"], "labels": {"a": "b"}}
    updated = defined.update("widgets", changed, "status")
    assert (updated["status"], updated["spec"]) == ({"ready": True}, {"size": 3})
    assert "labels" not in updated["metadata"]
    assert updated["metadata"]["generation"] == 1
    wanted = {**updated, "spec": {"size": 4}}
    assert defined.update("widgets", wanted)["metadata"]["generation"] == 2


def test_custom_objects_are_never_overwritten_blindly(defined: Inside) -> None:
    defined.create("widgets", widget(spec={}))
    with refused(422, "metadata.resourceVersion: must be specified"):
        defined.update("widgets", widget(spec={}))


def test_a_changed_definition_holds_from_then_on(defined: Inside) -> None:
    found = defined.get("customresourcedefinitions", "widgets.example.com")
    schema = {"type": "object", "properties": {"colour": {"type": "string"}}}
    changed = version("v1", schema={"openAPIV3Schema": schema}, subresources=None)
    defined.update("customresourcedefinitions", {**found, "spec": {**found["spec"], "versions": [changed]}})
    assert not defined.type_of("widgets").has_status
    assert defined.create("widgets", widget(colour="red", spec={}))["colour"] == "red"


def test_a_deleted_definition_takes_its_objects_along(defined: Inside) -> None:
    for number in range(50):
        defined.create("widgets", widget(f"w{number}", spec={}))
    defined.delete("customresourcedefinitions", "widgets.example.com")
    assert not defined.exists("customresourcedefinitions", "widgets.example.com")
    assert defined.registry.find("example.com", "v1", "widgets") is None


def test_a_deleted_definition_waits_for_objects_that_are_held(defined: Inside) -> None:
    held = widget(spec={})
    held["metadata"]["finalizers"] = ["example.com/hold"]
    defined.create("widgets", held)
    defined.delete("customresourcedefinitions", "widgets.example.com")
    found = defined.get("customresourcedefinitions", "widgets.example.com")
    assert found["metadata"]["finalizers"] == ["customresourcecleanup.apiextensions.k8s.io"]
    kept = defined.get("widgets", "one")
    defined.update("widgets", {**kept, "metadata": {**kept["metadata"], "finalizers": []}})
    assert not defined.exists("customresourcedefinitions", "widgets.example.com")


@pytest.mark.parametrize(
    "versions",
    [pytest.param([], id="none"), pytest.param([version("v1"), version("v2", storage=False)], id="two")],
)
def test_a_definition_has_one_version(inside: Inside, versions: list[Json]) -> None:
    body = definition()
    body["spec"]["versions"] = versions
    with refused(422, "spec.versions"):
        inside.create("customresourcedefinitions", body)
    assert inside.registry.find("example.com", "v1", "widgets") is None
