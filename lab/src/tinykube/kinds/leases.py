"""The leases of coordination.k8s.io (pkg/apis/coordination/validation)."""

from collections.abc import Iterator

from tinykube.objects.json_types import Json
from tinykube.objects.statuses import Cause, invalid
from tinykube.objects.strategies import Strategy


def _problems(new: Json, _old: Json | None) -> Iterator[Cause]:
    spec = new.get("spec") or {}
    seconds, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if seconds is not None and seconds <= 0:
        yield invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0")
    if transitions is not None and transitions < 0:
        yield invalid("spec.leaseTransitions", transitions, "must be greater than or equal to 0")


STRATEGIES = {("coordination.k8s.io", "Lease"): Strategy(problems=_problems)}
