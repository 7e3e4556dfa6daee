"""Evicting a pod: the ``eviction`` subresource (pkg/registry/core/pod/storage/eviction.go)."""

from datetime import datetime

from tinykube.objects.json_types import Json
from tinykube.objects.metadata import timestamp

_CONDITION = "DisruptionTarget"


def evicted_pod(pod: Json, now: datetime) -> Json:
    """The pod with the condition that tells why it ends."""
    status = pod.get("status") or {}
    others = [one for one in status.get("conditions") or () if one.get("type") != _CONDITION]
    condition = {
        "type": _CONDITION,
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": timestamp(now),
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
    }
    return {**pod, "status": {**status, "conditions": [*others, condition]}}
