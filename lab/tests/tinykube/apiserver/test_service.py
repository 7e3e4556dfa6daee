from typing import Any

import pytest
from lab.tests.tinykube.apiserver.inside import Inside, refused

from tinykube.objects.deletion import DeleteOptions
from tinykube.objects.service import WriteOptions
from tinykube.objects.values import Json


def config_map(name: str = "settings", **more: Any) -> Json:
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}, **more}


def pod(name: str = "one", node: str | None = None) -> Json:
    spec = {"containers": [{"name": "main", "image": "busybox:1"}], **({"nodeName": node} if node else {})}
    return {"metadata": {"name": name}, "spec": spec}


def with_metadata(json_object: Json, **fields: Any) -> Json:
    return {**json_object, "metadata": {**json_object["metadata"], **fields}}


def test_the_server_sets_what_only_it_may_set(inside: Inside) -> None:
    given = with_metadata(config_map(), uid="mine", creationTimestamp="1999-01-01T00:00:00Z", generation=7)
    metadata = inside.create("configmaps", given)["metadata"]
    assert metadata["uid"] != "mine"
    assert metadata["creationTimestamp"] == "2026-01-01T00:00:00Z"
    assert metadata["namespace"] == "default"
    assert "generation" not in metadata


def test_names_are_generated_from_their_prefix(inside: Inside) -> None:
    body = {"metadata": {"generateName": "settings-"}}
    names = {inside.create("configmaps", body)["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("settings-") and len(name) == 14 for name in names)


def test_a_name_is_taken_once(inside: Inside) -> None:
    inside.create("configmaps", config_map())
    with refused(409, 'configmaps "settings" already exists') as refusal:
        inside.create("configmaps", config_map())
    assert refusal.error.status["details"] == {"name": "settings", "kind": "configmaps"}


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        pytest.param({"metadata": {}}, 422, "metadata.name: name or generateName", id="no name"),
        pytest.param(config_map("Capital"), 422, "metadata.name", id="capital letter"),
        pytest.param(
            with_metadata(config_map(), labels={"a b": "x"}), 422, "metadata.labels", id="label with a space"
        ),
        pytest.param(
            with_metadata(config_map(), resourceVersion="5"), 500, "should not be set", id="version given"
        ),
        pytest.param(with_metadata(config_map(), namespace="other"), 400, "namespace", id="namespace"),
        pytest.param({**config_map(), "kind": "Secret"}, 400, "kind must be ConfigMap", id="kind"),
        pytest.param({**config_map(), "apiVersion": "v2"}, 400, "apiVersion must be v1", id="version"),
        pytest.param({**config_map(), "data": ["x"]}, 400, "data must be", id="wrong type"),
        pytest.param(with_metadata(config_map(), labels={"a": 1}), 400, "metadata.labels", id="number"),
    ],
)
def test_an_unacceptable_object_is_refused(inside: Inside, body: Json, code: int, text: str) -> None:
    with refused(code, text):
        inside.create("configmaps", body)
    assert not inside.exists("configmaps", "settings")


def test_a_missing_namespace_is_named(inside: Inside) -> None:
    with refused(404, 'namespaces "nowhere" not found'):
        inside.create("configmaps", config_map(), "nowhere")


def test_nothing_is_created_in_a_namespace_that_ends(inside: Inside) -> None:
    inside.create("namespaces", {"metadata": {"name": "ending"}})
    inside.delete("namespaces", "ending")
    assert inside.get("namespaces", "ending")["status"]["phase"] == "Terminating"
    with refused(403, "is being terminated") as refusal:
        inside.create("configmaps", config_map(), "ending")
    assert refusal.error.status["details"]["causes"][0]["field"] == "metadata.namespace"


def test_a_namespace_goes_when_it_is_finalized(inside: Inside) -> None:
    inside.create("namespaces", {"metadata": {"name": "ending"}})
    inside.delete("namespaces", "ending")
    ending = inside.get("namespaces", "ending")
    inside.update("namespaces", {**ending, "spec": {}})
    assert inside.exists("namespaces", "ending"), "only the finalize subresource counts"
    inside.update("namespaces", {**inside.get("namespaces", "ending"), "spec": {}}, "finalize")
    assert not inside.exists("namespaces", "ending")


def test_each_namespace_gets_its_label_and_its_service_account(inside: Inside) -> None:
    created = inside.create("namespaces", {"metadata": {"name": "new"}})
    assert created["metadata"]["labels"] == {"kubernetes.io/metadata.name": "new"}
    assert ("new", "default") in [tuple(stored.key) for stored in inside.stored("serviceaccounts")]


def test_an_update_needs_the_current_version(inside: Inside) -> None:
    old = inside.create("configmaps", config_map())
    inside.update("configmaps", {**old, "data": {"a": "1"}})
    with refused(409, "the object has been modified; please apply your changes") as refusal:
        inside.update("configmaps", {**old, "data": {"a": "2"}})
    assert refusal.error.status["reason"] == "Conflict"


def test_an_update_without_a_version_is_unconditional_where_the_kind_allows_it(inside: Inside) -> None:
    inside.create("configmaps", config_map())
    assert inside.update("configmaps", config_map(data={"a": "1"}))["data"] == {"a": "1"}
    inside.create("csidrivers", {"metadata": {"name": "d"}})
    with refused(422, "metadata.resourceVersion: must be specified"):
        inside.update("csidrivers", {"metadata": {"name": "d"}, "spec": {}})


def test_an_update_for_another_uid_is_refused(inside: Inside) -> None:
    inside.create("configmaps", config_map())
    with refused(409, "uid other is wanted"):
        inside.update("configmaps", with_metadata(config_map(), uid="other"))


def test_an_update_creates_nothing(inside: Inside) -> None:
    with refused(404, 'configmaps "settings" not found'):
        inside.update("configmaps", config_map())


def test_an_update_that_changes_nothing_is_no_new_version(inside: Inside) -> None:
    created = inside.create("configmaps", config_map(data={"a": "1"}))
    inside.pass_time(60)
    assert inside.update("configmaps", created) == created


def test_the_status_has_its_own_door(inside: Inside) -> None:
    claim = {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Bound"},
    }
    created = inside.create("persistentvolumeclaims", claim)
    assert created["status"] == {"phase": "Pending"}
    changed = {**created, "status": {"phase": "Bound"}}
    assert inside.update("persistentvolumeclaims", changed)["status"] == {"phase": "Pending"}
    assert inside.update("persistentvolumeclaims", changed, "status")["status"] == {"phase": "Bound"}


def test_generations_count_changes_of_what_is_wanted(inside: Inside) -> None:
    created = inside.create("pods", pod())
    assert created["metadata"]["generation"] == 1
    running = inside.update("pods", {**created, "status": {"phase": "Running"}}, "status")
    assert running["metadata"]["generation"] == 1
    changed = {**running["spec"], "activeDeadlineSeconds": 60}
    assert inside.update("pods", {**running, "spec": changed})["metadata"]["generation"] == 2


def test_no_finalizer_joins_an_object_that_is_being_deleted(inside: Inside) -> None:
    created = inside.create("configmaps", with_metadata(config_map(), finalizers=["example.com/one"]))
    inside.delete("configmaps", "settings")
    wanted = with_metadata(created, finalizers=["example.com/one", "example.com/two"], resourceVersion="")
    with refused(422, "metadata.finalizers"):
        inside.update("configmaps", wanted)


def test_the_last_finalizer_lets_go(inside: Inside) -> None:
    created = inside.create("configmaps", with_metadata(config_map(), finalizers=["example.com/one"]))
    assert not inside.delete("configmaps", "settings").gone
    inside.update("configmaps", with_metadata(created, finalizers=[], resourceVersion=""))
    assert not inside.exists("configmaps", "settings")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        pytest.param(DeleteOptions(uid="other"), "uid other is wanted", id="uid"),
        pytest.param(DeleteOptions(resource_version="1"), "resourceVersion 1 is wanted", id="version"),
    ],
)
def test_a_deletion_meant_for_something_else_is_refused(
    inside: Inside, options: DeleteOptions, text: str
) -> None:
    inside.create("configmaps", config_map())
    with refused(409, text):
        inside.delete("configmaps", "settings", options)
    assert inside.exists("configmaps", "settings")


def test_a_running_pod_waits_for_its_kubelet(inside: Inside) -> None:
    inside.create("pods", pod(node="n1"))
    deleted = inside.delete("pods", "one")
    assert not deleted.gone
    assert deleted.stored.json["metadata"]["deletionGracePeriodSeconds"] == 30
    assert inside.delete("pods", "one", DeleteOptions(grace_period_seconds=0)).gone
    assert not inside.exists("pods", "one")


def test_a_pod_on_no_node_goes_at_once(inside: Inside) -> None:
    inside.create("pods", pod())
    assert inside.delete("pods", "one").gone


def test_a_dry_run_leaves_no_trace(inside: Inside) -> None:
    before = inside.store.revision
    shown = inside.create("configmaps", config_map(), dry_run=True)
    assert shown["metadata"]["uid"]
    assert "resourceVersion" not in shown["metadata"]
    inside.create("configmaps", config_map())
    inside.delete("configmaps", "settings", DeleteOptions(dry_run=True))
    assert inside.exists("configmaps", "settings")
    assert inside.store.revision == before + 1


def test_immortal_namespaces_stay(inside: Inside) -> None:
    with refused(403, 'namespaces "default" is forbidden'):
        inside.delete("namespaces", "default")


def test_writers_own_what_they_write(inside: Inside) -> None:
    created = inside.create("configmaps", config_map(data={"a": "1"}))
    (entry,) = created["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"]) == ("tests", "Update")
    assert entry["fieldsV1"] == {"f:data": {".": {}, "f:a": {}}}


def test_a_name_is_taken_until_its_object_is_gone(inside: Inside) -> None:
    inside.create("configmaps", with_metadata(config_map(), finalizers=["example.com/hold"]))
    inside.delete("configmaps", "settings")
    with refused(409, 'configmaps "settings" already exists'):
        inside.create("configmaps", config_map())


def test_unknown_fields_are_dropped_unless_the_client_is_strict(inside: Inside) -> None:
    body, resource = {**config_map(), "extra": 1}, inside.type_of("configmaps")
    with refused(400, 'unknown field "extra"'):
        inside.service.create(resource, "default", body, WriteOptions(strict=True))
    assert "extra" not in inside.service.create(resource, "default", body, WriteOptions()).json


def apply_config_map(inside: Inside, manager: str = "a", **fields: Any) -> Json:
    resource, key = inside.type_of("configmaps"), inside.key("configmaps", "settings")
    applied = {"kind": "ConfigMap", "apiVersion": "v1", **config_map(), **fields}
    options = WriteOptions(manager=manager)
    return inside.service.apply(resource, key, applied, options).stored.json


def test_server_side_apply_takes_no_unknown_fields(inside: Inside) -> None:
    with refused(500, "ConfigMap has no such fields: extra"):
        apply_config_map(inside, extra=1)


def test_an_applied_empty_map_has_an_owner_and_is_not_stored(inside: Inside) -> None:
    stored = apply_config_map(inside, data={})
    assert "data" not in stored
    assert stored["metadata"]["managedFields"][0]["fieldsV1"] == {"f:data": {}}


def test_who_applies_what_is_there_already_has_no_time(inside: Inside) -> None:
    apply_config_map(inside, data={"a": "1"})
    entries = apply_config_map(inside, "b", data={"a": "1"})["metadata"]["managedFields"]
    assert {entry["manager"]: "time" in entry for entry in entries} == {"a": True, "b": False}
