"""The rules of the built-in kinds: defaults, what the server sets, what is refused, what deletion means.

Only what differs between kinds belongs here, as data where it can be; what all objects have in common is
the service's. ``strategy_of`` gives the rules of a kind, and the common ones for kinds without their own.
"""

from kube_efs.local.apiserver.kinds import (
    access,
    claims,
    core,
    definitions,
    pods,
    storage,
    volumes,
    workloads,
)
from kube_efs.local.apiserver.strategies import Strategy

_STRATEGIES: dict[tuple[str, str], Strategy] = {
    **access.STRATEGIES,
    **claims.STRATEGIES,
    **core.STRATEGIES,
    **definitions.STRATEGIES,
    **pods.STRATEGIES,
    **storage.STRATEGIES,
    **volumes.STRATEGIES,
    **workloads.STRATEGIES,
}
_COMMON = Strategy()


def strategy_of(group: str, kind: str) -> Strategy:
    """The rules of a built-in kind."""
    return _STRATEGIES.get((group, kind), _COMMON)
