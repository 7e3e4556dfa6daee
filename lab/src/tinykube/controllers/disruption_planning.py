"""What a PodDisruptionBudget allows just now, by the rules of pkg/controller/disruption of Kubernetes."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from lightkube.models.policy_v1 import PodDisruptionBudgetSpec, PodDisruptionBudgetStatus
from lightkube.resources.policy_v1 import PodDisruptionBudget

from tinykube.controllers.reading import read_meta, read_selector
from tinykube.controllers.replica_planning import share_of
from tinykube.controllers.values import Meta, Pod, Requirement

_CONDITION = "DisruptionAllowed"


class Scale(NamedTuple):
    """How many pods a workload is to have, by its uid: a Deployment for all of its ReplicaSets."""

    uid: str
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetStatus:
    """``status`` of a budget; ``disrupted`` are pods that were evicted and may not have begun to end.

    ``said`` is what its condition DisruptionAllowed says, and since when; None when nobody has said so yet.
    """

    observed_generation: int = 0
    healthy: int = 0
    wanted: int = 0
    expected: int = 0
    allowed: int = 0
    disrupted: frozenset[str] = frozenset()
    said: bool | None = None
    since: datetime | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A PodDisruptionBudget; ``selector`` is None when it is for no pods, an empty one is for all."""

    meta: Meta
    generation: int = 0
    selector: tuple[Requirement, ...] | None = None
    least: int | str | None = None
    most_missing: int | str | None = None
    status: BudgetStatus = field(default_factory=BudgetStatus)

    def covers(self, pod: Pod) -> bool:
        """Whether the pod is one of those that it is for."""
        here = pod.meta.key.namespace == self.meta.key.namespace
        selector = self.selector
        return here and selector is not None and all(one.accepts(pod.meta.labels) for one in selector)


def read_budget(found: PodDisruptionBudget) -> Budget:
    """A PodDisruptionBudget."""
    spec = found.spec or PodDisruptionBudgetSpec()
    status = found.status or PodDisruptionBudgetStatus(
        currentHealthy=0, desiredHealthy=0, disruptionsAllowed=0, expectedPods=0
    )
    condition = next((one for one in status.conditions or () if one.type == _CONDITION), None)
    return Budget(
        meta=read_meta(found.metadata),
        generation=(found.metadata and found.metadata.generation) or 0,
        selector=None if spec.selector is None else read_selector(spec.selector),
        least=spec.minAvailable,
        most_missing=spec.maxUnavailable,
        status=BudgetStatus(
            observed_generation=status.observedGeneration or 0,
            healthy=status.currentHealthy or 0,
            wanted=status.desiredHealthy or 0,
            expected=status.expectedPods or 0,
            allowed=status.disruptionsAllowed or 0,
            disrupted=frozenset(status.disruptedPods or ()),
            said=condition.status == "True" if condition else None,
            since=condition.lastTransitionTime if condition else None,
        ),
    )


def budget_status(found: Budget, pods: Collection[Pod], scales: Mapping[str, Scale]) -> BudgetStatus:
    """What is to be said of it; ``scales`` are those of the pods' controllers, by their uids."""
    covered = [pod for pod in pods if found.covers(pod)]
    living = {pod.meta.key.name for pod in covered if not pod.meta.deleting}
    disrupted = found.status.disrupted & living
    healthy = sum(pod.ready and pod.meta.key.name in living - disrupted for pod in covered)
    expected = _scale(covered, scales)
    if found.most_missing is not None:
        wanted = max(0, expected - share_of(found.most_missing, expected, up=True))
    else:
        wanted = share_of(found.least or 0, expected, up=True)
        expected = expected if isinstance(found.least, str) else len(covered)
    allowed = max(0, healthy - wanted) if expected else 0
    return BudgetStatus(
        observed_generation=found.generation,
        healthy=healthy,
        wanted=wanted,
        expected=expected,
        allowed=allowed,
        disrupted=disrupted,
        said=allowed > 0,
        since=found.status.since,
    )


def render_budget_status(status: BudgetStatus, before: BudgetStatus, now: datetime) -> dict[str, Any]:
    """The status as a merge patch, which takes off those disrupted pods that are of no more interest."""
    since = (before.since if before.said is status.said else None) or now
    condition = {
        "type": _CONDITION,
        "status": str(bool(status.said)),
        "reason": "SufficientPods" if status.said else "InsufficientPods",
        "message": "",
        "observedGeneration": status.observed_generation,
        "lastTransitionTime": since.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return {
        "observedGeneration": status.observed_generation,
        "currentHealthy": status.healthy,
        "desiredHealthy": status.wanted,
        "expectedPods": status.expected,
        "disruptionsAllowed": status.allowed,
        "conditions": [condition],
        "disruptedPods": dict.fromkeys(sorted(before.disrupted - status.disrupted)),
    }


def _scale(pods: Collection[Pod], scales: Mapping[str, Scale]) -> int:
    """How many pods the workloads of these are to have together; a pod without one is one."""
    controllers = {pod.controller.uid for pod in pods if pod.controller} & scales.keys()
    alone = sum(pod.controller is None or pod.controller.uid not in scales for pod in pods)
    return sum(dict(scales[uid] for uid in controllers).values()) + alone
