"""The subresources ``binding`` and ``eviction`` of pods, after pkg/registry/core/pod/storage."""

from datetime import datetime

from tinykube.objects.json_types import Json, lookup
from tinykube.objects.statuses import Subject, bad_request, conflict
from tinykube.objects.times import timestamp


def bound_pod(pod: Json, binding: Json, subject: Subject, now: datetime) -> Json:
    """The pod on the node that the Binding names; raises 400, or 409 when it cannot go there."""
    metadata, node = pod["metadata"], lookup(binding, "target", "name")
    if lookup(binding, "metadata", "name") not in {None, "", subject.name} or not node:
        raise bad_request("a Binding names the pod of the URL and a node")
    if lookup(binding, "metadata", "uid") not in {None, "", metadata["uid"]}:
        raise conflict(subject, "the Binding is for another pod of that name")
    if "deletionTimestamp" in metadata:
        raise conflict(subject, "the pod is being deleted")
    if taken := lookup(pod, "spec", "nodeName"):
        raise conflict(subject, f"the pod is already assigned to node {taken}")
    bound = {**pod, "spec": {**pod["spec"], "nodeName": node}}
    return _with_condition(bound, now, type="PodScheduled")


def evicted_pod(pod: Json, now: datetime) -> Json:
    """The pod with the condition that tells why it ends."""
    return _with_condition(
        pod,
        now,
        type="DisruptionTarget",
        reason="EvictionByEvictionAPI",
        message="Eviction API: evicting",
    )


def _with_condition(pod: Json, now: datetime, **condition: str) -> Json:
    status = pod.get("status") or {}
    others = [one for one in status.get("conditions") or () if one.get("type") != condition["type"]]
    times = {"lastProbeTime": None, "lastTransitionTime": timestamp(now)}
    return {**pod, "status": {**status, "conditions": [*others, {**condition, "status": "True", **times}]}}
