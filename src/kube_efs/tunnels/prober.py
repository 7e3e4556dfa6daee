"""Probes each tunnel as soon as stunnel serves it, and all of them periodically."""

import asyncio
import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from kube_efs.telemetry.metrics import TunnelMetrics
from kube_efs.tunnels.probe import ProbeResult, probe
from kube_efs.tunnels.stunnel.configuration import TunnelService
from kube_efs.tunnels.stunnel.keeper import KeeperReport

_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probed:
    """A result, and what was probed: the service, and the pid of the stunnel that served it."""

    service: TunnelService
    pid: int | None
    result: ProbeResult


class Prober:
    """Probes services, and keeps the last result of each while stunnel serves it."""

    def __init__(self, metrics: TunnelMetrics, *, timeout_seconds: float) -> None:
        self._metrics = metrics
        self._timeout_seconds = timeout_seconds
        self._known: Mapping[str, _Probed] = {}
        self._xids = itertools.cycle(range(1, 2**32))

    async def probe_all(self, report: KeeperReport) -> None:
        """Probe all services that stunnel serves."""
        self._known = await self._probe(report.loaded.values(), report.pid)

    async def probe_new(self, report: KeeperReport) -> None:
        """Probe only services that are new or changed, or whose last probe failed.

        A probe is a TLS handshake: with a thousand tunnels, one more must not cause a thousand handshakes. A
        failed probe is repeated, because the load itself may have reset its connection.
        """
        known = {
            name: there
            for name, service in report.loaded.items()
            if (there := self._known.get(name))
            and (there.result.ok or there.result.is_denied)
            and (there.service, there.pid) == (service, report.pid)
        }
        new = [service for name, service in report.loaded.items() if name not in known]
        self._known = known | await self._probe(new, report.pid)

    @property
    def results(self) -> Mapping[str, ProbeResult]:
        """The last result of each service."""
        return {name: one.result for name, one in self._known.items()}

    async def _probe(self, services: Collection[TunnelService], pid: int | None) -> dict[str, _Probed]:
        slots = asyncio.Semaphore(_AT_ONCE)

        async def probe_one(service: TunnelService) -> _Probed:
            async with slots:
                timeout = self._timeout_seconds
                result = await probe(service.port, timeout_seconds=timeout, xid=next(self._xids))
            return _Probed(service=service, pid=pid, result=result)

        found = await asyncio.gather(*map(probe_one, services))
        for one in found:
            if one.result.ok and one.service.name == one.service.file_system_id:
                self._metrics.probe_seconds.labels(one.service.file_system_id).observe(one.result.seconds)
        return {one.service.name: one for one in found}
