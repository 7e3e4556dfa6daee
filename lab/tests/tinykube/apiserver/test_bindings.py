"""Sending a pod to a node, as kube-apiserver does it."""

from datetime import UTC, datetime

import pytest

from tinykube.objects.statuses import ApiError, Subject
from tinykube.objects.subresources import bound_pod
from tinykube.objects.values import Json

_NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
_SUBJECT = Subject(group="", resource="pods", name="worker")
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
    ("pod", "binding", "code"),
    [
        pytest.param(_pod(), {"target": {}}, 400, id="no node is named"),
        pytest.param(_pod(), {**_BINDING, "metadata": {"name": "other"}}, 400, id="another name"),
        pytest.param({**_pod(), "spec": {"nodeName": "node-b"}}, _BINDING, 409, id="taken"),
        pytest.param(_pod(deletionTimestamp="now"), _BINDING, 409, id="on its way out"),
        pytest.param(_pod(), {**_BINDING, "metadata": {"uid": "other"}}, 409, id="another pod"),
    ],
)
def test_what_cannot_be_bound_is_refused(pod: Json, binding: Json, code: int) -> None:
    with pytest.raises(ApiError) as caught:
        bound_pod(pod, binding, _SUBJECT, _NOW)
    assert caught.value.code == code
