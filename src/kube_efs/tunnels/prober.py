"""Probes each tunnel as soon as a stunnel serves it, and later as rarely as possible.

A probe is a TLS handshake at both ends, which costs a thousand times more than an NFS call. With hundreds of
tunnels, the probes would be most of what an idle node does. In each round, the prober therefore probes:

* every tunnel that is not known to work, or whose mount targets are all unreachable;
* of the tunnels that work, one for each list of mount targets, because the others of this list lead to the
  same servers. If it fails, the others follow at once. Lists and tunnels take turns, at most ``_LISTS`` lists
  in a round.

A tunnel that works and has just carried an answer to a mount is not probed at all.

A round starts no more probes after a time. If hundreds of tunnels fail, each probe takes seconds, and the
agent must still act on the ports meanwhile: the rest has its turn in the next rounds.

Mount targets that are lost are found earlier: the agent connects to each of them in each round (``agent``).
"""

import asyncio
import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kube_efs.telemetry.metrics import TunnelMetrics
from kube_efs.tunnels.data_plane import DataPlaneReport, TunnelService
from kube_efs.tunnels.probe import ProbeResult, probe

_AT_ONCE: Final = 16
_LISTS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probed:
    """A result, its number, and what was probed: the service, and the pid of the stunnel that served it."""

    service: TunnelService
    pid: int | None
    number: int
    result: ProbeResult


class Prober:
    """Probes services, and keeps the last result of each while a stunnel serves it.

    A probe takes at most ``timeout_seconds``, and a round starts probes for ``round_seconds``.
    """

    def __init__(self, metrics: TunnelMetrics, *, timeout_seconds: float, round_seconds: float) -> None:
        self._metrics = metrics
        self._timeout_seconds = timeout_seconds
        self._round_seconds = round_seconds
        self._known: Mapping[str, _Probed] = {}
        self._numbers = itertools.count(1)

    async def probe_round(
        self, report: DataPlaneReport, *, answering: Collection[int], unreachable: Collection[str]
    ) -> None:
        """Probe the tunnels that need it in this round.

        Connections to the ports ``answering`` have just carried an answer; the addresses ``unreachable`` do
        not accept connections.
        """
        deadline = asyncio.get_running_loop().time() + self._round_seconds
        known = self._still_valid(report)
        # Addresses that can be reached come first.
        working = [
            one for one in known.values() if one.result.ok and one.service.addresses[0] not in unreachable
        ]
        chosen = _choose(one for one in working if one.service.port not in answering)
        others = _services_but(report, {one.service.name for one in working})
        known |= await self._probe([*others, *chosen], report, deadline)
        failed = {one.addresses for one in chosen if not known[one.name].result.ok}
        same = [one.service for one in working if one.service.addresses in failed]
        same = [one for one in same if one not in chosen]
        self._known = known | await self._probe(same, report, deadline)

    async def probe_new(self, report: DataPlaneReport) -> None:
        """Probe only services that are new or changed, or whose last probe failed.

        A failed probe is repeated, because the load itself may have reset its connection.
        """
        known = self._still_valid(report)
        settled = {name for name, one in known.items() if one.result.ok or one.result.is_denied}
        self._known = known | await self._probe(_services_but(report, settled), report)

    @property
    def results(self) -> Mapping[str, ProbeResult]:
        """The last result of each service."""
        return {name: one.result for name, one in self._known.items()}

    def _still_valid(self, report: DataPlaneReport) -> dict[str, _Probed]:
        """The results of services that are served as they were probed."""
        return {
            name: known
            for name, service in report.loaded.items()
            if (known := self._known.get(name))
            and (known.service is service or known.service == service)
            and known.pid == report.pid_by_service.get(name)
        }

    async def _probe(
        self, services: Collection[TunnelService], report: DataPlaneReport, deadline: float = math.inf
    ) -> dict[str, _Probed]:
        """Probe these services, the earliest probed first; what would begin after the deadline is missing."""
        slots, clock = asyncio.Semaphore(_AT_ONCE), asyncio.get_running_loop().time

        async def probe_one(place: int, service: TunnelService) -> _Probed | None:
            async with slots:
                if place >= _AT_ONCE and clock() >= deadline:
                    return None
                number = next(self._numbers)
                timeout = self._timeout_seconds
                result = await probe(service.port, timeout_seconds=timeout, xid=number % 2**32)
            pid = report.pid_by_service.get(service.name)
            return _Probed(service=service, pid=pid, number=number, result=result)

        numbers = {name: known.number for name, known in self._known.items()}
        ordered = sorted(services, key=lambda service: numbers.get(service.name, 0))
        probed = await asyncio.gather(*itertools.starmap(probe_one, enumerate(ordered)))
        found = [one for one in probed if one]
        for one in found:
            if one.result.ok and one.service.name == one.service.file_system_id:
                self._metrics.probe_seconds.labels(one.service.file_system_id).observe(one.result.seconds)
        return {one.service.name: one for one in found}


def _choose(working: Iterable[_Probed]) -> list[TunnelService]:
    """One tunnel of each list of mount targets; of tunnels, and of too many lists, the earliest probed."""
    lists: defaultdict[tuple[str, ...], list[_Probed]] = defaultdict(list)
    for one in working:
        lists[one.service.addresses].append(one)
    waiting = sorted(lists.values(), key=lambda some: max(one.number for one in some))
    return [min(some, key=lambda one: one.number).service for some in waiting[:_LISTS]]


def _services_but(report: DataPlaneReport, names: Collection[str]) -> list[TunnelService]:
    return [service for name, service in report.loaded.items() if name not in names]
