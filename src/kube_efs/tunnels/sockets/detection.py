"""Detects from several readings of the ports that a tunnel is unused, or that stunnel hangs.

While sockets open and close, a reading of the kernel's tables can miss a connection. One reading therefore
proves nothing: to close a tunnel in use would break its mounts. A tunnel without a holder may close if
several good readings over some minutes showed no connection to it.

stunnel hangs if connections wait at one of its ports and are not accepted. It has one loop that accepts, so
all its mounts would hang. The kernel's table shows this; a test connection could hang itself.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from kube_efs.tunnels.sockets.ports import PortReading


@dataclass(frozen=True, slots=True, kw_only=True)
class IdlePolicy:
    """How long, and in how many readings, a port must have no connection."""

    seconds: float = 180.0
    readings: int = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Streak:
    since: float
    readings: int


@dataclass(frozen=True, slots=True)
class IdlePorts:
    """The idle ports, each with the time of its first idle reading and the number of readings."""

    streaks: Mapping[int, _Streak] = field(default_factory=lambda: MappingProxyType({}))

    def after(self, reading: PortReading | None, unheld: Collection[int], *, now: float) -> "IdlePorts":
        """The state after one more reading of these ports; ``now`` is a monotonic time in seconds.

        After a failed reading (None), all ports start again.
        """
        if reading is None:
            return IdlePorts()
        idle = (port for port in unheld if port not in reading.busy)
        return IdlePorts(MappingProxyType({port: self._longer(port, now) for port in idle}))

    def keep_only(self, ports: Collection[int]) -> "IdlePorts":
        """Remove all other ports; they start again if they come back."""
        return IdlePorts(MappingProxyType({port: one for port, one in self.streaks.items() if port in ports}))

    def unused(self, policy: IdlePolicy, *, now: float) -> frozenset[int]:
        """The ports that have been idle for as long as the policy requires."""
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
    """The ports where connections wait, each with the time of the first reading that showed it."""

    since: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))

    def after(self, reading: PortReading | None, ports: Collection[int], *, now: float) -> "StalledPorts":
        """The state after one more reading of these ports; ``now`` is a monotonic time in seconds.

        A failed reading (None) changes nothing.
        """
        if reading is None:
            return self
        waiting = reading.unanswered.intersection(ports)
        return StalledPorts(MappingProxyType({port: self.since.get(port, now) for port in waiting}))

    def longer_than(self, seconds: float, *, now: float) -> frozenset[int]:
        """The ports to which connections have waited for so long in every reading."""
        return frozenset(port for port, since in self.since.items() if now - since >= seconds)

    def forget(self, ports: Collection[int]) -> "StalledPorts":
        """The state in which these ports start again."""
        return StalledPorts(
            MappingProxyType({port: since for port, since in self.since.items() if port not in ports})
        )
