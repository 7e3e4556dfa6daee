"""Whether PodDisruptionBudgets let a pod be evicted (pkg/registry/core/pod/storage/eviction.go)."""

from collections.abc import Iterable
from datetime import datetime

from tinykube.objects.json_types import Json, lookup
from tinykube.objects.metadata import timestamp
from tinykube.objects.resources import GroupResource
from tinykube.objects.selectors import structured_label_selector
from tinykube.objects.statuses import ApiError

BUDGETS = GroupResource("policy", "poddisruptionbudgets")
_VIOLATES = "Cannot evict pod as it would violate the pod's disruption budget."
_SEVERAL = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
_RETRY_SECONDS = 10
# Nobody would miss such a pod.
_OF_NO_USE = frozenset({"Pending", "Succeeded", "Failed"})


def spent_budget(pod: Json, budgets: Iterable[Json], now: datetime) -> Json | None:
    """The pod's budget with the pod counted as evicted, None when none is touched; raises 429 or 500."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    if "deletionTimestamp" in metadata or status.get("phase") in _OF_NO_USE:
        return None
    found = [budget for budget in budgets if _is_for(budget, metadata)]
    if len(found) > 1:
        raise ApiError(500, "", _SEVERAL)
    if not found or (not _ready(status) and _is_well(found[0]["status"])):
        return None
    return _spent(found[0], metadata["name"], now)


def _spent(budget: Json, pod: str, now: datetime) -> Json:
    name, status = budget["metadata"]["name"], budget["status"]
    if status.get("observedGeneration", 0) < (budget["metadata"].get("generation") or 0):
        problem = f"The disruption budget {name} is still being processed by the server."
        raise _too_many(problem, retry_seconds=_RETRY_SECONDS)
    if status["disruptionsAllowed"] <= 0:
        wanted, healthy = status["desiredHealthy"], status["currentHealthy"]
        problem = f"The disruption budget {name} needs {wanted} healthy pods and has {healthy} currently"
        raise _too_many(problem)
    disrupted = {**(status.get("disruptedPods") or {}), pod: timestamp(now)}
    left = status["disruptionsAllowed"] - 1
    return {**budget, "status": {**status, "disruptionsAllowed": left, "disruptedPods": disrupted}}


def _is_for(budget: Json, pod: Json) -> bool:
    selector = lookup(budget, "spec", "selector")
    if selector is None or budget["metadata"].get("namespace") != pod.get("namespace"):
        return False
    return structured_label_selector(selector).matches(pod.get("labels") or {})


def _is_well(status: Json) -> bool:
    wanted, healthy = (int(status.get(name, 0)) for name in ("desiredHealthy", "currentHealthy"))
    return 0 < wanted <= healthy


def _ready(status: Json) -> bool:
    conditions = status.get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


def _too_many(problem: str, *, retry_seconds: int = 0) -> ApiError:
    details: Json = {"causes": [{"reason": "DisruptionBudget", "message": problem}]}
    if retry_seconds:
        details["retryAfterSeconds"] = retry_seconds
    return ApiError(429, "TooManyRequests", _VIOLATES, details=details)
