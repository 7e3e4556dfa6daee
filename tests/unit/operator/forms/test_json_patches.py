from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.operator.forms.json_patches import difference

LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
DOCUMENTS = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "a/b", "~", ""]), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(DOCUMENTS, DOCUMENTS)
def test_patch_converts_the_first_document_into_the_second(before: Any, after: Any) -> None:
    assert jsonpatch.apply_patch(before, difference(before, after)) == after


@pytest.mark.parametrize(
    ("before", "after", "steps"),
    [
        pytest.param({"a": 1}, {"a": 1}, [], id="no change"),
        pytest.param({"a": 1}, {}, [{"op": "remove", "path": "/a"}], id="entry removed"),
        pytest.param({}, {"a/b": 1}, [{"op": "add", "path": "/a~1b", "value": 1}], id="entry added"),
        pytest.param([1], [1, 2], [{"op": "add", "path": "/-", "value": 2}], id="item appended"),
        pytest.param([1, 2], [2], [{"op": "replace", "path": "", "value": [2]}], id="item removed"),
        pytest.param(
            {"a": [{"b": 1}]},
            {"a": [{"b": 2}]},
            [{"op": "replace", "path": "/a/0/b", "value": 2}],
            id="nested",
        ),
    ],
)
def test_patch_has_the_expected_steps(before: Any, after: Any, steps: list[Any]) -> None:
    assert difference(before, after) == steps
