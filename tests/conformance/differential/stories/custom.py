"""Custom resources: definitions, validation, defaults, pruning, columns, status."""

from typing import Any

from tests.conformance.differential.objects import custom, definition
from tests.conformance.differential.player import STRATEGIC_PATCH, TABLE, Json, Player

_SCHEMA: Json = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {
                "size": {"type": "integer", "minimum": 1, "maximum": 10},
                "mode": {"type": "string", "enum": ["Fast", "Slow"], "default": "Slow"},
                "label": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5, "minLength": 2},
                "parts": {
                    "type": "array",
                    "maxItems": 2,
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {
                            "name": {"type": "string"},
                            "weight": {"type": "integer", "default": 1},
                        },
                    },
                },
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "pairs": {"type": "object", "additionalProperties": {"type": "string"}},
                "maybe": {"type": "string", "nullable": True},
            },
        },
        "status": {"type": "object", "properties": {"ready": {"type": "boolean"}}},
    },
}
_COLUMNS = [
    {"name": "Size", "type": "string", "jsonPath": ".spec.size", "description": "How big"},
    {"name": "Mode", "type": "string", "jsonPath": ".spec.mode"},
    {"name": "Ready", "type": "string", "jsonPath": ".status.ready", "priority": 1},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
]


def _path(play: Player, plural: str, rest: str = "") -> str:
    return f"/apis/differential.example.com/v1/namespaces/{play.namespace}/{plural}{rest}"


def _is_list(found: Any) -> bool:
    return isinstance(found, dict) and found["kind"].endswith("List")


async def _define(play: Player, body: Json) -> None:
    """Define a kind and wait until it is served."""
    name, plural = body["metadata"]["name"], body["spec"]["names"]["plural"]
    await play.create("define", "customresourcedefinitions", body)
    await play.until(
        "it is established",
        f"customresourcedefinitions/{name}",
        lambda found: any(
            condition["type"] == "Established" and condition["status"] == "True"
            for condition in found.get("status", {}).get("conditions") or ()
        ),
    )
    await play.until("it is served", _path(play, plural), _is_list)


async def custom_objects(play: Player) -> None:
    body = definition(
        "widgets", "Widget", _SCHEMA, subresources={"status": {}}, additionalPrinterColumns=_COLUMNS
    )
    await _define(play, body)
    widgets, one = _path(play, "widgets"), _path(play, "widgets", "/one")

    full = {"size": 1, "unknown": 1, "free": {"a": {"b": 1}}, "parts": [{"name": "a", "x": 1}], "maybe": None}
    created = await play.create("create", widgets, custom("Widget", "one", spec=full, status={"ready": True}))
    await play.create(
        "an unknown field, strictly", widgets, custom("Widget", "b", spec=full), {"fieldValidation": "Strict"}
    )
    for problem, spec in {
        "nothing required": {},
        "too small": {"size": 0},
        "too big": {"size": 11},
        "a wrong type": {"size": "big"},
        "no integer": {"size": 1.5},
        "an unknown choice": {"size": 1, "mode": "Other"},
        "no match": {"size": 1, "label": "ABC"},
        "too long": {"size": 1, "label": "abcdef"},
        "too short": {"size": 1, "label": "a"},
        "too many": {"size": 1, "parts": [{"name": "a"}, {"name": "b"}, {"name": "c"}]},
        "a part without its name": {"size": 1, "parts": [{}]},
        "a wrong pair": {"size": 1, "pairs": {"a": 1}},
        "null": None,
        "two rules broken by one text": {"size": 1, "label": "ABCDEFG"},
    }.items():
        await play.create(problem, widgets, custom("Widget", "bad", spec=spec))
    await play.create(
        "of another version",
        widgets,
        {**custom("Widget", "bad"), "apiVersion": "differential.example.com/v2"},
    )
    await play.create("without a kind", widgets, {"metadata": {"name": "bad"}})
    await play.create("with a bad name", widgets, custom("Widget", "Bad", spec={"size": 1}))

    await play.get("list", widgets)
    await play.get("as a table", widgets, accept=TABLE)
    changed = await play.put("update", one, {**created, "spec": {"size": 2}})
    await play.put("update without a version", one, custom("Widget", "one", spec={"size": 3}))
    await play.put("update with an old version", one, created)
    await play.put("update the status beside its subresource", one, {**changed, "status": {"ready": True}})
    await play.put(
        "update the status", f"{one}/status", {**changed, "status": {"ready": True}, "spec": {"size": 9}}
    )
    await play.patch("patch", one, {"spec": {"size": 4, "mode": None}})
    await play.patch("patch to what is invalid", one, {"spec": {"size": 40}})
    await play.patch("patch the status", f"{one}/status", {"status": {"ready": False}})
    await play.patch("patch strategically", one, {"spec": {"size": 4}}, content_type=STRATEGIC_PATCH)
    await play.apply("apply", one, custom("Widget", "one", spec={"size": 5}), force=True)
    await play.apply(
        "apply with force",
        one,
        custom("Widget", "one", spec={"size": 5, "parts": [{"name": "z"}]}),
        force=True,
    )
    await play.apply(
        "apply another part",
        one,
        custom("Widget", "one", spec={"parts": [{"name": "y"}], "size": 5}),
        manager="second",
    )
    await play.apply(
        "apply what is not known", one, custom("Widget", "one", spec={"size": 5, "unknown": 1}), force=True
    )
    await play.apply(
        "create by applying", _path(play, "widgets", "/two"), custom("Widget", "two", spec={"size": 5})
    )
    await play.watch("watch", widgets, {"fieldSelector": "metadata.name=two"}, events=1)
    # A fresh etcd begins with version 1: only of what came later does the server know that it is too old.
    await play.watch("watch from long ago", widgets, {"resourceVersion": "1"}, events=1)
    await play.get("by a field that cannot be selected by", widgets, {"fieldSelector": "spec.size=5"})
    await play.get("one that is not there", _path(play, "widgets", "/none"))
    await play.get("a subresource that is not there", f"{one}/scale")
    await play.get("a kind that is not there", _path(play, "nothings"))
    await play.get("a version that is not there", widgets.replace("/v1/", "/v2/"))
    await play.delete("delete", one)
    await play.delete("delete all", widgets)


async def definitions(play: Player) -> None:
    await _define(play, definition("gadgets", "Gadget", {"type": "object"}))
    gadgets = _path(play, "gadgets")
    await play.create(
        "create", gadgets, custom("Gadget", "one", {"finalizers": ["example.com/hold"]}, spec={"a": 1})
    )
    await play.get("as a table", gadgets, accept=TABLE)
    await play.get("the version", "/apis/differential.example.com")
    name = "gadgets.differential.example.com"
    await play.create(
        "define it again", "customresourcedefinitions", definition("gadgets", "Gadget", {"type": "object"})
    )
    await play.patch("change its scope", f"customresourcedefinitions/{name}", {"spec": {"scope": "Cluster"}})
    await play.delete("delete it", f"customresourcedefinitions/{name}")
    await play.until(
        "the object is asked to go", f"{gadgets}/one", lambda found: "deletionTimestamp" in found["metadata"]
    )
    await play.patch("let the object go", f"{gadgets}/one", {"metadata": {"finalizers": None}})
    await play.until("it goes", f"customresourcedefinitions/{name}", lambda found: found.get("code") == 404)
    await play.until("it is served no longer", gadgets, lambda found: isinstance(found, str))


STORIES = (custom_objects, definitions)
