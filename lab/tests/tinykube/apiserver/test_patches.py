import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinykube.patch.patches import PatchInvalid, json_patch, merge_patch

SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        pytest.param({"a": "b"}, {"a": "c"}, {"a": "c"}, id="replace"),
        pytest.param({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}, id="add"),
        pytest.param({"a": "b"}, {"a": None}, {}, id="remove the only key"),
        pytest.param({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}, id="remove one key"),
        pytest.param({"a": ["b"]}, {"a": "c"}, {"a": "c"}, id="list to text"),
        pytest.param({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}, id="text to list"),
        pytest.param(
            {"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}, id="nested, removing nothing"
        ),
        pytest.param({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}, id="lists are replaced"),
        pytest.param({"e": None}, {"a": 1}, {"e": None, "a": 1}, id="null in the target stays"),
        pytest.param({"x": [1, 2]}, {"x": {"a": "b", "c": None}}, {"x": {"a": "b"}}, id="list to object"),
        pytest.param({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}, id="nulls make no keys"),
    ],
)
def test_merge_patch_does_what_rfc_7386_shows(
    target: dict[str, Any], patch: dict[str, Any], result: dict[str, Any]
) -> None:
    assert merge_patch(target, patch) == result


@given(OBJECTS, OBJECTS)
def test_merging_changes_neither_side_and_twice_is_once(
    target: dict[str, Any], patch: dict[str, Any]
) -> None:
    before = copy.deepcopy((target, patch))
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once
    assert (target, patch) == before


@given(OBJECTS)
def test_an_empty_merge_patch_changes_nothing(target: dict[str, Any]) -> None:
    assert merge_patch(target, {}) == target


@pytest.mark.parametrize("patch", [None, [], "text", 3])
def test_a_merge_patch_is_an_object(patch: Any) -> None:
    with pytest.raises(PatchInvalid, match="must be a JSON object"):
        merge_patch({}, patch)


def test_what_is_replaced_must_be_there() -> None:
    with pytest.raises(PatchInvalid, match="cannot be applied"):
        json_patch({"a": [1]}, [{"op": "replace", "path": "/a/1", "value": 2}])


def test_json_patch_applies_all_operations_to_a_copy() -> None:
    target = {"metadata": {"labels": {"a/b": "1"}}, "items": [1, 2]}
    result = json_patch(
        target,
        [
            {"op": "test", "path": "/items/0", "value": 1},
            {"op": "add", "path": "/items/-", "value": 3},
            {"op": "replace", "path": "/metadata/labels/a~1b", "value": "2"},
            {"op": "copy", "from": "/items/1", "path": "/second"},
            {"op": "move", "from": "/second", "path": "/moved"},
            {"op": "remove", "path": "/items/0"},
        ],
    )
    assert result == {"metadata": {"labels": {"a/b": "2"}}, "items": [2, 3], "moved": 2}
    assert target == {"metadata": {"labels": {"a/b": "1"}}, "items": [1, 2]}


@pytest.mark.parametrize(
    ("operations", "problem"),
    [
        pytest.param({"op": "add"}, "a JSON patch must be a list of operations", id="no list"),
        pytest.param(["add"], "a JSON patch must be a list of operations", id="no operation"),
        pytest.param(
            [{"op": "grow", "path": "/a"}], "the JSON patch cannot be applied", id="unknown operation"
        ),
        pytest.param([{"op": "remove", "path": "/x"}], "the JSON patch cannot be applied", id="missing path"),
        pytest.param([{"op": "add", "path": "/x/y", "value": 1}], "the JSON patch", id="missing parent"),
        pytest.param([{"op": "add", "path": "/a/b", "value": 1}], "the JSON patch", id="parent is text"),
        pytest.param([{"op": "add", "path": "/a"}], "the JSON patch", id="no value"),
        pytest.param([{"op": "add", "path": 3, "value": 1}], "the JSON patch", id="path is a number"),
        pytest.param(
            [{"op": "test", "path": "/a", "value": "no"}], "the JSON patch cannot be applied", id="test fails"
        ),
        pytest.param(
            [{"op": "replace", "path": "", "value": 1}], "the JSON patch leaves no JSON object", id="replaced"
        ),
    ],
)
def test_a_json_patch_that_does_not_fit_is_refused(operations: Any, problem: str) -> None:
    with pytest.raises(PatchInvalid) as refusal:
        json_patch({"a": "text"}, operations)
    assert refusal.value.problem.startswith(problem)


OPERATIONS = st.lists(
    st.fixed_dictionaries(
        {"op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test"])},
        optional={
            "path": st.sampled_from(["", "/a", "/a/b", "/a/0", "/a/-", "/b", 7]),
            "from": st.sampled_from(["/a", "/b", None]),
            "value": VALUES,
        },
    ),
    max_size=3,
)


@given(OBJECTS, OPERATIONS)
def test_any_json_patch_is_applied_or_refused(
    target: dict[str, Any], operations: list[dict[str, Any]]
) -> None:
    before = copy.deepcopy(target)
    try:
        result = json_patch(target, operations)
    except PatchInvalid:
        pass
    else:
        assert isinstance(result, dict)
    assert target == before
