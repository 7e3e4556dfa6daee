"""Keeping one stunnel running with the services that are wanted.

``StunnelKeeper`` is level-triggered: whatever has happened (a new wish, a death, a port that became
free), it compares what is wanted with what is loaded and does what is missing. Nothing else touches the
process or its configuration file.

A load is three steps: write the file, have stunnel read it (by SIGHUP, or by starting it), and read in the
log how that went, because stunnel reports it nowhere else. The outcomes are:

* All services listen. The file and its services are what is loaded from now on.
* A stunnel that was just started refuses the file, or cannot have a port. It is ended. The next start waits,
  longer after each short life.
* A running one refuses the file. It keeps its previous configuration.
* A running one cannot have a port. Then it listens on none at all, so nothing counts as loaded.
* A running one dies of it. It is restarted with the same file, which shows more.
* It says nothing for seconds. That counts as a refusal. One that was asked as it accepted nothing is ended.

Unless all listen, the service that stunnel names is left out, or all when it names none, and the others are
loaded. What is left out is retried later.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType

import structlog

from kube_efs.model.errors import ConfigurationRejected, InvalidValue, KubeEfsError
from kube_efs.telemetry.metrics import TunnelMetrics
from kube_efs.tunnels.backoff import RestartBackoff
from kube_efs.tunnels.files import write_atomically
from kube_efs.tunnels.options import TunnelOptions
from kube_efs.tunnels.sockets.ports import find_taken, listening_ports, open_connections, port_taken
from kube_efs.tunnels.stunnel.configuration import TunnelService, check_service, render_configuration
from kube_efs.tunnels.stunnel.log import (
    ConnectionLog,
    Judge,
    Loaded,
    LogFollower,
    Outcome,
    Unbindable,
    Unloadable,
)
from kube_efs.tunnels.stunnel.process import StunnelProcess, find_stunnel

log = structlog.get_logger()

_LOAD_SECONDS = 5.0
_LOG_POLL_SECONDS = 0.005
# A caller that got a tunnel connects now, which the next load would reset. And of many who ask
# at once, the first has its own load and all others have the second.
_QUIET_SECONDS = 0.1
# SIGTERM leaves the agent 5 s for everything.
_STOP_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperReport:
    """What stunnel does now: its pid, the services it listens for, and why others are left out; by name."""

    pid: int | None = None
    loaded: Mapping[str, TunnelService] = field(default_factory=lambda: MappingProxyType({}))
    left_out: Mapping[str, KubeEfsError] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class _Configuration:
    text: str = ""
    services: Mapping[str, TunnelService] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def ports(self) -> frozenset[int]:
        return frozenset(service.port for service in self.services.values())


_NOTHING = _Configuration()


class StunnelKeeper:
    """Owns the stunnel process of the node.

    ``report`` is what it has come to; ``on_change`` is called whenever that differs from before.
    """

    def __init__(
        self,
        options: TunnelOptions,
        metrics: TunnelMetrics,
        connections: ConnectionLog,
        on_change: Callable[[], None],
    ) -> None:
        """Find the program; raises StunnelMissing."""
        self._options = options
        self._metrics = metrics
        self._program = find_stunnel(options.stunnel_path)
        self._connections = connections
        self._on_change = on_change
        self._log = LogFollower(options.log_path, size_bytes=options.log_size_bytes)
        self._judge: Judge | None = None
        self._process: StunnelProcess | None = None
        self._wanted: Mapping[str, TunnelService] | None = None
        self._written = ""
        self._loaded = _NOTHING
        self._must_reload = False
        self._delay = RestartBackoff()
        self._not_before = 0.0
        self._quiet_until = 0.0
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self.report = KeeperReport()

    def want(self, services: Iterable[TunnelService]) -> None:
        """Make these the services to listen for, as soon as possible."""
        wanted = {service.name: service for service in services}
        if wanted != self._wanted:
            self._wanted = wanted
            self._wake.set()

    def reload_or_replace(self) -> None:
        """Have stunnel read its configuration once more; one that does not even do that is replaced."""
        self._must_reload = True
        self._wake.set()

    def read_log(self) -> None:
        """Take in what stunnel has logged since the last time."""
        lines = self._log.read()
        self._connections.feed(lines)
        if self._judge:
            self._judge.read(lines)
        else:  # cutting may lose a line, which must not be the one a judge waits for
            self._log.cut()

    async def run(self) -> None:
        """Take over a stunnel that exists and keep it as wanted; leaves it running when cancelled."""
        self._take_over()
        while True:
            await asyncio.sleep(self._quiet_until - asyncio.get_running_loop().time())
            self._wake.clear()
            retry_seconds = await self._converge() if self._wanted is not None else None
            with suppress(TimeoutError):
                async with asyncio.timeout(retry_seconds):
                    await self._wake.wait()

    async def listening(self, name: str) -> None:
        """Wait until stunnel listens for this service; raises the error for which it is left out."""
        while name not in self.report.loaded:
            if error := self.report.left_out.get(name):
                raise error
            await self._changed.wait()

    async def stop(self) -> None:
        """End stunnel, and with it every connection, in less than 5 s."""
        if self._process is not None:
            await self._process.stop(timeout_seconds=_STOP_SECONDS)

    async def _converge(self) -> float | None:
        """Do what is missing; gives the seconds until it is worth trying again, None when all is done."""
        self._bury_the_dead()
        self._take_over()
        wanted = dict(self._wanted or {})
        if not wanted:
            # stunnel cannot run without a service, so it is ended as soon as no connection is open. One that
            # was taken over may have connections that are not known here.
            if self._process and not await asyncio.to_thread(_is_used, self._process.pid):
                await self.stop()
                self._process, self._loaded = None, _NOTHING
        elif self._process is None:
            await asyncio.sleep(self._not_before - asyncio.get_running_loop().time())
        left_out = await self._find_unfit(wanted.values())
        while services := [service for name, service in wanted.items() if name not in left_out]:
            outcome = await self._load(services)
            if isinstance(outcome, Loaded):
                break
            left_out |= await self._blame(outcome, services)
        if self._process and self._loaded.text and self._written != self._loaded.text:
            # The file is left as stunnel has it in use, so that it also starts with it.
            with suppress(OSError):
                await self._write(self._loaded.text)
        self._publish(left_out)
        undone = left_out or (self._process and not wanted)
        return self._options.retry_seconds if undone else None

    def _take_over(self) -> None:
        # Looked for more than once: what an earlier agent starts as it is killed is not seen at first.
        if self._process is None:
            self._process = StunnelProcess.adopt(self._program, self._options.conf_path, self._wake.set)

    def _bury_the_dead(self) -> None:
        if self._process is None or not self._process.ended.is_set():
            return
        log.warning("stunnel-died", pid=self._process.pid, lived_seconds=round(self._process.age_seconds, 1))
        self._postpone_start(self._process)
        self._metrics.restarts.inc()
        self._process, self._loaded = None, _NOTHING
        self._publish(self.report.left_out)

    def _postpone_start(self, ended: StunnelProcess) -> None:
        self._delay = self._delay.after_life_of(ended.age_seconds)
        self._not_before = asyncio.get_running_loop().time() + self._delay.seconds

    async def _find_unfit(self, services: Collection[TunnelService]) -> dict[str, KubeEfsError]:
        """The services that must not or cannot be listened for, before stunnel sees them.

        A port that is taken is found here, since stunnel would stop listening on all the others.
        """
        unfit: dict[str, KubeEfsError] = {}
        for service in services:
            try:
                check_service(service)
            except InvalidValue as error:
                unfit[service.name] = error
        name_by_port = {service.port: service.name for service in services if service.name not in unfit}
        # A loaded port has a listener: /proc is read only for ports that cannot be bound and are not known.
        unknown = frozenset(name_by_port) - self._loaded.ports
        pid = self._process.pid if self._process else None
        taken = await asyncio.to_thread(find_taken, unknown, but_by=pid)
        return unfit | {name_by_port[port]: error for port, error in taken.items()}

    async def _load(self, services: Collection[TunnelService]) -> Outcome:
        """Have stunnel listen for exactly these; the outcomes are those at the top of this file."""
        text = render_configuration(
            services,
            ca_file=self._options.ca_file,
            connect_timeout_seconds=self._options.connect_timeout_seconds,
        )
        must_reload, self._must_reload = self._must_reload, False
        if self._process and text == self._loaded.text and not must_reload:
            return Loaded()
        is_start = self._process is None
        try:
            await self._write(text)
            self.read_log()  # what is there belongs to the past
            if self._process:
                self._process.reload()
                self._metrics.reloads.inc()
            else:
                conf_path, log_path = self._options.conf_path, self._options.log_path
                self._process = StunnelProcess.start(self._program, conf_path, log_path, self._wake.set)
            process = self._process
        except OSError as error:
            return Unloadable(reason=f"{error.filename or self._program}: {error.strerror}")
        judge = self._judge = Judge(text, {service.name for service in services})
        outcome = await self._await_outcome(process, judge)
        self._judge = None
        if must_reload and judge.outcome is None and not process.ended.is_set():
            # Its connections, which hang too, are created again by the mounts themselves.
            await process.stop(timeout_seconds=_STOP_SECONDS)
        if isinstance(outcome, Loaded):
            self._loaded = _Configuration(text, MappingProxyType({one.name: one for one in services}))
            self._quiet_until = asyncio.get_running_loop().time() + _QUIET_SECONDS
        elif is_start:
            await process.stop(timeout_seconds=_STOP_SECONDS)
            self._process = None
            self._postpone_start(process)
        elif process.ended.is_set():
            # One that was taken over as it started dies of SIGHUP; the start of the next one shows more.
            self._bury_the_dead()
            return await self._load(services)
        elif isinstance(outcome, Unbindable):
            self._loaded = _NOTHING
        return outcome

    async def _await_outcome(self, process: StunnelProcess, judge: Judge) -> Outcome:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOAD_SECONDS):
                while True:
                    ended = process.ended.is_set()
                    self.read_log()
                    if judge.outcome or ended:
                        return judge.outcome or judge.ended()
                    await asyncio.sleep(_LOG_POLL_SECONDS)
        return Unloadable(reason=f"stunnel did not confirm it within {_LOAD_SECONDS:g} s")

    async def _blame(self, outcome: Outcome, services: Collection[TunnelService]) -> dict[str, KubeEfsError]:
        """The services to leave out after this outcome: the culprit, or all when stunnel names none."""
        by_name = {service.name: service for service in services}
        if isinstance(outcome, Unbindable) and outcome.culprit in by_name:
            port = by_name[outcome.culprit].port
            return {outcome.culprit: await asyncio.to_thread(port_taken, port)}
        reason = outcome.reason if isinstance(outcome, Unloadable) else str(outcome)
        culprit = outcome.culprit if isinstance(outcome, Unloadable) else None
        error = ConfigurationRejected(f"stunnel does not accept its configuration ({reason})")
        return dict.fromkeys([culprit] if culprit in by_name else by_name, error)

    async def _write(self, text: str) -> None:
        # One that is lost with the node's power is written again before stunnel is started.
        await asyncio.to_thread(write_atomically, self._options.conf_path, text, durable=False)
        self._written = text

    def _publish(self, left_out: Mapping[str, KubeEfsError]) -> None:
        report = KeeperReport(
            pid=self._process.pid if self._process else None,
            loaded=self._loaded.services,
            left_out=MappingProxyType({name: left_out[name] for name in sorted(left_out)}),
        )
        self._metrics.configured.set(len(report.loaded))
        if _shown(report) != _shown(self.report):
            for name, error in report.left_out.items():
                if str(error) != str(self.report.left_out.get(name)):
                    log.warning("tunnel-left-out", tunnel=name, reason=str(error))
            if report.pid:
                log.info("stunnel-configured", pid=report.pid, tunnels=len(report.loaded))
            self.report = report
            self._changed.set()
            self._changed = asyncio.Event()
            self._on_change()


def _is_used(pid: int) -> bool:
    connections = open_connections()
    return any(connections.get(port) for port in listening_ports(pid))


def _shown(report: KeeperReport) -> tuple[object, ...]:
    return report.pid, report.loaded, {name: str(error) for name, error in report.left_out.items()}
