import copy
from typing import Any

import pytest

from tinykube.patch.merge_rules import rules_for
from tinykube.patch.patches import PatchInvalid, strategic_merge_patch

POD = {
    "metadata": {"name": "web", "finalizers": ["a", "b"]},
    "spec": {
        "containers": [
            {"name": "one", "image": "x", "args": ["1"], "env": [{"name": "A", "value": "1"}]},
            {"name": "two", "image": "y"},
        ],
        "volumes": [{"name": "data", "emptyDir": {}}],
        "tolerations": [{"key": "t"}],
        "nodeSelector": {"zone": "a"},
    },
}


def patched(spec: dict[str, Any] | None = None, metadata: dict[str, Any] | None = None) -> dict[str, Any]:
    before = copy.deepcopy(POD)
    result = strategic_merge_patch(
        POD, {"spec": spec or {}, "metadata": metadata or {}}, rules_for("", "Pod")
    )
    assert before == POD
    return result


@pytest.mark.parametrize(
    ("patch", "field", "result"),
    [
        pytest.param(
            {"containers": [{"name": "two", "image": "z"}]},
            "containers",
            [POD["spec"]["containers"][0], {"name": "two", "image": "z"}],  # type: ignore[index]
            id="an element is merged by its key",
        ),
        pytest.param(
            {"containers": [{"name": "new", "image": "z", "args": None}]},
            "containers",
            [{"name": "new", "image": "z"}, *POD["spec"]["containers"]],  # type: ignore[index]
            id="a new element, its nulls left out",
        ),
        pytest.param(
            {"containers": [{"name": "one", "$patch": "delete"}]},
            "containers",
            [{"name": "two", "image": "y"}],
            id="an element is deleted",
        ),
        pytest.param(
            {"containers": [{"name": "only"}, {"$patch": "replace"}]},
            "containers",
            [{"name": "only"}],
            id="a keyed list is replaced",
        ),
        pytest.param(
            {"$setElementOrder/containers": [{"name": "two"}, {"name": "one"}]},
            "containers",
            POD["spec"]["containers"][::-1],  # type: ignore[index]
            id="elements are put in another order",
        ),
        pytest.param(
            {"volumes": [{"name": "data", "$retainKeys": ["name", "nfs"], "nfs": {"path": "/"}}]},
            "volumes",
            [{"name": "data", "nfs": {"path": "/"}}],
            id="a union drops its old member",
        ),
        pytest.param({"tolerations": [{"key": "u"}]}, "tolerations", [{"key": "u"}], id="list without a key"),
        pytest.param(
            {"nodeSelector": {"disk": "ssd"}}, "nodeSelector", {"zone": "a", "disk": "ssd"}, id="maps merge"
        ),
        pytest.param(
            {"nodeSelector": {"$patch": "replace", "disk": "ssd"}},
            "nodeSelector",
            {"disk": "ssd"},
            id="a map is replaced",
        ),
        pytest.param({"nodeSelector": {"$patch": "delete"}}, "nodeSelector", {}, id="a map is emptied"),
        pytest.param({"nodeSelector": None}, "nodeSelector", None, id="a field is removed"),
    ],
)
def test_patches_a_pod(patch: dict[str, Any], field: str, result: Any) -> None:
    assert patched(patch)["spec"].get(field) == result


@pytest.mark.parametrize(
    ("patch", "finalizers"),
    [
        pytest.param({"finalizers": ["c"]}, ["c", "a", "b"], id="a set is united"),
        pytest.param({"$deleteFromPrimitiveList/finalizers": ["a"]}, ["b"], id="a value is taken out"),
        pytest.param(
            {"finalizers": ["c"], "$setElementOrder/finalizers": ["b", "a", "c"]},
            ["b", "a", "c"],
            id="a set is put in order",
        ),
    ],
)
def test_patches_a_set(patch: dict[str, Any], finalizers: list[str]) -> None:
    assert patched(metadata=patch)["metadata"]["finalizers"] == finalizers


def test_service_ports_are_distinguished_by_port() -> None:
    service = {"spec": {"ports": [{"port": 80, "nodePort": 1}, {"port": 81}]}}
    patch = {"spec": {"ports": [{"port": 80, "nodePort": 2}]}}
    assert strategic_merge_patch(service, patch, rules_for("", "Service")) == {
        "spec": {"ports": [{"port": 80, "nodePort": 2}, {"port": 81}]}
    }


@pytest.mark.parametrize(
    ("patch", "problem"),
    [
        pytest.param(
            {"containers": [{"image": "z"}]},
            "lacks its key name",
            id="an element lacks its key",
        ),
        pytest.param(
            {"nodeSelector": {"$patch": "mend"}},
            "$patch: 'mend' must be delete or replace",
            id="an unknown directive",
        ),
        pytest.param(
            {"containers": [{"name": "one", "$patch": "merge"}]},
            "$patch: must be delete or replace",
            id="a list directive that Kubernetes refuses too",
        ),
        pytest.param(
            {"volumes": [{"name": "data", "$retainKeys": ["name"], "nfs": {}}]},
            "$retainKeys: must list every key",
            id="a key that is not retained",
        ),
        pytest.param(
            {"$setElementOrder/containers": "one"},
            "'one' must be a list",
            id="no list as order",
        ),
    ],
)
def test_other_patches_are_refused(patch: dict[str, Any], problem: str) -> None:
    with pytest.raises(PatchInvalid) as refusal:
        patched(patch)
    assert problem in str(refusal.value)


def test_a_patch_is_an_object() -> None:
    with pytest.raises(PatchInvalid, match="a strategic merge patch must be a JSON object"):
        strategic_merge_patch({}, [], rules_for("", "Pod"))
