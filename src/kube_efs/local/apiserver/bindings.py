"""Sending a pod to a node: the ``binding`` subresource (pkg/registry/core/pod/storage/storage.go)."""

from datetime import datetime

from kube_efs.local.apiserver.json_types import Json, lookup
from kube_efs.local.apiserver.metadata import timestamp
from kube_efs.local.apiserver.statuses import Subject, conflict, invalid_object, required


def bound_pod(pod: Json, binding: Json, subject: Subject, now: datetime) -> Json:
    """The pod on the node that the Binding names; raises 422 without one and 409 when it cannot go there."""
    node = lookup(binding, "target", "name")
    if not node:
        raise invalid_object(subject, [required("target.name")])
    metadata = pod["metadata"]
    uid = lookup(binding, "metadata", "uid")
    if uid and uid != metadata["uid"]:
        found = metadata["uid"]
        problem = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {found}"
        raise conflict(subject, problem)
    if "deletionTimestamp" in metadata:
        raise conflict(subject, f"pod {subject.name} is being deleted, cannot be assigned to a host")
    if taken := lookup(pod, "spec", "nodeName"):
        raise conflict(subject, f"pod {subject.name} is already assigned to node {taken!r}")
    status = pod.get("status") or {}
    others = [one for one in status.get("conditions") or () if one.get("type") != "PodScheduled"]
    scheduled = {
        "type": "PodScheduled",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": timestamp(now),
    }
    return {
        **pod,
        "spec": {**pod["spec"], "nodeName": node},
        "status": {**status, "conditions": [*others, scheduled]},
    }
