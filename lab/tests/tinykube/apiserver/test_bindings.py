"""Sending a pod to a node, as kube-apiserver does it."""

from datetime import UTC, datetime

import pytest

from tinykube.objects.bindings import bound_pod
from tinykube.objects.json_types import Json
from tinykube.objects.statuses import ApiError, Subject

_NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
_SUBJECT = Subject(group="", resource="pods", kind="Pod", name="worker")
_BINDING: Json = {"metadata": {"name": "worker"}, "target": {"kind": "Node", "name": "node-a"}}


def _pod(**metadata: str) -> Json:
    return {
        "metadata": {"name": "worker", "uid": "one", **metadata},
        "spec": {},
        "status": {"phase": "Pending"},
    }


def test_the_pod_gets_the_node_and_the_condition_and_keeps_the_rest() -> None:
    pod = bound_pod(_pod(), _BINDING, _SUBJECT, _NOW)
    assert pod["spec"]["nodeName"] == "node-a"
    assert pod["status"]["phase"] == "Pending"
    (condition,) = pod["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("PodScheduled", "True")
    assert condition["lastTransitionTime"] == "2026-01-31T12:00:00Z"


def test_an_earlier_refusal_to_schedule_is_replaced() -> None:
    refused = {**_pod(), "status": {"conditions": [{"type": "PodScheduled", "status": "False"}]}}
    conditions = bound_pod(refused, _BINDING, _SUBJECT, _NOW)["status"]["conditions"]
    assert [condition["status"] for condition in conditions] == ["True"]


@pytest.mark.parametrize(
    ("pod", "binding", "code", "told"),
    [
        pytest.param(_pod(), {"target": {}}, 500, "target.name: Required value", id="no node is named"),
        pytest.param(
            {**_pod(), "spec": {"nodeName": "node-b"}},
            _BINDING,
            409,
            'already assigned to node "node-b"',
            id="taken",
        ),
        pytest.param(
            _pod(),
            {"target": {"kind": "Pod", "name": "node-a"}},
            500,
            'target.kind: Unsupported value: "Pod": supported values: "Node", "<empty>"',
            id="not to a node",
        ),
        pytest.param(
            _pod(),
            {**_BINDING, "metadata": {"name": "other"}},
            400,
            "name in URL does not match name in Binding object",
            id="another name",
        ),
        pytest.param(_pod(deletionTimestamp="now"), _BINDING, 409, "is being deleted", id="on its way out"),
        pytest.param(
            _pod(),
            {**_BINDING, "metadata": {"uid": "other"}},
            409,
            "UID in precondition: other",
            id="another pod",
        ),
    ],
)
def test_what_cannot_be_bound_is_refused(pod: Json, binding: Json, code: int, told: str) -> None:
    with pytest.raises(ApiError) as caught:
        bound_pod(pod, binding, _SUBJECT, _NOW)
    assert caught.value.code == code
    assert told in caught.value.status["message"]
