"""The tunnel agent: serves the file systems of the ConfigMap and tunnels on demand, and reports their state.

The order of the start matters, because mounts of an earlier agent depend on its ports:

1. Remove the temporary files of processes that were killed.
2. Load the targets and reservations of the earlier agent, and plan them. They are then served on the same
   ports, before the agent sends any request to the API server or to AWS. If the file of the targets cannot be
   used, the targets are those of the running processes: without them, the plan of the reservations would
   close their ports.
3. Open the agent's socket. Before step 2, a new reservation could get the port of an old one.
4. Start the tasks. Each one writes its part of the plan and applies it: the documents of the ConfigMap, the
   checks of mount targets, the renewal of certificates, the calls on the socket. The check of the tunnels
   probes them, closes unused ones, and replaces a process that hangs. ``DataPlanes`` loads the plan into
   the processes of the node.

SIGTERM ends all processes of the data planes too, unless a tunnel on demand has a holder: the mounts of that
holder must continue. If the agent crashes, they continue. In both cases the next agent takes them over.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterable, Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass, replace

import structlog
from prometheus_client import CollectorRegistry

from kube_efs.model.efs.ids import FileSystemId, SubnetId
from kube_efs.model.efs.targets import Rejection, TunnelTarget, TunnelTargets, new_entries, parse_targets
from kube_efs.model.errors import InvalidSetting, InvalidValue
from kube_efs.telemetry.duties import Duties
from kube_efs.telemetry.health import Health, Heartbeat, combine
from kube_efs.telemetry.metrics import TunnelMetrics
from kube_efs.tunnels.api.server import serving
from kube_efs.tunnels.changes import changed_keys
from kube_efs.tunnels.config_map import (
    Served,
    apply_document,
    drop_lingering,
    load_served,
    new_texts,
    save_served,
    with_running,
)
from kube_efs.tunnels.data_plane import DataPlaneName, ServiceFacts
from kube_efs.tunnels.data_planes import DataPlanes
from kube_efs.tunnels.files import previous_path, remove_temporary_files
from kube_efs.tunnels.mount_targets import NodeLocation, probe_addresses
from kube_efs.tunnels.notifications import Notification, TunnelNotification, find_notifications
from kube_efs.tunnels.observations import MetricsRecorder, Observations, Statuses, TrafficRecorder
from kube_efs.tunnels.on_demand.renewal import ClientCertificates
from kube_efs.tunnels.on_demand.tunnels import OnDemandTunnels
from kube_efs.tunnels.options import TunnelOptions
from kube_efs.tunnels.plan import NodePlan
from kube_efs.tunnels.probe import ProbeResult
from kube_efs.tunnels.prober import Prober
from kube_efs.tunnels.sockets.detection import IdlePorts, StalledPorts
from kube_efs.tunnels.sockets.ports import PortReading, is_in_use, read_flows, read_ports
from kube_efs.tunnels.status import TunnelsStatus, TunnelStatus
from kube_efs.tunnels.stunnel.configuration import check_path

log = structlog.get_logger()

_STUCK_SECONDS = 60.0
# How many checks in a row change the state of a mount target. The return to a nearer one may take longer than
# the failover, because it is less urgent.
_ROUNDS_UNTIL_DOWN = 2
_ROUNDS_UNTIL_UP = 3
_PROCESSES = {DataPlaneName.STUNNEL: "stunnel", DataPlaneName.KERNEL: "the relay"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetDocuments:
    """The texts of the ConfigMap's keys."""

    targets: str
    zones: str = ""
    unused: str = ""
    s3_files: str = ""


class TunnelAgent:
    """Owns the tunnels of this node, and reports mount targets that fail and recover.

    Raises StunnelMissing, or InvalidSetting when the certificate authorities or the directory of the
    configuration cannot be used.
    """

    def __init__(
        self,
        options: TunnelOptions,
        metrics: TunnelMetrics,
        *,
        clock: Callable[[], float] = time.monotonic,
        read: Callable[[Collection[int]], PortReading | None] = read_ports,
        is_in_use: Callable[[int], bool | None] = is_in_use,
        notify: Callable[[Notification], None] = lambda _: None,
        duties: Duties | None = None,
    ) -> None:
        _check_paths(options)
        self._duties = duties or Duties(CollectorRegistry())
        self._options = options
        self._metrics = metrics
        self._clock = clock
        self._read = read
        self._notify = notify
        self._data_planes_changed = asyncio.Event()
        self._data_planes = DataPlanes(options, metrics, self._data_planes_changed.set)
        self._prober = Prober(
            metrics,
            timeout_seconds=options.probe_timeout_seconds,
            round_seconds=options.probe_interval_seconds,
        )
        self._recorder = MetricsRecorder(metrics)
        self._traffic = TrafficRecorder(metrics)
        self._plan = NodePlan(options, metrics, self._data_planes)
        self._on_demand: OnDemandTunnels | None = None
        if options.on_demand:
            self._certificates = ClientCertificates(
                options, options.on_demand, metrics, self._plan.apply, self._duties
            )
            self._on_demand = OnDemandTunnels(
                options, options.on_demand, self._certificates, self._plan, clock, is_in_use
            )
        self._saving = asyncio.Lock()
        self._saved: Served | None = None
        # Until the first document: what was served before may not be known completely.
        self._lacks_state = False
        self._document_problem = ""
        self._entries = new_entries()
        self._texts = new_texts()
        self._observations = Observations()
        self._statuses = Statuses()
        self._denied: frozenset[FileSystemId] = frozenset()
        self._idle_ports = IdlePorts()
        self._stalled_ports = StalledPorts()
        self._heartbeats = tuple(
            Heartbeat(name, max_age_seconds=options.probe_interval_seconds + _STUCK_SECONDS)
            for name in ("the checks of mount targets", "the probes of tunnels")
        )

    async def run(self, documents: AsyncIterable[TargetDocuments]) -> None:
        """Serve the targets of the documents until cancelled, then end all processes.

        Starts with the stored targets; after an error, ``documents`` are requested again. If this method
        ends by an error, or while a tunnel on demand has a holder, they continue: the next agent takes them
        over, and no mount is interrupted.
        """
        await self._load_state()
        on_demand: AbstractAsyncContextManager[None] = nullcontext()
        if self._on_demand and self._options.on_demand:
            on_demand = serving(self._options.on_demand.socket_path, self._on_demand, self.status)
        try:
            async with on_demand, asyncio.TaskGroup() as tasks:
                if self._on_demand:
                    tasks.create_task(self._certificates.run(self._on_demand.all))
                keep, (targets, probes) = self._duties.keep, self._heartbeats
                tasks.create_task(keep("data planes", self._data_planes.run))
                tasks.create_task(keep("tunnel targets", lambda: self._follow_documents(documents)))
                # A loop that fails is not stuck, and a restart of the process would not repair it.
                tasks.create_task(
                    keep("mount targets", lambda: self._watch_mount_targets(targets), failed=targets.beat)
                )
                tasks.create_task(
                    keep("tunnel probes", lambda: self._watch_tunnels(probes), failed=probes.beat)
                )
        except asyncio.CancelledError:
            await self._stop_data_planes()
            raise

    async def _load_state(self) -> None:
        for path in (self._options.conf_path, self._options.state_path, self._options.reservations_path):
            await asyncio.to_thread(remove_temporary_files, path)
        self._plan.served = self._saved = await asyncio.to_thread(load_served, self._options.state_path)
        if self._plan.served is None:
            self._lacks_state = True
            self._plan.served = await self._restore_targets()
        if self._on_demand:
            await self._on_demand.load()
        if self._plan.served:
            log.info("stored-targets-served", targets=len(self._plan.served.document.targets))
        # Otherwise nothing is known yet, and an empty plan would close tunnels of running processes.
        if self._plan.served or (self._on_demand and self._on_demand.reservations.tunnels):
            self._plan.apply()

    async def _restore_targets(self) -> Served | None:
        """What the earlier agent served, from its previous file and from the running processes."""
        served = await asyncio.to_thread(load_served, previous_path(self._options.state_path))
        running = [
            TunnelTarget(
                file_system_id=service.file_system_id,
                port=service.port,
                # In their order, as if each were in a subnet, because the subnets are not known.
                address_by_subnet={
                    SubnetId(f"subnet-{number:08x}"): address
                    for number, address in enumerate(service.addresses)
                },
            )
            for service in await self._data_planes.find_services()
        ]
        if served is None and not running:
            return None
        log.warning("targets-restored", running=len(running), has_previous=served is not None)
        return with_running(served or Served(), running)

    async def _stop_data_planes(self) -> None:
        if self._on_demand and self._on_demand.reservations.holders:
            report = self._data_planes.report
            log.info(
                "data-planes-left-running",
                stunnels=report.pids,
                relay=report.relay_pid,
                reason="tunnels on demand are held",
            )
        else:
            await self._data_planes.stop()

    def set_location(self, location: NodeLocation) -> None:
        """Use this location, which a source did not have at the start."""
        self._plan.options = replace(self._plan.options, location=location)
        # Before the first document, an empty plan would close tunnels of running processes.
        if self._plan.tunnels:
            self._plan.apply()

    def status(self) -> TunnelsStatus:
        """The state of every tunnel at the last check."""
        report = self._data_planes.report
        rejected = _reasons(self._plan.served.rejections if self._plan.served else ())
        problems = (
            self._document_problem,
            *(f"{entry}: {reason}" for entry, reason in rejected.items()),
            *(self._on_demand.problems if self._on_demand else ()),
            *self._duties.problems,
        )
        return TunnelsStatus(
            tunnels=self._compute_statuses(),
            problems=tuple(filter(None, problems)),
            stunnel_pid=next(iter(report.pids), None),
            relay_pid=report.relay_pid,
            leaving_relay_pids=report.leaving,
            data_plane=self._options.data_plane.name,
            data_plane_reason=self._options.data_plane.reason,
            location=self._options.shown_location,
        )

    def _compute_statuses(self) -> tuple[TunnelStatus, ...]:
        seen = self._observations
        if self._on_demand:
            seen = replace(seen, renewals=dict(self._certificates.problems))
        return self._statuses.compute(self._plan.tunnels, self._data_planes.report, seen)

    def liveness(self) -> Health:
        """Failing when a loop is stuck.

        After five minutes, the kubelet restarts the container, and with it the data planes.
        """
        return combine(*(heartbeat.health() for heartbeat in self._heartbeats))

    def readiness(self) -> Health:
        """Failing until the targets are known, and while a data plane does not run although it has services.

        An agent that serves tunnels on demand is ready without targets: there may never be any.
        """
        if self._plan.served is None and self._on_demand is None:
            return Health.failing("no tunnel targets have been seen yet")
        return combine(
            *(Health.failing(f"{_PROCESSES[name]} is not running") for name in self._data_planes.not_running)
        )

    async def _follow_documents(self, documents: AsyncIterable[TargetDocuments]) -> None:
        async for document in documents:
            try:
                targets, rejections = parse_targets(
                    document.targets,
                    document.zones,
                    unused_text=document.unused,
                    s3_files_text=document.s3_files,
                    entries=self._entries,
                )
            except InvalidValue as error:
                self._document_problem = str(error)
                log.warning("targets-unreadable", reason=str(error))
                # The last valid document stays in force: pods use its tunnels.
                continue
            self._document_problem = ""
            served = self._plan.served or Served()
            if self._lacks_state:
                known = served.lingering_ports.union(one.port for one in served.current)
                used = [one for one in await self._unused_with_mounts(targets) if one.port not in known]
                served = replace(served, lingering=(*served.lingering, *used))
                self._lacks_state = False
            await self._serve(apply_document(served, targets, rejections))

    async def _unused_with_mounts(self, targets: TunnelTargets) -> tuple[TunnelTarget, ...]:
        """The unused targets whose ports mounts of this node may use.

        No volume of the cluster has such a port, but pods can also mount it without a volume. An agent
        without a stored state does not know for which ports stunnel listened before.
        """
        reading = await asyncio.to_thread(self._read, ())
        unused = (targets.targets[file_system_id] for file_system_id in sorted(targets.unused))
        return tuple(target for target in unused if reading is None or target.port in reading.busy)

    async def _serve(self, served: Served) -> None:
        if served == self._plan.served:
            await self._save_targets()  # the last write may have failed
            return
        known = _reasons(self._plan.served.rejections) if self._plan.served else {}
        for entry, reason in _reasons(served.rejections).items():
            if known.get(entry) != reason:
                log.warning("target-rejected", entry=entry, reason=reason)
        self._plan.served = served
        self._idle_ports = self._idle_ports.keep_only(served.lingering_ports)
        self._plan.apply()
        await self._save_targets()

    async def _save_targets(self) -> None:
        path = self._options.state_path
        # One write at a time, and always of the latest state, so that an older one never replaces it.
        async with self._saving:
            served = self._plan.served or Served()
            if served == self._saved:
                return
            try:
                await asyncio.to_thread(save_served, path, served, texts=self._texts)
                self._saved = served
            except OSError as error:
                log.warning("targets-not-saved", path=str(path), reason=error.strerror)

    async def _watch_mount_targets(self, heartbeat: Heartbeat) -> None:
        while True:
            await self._check_mount_targets()
            heartbeat.beat()
            await asyncio.sleep(self._options.probe_interval_seconds)

    async def _check_mount_targets(self) -> None:
        options = self._options
        addresses = {candidate.address for tunnel in self._plan.tunnels for candidate in tunnel.candidates}
        accepted = await probe_addresses(addresses, timeout_seconds=options.connect_timeout_seconds)
        before = self._plan.reachability.down
        self._plan.reachability = self._plan.reachability.after(
            accepted, rounds_until_down=_ROUNDS_UNTIL_DOWN, rounds_until_up=_ROUNDS_UNTIL_UP
        )
        if before != self._plan.reachability.down:
            log.info("reachability-changed", down=sorted(self._plan.reachability.down))
            for notification in find_notifications(self._plan.tunnels, before, self._plan.reachability.down):
                self._notify(notification)
            self._plan.apply()

    async def _watch_tunnels(self, heartbeat: Heartbeat) -> None:
        while True:
            await self._check_tunnels()
            heartbeat.beat()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._options.probe_interval_seconds):
                    await self._probe_new_services()

    async def _probe_new_services(self) -> None:
        """Probe new services after each change of the data planes, until cancelled."""
        while True:
            # Before the probes: a change during them leads to more of them.
            self._data_planes_changed.clear()
            await self._prober.probe_new(self._data_planes.report)
            await self._record_observations(self._observations.connections)
            await self._data_planes_changed.wait()

    async def _check_tunnels(self) -> None:
        """Probe the tunnels, and act on one reading of the ports.

        The reading is None if the kernel's tables cannot be read, or lack a port on which a data plane
        certainly listens. Then no tunnel is closed or moved, because the reading proves nothing about the
        other ports either.
        """
        interval = self._options.probe_interval_seconds
        flows = await asyncio.to_thread(read_flows)
        # At a port of a data plane, what was sent are answers of a mount target.
        answering = {one.local_port for one in flows if one.sent_bytes and one.seconds_ago <= interval}
        await self._prober.probe_round(
            self._data_planes.report, answering=answering, unreachable=self._plan.reachability.down
        )
        self._traffic.add(flows, {service.port for service in self._plan.services.values()})
        # After the probes: an open connection of a probe would count as that of a mount.
        ports = frozenset(service.port for service in self._data_planes.report.loaded.values())
        reading = await asyncio.to_thread(self._read, ports)
        await self._record_observations(reading.connections if reading else self._observations.connections)
        self._replace_stalled_processes(reading)
        await self._close_unused(reading)
        self._data_planes.merge(reading, now=self._clock())
        if self._on_demand:
            await self._on_demand.close_unused(reading)
            self._certificates.remove_unused_files(self._data_planes.report.loaded)

    async def _record_observations(self, connections: Mapping[int, int]) -> None:
        """Combine the last probes with the facts of the data planes, for the status, metrics and log."""
        services = self._plan.services
        facts = await self._data_planes.read_facts(services.keys())
        traffic = self._traffic.record(services.values(), facts)
        probes = self._prober.results
        self._log_changes(probes, facts)
        self._notify_of_denials(probes)
        self._observations = Observations(
            probes=probes, facts=facts, connections=connections, traffic=traffic
        )
        self._recorder.record(zip(self._plan.tunnels, self._compute_statuses(), strict=True))

    def _replace_stalled_processes(self, reading: PortReading | None) -> None:
        ports = {service.port for service in self._plan.services.values()}
        now = self._clock()
        waiting = self._stalled_ports.after(reading, ports, now=now)
        stalled = waiting.longer_than(self._options.stall_seconds, now=now)
        if stalled:
            self._data_planes.reload_or_replace(stalled)
        self._stalled_ports = waiting.forget(stalled)

    async def _close_unused(self, reading: PortReading | None) -> None:
        """Close lingering tunnels that are unused in this reading and in earlier ones."""
        if self._plan.served:
            now = self._clock()
            self._idle_ports = self._idle_ports.after(reading, self._plan.served.lingering_ports, now=now)
            unused = self._idle_ports.unused(self._options.idle, now=now)
            await self._serve(drop_lingering(self._plan.served, unused))

    def _log_changes(self, probes: Mapping[str, ProbeResult], facts: Mapping[str, ServiceFacts]) -> None:
        for name in probes.keys() & changed_keys(self._observations.probes, probes):
            before, result = self._observations.probes.get(name), probes[name]
            if before is None or (before.ok, before.is_denied) != (result.ok, result.is_denied):
                reason = (facts[name].reason if name in facts else "") or result.reason
                if result.ok:
                    log.info("tunnel-up", tunnel=name, seconds=round(result.seconds, 4))
                else:
                    event = "tunnel-denied" if result.is_denied else "tunnel-down"
                    log.warning(event, tunnel=name, reason=reason)

    def _notify_of_denials(self, probes: Mapping[str, ProbeResult]) -> None:
        """Report once that a file system denies its tunnel of the ConfigMap, and once that it allows it."""
        denied = set()
        for tunnel in self._plan.tunnels:
            if tunnel.service and not tunnel.reservation and not tunnel.leaving:
                file_system_id, result = tunnel.target.file_system_id, probes.get(tunnel.service.name)
                was_denied = file_system_id in self._denied
                # Without a clear answer, the last one is valid.
                is_denied = (
                    result.is_denied or (was_denied and not result.is_allowed) if result else was_denied
                )
                if is_denied:
                    denied.add(file_system_id)
                if is_denied != was_denied:
                    self._notify(TunnelNotification(file_system_id=file_system_id, is_denied=is_denied))
        self._denied = frozenset(denied)


def _reasons(rejections: Iterable[Rejection]) -> dict[str, str]:
    return {rejection.entry: str(rejection.error) for rejection in rejections}


def _check_paths(options: TunnelOptions) -> None:
    ca_file = options.authorities(options.region)
    try:
        check_path(ca_file, field="KUBE_EFS_CA_FILE")
        check_path(options.conf_path, field="STUNNEL_CONF_PATH")
    except InvalidValue as error:
        raise InvalidSetting(
            error.problem, field=error.field, value=error.value, remedy=error.remedy
        ) from error
    if not ca_file.is_file():
        raise InvalidSetting(
            "is not a file",
            field="KUBE_EFS_CA_FILE",
            value=str(ca_file),
            remedy="install the certificate authorities of the mount targets, in PEM form, at this path",
        )
    if not os.access(options.conf_path.parent, os.W_OK | os.X_OK):
        raise InvalidSetting(
            "is in a directory that is not writable",
            field="STUNNEL_CONF_PATH",
            value=str(options.conf_path),
            remedy="choose another directory",
        )
