"""The sentences were taken from Kubernetes 1.34 (k8s.io/apiextensions-apiserver), given the same schema."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinykube.custom.crd_schemas import compile_schema
from tinykube.errors import InvalidValue
from tinykube.objects.statuses import CauseReason

Json = dict[str, Any]

TEXT, WHOLE = {"type": "string"}, {"type": "integer"}
AC = {"type": "object", "properties": {"a": TEXT, "c": TEXT}}
EITHER = [{"required": ["a"]}, {"required": ["c"]}]
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
        "single": {"type": "array", "maxItems": 1, "items": TEXT},
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": TEXT},
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
        "ios": {"x-kubernetes-int-or-string": True},
        "nothing": {"type": "string", "nullable": True},
        "time": {"type": "string", "format": "date-time"},
        "address": {"type": "string", "format": "ipv4"},
        "free": {"type": "object", "minProperties": 1, "maxProperties": 2, "additionalProperties": WHOLE},
        "open": {
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": True,
            "properties": {"closed": {"type": "object", "properties": {"a": TEXT}}},
        },
        "template": {
            "type": "object",
            "x-kubernetes-embedded-resource": True,
            "properties": {"spec": {"type": "object"}},
        },
        "settings": {
            "type": "object",
            "default": {},
            "properties": {"depth": {"type": "integer", "default": 3}},
        },
        "one": {**AC, "oneOf": EITHER},
        "any": {**AC, "anyOf": EITHER},
        "all": {**AC, "allOf": EITHER},
        "not": {**AC, "not": {"required": ["a"]}},
    },
}
SCHEMA = compile_schema({"type": "object", "required": ["spec"], "properties": {"spec": SPEC}})
HEAD: Json = {"apiVersion": "a/v1", "kind": "K", "metadata": {"name": "x", "labels": {"l": "1"}}}


def spec(**fields: Any) -> Json:
    return {**HEAD, "spec": {"fsid": "fs-1", **fields}}


def causes(json_object: Json) -> list[str]:
    return [str(cause) for cause in SCHEMA.validate(SCHEMA.default(SCHEMA.prune(json_object)))]


@pytest.mark.parametrize(
    ("json_object", "expected"),
    [
        (HEAD, ["spec: Required value"]),
        ({**HEAD, "spec": {}}, ["spec.fsid: Required value"]),
        (
            {**HEAD, "spec": "text"},
            ['spec: Invalid value: "string": spec in body must be of type object: "string"'],
        ),
        (spec(fsid=None), ["spec.fsid: Required value"]),
        (
            spec(fsid=3),
            ['spec.fsid: Invalid value: "integer": spec.fsid in body must be of type string: "integer"'],
        ),
        (
            spec(fsid="fs-"),
            [
                'spec.fsid: Invalid value: "fs-": spec.fsid in body should be at least 4 chars long',
            ],
        ),
        (spec(fsid="fs-12345678"), ["spec.fsid: Too long: may not be more than 10 bytes"]),
        (
            spec(n="string"),
            ['spec.n: Invalid value: "string": spec.n in body must be of type integer: "string"'],
        ),
        (
            spec(n=True),
            ['spec.n: Invalid value: "boolean": spec.n in body must be of type integer: "boolean"'],
        ),
        (spec(n=0), ["spec.n: Invalid value: 0: spec.n in body should be greater than or equal to 1"]),
        (spec(n=12), ["spec.n: Invalid value: 12: spec.n in body should be less than or equal to 10"]),
        (spec(n=3), ["spec.n: Invalid value: 3: spec.n in body should be a multiple of 2"]),
        (spec(ratio=1), ["spec.ratio: Invalid value: 1: spec.ratio in body should be greater than 1"]),
        (spec(share=5), ["spec.share: Invalid value: 5: spec.share in body should be less than 5"]),
        (spec(mode="c"), ['spec.mode: Unsupported value: "c": supported values: "b", "a"']),
        (spec(level=3), ['spec.level: Unsupported value: 3: supported values: "1", "2"']),
        (spec(list=[]), ["spec.list: Invalid value: 0: spec.list in body should have at least 1 items"]),
        (spec(list=["a", "b", "c"]), ["spec.list: Too many: 3: must have at most 2 items"]),
        (spec(single=["a", "b"]), ["spec.single: Too many: 2: must have at most 1 item"]),
        (
            spec(list=[None]),
            ['spec.list[0]: Invalid value: "null": spec.list[0] in body must be of type string: "null"'],
        ),
        (spec(set=["a", "b", "a"]), ['spec.set[2]: Duplicate value: "a"']),
        (
            spec(ports=[{"port": 1}, {"port": 1, "protocol": "TCP"}]),
            ['spec.ports[1]: Duplicate value: {"port":1,"protocol":"TCP"}'],
        ),
        (spec(ports=[{"protocol": "x"}]), ["spec.ports[0].port: Required value"]),
        (
            spec(ios=1.5),
            ['spec.ios: Invalid value: "number": spec.ios in body must be of type integer,string: "number"'],
        ),
        (spec(time="x"), ['spec.time: Invalid value: "x": spec.time in body must be of type date-time: "x"']),
        (
            spec(address="x"),
            ['spec.address: Invalid value: "x": spec.address in body must be of type ipv4: "x"'],
        ),
        (
            spec(free={"a": "x"}),
            ['spec.free.a: Invalid value: "string": spec.free.a in body must be of type integer: "string"'],
        ),
        (spec(free={}), ["spec.free: Invalid value: 0: spec.free in body should have at least 1 properties"]),
        (spec(free={"a": 1, "b": 1, "c": 1}), ["spec.free: Too many: 3: must have at most 2 items"]),
        (
            spec(one={}),
            [
                (
                    '<nil>: Invalid value: "": "spec.one" must validate one and only one schema (oneOf). '
                    "Found none valid"
                ),
                "spec.one.a: Required value",
            ],
        ),
        (
            spec(any={}),
            [
                '<nil>: Invalid value: "": "spec.any" must validate at least one schema (anyOf)',
                "spec.any.a: Required value",
            ],
        ),
        (spec(all={}), ["spec.all.a: Required value", "spec.all.c: Required value"]),
        (
            spec(**{"not": {"a": "1"}}),
            ['<nil>: Invalid value: "": "spec.not" must not validate the schema (not)'],
        ),
    ],
)
def test_refused_with_kubernetes_words(json_object: Json, expected: list[str]) -> None:
    assert causes(json_object) == expected


def test_more_than_one_alternative_is_refused_too() -> None:
    (cause,) = causes(spec(one={"a": "1", "c": "2"}))
    assert cause.startswith(
        '<nil>: Invalid value: "": "spec.one" must validate one and only one schema (oneOf).'
    )


def test_causes_have_kubernetes_reasons() -> None:
    found = SCHEMA.validate({"spec": {"n": "x", "mode": "c", "set": ["a", "a"], "list": []}})
    assert {cause.field: cause.reason for cause in found} == {
        "spec.fsid": CauseReason.REQUIRED,
        "spec.n": CauseReason.TYPE_INVALID,
        "spec.mode": CauseReason.NOT_SUPPORTED,
        "spec.list": CauseReason.INVALID,
        "spec.set[1]": CauseReason.DUPLICATE,
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2.0, "ratio": 1.5, "mode": "a", "level": 2},
        {"ios": 1, "nothing": None},
        {"ios": "x", "time": "2026-11-21T10:00:00Z", "address": "10.0.0.1"},
        {"one": {"a": "1"}, "any": {"a": "1", "c": "1"}, "all": {"a": "1", "c": "1"}, "not": {"c": "1"}},
        {"ports": [{"port": 1}, {"port": 1, "protocol": "UDP"}]},
    ],
)
def test_accepted(fields: Json) -> None:
    assert causes(spec(**fields)) == []


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
        pytest.param(
            {"template": {"kind": "Z", "metadata": {"x": 1}, "spec": {"y": 1}, "z": 1}},
            {"template": {"kind": "Z", "metadata": {"x": 1}, "spec": {}}},
            id="type and metadata of an embedded resource",
        ),
    ],
)
def test_pruning(given: Json, kept: Json) -> None:
    before = copy.deepcopy(given)
    assert SCHEMA.prune({**HEAD, "spec": given, "status": {"x": 1}}) == {**HEAD, "spec": kept}
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
    assert anything.prune({**HEAD, "spec": {"x": 1}}) == HEAD
    assert anything.validate({**HEAD, "spec": {"x": 1}}) == []


@pytest.mark.parametrize("schema", [{"type": "text"}, {"properties": {"a": {"minimum": "x"}}}])
def test_what_is_no_schema_is_refused(schema: Json) -> None:
    with pytest.raises(InvalidValue) as refusal:
        compile_schema(schema)
    assert refusal.value.field.startswith("openAPIV3Schema")


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
    once = SCHEMA.default(SCHEMA.prune(json_object))
    assert SCHEMA.default(SCHEMA.prune(once)) == once
    assert all(cause.field for cause in SCHEMA.validate(once))
