"""Which nodes EFS does not let mount the root of a file system, and when worker pods pause for it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

# A policy rarely changes, and each attempt leaves a pod waiting.
_PAUSE_SECONDS: Final = 300.0
# Longer than a pause, so that one attempt after it is sufficient.
_AVOIDED_SECONDS: Final = 3600.0
_NODES_MAX: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Denials:
    """The denials of one file system. Times are those of the loop's clock, in seconds.

    The CSI driver mounts with the identity of the tunnel agent, which can be the role of the node. So a
    denial of one node says little about nodes with another role. ``until`` is how long pods avoid each node,
    ``in_succession`` are the nodes since the last success.
    """

    reason: str = ""
    until: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    in_succession: frozenset[str] = frozenset()
    paused_until: float = 0.0

    def nodes(self, *, now: float) -> frozenset[str]:
        """The nodes that the next pod avoids."""
        return frozenset(node for node, until in self.until.items() if now < until)

    def after_denial(
        self, node: str | None, reason: str, *, avoided: Collection[str], now: float, has_others: bool
    ) -> "Denials":
        """The state after a pod that ``avoided`` these nodes; ``has_others``: other nodes may be able to.

        ``node`` is None if the API server did not show it yet. During a pause, the reason stays: pods that
        started before it say the same, but name themselves, and each text is another event of a claim.
        """
        if now < self.paused_until:
            reason = self.reason
        current = {one: self.until[one] for one in self.nodes(now=now)}
        if node is None:
            return replace(self, reason=reason, until=current, paused_until=now + _PAUSE_SECONDS)
        in_succession = self.in_succession | {node}
        # A pod runs on a node that it avoids only if no other node can run it.
        is_general = not has_others or node in avoided or len(in_succession) >= _NODES_MAX
        return Denials(
            reason=reason,
            until={**current, node: now + _AVOIDED_SECONDS},
            in_succession=in_succession,
            paused_until=now + _PAUSE_SECONDS if is_general else self.paused_until,
        )

    def after_success(self) -> "Denials":
        """The state after a pod whose node could mount."""
        return replace(self, in_succession=frozenset(), paused_until=0.0)
