"""What several looks at the ports prove: that a tunnel is unused, and that stunnel hangs.

A reading of the kernel's tables can be torn while sockets come and go, so one reading proves nothing. A
tunnel without a holder may be closed when every one of several good readings over some minutes showed no
connection to it.

stunnel hangs when connections wait at one of its ports and are not accepted. It has one loop that
accepts, so each mount of the node would hang. The kernel's table shows it without a call that could
hang too.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from kube_efs.tunnels.sockets.ports import PortReading


@dataclass(frozen=True, slots=True, kw_only=True)
class IdlePolicy:
    """For how long, and in how many readings, there must have been no connection."""

    seconds: float = 180.0
    readings: int = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Streak:
    since: float
    readings: int


@dataclass(frozen=True, slots=True)
class IdlePorts:
    """The idle ports, each with the time of the first of its idle readings and their number."""

    streaks: Mapping[int, _Streak] = field(default_factory=lambda: MappingProxyType({}))

    def after(self, reading: PortReading | None, unheld: Collection[int], *, now: float) -> "IdlePorts":
        """After one more look at these ports; ``now`` is a monotonic time in seconds.

        A reading that failed (None) starts all over again.
        """
        if reading is None:
            return IdlePorts()
        idle = (port for port in unheld if port not in reading.busy)
        return IdlePorts(MappingProxyType({port: self._longer(port, now) for port in idle}))

    def among(self, ports: Collection[int]) -> "IdlePorts":
        """What is known of these ports; one that comes back later starts all over again."""
        return IdlePorts(MappingProxyType({port: one for port, one in self.streaks.items() if port in ports}))

    def over(self, policy: IdlePolicy, *, now: float) -> frozenset[int]:
        """The ports that have been idle for long enough."""
        return frozenset(
            port
            for port, streak in self.streaks.items()
            if streak.readings >= policy.readings and now - streak.since >= policy.seconds
        )

    def _longer(self, port: int, now: float) -> _Streak:
        streak = self.streaks.get(port)
        if streak is None:
            return _Streak(since=now, readings=1)
        return _Streak(since=streak.since, readings=streak.readings + 1)


@dataclass(frozen=True, slots=True)
class StalledPorts:
    """Since when each port has had connections that wait, by all readings."""

    since: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))

    def after(self, reading: PortReading | None, ports: Collection[int], *, now: float) -> "StalledPorts":
        """After one more look at these ports; ``now`` is a monotonic time in seconds.

        A reading that failed (None) proves nothing.
        """
        if reading is None:
            return self
        waiting = reading.unanswered.intersection(ports)
        return StalledPorts(MappingProxyType({port: self.since.get(port, now) for port in waiting}))

    def lasts(self, seconds: float, *, now: float) -> bool:
        """Whether connections to some port have waited in every reading for so long."""
        return any(now - since >= seconds for since in self.since.values())
