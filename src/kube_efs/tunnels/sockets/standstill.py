"""Whether stunnel stands still: connections wait at a port of its own, and nobody accepts them.

It has one loop that accepts, so each mount of the node would wait for ever. The kernel's table tells it
without a call that could hang too.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from kube_efs.tunnels.sockets.ports import PortReading


@dataclass(frozen=True, slots=True)
class Standstill:
    """Since when each port has had connections that wait, by all readings."""

    since: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))

    def after(self, reading: PortReading | None, ports: Collection[int], *, now: float) -> "Standstill":
        """After one more look at these ports; ``now`` is a monotonic time in seconds.

        A reading that failed (None) tells nothing.
        """
        if reading is None:
            return self
        waiting = reading.unanswered.intersection(ports)
        return Standstill(MappingProxyType({port: self.since.get(port, now) for port in waiting}))

    def lasts(self, seconds: float, *, now: float) -> bool:
        """Whether connections to some port have waited in every reading for so long."""
        return any(now - since >= seconds for since in self.since.values())
