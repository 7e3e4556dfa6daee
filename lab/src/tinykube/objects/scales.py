"""The ``scale`` subresource: a workload's number of replicas, in a form that is the same for every kind."""

from collections.abc import Callable

from tinykube.objects.json_types import Json, lookup
from tinykube.objects.metadata import with_metadata

_SHOWN = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


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
