"""Both data planes of a node, as one: which of them serves which port.

A listening port cannot be handed over between them. While one closes it and the other opens it, nobody
listens, and a mount that reconnects in that moment is refused. So a port in use never changes its data plane:

1. A port on which a data plane listens stays with it. What listens where is not stored, because a file could
   be wrong after a crash. It is read from the kernel, once at the start, and again when a port is taken.
2. A new port gets the ``preferred`` data plane.
3. A port of the other data plane moves when several readings show neither a connection nor a mount
   (``IdlePorts``): the other one closes it, and the report of that gives it to the preferred one. A port that
   is used again before it is closed stays.

This is the same for every change: of the setting, of what the kernel can do after an upgrade or a downgrade,
and after a crash at any step. After the last port has moved, the other data plane has no process.

The relay cannot check the revocation of certificates. A service that wants it is always served by stunnel.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress

import structlog

from kube_efs.model.errors import PortTaken
from kube_efs.telemetry.metrics import TunnelMetrics
from kube_efs.tunnels.data_plane import (
    DataPlane,
    DataPlaneName,
    DataPlaneReport,
    ServiceFacts,
    TunnelService,
)
from kube_efs.tunnels.options import TunnelOptions
from kube_efs.tunnels.relay.keeper import RelayKeeper
from kube_efs.tunnels.sockets.detection import IdlePorts
from kube_efs.tunnels.sockets.ports import PortReading
from kube_efs.tunnels.stunnel.shards import StunnelShards

log = structlog.get_logger()


class DataPlanes:
    """Owns the processes that serve the tunnels of the node.

    ``report`` is the current state of both; ``on_change`` is called after each change of it.
    """

    def __init__(self, options: TunnelOptions, metrics: TunnelMetrics, on_change: Callable[[], None]) -> None:
        """Find the programs; raises StunnelMissing."""
        self._options = options
        self._metrics = metrics
        self._on_change = on_change
        self._preferred = options.data_plane.name
        self._planes: Mapping[DataPlaneName, DataPlane] = {
            DataPlaneName.STUNNEL: StunnelShards(options, metrics, self._update_report),
            DataPlaneName.KERNEL: RelayKeeper(options, metrics, self._update_report),
        }
        self._wanted: Mapping[str, TunnelService] | None = None
        # Both are replaced and never changed, so that the same object is the same content.
        self._assigned: Mapping[int, DataPlaneName] = {}
        self._distributed: tuple[object, object, frozenset[int]] = None, None, frozenset()
        self._idle_ports = IdlePorts()
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self.report = DataPlaneReport()
        metrics.data_plane.labels(self._preferred).set(1)

    @property
    def not_running(self) -> tuple[DataPlaneName, ...]:
        """The data planes that have services and no process."""
        return tuple(name for name, plane in self._planes.items() if not plane.is_running)

    def set_services(self, services: Iterable[TunnelService]) -> None:
        """Set the services that must be served; ``run`` loads them as soon as possible."""
        wanted = {service.name: service for service in services}
        if wanted != self._wanted:
            self._wanted = wanted
            self._wake.set()

    def reload_or_replace(self, ports: Collection[int]) -> None:
        """Make the processes of these ports accept again, and replace those that do not: they hang."""
        for name, plane in self._planes.items():
            if some := {port for port in ports if self._assigned.get(port) == name}:
                plane.reload_or_replace(some)

    def merge(self, reading: PortReading | None, *, now: float) -> None:
        """Let each data plane merge its processes, and move unused ports to the preferred one."""
        for plane in self._planes.values():
            plane.merge(reading, now=now)
        wanted = {service.port: service for service in (self._wanted or {}).values()}
        elsewhere = [
            port
            for port, name in self._assigned.items()
            if port in wanted and name != self._best(wanted[port])
        ]
        self._idle_ports = self._idle_ports.after(reading, elsewhere, now=now)
        unused = self._idle_ports.unused(self._options.idle, now=now)
        changes = {port: self._best(wanted[port]) for port in unused}
        if changes:
            log.info("data-plane-changed", ports=sorted(changes))
        if reading:
            # A move that is not complete is taken back if a mount has begun to use the port.
            changes |= {
                port: name
                for port, name in self._listening().items()
                if port in self._assigned and port in reading.busy
            }
        if changes.items() - self._assigned.items():
            self._assigned = {**self._assigned, **changes}
            self._wake.set()

    async def find_services(self) -> tuple[TunnelService, ...]:
        """The services without a client certificate, as the processes of an earlier agent have them."""
        return tuple([one for plane in self._planes.values() for one in await plane.find_services()])

    async def read_facts(self, names: Collection[str]) -> Mapping[str, ServiceFacts]:
        """The facts about these services, from the data plane of each."""
        wanted, own = self._wanted or {}, {name: list[str]() for name in self._planes}
        for name in names:
            if (service := wanted.get(name)) and (plane_name := self._assigned.get(service.port)):
                own[plane_name].append(name)
        found: dict[str, ServiceFacts] = {}
        for plane_name, plane in self._planes.items():
            found |= await plane.read_facts(own[plane_name])
        return found

    async def wait_until_listening(self, name: str, port: int) -> None:
        """Wait until a data plane listens for this service; if it is left out, raise the reason.

        The report may still be that of an earlier service of this name, which had another port.
        """
        while (loaded := self.report.loaded.get(name)) is None or loaded.port != port:
            error = self.report.left_out.get(name)
            if error and not (isinstance(error, PortTaken) and error.value != port):
                raise error
            await self._changed.wait()

    async def stop(self) -> None:
        """End all processes, and with them every connection, in less than 5 s."""
        await asyncio.gather(*(plane.stop() for plane in self._planes.values()))

    async def run(self) -> None:
        """Take over running processes and serve the wanted services; ends no process when cancelled."""
        await self._find_listeners()
        if self._wanted is not None:  # before a data plane looks for the services of the running processes
            self._distribute(self._wanted)
        loop = asyncio.get_running_loop()
        looked = loop.time()
        async with asyncio.TaskGroup() as tasks:
            for plane in self._planes.values():
                tasks.create_task(plane.run())
            while True:
                self._wake.clear()
                is_taken = any(isinstance(error, PortTaken) for error in self.report.left_out.values())
                if is_taken and loop.time() >= looked + self._options.retry_seconds:
                    # Perhaps by a process that an earlier agent has started while it was killed.
                    await self._find_listeners()
                    looked = loop.time()
                if self._wanted is not None:
                    self._distribute(self._wanted)
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._options.retry_seconds if is_taken else None):
                        await self._wake.wait()

    async def _find_listeners(self) -> None:
        """Assign each port to the data plane that listens on it."""
        for name, plane in self._planes.items():
            found = dict.fromkeys(await plane.find_ports(), name)
            self._assigned = {**self._assigned, **found}

    def _distribute(self, wanted: Mapping[str, TunnelService]) -> None:
        """Give each data plane its services, except those on whose ports the other one still listens."""
        wanted_before, assigned_before, elsewhere_before = self._distributed
        assigned = self._assigned
        is_same = wanted is wanted_before and assigned is assigned_before
        if not is_same:
            assigned = {
                service.port: assigned.get(service.port) or self._best(service) for service in wanted.values()
            }
        elsewhere = frozenset(
            port for port, name in self._listening().items() if assigned.get(port, name) != name
        )
        if is_same and elsewhere == elsewhere_before:
            return
        self._assigned, self._distributed = assigned, (wanted, assigned, elsewhere)
        for name, plane in self._planes.items():
            plane.set_services(
                service
                for service in wanted.values()
                if assigned[service.port] is name and service.port not in elsewhere
            )

    def _best(self, service: TunnelService) -> DataPlaneName:
        """The data plane that serves the service if nothing listens on its port."""
        # Python, and with it the relay, cannot check revocation.
        return DataPlaneName.STUNNEL if service.checks_revocation else self._preferred

    def _listening(self) -> Mapping[int, DataPlaneName]:
        """The data plane that listens on each port."""
        return {
            service.port: name
            for name, plane in self._planes.items()
            for service in plane.report.loaded.values()
        }

    def _update_report(self) -> None:
        """Combine the reports of both."""
        reports = [plane.report for plane in self._planes.values()]
        self.report = DataPlaneReport(
            pids=tuple(pid for report in reports for pid in report.pids),
            relay_pid=next((report.relay_pid for report in reports if report.relay_pid), None),
            leaving=tuple(pid for report in reports for pid in report.leaving),
            loaded={name: service for report in reports for name, service in report.loaded.items()},
            pid_by_service={name: pid for report in reports for name, pid in report.pid_by_service.items()},
            left_out={name: error for report in reports for name, error in report.left_out.items()},
        )
        self._metrics.configured.set(len(self.report.loaded))
        # A new event for each change: one event would have to be cleared before all waiters have seen it.
        self._changed.set()
        self._changed = asyncio.Event()
        self._wake.set()
        self._on_change()
