"""The kinds of apps: their defaults and rules."""

from collections.abc import Iterator
from dataclasses import replace

from tinykube.kinds.defaulting import Defaults
from tinykube.kinds.pods import POD_TEMPLATE
from tinykube.objects.json_types import Json, lookup
from tinykube.objects.resources import Form, ResourceType
from tinykube.objects.statuses import Cause
from tinykube.objects.strategies import Strategy

_APPS = "apps"
_OLD_VERSION = "v1beta1"


def _rolling(**values: object) -> Defaults:
    """The defaults of an update strategy: rolling, with these parameters."""

    def complete(strategy: Json) -> Json:
        if strategy["type"] != "RollingUpdate":
            return strategy
        given = strategy.get("rollingUpdate") or {}
        return {**strategy, "rollingUpdate": {**values, **given}}

    return Defaults(values={"type": "RollingUpdate"}, then=complete)


def _workload(strategy_field: str, rolling: Defaults, **values: object) -> Defaults:
    spec = Defaults(
        values={"revisionHistoryLimit": 10, strategy_field: {}, **values},
        inside={"template": POD_TEMPLATE, strategy_field: rolling},
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


_STATEFUL_SET = _workload(
    "updateStrategy",
    _rolling(partition=0),
    replicas=1,
    podManagementPolicy="OrderedReady",
    persistentVolumeClaimRetentionPolicy={"whenDeleted": "Retain", "whenScaled": "Retain"},
)
STRATEGIES = {
    (_APPS, "DaemonSet"): _strategy(
        _workload("updateStrategy", _rolling(maxUnavailable=1, maxSurge=0)), _NOBODY_SCHEDULED
    ),
    (_APPS, "Deployment"): _strategy(
        _workload(
            "strategy",
            _rolling(maxUnavailable="25%", maxSurge="25%"),
            replicas=1,
            progressDeadlineSeconds=600,
        )
    ),
    (_APPS, "StatefulSet"): _strategy(_STATEFUL_SET, {"replicas": 0, "availableReplicas": 0}),
}


def old_form(current: ResourceType) -> ResourceType:
    """StatefulSets of ``apps/v1beta1``, which Kubernetes has not served since 1.16, but old manifests have.

    They are the same objects, but that the selector may be left out: it is then the labels of the template.
    """
    return replace(
        current,
        version=_OLD_VERSION,
        form=Form(
            from_stored=lambda stored: {**stored, "apiVersion": f"{_APPS}/{_OLD_VERSION}"},
            to_stored=lambda given: {**_with_selector(given), "apiVersion": current.api_version},
        ),
    )


def _with_selector(given: Json) -> Json:
    spec = given.get("spec") or {}
    labels = lookup(spec, "template", "metadata", "labels")
    selector = {"selector": {"matchLabels": labels}} if labels and not spec.get("selector") else {}
    return {**given, "spec": {**spec, **selector}}
