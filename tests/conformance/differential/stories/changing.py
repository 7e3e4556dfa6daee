"""Patches of all kinds, server-side apply, and the owners of fields."""

from typing import Any

from tests.conformance.differential.objects import claim, config_map, is_available, pod, volume
from tests.conformance.differential.player import (
    APPLY,
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    Json,
    Player,
)


async def patches(play: Player) -> None:
    await play.create("create", "configmaps", config_map("one", {"a": "1", "b": "2"}))
    await play.patch("merge", "configmaps/one", {"data": {"a": None, "c": "3"}})
    await play.patch("merge nothing", "configmaps/one", {})
    await play.patch("merge a list", "configmaps/one", [])
    await play.patch("merge what is not there", "configmaps/none", {"data": {}})
    await play.patch("merge another name", "configmaps/one", {"metadata": {"name": "two"}})
    await play.patch("merge an old version", "configmaps/one", {"metadata": {"resourceVersion": "1"}})
    await play.patch("merge a wrong type", "configmaps/one", {"data": "text"})
    await play.patch("merge an unknown field", "configmaps/one", {"extra": 1}, {"fieldValidation": "Strict"})
    await play.patch("force a merge", "configmaps/one", {"data": {}}, {"force": "true"})
    await play.send("merge no JSON", "PATCH", "configmaps/one", b"{", content_type=MERGE_PATCH)

    async def json_patch(exchange: str, *operations: Json) -> None:
        await play.patch(exchange, "configmaps/one", list(operations), content_type=JSON_PATCH)

    await json_patch("add", {"op": "add", "path": "/data/d", "value": "4"})
    await json_patch(
        "test and replace",
        {"op": "test", "path": "/data/d", "value": "4"},
        {"op": "replace", "path": "/data/d", "value": "5"},
    )
    await json_patch("fail a test", {"op": "test", "path": "/data/d", "value": "4"})
    await json_patch("remove what is not there", {"op": "remove", "path": "/data/none"})
    await json_patch("add far down", {"op": "add", "path": "/none/below", "value": "1"})
    await json_patch("do the unknown", {"op": "frobnicate", "path": "/data/d"})
    await json_patch("move", {"op": "move", "from": "/data/d", "path": "/data/e"})
    await json_patch("copy", {"op": "copy", "from": "/data/e", "path": "/data/f"})
    await json_patch("remove", {"op": "remove", "path": "/data/e"})
    await play.patch("a JSON patch that is no list", "configmaps/one", {}, content_type=JSON_PATCH)
    await play.patch("a patch of another type", "configmaps/one", {}, content_type="application/json")


async def strategic_patches(play: Player) -> None:
    await play.create("create", "pods", pod("one", volumes=[{"name": "a", "emptyDir": {}}]))

    async def patch(exchange: str, change: Json, path: str = "pods/one") -> None:
        await play.patch(exchange, path, change, content_type=STRATEGIC_PATCH)

    await patch("an image", {"spec": {"containers": [{"name": "main", "image": "example.com/main:2"}]}})
    await patch("labels", {"metadata": {"labels": {"a": "1", "b": "2"}}})
    await patch("one label less", {"metadata": {"labels": {"a": None}}})
    await patch("all labels replaced", {"metadata": {"labels": {"$patch": "replace", "c": "3"}}})
    await patch("finalizers", {"metadata": {"finalizers": ["example.com/a", "example.com/b"]}})
    more = {"metadata": {"finalizers": ["example.com/c"]}}
    await patch("one finalizer more", more)
    less = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/a"]}}
    await patch("one finalizer less", less)
    await patch("no finalizers", {"metadata": {"finalizers": None}})
    await patch("what may not change", {"spec": {"nodeSelector": {"a": "b"}}})
    await patch("tolerations", {"spec": {"tolerations": [{"key": "a", "operator": "Exists"}]}})
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"}
    await patch("a condition", {"status": {"conditions": [ready]}}, "pods/one/status")
    more_ready = {"type": "Initialized", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"}
    await patch("another condition", {"status": {"conditions": [more_ready]}}, "pods/one/status")
    await patch("a status beside its subresource", {"status": {"phase": "Running"}})
    unready = {"status": {"conditions": [{"type": "Ready", "$patch": "delete"}]}}
    await patch("a condition less", unready, "pods/one/status")


async def applying(play: Player) -> None:
    def body(data: Json, **metadata: Any) -> Json:
        return config_map("one", data, **metadata)

    path = "configmaps/one"
    await play.apply("create by applying", path, body({"a": "1", "b": "1"}))
    await play.apply("apply the same again", path, body({"a": "1", "b": "1"}))
    await play.apply("the same value of another's field", path, body({"a": "1"}), manager="second")
    await play.apply("change a shared field", path, body({"a": "3", "b": "1"}), force=True)
    await play.apply("force them", path, body({"a": "4", "b": "4"}), manager="third", force=True)
    await play.apply("leave a field out", path, body({"b": "4"}), manager="third")
    await play.apply("leave the first's fields out", path, body({"c": "1"}))
    await play.patch("change by an update", path, {"data": {"c": "2"}}, {"fieldManager": "updater"})
    await play.apply("take it back", path, body({"c": "1"}), force=True)
    await play.send("apply without a manager", "PATCH", path, body({}), content_type=APPLY)
    await play.apply("apply managed fields", path, body({}, managedFields=[]))
    await play.apply("apply with a version", path, body({"c": "1"}, resourceVersion="1"))
    await play.apply("apply another name", path, config_map("two"))
    await play.apply("apply another kind", path, {**body({}), "kind": "Secret"})
    await play.apply("apply without a kind", path, {"metadata": {"name": "one"}})
    await play.apply("apply an unknown field", path, {**body({}), "extra": 1})
    await play.apply(
        "apply labels and finalizers", path, body({}, labels={"x": "y"}, finalizers=["example.com/a"])
    )
    await play.apply("apply neither", path, body({}))


async def owners_of_fields(play: Player) -> None:
    """The object has all fields of its kind, so that managedFields contains each of them."""
    container = {
        "name": "main",
        "image": "example.com/main:1",
        "env": [{"name": "A", "value": "b"}],
        "ports": [{"containerPort": 80}],
        "resources": {},
        "securityContext": {},
        "volumeMounts": [{"name": "a", "mountPath": "/a"}],
    }
    volumes = [{"name": "a", "emptyDir": {}}]
    await play.create("a pod", "pods", pod("one", containers=[container], volumes=volumes))
    await play.create("a claim", "persistentvolumeclaims", claim("one", selector={"matchLabels": {"a": "b"}}))
    await play.create("a claim without a class", "persistentvolumeclaims", claim("bare", ""))
    name = f"{play.namespace}-volume"
    reference = {"kind": "PersistentVolumeClaim", "namespace": play.namespace, "name": "none"}
    await play.create(
        "a volume", "persistentvolumes", volume(name, claimRef=reference, mountOptions=["port=1"])
    )
    await play.until("it is available", f"persistentvolumes/{name}", is_available)
    status = {"status": {"reason": "Because", "message": "of this"}}
    await play.patch("its status", f"persistentvolumes/{name}/status", status)
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "none", "uid": "none"}
    labelled = config_map("one", labels={"a": "b"}, annotations={"c": "d"}, ownerReferences=[owner])
    await play.create("a config map with an owner", "configmaps", labelled, {"dryRun": "All"})


async def applying_claims_and_volumes(play: Player) -> None:
    await play.apply("a claim", "persistentvolumeclaims/one", claim("one"))
    await play.apply(
        "the claim with a label",
        "persistentvolumeclaims/one",
        {**claim("one"), "metadata": {"name": "one", "labels": {"a": "b"}}},
    )
    await play.apply("another class", "persistentvolumeclaims/one", claim("one", "other"), force=True)
    name = f"{play.namespace}-volume"
    body = volume(name, claimRef={"namespace": play.namespace, "name": "none"})
    await play.apply("a volume", f"persistentvolumes/{name}", body)
    await play.until("it is available", f"persistentvolumes/{name}", is_available)
    await play.apply("with empty labels", f"persistentvolumes/{name}", volume(name, labels={}))
    status = {**volume(name), "status": {"reason": "Because"}}
    status.pop("spec")
    await play.apply("its status", f"persistentvolumes/{name}/status", status, manager="second", force=True)


STORIES = (patches, strategic_patches, applying, owners_of_fields, applying_claims_and_volumes)
