"""The kinds of apps: their defaults and rules."""

from collections.abc import Iterator

from tinykube.kinds.defaulting import Defaults
from tinykube.kinds.pods import POD_TEMPLATE
from tinykube.objects.resources import Strategy
from tinykube.objects.statuses import Cause
from tinykube.objects.values import Json, lookup

_APPS = "apps"


def _workload(strategy_field: str, **values: object) -> Defaults:
    spec = Defaults(
        values={strategy_field: {}, **values},
        inside={"template": POD_TEMPLATE, strategy_field: Defaults(values={"type": "RollingUpdate"})},
    )
    return Defaults(values={"spec": {}}, inside={"spec": spec})


def _selector_problems(new: Json, _old: Json | None) -> Iterator[Cause]:
    """The selector must fit the template. Expressions are not looked at."""
    labels = lookup(new, "spec", "template", "metadata", "labels") or {}
    selector = lookup(new, "spec", "selector") or {}
    if not selector or not (selector.get("matchLabels") or {}).items() <= labels.items():
        yield Cause("spec.template.metadata.labels", "must be labels that the selector selects")


_NOBODY_SCHEDULED: Json = {
    "currentNumberScheduled": 0,
    "desiredNumberScheduled": 0,
    "numberMisscheduled": 0,
    "numberReady": 0,
}


def _strategy(default: Defaults, status: Json | None = None) -> Strategy:
    return Strategy(
        default=default,
        prepare_create=lambda workload: {**workload, "status": status or {}},
        required=("spec.selector", "spec.template.spec.containers"),
        immutable=("spec.selector",),
        other_problems=_selector_problems,
    )


STRATEGIES = {
    (_APPS, "DaemonSet"): _strategy(_workload("updateStrategy"), _NOBODY_SCHEDULED),
    (_APPS, "Deployment"): _strategy(_workload("strategy", replicas=1)),
    (_APPS, "StatefulSet"): _strategy(
        _workload("updateStrategy", replicas=1), {"replicas": 0, "availableReplicas": 0}
    ),
}
