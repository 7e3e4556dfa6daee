"""The ``scale`` subresource: a workload's number of replicas, in a form that is the same for every kind."""

from collections.abc import Callable

from tinykube.objects.json_types import Json, lookup
from tinykube.objects.metadata import with_metadata

_SHOWN = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def scale_of(workload: Json) -> Json:
    """The workload as a Scale (pkg/registry/apps)."""
    metadata = workload["metadata"]
    replicas = lookup(workload, "spec", "replicas")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: metadata[key] for key in _SHOWN if key in metadata},
        "spec": {"replicas": replicas} if replicas else {},
        "status": {
            "replicas": lookup(workload, "status", "replicas") or 0,
            "selector": _selector_text(lookup(workload, "spec", "selector")),
        },
    }


def scaling(change: Callable[[Json], Json]) -> Callable[[Json], Json]:
    """A change of Scales as a change of workloads, to be refused when it names another version."""

    def changed(workload: Json) -> Json:
        scale = change(scale_of(workload))
        spec = {**workload["spec"], "replicas": lookup(scale, "spec", "replicas") or 0}
        version = lookup(scale, "metadata", "resourceVersion")
        return with_metadata({**workload, "spec": spec}, **({"resourceVersion": version} if version else {}))

    return changed


def _selector_text(selector: Json | None) -> str:
    """A structured label selector in the form that ``kubectl -l`` takes."""
    if selector is None:
        return "<none>"
    terms = [(key, f"{key}={value}") for key, value in (selector.get("matchLabels") or {}).items()]
    for expression in selector.get("matchExpressions") or ():
        key, operator = expression["key"], expression["operator"]
        values = ",".join(sorted(expression.get("values") or ()))
        text = {"Exists": key, "DoesNotExist": f"!{key}"}.get(
            operator, f"{key} {operator.lower()} ({values})"
        )
        terms.append((key, text))
    return ",".join(text for _, text in sorted(terms)) or "<none>"
