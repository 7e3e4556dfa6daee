"""Subresources in a form of their own: ``binding`` and ``eviction`` of pods, ``scale`` of workloads."""

from collections.abc import Callable
from datetime import datetime

from tinykube.objects.metadata import with_metadata
from tinykube.objects.statuses import Subject, bad_request, conflict
from tinykube.objects.values import Json, lookup, timestamp

_SHOWN = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


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
    """The pod with the condition that says why it ends."""
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


def scale_of(workload: Json) -> Json:
    """The workload as a Scale."""
    metadata = workload["metadata"]
    replicas = lookup(workload, "spec", "replicas")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: metadata[key] for key in _SHOWN if key in metadata},
        "spec": {"replicas": replicas} if replicas else {},
        "status": {"replicas": lookup(workload, "status", "replicas") or 0},
    }


def scaling(change: Callable[[Json], Json]) -> Callable[[Json], Json]:
    """A change of Scales as a change of workloads, to be refused when it names another version."""

    def changed(workload: Json) -> Json:
        scale = change(scale_of(workload))
        spec = {**workload["spec"], "replicas": lookup(scale, "spec", "replicas") or 0}
        version = lookup(scale, "metadata", "resourceVersion")
        return with_metadata({**workload, "spec": spec}, **({"resourceVersion": version} if version else {}))

    return changed
