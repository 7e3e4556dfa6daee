"""Keeps one stunnel running with the wanted services.

The mounts of all its services depend on this process, and one bad service can stop all of them: if stunnel
cannot bind one port during a reload, it closes all its ports. The keeper therefore checks services before
stunnel reads them, and leaves out those that stunnel refuses.

``StunnelKeeper`` is level-triggered. After any event (new services, the end of stunnel, a port that became
free) it compares the wanted services with the loaded ones, and loads what is missing. No other code signals
the process or writes its configuration file.

A load has three steps: write the file, make stunnel read it (SIGHUP, or a start), and read the result in the
log, because stunnel reports it nowhere else. The results are:

* All services listen. This file and its services are now the loaded ones.
* A stunnel that was just started refuses the file, or cannot bind a port. The keeper ends it. The next start
  waits, longer after each short life.
* A running stunnel refuses the file. It keeps its previous configuration, and all its services.
* A running stunnel cannot bind a port. It now listens on no port, so no service counts as loaded.
* A running stunnel ends. The keeper starts it again with the same file, because its log then contains the
  reason.
* stunnel logs no result for seconds. While it works, the keeper waits longer: on a node without free
  processors, a load of 20 ms takes many seconds. Then the disk may be full: if stunnel listens on all ports,
  and some are new, it has loaded the file. If someone has removed the log, no new ports are needed: no later
  attempt would show a result, and each one resets connections. Otherwise it hangs, which counts as a refusal.
  If the load was a test whether it hangs, the keeper ends it.

Unless all services listen, the keeper leaves out the service that stunnel names, or all if it names none, and
loads the others. It retries the services that it left out later.

The keeper does not know the configuration of a stunnel that it takes over. The first load therefore always
makes it reload; its open connections stay.

A node has several keepers, one for each shard (``shards``).
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import structlog

from kube_efs.model.errors import ConfigurationRejected, InvalidValue, KubeEfsError
from kube_efs.telemetry.metrics import TunnelMetrics
from kube_efs.tunnels.backoff import RestartBackoff
from kube_efs.tunnels.data_plane import TunnelService
from kube_efs.tunnels.files import write_atomically
from kube_efs.tunnels.options import TunnelOptions
from kube_efs.tunnels.sockets.ports import find_taken, listening_ports, open_connections, port_taken_error
from kube_efs.tunnels.stunnel.configuration import (
    check_service,
    read_configuration,
    render_configuration,
)
from kube_efs.tunnels.stunnel.log import (
    ConnectionLog,
    Loaded,
    LoadMonitor,
    LogFollower,
    Outcome,
    Unbindable,
    Unloadable,
)
from kube_efs.tunnels.stunnel.process import StunnelProcess

log = structlog.get_logger()

# How often the keeper looks what stunnel does while its log has no result, and after how many looks it gives
# up: if stunnel did nothing in any of the last ones, or at all.
_LOOK_SECONDS = 1.0
_IDLE_LOOKS = 5
_MOST_LOOKS = 30
_LOG_POLL_SECONDS = 0.005
# A reload resets connections that stunnel has not accepted yet, and a caller that just received a port
# connects now. The pause also combines loads: of many calls at the same time, the first one causes one load,
# and all others share the second.
_QUIET_SECONDS = 0.1
# SIGTERM leaves the agent 5 s for everything.
_STOP_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperReport:
    """The pid of stunnel, the services that it listens for, and why others are left out; by name."""

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
    """Owns one stunnel process, with the configuration file and the log of ``options``.

    ``loading`` limits how many keepers load at the same time. ``report`` is the current state; the keeper
    calls ``on_change`` after each change of it.
    """

    def __init__(
        self,
        program: Path,
        options: TunnelOptions,
        metrics: TunnelMetrics,
        connections: ConnectionLog,
        loading: asyncio.Semaphore,
        on_change: Callable[[], None],
    ) -> None:
        self._program = program
        self._options = options
        self._log_path = options.log_path
        self._metrics = metrics
        self._connections = connections
        self._loading = loading
        self._on_change = on_change
        self._log = LogFollower(self._log_path, size_bytes=options.log_size_bytes)
        self._monitor: LoadMonitor | None = None
        self._process: StunnelProcess | None = None
        self._found: int | None = None
        self._wanted: Mapping[str, TunnelService] = {}
        self._written = ""
        self._loaded = _NOTHING
        self._hanging: int | None = None
        self._delay = RestartBackoff()
        self._not_before = 0.0
        self._quiet_until = 0.0
        self._wake = asyncio.Event()
        self.report = KeeperReport()

    def set_services(self, services: Iterable[TunnelService]) -> None:
        """Set the services that stunnel must listen for; ``run`` loads them as soon as possible."""
        wanted = {service.name: service for service in services}
        if wanted != self._wanted:
            self._wanted = wanted
            self._wake.set()

    def take_over(self, pid: int) -> None:
        """Use the stunnel that an earlier agent started with this configuration, once no other one runs."""
        self._found = pid
        self._wake.set()

    def reload_or_replace(self) -> None:
        """Make stunnel read its configuration again, and replace it if it does not: then it hangs.

        Only the one of the report: if it ends before, the next one needs no reload.
        """
        self._hanging = self.report.pid
        self._wake.set()

    def read_log(self) -> None:
        """Read the new lines of stunnel's log."""
        lines = self._log.read()
        self._connections.feed(self._log_path, lines)
        if self._monitor:
            self._monitor.read(lines)
        else:  # cutting may lose a line, and a monitor may wait for that line
            self._log.cut()

    async def run(self) -> None:
        """Load the wanted services until there is neither a service nor a stunnel.

        Does not end stunnel when cancelled.
        """
        while True:
            await asyncio.sleep(self._quiet_until - asyncio.get_running_loop().time())
            self._wake.clear()
            retry_seconds = await self._converge()
            if not (self._wanted or self._process or self._wake.is_set()):
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(retry_seconds):
                    await self._wake.wait()

    async def stop(self) -> None:
        """End stunnel, and with it every connection, in less than 5 s."""
        if self._process is not None:
            await self._process.stop(timeout_seconds=_STOP_SECONDS)

    async def _converge(self) -> float | None:
        """Load the wanted services; returns the seconds until a retry, None if none is needed.

        It can be cancelled at any step. A file that stunnel has not read yet, or a result that nobody reads,
        does no harm: the next agent takes stunnel over, and its first load writes the file again and reloads.
        """
        self._handle_exit()
        self._take_over()
        wanted = dict(self._wanted)
        if not wanted:
            # stunnel cannot run without a service, so it ends as soon as no connection is open. The kernel
            # is asked, because a stunnel that was taken over may have connections that this agent never saw.
            if self._process and not await asyncio.to_thread(_has_connections, self._process.pid):
                await self.stop()
                self._process, self._loaded = None, _NOTHING
        elif self._process is None:
            await asyncio.sleep(self._not_before - asyncio.get_running_loop().time())
        left_out = await self._find_unusable(wanted.values())
        # Each failure leaves out at least one service, so this ends.
        while services := [service for name, service in wanted.items() if name not in left_out]:
            async with self._loading:
                outcome = await self._load(services)
            if isinstance(outcome, Loaded):
                break
            left_out |= await self._find_culprits(outcome, services)
        if self._process and self._loaded.text and self._written != self._loaded.text:
            # The file must be the one in use: the next agent, or a restart, starts stunnel with it.
            with suppress(OSError):
                await self._write(self._loaded.text)
        self._set_report(left_out)
        undone = left_out or (self._process and not wanted)
        return self._options.retry_seconds if undone else None

    def _take_over(self) -> None:
        if self._process is None and self._found is not None:
            conf_path = self._options.conf_path
            self._process = StunnelProcess.adopt(self._found, self._program, conf_path, self._wake.set)
            self._found = None

    def _handle_exit(self) -> None:
        if self._process is None or not self._process.ended.is_set():
            return
        log.warning("stunnel-died", pid=self._process.pid, lived_seconds=round(self._process.age_seconds, 1))
        self._postpone_start(self._process)
        self._metrics.restarts.inc()
        self._process, self._loaded = None, _NOTHING
        self._set_report(self.report.left_out)

    def _postpone_start(self, ended: StunnelProcess) -> None:
        self._delay = self._delay.after_life_of(ended.age_seconds)
        self._not_before = asyncio.get_running_loop().time() + self._delay.seconds

    async def _find_unusable(self, services: Collection[TunnelService]) -> dict[str, KubeEfsError]:
        """The services that stunnel must not read: with an invalid value, or with a port of another program.

        With such a port, stunnel would close all its other ports too.
        """
        unusable: dict[str, KubeEfsError] = {}
        for service in services:
            try:
                check_service(service)
            except InvalidValue as error:
                unusable[service.name] = error
        name_by_port = {service.port: service.name for service in services if service.name not in unusable}
        # Loaded ports are not tested: stunnel itself listens there.
        unknown = frozenset(name_by_port) - self._loaded.ports
        pid = self._process.pid if self._process else None
        taken = await asyncio.to_thread(find_taken, unknown, except_by=pid)
        return unusable | {name_by_port[port]: error for port, error in taken.items()}

    async def _load(self, services: Collection[TunnelService]) -> Outcome:
        """Make stunnel listen for exactly these services; the top of this file lists the results."""
        text = render_configuration(
            services,
            connect_timeout_seconds=self._options.connect_timeout_seconds,
            fips=self._options.fips,
        )
        must_reload = self._process is not None and self._process.pid == self._hanging
        self._hanging = None
        if self._process and text == self._loaded.text and not must_reload:
            return Loaded()
        is_start = self._process is None
        try:
            await self._write(text)
            if self._process:
                await self._process.wait_until_reloadable()
            self.read_log()  # older lines say nothing about this load
            if self._process:
                self._process.reload()
                self._metrics.reloads.inc()
            else:
                conf_path = self._options.conf_path
                self._process = StunnelProcess.start(self._program, conf_path, self._log_path, self._wake.set)
            process = self._process
        except OSError as error:
            return Unloadable(reason=f"{error.filename or self._options.conf_path}: {error.strerror}")
        monitor = self._monitor = LoadMonitor(text, {service.name for service in services})
        try:
            outcome = await self._await_outcome(process, monitor, {service.port for service in services})
        finally:
            self._monitor = None
        if must_reload and monitor.outcome is None and not process.ended.is_set():
            # stunnel hangs, and so do its connections. The kernel opens new ones for its mounts. As the
            # process has ended then, the branch for an ended process below starts the next one.
            await process.stop(timeout_seconds=_STOP_SECONDS)
        if isinstance(outcome, Loaded):
            self._loaded = _Configuration(text, MappingProxyType({one.name: one for one in services}))
            self._quiet_until = asyncio.get_running_loop().time() + _QUIET_SECONDS
        elif is_start:
            await process.stop(timeout_seconds=_STOP_SECONDS)
            self._process = None
            self._postpone_start(process)
        elif process.ended.is_set():
            # It may have ended for any reason, also because it never handled SIGHUP: the file is not to blame
            # yet. The second load is a start, so it never gets here again, and only this start skips the
            # back-off.
            self._handle_exit()
            return await self._load(services)
        elif isinstance(outcome, Unbindable):
            # The process still runs, but it has closed the ports of all its services.
            self._loaded = _NOTHING
        return outcome

    async def _await_outcome(
        self, process: StunnelProcess, monitor: LoadMonitor, ports: Collection[int]
    ) -> Outcome:
        activity, looks, idle_looks = process.activity(), 0, 0
        while looks < _MOST_LOOKS and idle_looks < _IDLE_LOOKS:
            looks += 1
            if outcome := await self._read_outcome(process, monitor):
                return outcome
            before, activity = activity, process.activity()
            idle_looks = 0 if activity.has_worked_since(before) else idle_looks + 1
        # Not before: a stunnel that was taken over listens while it still has to read its new file.
        listening = await asyncio.to_thread(listening_ports, process.pid)
        has_new = not self._loaded.ports.issuperset(ports)
        if set(listening).issuperset(ports) and (has_new or not self._log_path.exists()):
            log.warning("stunnel-log-not-written", pid=process.pid, path=str(self._log_path))
            # Ports that it had before do not show that it does not hang.
            monitor.outcome = Loaded() if has_new else None
            return Loaded()
        return Unloadable(reason=f"stunnel did not confirm it within {looks * _LOOK_SECONDS:g} s")

    async def _read_outcome(self, process: StunnelProcess, monitor: LoadMonitor) -> Outcome | None:
        """The result of the load in the log, or the end of stunnel; None if there is none for a second."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_SECONDS):
                while True:
                    ended = process.ended.is_set()
                    self.read_log()
                    if monitor.outcome or ended:
                        return monitor.outcome or monitor.ended()
                    await asyncio.sleep(_LOG_POLL_SECONDS)
        return None

    async def _find_culprits(
        self, outcome: Outcome, services: Collection[TunnelService]
    ) -> dict[str, KubeEfsError]:
        """The services to leave out after this outcome: the one that stunnel names, or all."""
        by_name = {service.name: service for service in services}
        if isinstance(outcome, Unbindable) and outcome.culprit in by_name:
            port = by_name[outcome.culprit].port
            return {outcome.culprit: await asyncio.to_thread(port_taken_error, port)}
        reason = outcome.reason if isinstance(outcome, Unloadable) else str(outcome)
        culprit = outcome.culprit if isinstance(outcome, Unloadable) else None
        error = ConfigurationRejected(f"stunnel does not accept its configuration ({reason})")
        return dict.fromkeys([culprit] if culprit in by_name else by_name, error)

    async def _write(self, text: str) -> None:
        # Not durable: after a power failure, the agent writes it again before it starts stunnel.
        try:
            await asyncio.to_thread(write_atomically, self._options.conf_path, text, durable=False)
        except OSError:
            # On a full disk, stunnel must start again with the file that it had.
            if await asyncio.to_thread(read_configuration, self._options.conf_path) != text:
                raise
        self._written = text

    def _set_report(self, left_out: Mapping[str, KubeEfsError]) -> None:
        report = KeeperReport(
            pid=self._process.pid if self._process else None,
            loaded=self._loaded.services,
            left_out=MappingProxyType({name: left_out[name] for name in sorted(left_out)}),
        )
        if _comparable(report) != _comparable(self.report):
            for name, error in report.left_out.items():
                if str(error) != str(self.report.left_out.get(name)):
                    log.warning("tunnel-left-out", tunnel=name, reason=str(error))
            if report.pid:
                log.info(
                    "stunnel-configured",
                    pid=report.pid,
                    tunnels=len(report.loaded),
                    configuration=self._options.conf_path.name,
                )
            self.report = report
            self._on_change()


def _has_connections(pid: int) -> bool:
    connections = open_connections()
    return any(connections.get(port) for port in listening_ports(pid))


def _comparable(report: KeeperReport) -> tuple[object, ...]:
    return report.pid, report.loaded, {name: str(error) for name, error in report.left_out.items()}
