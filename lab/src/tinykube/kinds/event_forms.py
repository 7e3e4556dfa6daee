"""Events of ``events.k8s.io/v1`` and of the core group: the same stored objects under two sets of names."""

from types import MappingProxyType

from tinykube.objects.json_types import Json
from tinykube.objects.resources import Form

# pkg/apis/events/v1/conversion.go of kubernetes/kubernetes
_CORE_NAMES = MappingProxyType(
    {
        "note": "message",
        "regarding": "involvedObject",
        "reportingController": "reportingComponent",
        "deprecatedSource": "source",
        "deprecatedFirstTimestamp": "firstTimestamp",
        "deprecatedLastTimestamp": "lastTimestamp",
        "deprecatedCount": "count",
    }
)
_LEFT_OUT_WHEN_EMPTY = frozenset({"reportingComponent", "reportingInstance"})
_EVENTS_GROUP_NAMES = MappingProxyType({core: name for name, core in _CORE_NAMES.items()})


def _to_core(event: Json) -> Json:
    renamed = {_CORE_NAMES.get(name, name): value for name, value in event.items()}
    return {**renamed, "apiVersion": "v1"}


def _from_core(event: Json) -> Json:
    renamed = {
        _EVENTS_GROUP_NAMES.get(name, name): value
        for name, value in event.items()
        if value != "" or name not in _LEFT_OUT_WHEN_EMPTY
    }
    return {**renamed, "apiVersion": "events.k8s.io/v1"}


EVENTS_GROUP_FORM = Form(from_stored=_from_core, to_stored=_to_core)
"""How ``events.k8s.io/v1`` relates to the stored core events."""
