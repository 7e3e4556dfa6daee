import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinykube.patch.managed_fields import (
    changes_between,
    fields_of,
    from_fields_v1,
    remove_fields,
    to_fields_v1,
)
from tinykube.patch.merge_rules import rules_for, rules_from_schema

POD = rules_for("", "Pod")


def path_text(path: tuple[str, ...]) -> str:
    """The path as Kubernetes writes it for people: ``.spec.containers[name="a"].image``."""
    return "".join(map(_element_text, path))


def _element_text(element: str) -> str:
    kind, _, rest = element.partition(":")
    if kind == "k":
        return f"[{','.join(f'{key}={json.dumps(value)}' for key, value in json.loads(rest).items())}]"
    return {"f": f".{rest}", "v": f"[={rest}]"}.get(kind, f"[{rest}]")


ELEMENTS = st.sampled_from(["f:a", "f:b.c", 'k:{"name":"x"}', 'v:"y"', "i:0"])


def test_fields_of_a_pod_are_written_as_kubernetes_writes_them() -> None:
    pod = {
        "metadata": {"labels": {"app": "web"}, "finalizers": ["a/b"], "annotations": {}},
        "spec": {
            "containers": [{"name": "one", "args": ["x"], "ports": [{"containerPort": 80}]}],
            "nodeSelector": {"zone": "a"},
        },
    }
    assert to_fields_v1(fields_of(pod, POD)) == {
        "f:metadata": {"f:annotations": {}, "f:finalizers": {'v:"a/b"': {}}, "f:labels": {"f:app": {}}},
        "f:spec": {
            "f:containers": {
                'k:{"name":"one"}': {
                    ".": {},
                    "f:args": {},
                    "f:name": {},
                    "f:ports": {'k:{"containerPort":80,"protocol":"TCP"}': {".": {}, "f:containerPort": {}}},
                }
            },
            "f:nodeSelector": {},
        },
    }


def test_entries_of_a_free_map_are_fields_themselves() -> None:
    schema = {
        "properties": {
            "pools": {"additionalProperties": {"type": "object", "properties": {"size": {"type": "integer"}}}}
        }
    }
    fields = to_fields_v1(fields_of({"pools": {"one": {"size": 1}}}, rules_from_schema(schema)))
    assert fields == {"f:pools": {"f:one": {".": {}, "f:size": {}}}}


@given(st.frozensets(st.lists(ELEMENTS, min_size=1, max_size=3).map(tuple)))
def test_any_set_survives_being_written_down(fields: frozenset[tuple[str, ...]]) -> None:
    assert from_fields_v1(to_fields_v1(fields)) == fields


@pytest.mark.parametrize(
    ("old", "new", "written", "removed"),
    [
        pytest.param({"a": 1}, {"a": 1}, [], [], id="nothing"),
        pytest.param({"a": 1}, {"a": True}, [".a"], [], id="one is not true"),
        pytest.param({}, {"a": {"b": 1}}, [".a", ".a.b"], [], id="a map and what is in it"),
        pytest.param({"a": {"b": 1}}, {}, [], [".a", ".a.b"], id="a map goes"),
        pytest.param({}, {"a": None}, [".a"], [], id="null is a value"),
        pytest.param({"a": None}, {"a": 1}, [".a"], [], id="null becomes a number"),
        pytest.param({"a": None}, {"a": {"b": 1}}, [".a.b"], [], id="null becomes a map"),
        pytest.param({"a": {"b": 1}}, {"a": None}, [], [".a.b"], id="a map becomes null"),
        pytest.param({"a": [1]}, {"a": [1, 2]}, [".a"], [], id="a list is one field"),
        pytest.param({"a": 1}, {"a": {"b": 1}}, [".a", ".a.b"], [], id="a number becomes a map"),
        pytest.param(
            {"metadata": {"finalizers": ["x", "y"]}},
            {"metadata": {"finalizers": ["z", "y"]}},
            ['.metadata.finalizers[="z"]'],
            ['.metadata.finalizers[="x"]'],
            id="a set",
        ),
        pytest.param(
            {"spec": {"containers": [{"name": "a", "image": "x"}, {"name": "b"}]}},
            {"spec": {"containers": [{"name": "b"}, {"name": "a", "image": "y"}]}},
            ['.spec.containers[name="a"].image'],
            [],
            id="order in a keyed list does not count",
        ),
        pytest.param(
            {"spec": {"nodeSelector": {"a": "1"}}},
            {"spec": {"nodeSelector": {"b": "1"}}},
            [".spec.nodeSelector"],
            [],
            id="an atomic map",
        ),
    ],
)
def test_changes(old: dict[str, Any], new: dict[str, Any], written: list[str], removed: list[str]) -> None:
    changes = changes_between(old, new, POD)
    assert sorted(map(path_text, changes.written)) == written
    assert sorted(map(path_text, changes.removed)) == removed


def test_removing_an_element_takes_all_that_is_in_it() -> None:
    pod = {"spec": {"containers": [{"name": "a", "image": "x"}, {"name": "b"}], "hostNetwork": True}}
    gone = frozenset({("f:spec", "f:containers", 'k:{"name":"a"}'), ("f:spec", "f:hostNetwork")})
    assert remove_fields(pod, gone, POD) == {"spec": {"containers": [{"name": "b"}]}}
