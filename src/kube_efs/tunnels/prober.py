"""Which tunnels are probed when: each as soon as stunnel starts to serve it, and all of them periodically."""

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
    """A result, and what it is true of: the service as it was, in the stunnel of that pid."""

    service: TunnelService
    pid: int | None
    result: ProbeResult


class Prober:
    """Probes services and knows the last result of each, as long as it is served."""

    def __init__(self, metrics: TunnelMetrics, *, timeout_seconds: float) -> None:
        self._metrics = metrics
        self._timeout_seconds = timeout_seconds
        self._known: Mapping[str, _Probed] = {}
        self._xids = itertools.cycle(range(1, 2**32))

    async def probe_all(self, report: KeeperReport) -> None:
        """Have a new result for each service that stunnel serves."""
        self._known = await self._probed(report.loaded.values(), report.pid)

    async def probe_new(self, report: KeeperReport) -> None:
        """The same for those only that it did not serve so before, or that did not work then.

        A probe is a TLS handshake: with a thousand tunnels, one more must not cost a thousand of them. One
        that failed may have been reset by the load itself.
        """
        known = {
            name: there
            for name, service in report.loaded.items()
            if (there := self._known.get(name))
            and there.result.ok
            and (there.service, there.pid) == (service, report.pid)
        }
        new = [service for name, service in report.loaded.items() if name not in known]
        self._known = known | await self._probed(new, report.pid)

    @property
    def results(self) -> Mapping[str, ProbeResult]:
        """How the last probe of each service ended."""
        return {name: one.result for name, one in self._known.items()}

    async def _probed(self, services: Collection[TunnelService], pid: int | None) -> dict[str, _Probed]:
        slots = asyncio.Semaphore(_AT_ONCE)

        async def probed(service: TunnelService) -> _Probed:
            async with slots:
                timeout = self._timeout_seconds
                result = await probe(service.port, timeout_seconds=timeout, xid=next(self._xids))
            return _Probed(service=service, pid=pid, result=result)

        found = await asyncio.gather(*map(probed, services))
        for one in found:
            if one.result.ok and one.service.name == one.service.file_system_id:
                self._metrics.probe_seconds.labels(one.service.file_system_id).observe(one.result.seconds)
        return {one.service.name: one for one in found}
