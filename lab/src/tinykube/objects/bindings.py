"""Sending a pod to a node: the ``binding`` subresource (pkg/registry/core/pod/storage/storage.go)."""

from dataclasses import replace
from datetime import datetime

from tinykube.objects.json_types import Json, lookup
from tinykube.objects.metadata import timestamp
from tinykube.objects.statuses import (
    ApiError,
    Subject,
    bad_request,
    conflict,
    not_supported,
    required,
)


def bound_pod(pod: Json, binding: Json, subject: Subject, now: datetime) -> Json:
    """The pod on the node that the Binding names; raises 409 when it cannot go there.

    A malformed Binding is answered with 400 or 500, as by kube-apiserver.
    """
    _check(binding, subject.name)
    node = lookup(binding, "target", "name")
    metadata = pod["metadata"]
    uid = lookup(binding, "metadata", "uid")
    if uid and uid != metadata["uid"]:
        found = metadata["uid"]
        problem = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {found}"
        raise conflict(subject, problem)
    if "deletionTimestamp" in metadata:
        raise conflict(subject, f"pod {subject.name} is being deleted, cannot be assigned to a host")
    if taken := lookup(pod, "spec", "nodeName"):
        through = replace(subject, resource=f"{subject.resource}/binding")
        raise conflict(through, f'pod {subject.name} is already assigned to node "{taken}"')
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


def _check(binding: Json, name: str) -> None:
    if lookup(binding, "metadata", "name") not in {None, "", name}:
        raise bad_request("name in URL does not match name in Binding object")
    kind = lookup(binding, "target", "kind")
    if kind not in {None, "", "Node"}:
        raise ApiError(500, "", str(not_supported("target.kind", kind, ["Node", "<empty>"])))
    if not lookup(binding, "target", "name"):
        raise ApiError(500, "", str(required("target.name")))
