"""The tunnel agent: from documents of targets to tunnels that work, and their state.

It starts in this order. What killed processes left half written is removed. The targets and the promises that
an earlier agent remembered are planned, so that stunnel serves them before the API server or AWS is asked
anything, and on the same ports. Only then are tunnels on demand given, since a new promise must not get the
port of an old one. Then these tasks begin, and each writes its part of the plan and has it applied: documents
of the ConfigMap, rounds over the mount targets, which order the addresses, renewals of certificates, and who
asks for tunnels on demand. Rounds of probes find the state of the tunnels, and close unused ones. The keeper
holds stunnel to the plan.

On SIGTERM it ends stunnel, unless a tunnel on demand has a holder: a mounted volume must not
notice. When it crashes stunnel lives on. Either way the next agent takes stunnel over.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterable, Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass, replace

import structlog
from prometheus_client import CollectorRegistry

from kube_efs.model.efs.targets import Rejection, parse_targets
from kube_efs.model.errors import InvalidSetting, InvalidValue
from kube_efs.telemetry.duties import Duties
from kube_efs.telemetry.health import Health, Heartbeat, combine
from kube_efs.telemetry.metrics import TunnelMetrics
from kube_efs.tunnels.api.server import serving
from kube_efs.tunnels.config_map import Served, follow, load_served, release, save_served
from kube_efs.tunnels.describing import Observations, TunnelRecorder, describe_tunnel
from kube_efs.tunnels.files import discard_unfinished
from kube_efs.tunnels.mount_targets import try_addresses
from kube_efs.tunnels.news import MountTargetNews, find_news
from kube_efs.tunnels.on_demand.renewal import ClientCertificates
from kube_efs.tunnels.on_demand.tunnels import OnDemandTunnels
from kube_efs.tunnels.options import TunnelOptions
from kube_efs.tunnels.plan import NodePlan
from kube_efs.tunnels.probe import ProbeResult
from kube_efs.tunnels.probing import Prober
from kube_efs.tunnels.sockets.ports import PortReading, read_ports
from kube_efs.tunnels.sockets.verdicts import Idleness, Standstill
from kube_efs.tunnels.status import TunnelsStatus
from kube_efs.tunnels.stunnel.configuration import check_path
from kube_efs.tunnels.stunnel.keeper import StunnelKeeper
from kube_efs.tunnels.stunnel.log import ConnectionLog

log = structlog.get_logger()

_STUCK_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetDocuments:
    """The texts of the ConfigMap's two keys."""

    targets: str
    zones: str = ""


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
        tell: Callable[[MountTargetNews], None] = lambda _: None,
        duties: Duties | None = None,
    ) -> None:
        _check_paths(options)
        self._duties = duties or Duties(CollectorRegistry())
        self._options = options
        self._metrics = metrics
        self._clock = clock
        self._read = read
        self._tell = tell
        self._connections = ConnectionLog()
        self._keeper_changed = asyncio.Event()
        self._keeper = StunnelKeeper(options, metrics, self._connections, self._keeper_changed.set)
        self._prober = Prober(metrics, timeout_seconds=options.probe_timeout_seconds)
        self._recorder = TunnelRecorder(metrics)
        self._plan = NodePlan(options, metrics, self._keeper)
        self._on_demand: OnDemandTunnels | None = None
        if options.on_demand:
            self._certificates = ClientCertificates(
                options, options.on_demand, metrics, self._plan.apply, duties=self._duties
            )
            self._on_demand = OnDemandTunnels(
                options, options.on_demand, self._certificates, self._plan, clock, lambda: read(())
            )
        self._remembering = asyncio.Lock()
        self._document_problem = ""
        self._seen = Observations()
        self._idleness = Idleness()
        self._standstill = Standstill()
        self._heartbeats = tuple(
            Heartbeat(name, max_age_seconds=options.probe_interval_seconds + _STUCK_SECONDS)
            for name in ("the checks of mount targets", "the probes of tunnels")
        )

    async def run(self, documents: AsyncIterable[TargetDocuments]) -> None:
        """Serve what the documents say until cancelled, then end stunnel.

        Starts with what was remembered; ``documents`` are requested again when following them has failed. If
        this ends by an error of its own, or while a tunnel on demand is held, stunnel is left running: the
        next agent takes it over, and no mounted volume notices.
        """
        await self._remember_earlier()
        on_demand: AbstractAsyncContextManager[None] = nullcontext()
        if self._on_demand and self._options.on_demand:
            on_demand = serving(self._options.on_demand.socket_path, self._on_demand, self.status)
        try:
            async with on_demand, asyncio.TaskGroup() as tasks:
                if self._on_demand:
                    tasks.create_task(self._certificates.run(self._on_demand.each))
                keep, (targets, probes) = self._duties.keep, self._heartbeats
                tasks.create_task(keep("stunnel", self._keeper.run))
                tasks.create_task(keep("tunnel targets", lambda: self._follow_documents(documents)))
                # A loop that fails is not stuck, and a restart of the process would not help it.
                tasks.create_task(
                    keep("mount targets", lambda: self._watch_mount_targets(targets), failed=targets.beat)
                )
                tasks.create_task(
                    keep("tunnel probes", lambda: self._watch_tunnels(probes), failed=probes.beat)
                )
        except asyncio.CancelledError:
            await self._end()
            raise

    async def _remember_earlier(self) -> None:
        for path in (self._options.conf_path, self._options.state_path, self._options.promises_path):
            await asyncio.to_thread(discard_unfinished, path)
        self._plan.served = await asyncio.to_thread(load_served, self._options.state_path)
        if self._on_demand:
            await self._on_demand.load()
        if self._plan.served:
            log.info("remembered-targets-served", targets=len(self._plan.served.document.targets))
        if self._plan.served or (self._on_demand and self._on_demand.promises.tunnels):
            self._plan.apply()

    async def _end(self) -> None:
        if self._on_demand and self._on_demand.promises.holders:
            log.info("stunnel-left-running", pid=self._keeper.report.pid, reason="tunnels on demand are held")
        else:
            await self._keeper.stop()

    def status(self) -> TunnelsStatus:
        """The state of every tunnel at the last look."""
        rejected = _reasons(self._plan.served.rejections if self._plan.served else ())
        problems = (
            self._document_problem,
            *(f"{entry}: {reason}" for entry, reason in rejected.items()),
            *(self._on_demand.problems if self._on_demand else ()),
            *self._duties.problems,
        )
        seen = replace(self._seen, renewals=self._certificates.problems) if self._on_demand else self._seen
        return TunnelsStatus(
            tunnels=tuple(describe_tunnel(one, self._keeper.report, seen) for one in self._plan.tunnels),
            problems=tuple(filter(None, problems)),
            stunnel_pid=self._keeper.report.pid,
        )

    def liveness(self) -> Health:
        """Failing when a loop is stuck; a restart of the agent then leaves stunnel alone."""
        return combine(*(heartbeat.health() for heartbeat in self._heartbeats))

    def readiness(self) -> Health:
        """Failing until targets are known and stunnel runs, if there is anything to serve.

        Where tunnels are served on demand there may never be any targets.
        """
        if self._plan.served is None and self._on_demand is None:
            return Health.failing("no tunnel targets have been seen yet")
        if self._keeper.report.pid is None and self._plan.services:
            return Health.failing("stunnel is not running")
        return Health()

    async def _follow_documents(self, documents: AsyncIterable[TargetDocuments]) -> None:
        async for document in documents:
            try:
                targets, rejections = parse_targets(document.targets, document.zones)
            except InvalidValue as error:
                self._document_problem = str(error)
                log.warning("targets-unreadable", reason=str(error))
                continue
            self._document_problem = ""
            await self._serve(follow(self._plan.served or Served(), targets, rejections))

    async def _serve(self, served: Served) -> None:
        if served == self._plan.served:
            return
        told = _reasons(self._plan.served.rejections) if self._plan.served else {}
        for entry, reason in _reasons(served.rejections).items():
            if told.get(entry) != reason:
                log.warning("target-rejected", entry=entry, reason=reason)
        self._plan.served = served
        self._idleness = self._idleness.among(served.lingering_ports)
        self._plan.apply()
        await self._remember()

    async def _remember(self) -> None:
        path = self._options.state_path
        # One after the other and always the latest, so that an older state never ends on top.
        async with self._remembering:
            try:
                await asyncio.to_thread(save_served, path, self._plan.served or Served())
            except OSError as error:
                log.warning("targets-not-remembered", path=str(path), reason=error.strerror)

    async def _watch_mount_targets(self, heartbeat: Heartbeat) -> None:
        while True:
            await self._look_at_mount_targets()
            heartbeat.beat()
            await asyncio.sleep(self._options.probe_interval_seconds)

    async def _look_at_mount_targets(self) -> None:
        options = self._options
        addresses = {candidate.address for tunnel in self._plan.tunnels for candidate in tunnel.candidates}
        accepted = await try_addresses(addresses, timeout_seconds=options.connect_timeout_seconds)
        before = self._plan.reachability.down
        self._plan.reachability = self._plan.reachability.after(
            accepted, rounds_until_down=options.rounds_until_down, rounds_until_up=options.rounds_until_up
        )
        if before != self._plan.reachability.down:
            log.info("reachability-changed", down=sorted(self._plan.reachability.down))
            for news in find_news(self._plan.tunnels, before, self._plan.reachability.down):
                self._tell(news)
            self._plan.apply()

    async def _watch_tunnels(self, heartbeat: Heartbeat) -> None:
        while True:
            await self._look_at_tunnels()
            heartbeat.beat()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._options.probe_interval_seconds):
                    await self._look_at_what_is_new()

    async def _look_at_what_is_new(self) -> None:
        """Probe the new services of stunnel after each action of the keeper, until cancelled."""
        while True:
            self._keeper_changed.clear()
            await self._prober.probe_new(self._keeper.report)
            self._see(self._seen.connections)
            await self._keeper_changed.wait()

    async def _look_at_tunnels(self) -> None:
        await self._prober.probe_all(self._keeper.report)
        # Counted after the probes, so that none of their connections is taken for a mount.
        ports = frozenset(service.port for service in self._keeper.report.loaded.values())
        reading = await asyncio.to_thread(self._read, ports)
        self._see(reading.connections if reading else self._seen.connections)
        self._replace_what_stands_still(reading)
        await self._close_unused(reading)
        if self._on_demand:
            await self._on_demand.look(reading)
            self._certificates.remove_forgotten(self._keeper.report.loaded)

    def _see(self, connections: Mapping[int, int]) -> None:
        """Take in the last probes and what stunnel says in its log, and tell of both."""
        self._keeper.read_log()
        names = self._plan.services.keys()
        self._connections.forget_all_but(names)
        facts = {name: self._connections.facts(name) for name in names}
        probes = self._prober.results
        self._log_changes(probes)
        self._seen = Observations(probes=probes, facts=facts, connections=connections)
        self._recorder.record(
            (tunnel, describe_tunnel(tunnel, self._keeper.report, self._seen))
            for tunnel in self._plan.tunnels
        )

    def _replace_what_stands_still(self, reading: PortReading | None) -> None:
        ports = {service.port for service in self._plan.services.values()}
        now, limit = self._clock(), self._options.standstill_seconds
        self._standstill = self._standstill.after(reading, ports, now=now)
        if self._standstill.lasts(limit, now=now):
            log.warning("stunnel-accepts-nothing", pid=self._keeper.report.pid, seconds=limit)
            self._keeper.reload_or_replace()
            self._standstill = Standstill()

    async def _close_unused(self, reading: PortReading | None) -> None:
        """Close what has left the document and is unused according to this and earlier readings."""
        if self._plan.served:
            now = self._clock()
            self._idleness = self._idleness.after(reading, self._plan.served.lingering_ports, now=now)
            over = self._idleness.over(self._options.idle, now=now)
            await self._serve(release(self._plan.served, over))

    def _log_changes(self, probes: Mapping[str, ProbeResult]) -> None:
        for name, result in probes.items():
            before = self._seen.probes.get(name)
            if before is None or before.ok != result.ok:
                reason = self._connections.facts(name).reason or result.reason
                if result.ok:
                    log.info("tunnel-up", tunnel=name, seconds=round(result.seconds, 4))
                else:
                    log.warning("tunnel-down", tunnel=name, reason=reason)


def _reasons(rejections: Iterable[Rejection]) -> dict[str, str]:
    return {rejection.entry: str(rejection.error) for rejection in rejections}


def _check_paths(options: TunnelOptions) -> None:
    try:
        check_path(options.ca_file, field="KUBE_EFS_CA_FILE")
        check_path(options.conf_path, field="STUNNEL_CONF_PATH")
    except InvalidValue as error:
        raise InvalidSetting(
            error.problem, field=error.field, value=error.value, remedy=error.remedy
        ) from error
    if not options.ca_file.is_file():
        raise InvalidSetting(
            "is not a file",
            field="KUBE_EFS_CA_FILE",
            value=str(options.ca_file),
            remedy="install the certificate authorities of Amazon, in PEM form, at this path",
        )
    if not os.access(options.conf_path.parent, os.W_OK | os.X_OK):
        raise InvalidSetting(
            "is in a directory that is not writable",
            field="STUNNEL_CONF_PATH",
            value=str(options.conf_path),
            remedy="choose another directory",
        )
