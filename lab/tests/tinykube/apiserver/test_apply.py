import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab.tests.tinykube.apiserver.inside import refused

from tinykube.kinds.builtin_types import builtin_types
from tinykube.objects.resources import Registry
from tinykube.patch.apply import Writer
from tinykube.patch.managed_fields import disown, owned

Json = dict[str, Any]

PODS = Registry(builtin_types()).get("", "v1", "pods")
HEAD = {"apiVersion": "v1", "kind": "Pod"}
FIRST, LATER = "2026-11-21T10:00:00Z", "2026-11-21T11:00:00Z"


def config(spec: Json | None = None, **metadata: Any) -> Json:
    return {**HEAD, "metadata": {"name": "web", **metadata}, **({"spec": spec} if spec is not None else {})}


def applied(live: Json | None, wanted: Json, name: str = "a", *, now: str = FIRST) -> Json:
    return Writer(resource=PODS, name=name, now=now).apply(live, wanted)


def updated(old: Json | None, new: Json, name: str = "u", *, now: str = FIRST, subresource: str = "") -> Json:
    return Writer(resource=PODS, name=name, subresource=subresource, now=now).write(old, new)


def owners(json_object: Json) -> dict[tuple[str, str], Json]:
    entries = json_object["metadata"].get("managedFields", [])
    return {(entry["manager"], entry["operation"]): entry["fieldsV1"] for entry in entries}


def test_a_first_apply_creates_and_owns() -> None:
    live = applied(None, config({"hostNetwork": True}, labels={"app": "web"}))
    assert disown(live) == config({"hostNetwork": True}, labels={"app": "web"})
    assert live["metadata"]["managedFields"] == [
        {
            "manager": "a",
            "operation": "Apply",
            "apiVersion": "v1",
            "time": FIRST,
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:metadata": {"f:labels": {"f:app": {}}}, "f:spec": {"f:hostNetwork": {}}},
        }
    ]


def test_applying_the_same_again_changes_not_even_the_time() -> None:
    live = applied(None, config(labels={"app": "web"}))
    assert applied(live, config(labels={"app": "web"}), now=LATER) == live


def test_applying_another_value_changes_the_time() -> None:
    live = applied(None, config(labels={"app": "web"}))
    changed = applied(live, config(labels={"app": "db"}), now=LATER)
    assert changed["metadata"]["labels"] == {"app": "db"}
    assert changed["metadata"]["managedFields"][0]["time"] == LATER


def test_what_is_left_out_is_removed() -> None:
    live = applied(
        None, config({"hostNetwork": True, "nodeSelector": {"a": "1"}}, labels={"x": "1", "y": "1"})
    )
    live = applied(live, config({"hostNetwork": True}, labels={"x": "1"}))
    assert disown(live) == config({"hostNetwork": True}, labels={"x": "1"})


def test_what_others_own_too_stays() -> None:
    live = applied(None, config(labels={"x": "1", "y": "1"}))
    live = applied(live, config(labels={"x": "1"}), "b")
    live = applied(live, config(), "a")
    assert live["metadata"]["labels"] == {"x": "1"}
    assert owners(live) == {("b", "Apply"): {"f:metadata": {"f:labels": {"f:x": {}}}}}


def test_what_the_server_filled_in_stays_with_its_element_only() -> None:
    live = applied(None, config({"containers": [{"name": "one"}, {"name": "two"}]}))
    containers = [{**container, "imagePullPolicy": "Always"} for container in live["spec"]["containers"]]
    live = {**live, "spec": {"containers": containers, "dnsPolicy": "ClusterFirst"}}
    live = applied(live, config({"containers": [{"name": "two"}]}))
    assert live["spec"] == {
        "containers": [{"name": "two", "imagePullPolicy": "Always"}],
        "dnsPolicy": "ClusterFirst",
    }


def test_force_takes_over() -> None:
    live = applied(None, config(labels={"x": "1", "y": "1"}))
    live = applied(live, config(labels={"x": "2"}), "b")
    assert live["metadata"]["labels"] == {"x": "2", "y": "1"}
    assert owners(live) == {
        ("a", "Apply"): {"f:metadata": {"f:labels": {"f:y": {}}}},
        ("b", "Apply"): {"f:metadata": {"f:labels": {"f:x": {}}}},
    }


def test_an_update_takes_over_what_it_changes() -> None:
    live = applied(None, config(labels={"x": "1", "y": "1"}))
    changed = copy.deepcopy(live)
    changed["metadata"]["labels"]["x"] = "2"
    assert owners(updated(live, changed)) == {
        ("a", "Apply"): {"f:metadata": {"f:labels": {"f:y": {}}}},
        ("u", "Update"): {"f:metadata": {"f:labels": {"f:x": {}}}},
    }


def test_an_update_that_changes_nothing_leaves_times_and_owners() -> None:
    live = updated(None, config(labels={"x": "1"}))
    again = {**live, "metadata": {**live["metadata"], "resourceVersion": "8"}}
    assert (
        updated(live, again, "other", now=LATER)["metadata"]["managedFields"]
        == (live["metadata"]["managedFields"])
    )


def test_a_client_that_drops_managed_fields_loses_nothing() -> None:
    live = updated(None, config(labels={"x": "1"}))
    assert updated(live, disown(live), now=LATER) == live


def test_a_removed_field_has_no_owner() -> None:
    live = updated(None, config(labels={"x": "1", "y": "1"}))
    live = updated(live, config(labels={"y": "1"}), "other")
    assert owners(live) == {("u", "Update"): {"f:metadata": {"f:labels": {".": {}, "f:y": {}}}}}


def test_a_subresource_has_its_own_entry_and_cannot_set_owners() -> None:
    live = updated(None, config({"hostNetwork": True}))
    status = {**live, "status": {"phase": "Running"}}
    status["metadata"] = {**live["metadata"], "managedFields": []}
    entries = owned(updated(live, status, subresource="status"))
    assert [(entry.subresource, len(entry.fields)) for entry in entries] == [("", 2), ("status", 2)]


def test_fields_that_a_request_cannot_write_get_no_owner() -> None:
    wanted = {**config({"hostNetwork": True}), "status": {"phase": "Running"}}
    assert owners(applied(None, wanted)) == {("a", "Apply"): {"f:spec": {"f:hostNetwork": {}}}}
    assert owners(updated(None, wanted)) == {("u", "Update"): {"f:spec": {".": {}, "f:hostNetwork": {}}}}


@pytest.mark.parametrize("given", [[{}], [{"manager": "m"}], "text"])
def test_owners_that_a_request_names_do_not_count(given: Any) -> None:
    live = updated(None, config(labels={"x": "1"}))
    assert updated(live, {**live, "metadata": {**live["metadata"], "managedFields": given}}) == live


def test_elements_keep_their_places() -> None:
    spec = {"containers": [{"name": name} for name in "abcd"]}
    live = updated(None, config(spec))
    live = applied(live, config({"containers": [{"name": name} for name in "eca"]}))
    # As Kubernetes orders them: checked against structured-merge-diff 6.3.
    assert [container["name"] for container in live["spec"]["containers"]] == ["b", "e", "c", "d", "a"]


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        pytest.param(
            config(managedFields=[]), "metadata.managedFields must be nil", id="owners in the configuration"
        ),
        pytest.param(
            config({"containers": [{"image": "x"}]}),
            "{'image': 'x'} an element lacks its key name",
            id="no key",
        ),
        pytest.param(
            config({"containers": [{"name": "x"}, {"name": "x"}]}),
            "two elements have the same key",
            id="the same key twice",
        ),
        pytest.param(
            config(finalizers=["x", "x"]),
            "two elements have the same key",
            id="the same value twice",
        ),
    ],
)
def test_refused_configurations(wanted: Json, problem: str) -> None:
    with refused(400, problem):
        applied(None, wanted)


TEXT = st.sampled_from("12")


def objects(keys: str) -> st.SearchStrategy[Json]:
    """Pods whose labels, containers and finalizers have only these names."""
    names = st.sampled_from(keys)
    container = st.fixed_dictionaries({"name": names}, optional={"image": TEXT, "args": st.lists(TEXT)})
    spec = st.fixed_dictionaries(
        {}, optional={"containers": st.lists(container, unique_by=lambda item: item["name"], min_size=1)}
    )
    metadata = st.fixed_dictionaries(
        {"name": st.just("web")},
        optional={
            "labels": st.dictionaries(names, TEXT, min_size=1),
            "finalizers": st.lists(names, unique=True, min_size=1),
        },
    )
    return st.builds(lambda meta, body: {**HEAD, "metadata": meta, "spec": body}, metadata, spec)


def dense(value: Any) -> Any:
    """The value without empty maps and lists, which the storage of a real server drops as well."""
    if isinstance(value, dict):
        return {key: part for key, part in ((k, dense(v)) for k, v in value.items()) if part not in ({}, [])}
    return [dense(part) for part in value] if isinstance(value, list) else value


@given(objects("abc"), objects("abc"))
def test_applying_is_idempotent_and_changes_no_argument(live: Json, wanted: Json) -> None:
    live = updated(None, live)
    before = copy.deepcopy((live, wanted))
    once = applied(live, wanted)
    assert applied(once, wanted, now=LATER) == once
    assert (live, wanted) == before


@given(objects("abc"), objects("xyz"))
def test_managers_of_disjoint_fields_never_conflict_and_leave_no_trace(one: Json, other: Json) -> None:
    alone = applied(None, one, "a")
    both = applied(alone, other, "b")
    assert applied(both, one, "a") == both
    without_b = applied(both, config(), "b")
    assert owners(without_b) == owners(alone)
    assert dense(disown(without_b)) == dense(disown(alone))


@given(objects("abc"))
def test_applying_nothing_removes_exactly_what_was_owned(wanted: Json) -> None:
    live = applied(None, wanted)
    assert dense(applied(live, config())) == config()
