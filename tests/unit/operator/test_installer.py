"""Which objects are applied again, replaced or recreated."""

from typing import Any

import pytest

from kube_efs.operator.installer import (
    RESTARTED,
    digest_of_live,
    has_foreign_fields,
    must_recreate,
    replacement,
)
from kube_efs.operator.manifests import Manifest
from kube_efs.operator.object_client import FIELD_MANAGER


def deployment(manager: str = FIELD_MANAGER, fields: str = "f:spec", **spec: Any) -> Manifest:
    entry = {"manager": manager, "fieldsV1": {fields: {}}}
    return {
        "kind": "Deployment",
        "metadata": {"name": "efs-manager", "managedFields": [entry], "resourceVersion": "7"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {}}, **spec},
    }


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        pytest.param({"status": {"replicas": 2}}, False, id="status"),
        pytest.param({"metadata": {"name": "x", "resourceVersion": "8"}}, False, id="version"),
        pytest.param({"metadata": {"name": "x", "labels": {"a": "b"}}}, True, id="label"),
        pytest.param({"spec": {"replicas": 3}}, True, id="specification"),
        pytest.param({"rules": []}, True, id="rules of a role"),
    ],
)
def test_digest_changes_with_all_fields_except_those_of_the_api_server(
    change: dict[str, Any], differs: bool
) -> None:
    before = {"kind": "Deployment", "metadata": {"name": "x", "resourceVersion": "7"}, "spec": {}}
    assert (digest_of_live(before) != digest_of_live({**before, **change})) is differs


@pytest.mark.parametrize(
    ("live", "wanted", "expected"),
    [
        pytest.param({"attachRequired": True}, {"attachRequired": False}, True, id="immutable field"),
        pytest.param({"attachRequired": False}, {"attachRequired": False}, False, id="same"),
        pytest.param({"podInfoOnMount": True}, {"podInfoOnMount": False}, False, id="mutable field"),
        pytest.param({"attachRequired": True}, {}, False, id="field that is not desired"),
    ],
)
def test_csidriver_is_recreated_only_if_an_immutable_field_differs(
    live: dict[str, bool], wanted: dict[str, bool], expected: bool
) -> None:
    before, after = [
        {"kind": "CSIDriver", "metadata": {"name": "d"}, "spec": spec} for spec in (live, wanted)
    ]
    assert must_recreate(before, after) is expected


def test_workload_with_another_selector_is_recreated() -> None:
    other = deployment(selector={"matchLabels": {"app": "other"}})
    assert must_recreate(other, deployment())
    assert not must_recreate(
        deployment(selector={"matchLabels": {"a": "b"}, "matchExpressions": None}), deployment()
    )


@pytest.mark.parametrize(
    ("manager", "fields", "expected"),
    [
        pytest.param(FIELD_MANAGER, "f:spec", False, id="operator"),
        pytest.param("kubectl-edit", "f:spec", True, id="user"),
        pytest.param("kubectl-rollout", "f:spec", False, id="restart"),
        pytest.param("kubectl-edit", "f:metadata", False, id="label of a user"),
    ],
)
def test_fields_of_others_are_found_by_their_manager(manager: str, fields: str, expected: bool) -> None:
    assert has_foreign_fields(deployment(manager, fields)) is expected


def test_replacement_has_the_desired_specification_and_keeps_the_restart() -> None:
    live = deployment(
        "kubectl-edit", template={"metadata": {"annotations": {RESTARTED: "now"}}, "spec": {"x": 1}}
    )
    found = replacement(live, deployment())
    assert found["metadata"] == {"name": "efs-manager", "resourceVersion": "7"}
    assert found["spec"]["template"] == {"metadata": {"annotations": {RESTARTED: "now"}}}
