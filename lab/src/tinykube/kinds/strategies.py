"""Every built-in kind with its rules; those without their own have the common ones."""

from tinykube.kinds import (
    access,
    claims,
    core,
    definitions,
    events,
    leases,
    pods,
    storage,
    volumes,
    workloads,
)
from tinykube.objects.strategies import Strategy

_STRATEGIES: dict[tuple[str, str], Strategy] = {
    **access.STRATEGIES,
    **claims.STRATEGIES,
    **core.STRATEGIES,
    **definitions.STRATEGIES,
    **events.STRATEGIES,
    **leases.STRATEGIES,
    **pods.STRATEGIES,
    **storage.STRATEGIES,
    **volumes.STRATEGIES,
    **workloads.STRATEGIES,
}
_COMMON = Strategy()


def strategy_of(group: str, kind: str) -> Strategy:
    """The rules of a built-in kind."""
    return _STRATEGIES.get((group, kind), _COMMON)
