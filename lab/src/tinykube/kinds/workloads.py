"""The kinds of apps: their defaults and rules."""

from collections.abc import Iterator

from tinykube.kinds.defaulting import Defaults
from tinykube.kinds.label_selectors import selector_problems
from tinykube.kinds.pods import POD_SPEC, POD_TEMPLATE, pod_spec_problems
from tinykube.objects.json_types import Json, json_equal, lookup
from tinykube.objects.metadata import IMMUTABLE, label_problems
from tinykube.objects.selectors import structured_label_selector
from tinykube.objects.statuses import Cause, invalid, required
from tinykube.objects.strategies import Strategy

_NO_MATCH = "`selector` does not match template `labels`"
_APPS = "apps"


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


def _selector_problems(new: Json, old: Json | None) -> Iterator[Cause]:
    """The selector must be there, fit the template and stay."""
    selector = lookup(new, "spec", "selector")
    labels = lookup(new, "spec", "template", "metadata", "labels") or {}
    if not selector:
        yield required("spec.selector")
        yield invalid("spec.template.metadata.labels", labels, _NO_MATCH)
    elif problems := list(selector_problems("spec.selector", selector)):
        yield from problems
    elif not structured_label_selector(selector).matches(labels):
        yield invalid("spec.template.metadata.labels", labels, _NO_MATCH)
    if old is not None and not json_equal(selector, lookup(old, "spec", "selector")):
        yield invalid("spec.selector", selector, IMMUTABLE)
    yield from _template_problems(new, old)


def _template_problems(new: Json, _old: Json | None) -> Iterator[Cause]:
    template = lookup(new, "spec", "template") or {}
    yield from label_problems(lookup(template, "metadata", "labels") or {}, "spec.template.metadata.labels")
    spec = template.get("spec") or POD_SPEC({})
    # A StatefulSet's claims are volumes of its pods too.
    claims = lookup(new, "spec", "volumeClaimTemplates") or ()
    volumes = [*(spec.get("volumes") or ()), *({"name": lookup(one, "metadata", "name")} for one in claims)]
    yield from pod_spec_problems("spec.template.spec", {**spec, "volumes": volumes})


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
        problems=_selector_problems,
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
    (_APPS, "ReplicaSet"): _strategy(
        Defaults(
            values={"spec": {}},
            inside={"spec": Defaults(values={"replicas": 1}, inside={"template": POD_TEMPLATE})},
        ),
        {"replicas": 0},
    ),
    (_APPS, "StatefulSet"): _strategy(_STATEFUL_SET, {"replicas": 0, "availableReplicas": 0}),
}
