import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinykube.custom.schemas import compile_schema

Json = dict[str, Any]

TEXT, WHOLE = {"type": "string"}, {"type": "integer"}
SPEC = {
    "type": "object",
    "required": ["fsid"],
    "properties": {
        "fsid": {"type": "string", "pattern": "^fs-[0-9a-f]+$", "minLength": 4, "maxLength": 10},
        "n": {"type": "integer", "minimum": 1, "maximum": 10, "multipleOf": 2},
        "ratio": {"type": "number", "minimum": 1, "exclusiveMinimum": True},
        "share": {"type": "number", "maximum": 5, "exclusiveMaximum": True},
        "mode": {"type": "string", "enum": ["b", "a"]},
        "level": {"type": "integer", "enum": [1, 2]},
        "list": {"type": "array", "minItems": 1, "maxItems": 2, "items": TEXT},
        "ports": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["port", "protocol"],
            "items": {
                "type": "object",
                "required": ["port"],
                "properties": {"port": WHOLE, "protocol": {"type": "string", "default": "TCP"}},
            },
        },
        "nothing": {"type": "string", "nullable": True},
        "time": {"type": "string", "format": "date-time"},
        "free": {"type": "object", "minProperties": 1, "maxProperties": 2, "additionalProperties": WHOLE},
        "open": {
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": True,
            "properties": {"closed": {"type": "object", "properties": {"a": TEXT}}},
        },
        "settings": {
            "type": "object",
            "default": {},
            "properties": {"depth": {"type": "integer", "default": 3}},
        },
    },
}
SCHEMA = compile_schema({"type": "object", "required": ["spec"], "properties": {"spec": SPEC}})
HEAD: Json = {"apiVersion": "a/v1", "kind": "K", "metadata": {"name": "x", "labels": {"l": "1"}}}


def spec(**fields: Any) -> Json:
    return {**HEAD, "spec": {"fsid": "fs-1", **fields}}


def refused(json_object: Json) -> list[str]:
    """The fields that the object is refused for."""
    return [cause.field for cause in SCHEMA.validate(SCHEMA.default(SCHEMA.decode(json_object)[0]))]


@pytest.mark.parametrize(
    ("json_object", "fields"),
    [
        (HEAD, ["spec"]),
        ({**HEAD, "spec": {}}, ["spec.fsid"]),
        ({**HEAD, "spec": "text"}, ["spec"]),
        (spec(fsid=None), ["spec.fsid"]),
        (spec(fsid=3), ["spec.fsid"]),
        (spec(fsid="fs-12345678"), ["spec.fsid"]),
        (spec(n="string"), ["spec.n"]),
        (spec(n=True), ["spec.n"]),
        (spec(n=0), ["spec.n"]),
        (spec(n=12), ["spec.n"]),
        (spec(n=3), ["spec.n"]),
        (spec(ratio=1), ["spec.ratio"]),
        (spec(share=5), ["spec.share"]),
        (spec(mode="c"), ["spec.mode"]),
        (spec(level=3), ["spec.level"]),
        (spec(list=[]), ["spec.list"]),
        (spec(list=["a", "b", "c"]), ["spec.list"]),
        (spec(list=[None]), ["spec.list[0]"]),
        (spec(ports=[{"protocol": "x"}]), ["spec.ports[0].port"]),
        (spec(time="x"), ["spec.time"]),
        (spec(free={"a": "x"}), ["spec.free.a"]),
        (spec(free={}), ["spec.free"]),
        (spec(free={"a": 1, "b": 1, "c": 1}), ["spec.free"]),
    ],
)
def test_refused(json_object: Json, fields: list[str]) -> None:
    assert refused(json_object) == fields


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2.0, "ratio": 1.5, "mode": "a", "level": 2},
        {"nothing": None, "time": "2026-11-21T10:00:00Z"},
        {"ports": [{"port": 1}, {"port": 1, "protocol": "UDP"}]},
    ],
)
def test_accepted(fields: Json) -> None:
    assert refused(spec(**fields)) == []


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        pytest.param({"unknown": 1, "n": 2}, {"n": 2}, id="an unknown field"),
        pytest.param({"settings": {"x": 1}}, {"settings": {}}, id="an unknown field further down"),
        pytest.param(
            {"open": {"x": {"y": 1}, "closed": {"a": "1", "b": 2}}},
            {"open": {"x": {"y": 1}, "closed": {"a": "1"}}},
            id="unknown fields are preserved, but not in what is known",
        ),
        pytest.param({"free": {"a": 1}}, {"free": {"a": 1}}, id="entries of a map"),
        pytest.param(
            {"ports": [{"port": 1, "x": 1}]}, {"ports": [{"port": 1}]}, id="fields of list elements"
        ),
    ],
)
def test_pruning(given: Json, kept: Json) -> None:
    before = copy.deepcopy(given)
    assert SCHEMA.decode({**HEAD, "spec": given, "status": {"x": 1}})[0] == {**HEAD, "spec": kept}
    assert given == before


@pytest.mark.parametrize(
    ("given", "defaulted"),
    [
        pytest.param({}, {"settings": {"depth": 3}}, id="a default with a default in it"),
        pytest.param({"settings": {"depth": 0}}, {"settings": {"depth": 0}}, id="what is given stays"),
        pytest.param({"settings": None}, {"settings": {"depth": 3}}, id="null is replaced"),
        pytest.param({"n": None}, {"settings": {"depth": 3}}, id="null without a default goes"),
        pytest.param({"nothing": None}, {"nothing": None, "settings": {"depth": 3}}, id="allowed null stays"),
        pytest.param({"free": {"a": None}}, {"free": {}, "settings": {"depth": 3}}, id="null in a map goes"),
        pytest.param(
            {"ports": [{"port": 1}]},
            {"ports": [{"port": 1, "protocol": "TCP"}], "settings": {"depth": 3}},
            id="in list elements",
        ),
    ],
)
def test_defaulting(given: Json, defaulted: Json) -> None:
    before = copy.deepcopy(given)
    assert SCHEMA.default({**HEAD, "spec": given}) == {**HEAD, "spec": defaulted}
    assert given == before


def test_an_empty_schema_keeps_type_and_metadata_only() -> None:
    anything = compile_schema({})
    assert anything.decode({**HEAD, "spec": {"x": 1}})[0] == HEAD
    assert anything.validate({**HEAD, "spec": {"x": 1}}) == []


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 12) | st.sampled_from(["fs-1", "a", ""]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*SPEC["properties"], "x"]), inner)
    ),
    max_leaves=8,
)


@given(VALUES)
def test_any_value_is_handled_and_handled_once_for_all(value: Any) -> None:
    json_object = {**HEAD, "spec": value}
    once = SCHEMA.default(SCHEMA.decode(json_object)[0])
    assert SCHEMA.default(SCHEMA.decode(once)[0]) == once
    assert all(cause.field for cause in SCHEMA.validate(once))
