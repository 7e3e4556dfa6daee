"""Keeps the relay running with the wanted services.

One process serves all tunnels of the kernel's data plane, because it adds one without touching the others.
The mounts of all of them depend on it. It therefore survives its agent, and the next agent finds it by its
command line.

``RelayKeeper`` is level-triggered, as that of stunnel: after any event (new services, the end of the relay, a
port that became free) it compares the wanted services with those of the relay, and adds and removes what
differs. What the relay has is read from it when it is taken over, and after a call without an answer.

* If the relay ends, a new one starts at once and gets all services. The kernel reconnects its mounts.
* If it does not accept connections, but answers, a successor takes its listeners, and no connection breaks.
  The old one stays for its connections: it is ``leaving``. It also stays if no successor can be started.
* If it does not answer either, it hangs with its connections, and is killed.
"""

import asyncio
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Final

import structlog

from kube_efs.model.errors import InvalidValue, KubeEfsError, RelayUnavailable, TunnelError
from kube_efs.telemetry.metrics import TunnelMetrics
from kube_efs.tunnels.backoff import RestartBackoff
from kube_efs.tunnels.data_plane import DataPlaneReport, ServiceFacts, Traffic, TunnelService
from kube_efs.tunnels.detached_process import DetachedProcess, running_commands
from kube_efs.tunnels.files import limit_log
from kube_efs.tunnels.options import TunnelOptions
from kube_efs.tunnels.relay.control import RelayControl, RelayedService, RelayState
from kube_efs.tunnels.sockets.ports import PortReading, count_connections, listening_ports, listening_ports_of

log = structlog.get_logger()

_MODULE: Final = "kube_efs.tunnels.relay.process"
# Python starts in 0.1 s, on a busy node in seconds.
_ANSWER_SECONDS: Final = 20.0
_POLL_SECONDS: Final = 0.02
# SIGTERM leaves the agent 5 s for everything.
_STOP_SECONDS: Final = 3.0
_NO_FACTS: Final = ServiceFacts()


class RelayKeeper:
    """Owns the relay.

    ``report`` is the current state; ``on_change`` is called after each change of it.
    """

    def __init__(self, options: TunnelOptions, metrics: TunnelMetrics, on_change: Callable[[], None]) -> None:
        self._options = options
        self._metrics = metrics
        self._on_change = on_change
        self._control = RelayControl(
            options.relay_socket, connect_timeout_seconds=options.connect_timeout_seconds
        )
        self._process: DetachedProcess | None = None
        # The last that was started; the agent may end before it answers.
        self._starting: DetachedProcess | None = None
        self._leaving: dict[int, DetachedProcess] = {}
        self._wanted: Mapping[str, TunnelService] | None = None
        self._loaded: dict[str, TunnelService] = {}
        # After a call without an answer, only the relay knows whether it was carried out. After an answer of
        # another process, only that one knows its services.
        self._is_unsure = False
        self._hanging: int | None = None
        self._facts: dict[str, ServiceFacts] = {}
        self._delay = RestartBackoff()
        self._not_before = 0.0
        self._wake = asyncio.Event()
        self.report = DataPlaneReport()

    @property
    def is_running(self) -> bool:
        """Whether the wanted services have a relay."""
        return self.report.relay_pid is not None or not self._wanted

    def set_services(self, services: Iterable[TunnelService]) -> None:
        """Set the services that must be served; ``run`` adds them as soon as possible."""
        wanted = {service.name: service for service in services}
        if wanted != self._wanted:
            self._wanted = wanted
            self._wake.set()

    def reload_or_replace(self, ports: Collection[int]) -> None:
        """Replace the relay of the report, which does not accept connections on these ports.

        A relay that follows it accepts them, so it is not replaced.
        """
        if self.report.relay_pid:
            log.warning("relay-hangs", pid=self.report.relay_pid, ports=sorted(ports))
            self._hanging = self.report.relay_pid
            self._wake.set()

    def merge(self, reading: PortReading | None, *, now: float) -> None:
        """Nothing: there is one relay."""

    async def find_ports(self) -> frozenset[int]:
        """The ports of the running relays, also before they are taken over."""
        listening = await asyncio.to_thread(lambda: listening_ports_of(self._find_running()))
        return frozenset(port for ports in listening.values() for port in ports)

    async def find_services(self) -> Collection[TunnelService]:
        """Those of the running relay without a client certificate, also before it is taken over."""
        state = await self._await_answer(lambda _: True) if await self.find_ports() else None
        return [one for one in _services(state).values() if not one.certificate] if state else []

    async def read_facts(self, names: Collection[str]) -> Mapping[str, ServiceFacts]:
        """The facts about these services; the last known ones while the relay does not answer."""
        # A relay that has just started does not have all services yet. Without the last totals of the others,
        # those that the next reading gives would be added to the counters once more.
        self._facts = {name: facts for name, facts in self._facts.items() if name in names}
        if self._process:
            await asyncio.to_thread(limit_log, self._options.relay_log_path, self._options.log_size_bytes)
            answering = None
            with suppress(RelayUnavailable):
                state = await self._control.state()
                answering = state.pid
                found = {one.service.name: _facts(one) for one in state.services}
                self._facts |= {
                    name: known if (known := self._facts.get(name)) == facts else facts
                    for name, facts in found.items()
                }
            if self._process and self._process.pid != answering:
                self._is_unsure = True
                self._wake.set()
        return {name: self._facts.get(name, _NO_FACTS) for name in names}

    async def run(self) -> None:
        """Take over the running relay and serve the wanted services; does not end it when cancelled."""
        await self._take_over()
        while True:
            self._wake.clear()
            retry_seconds = await self._converge()
            with suppress(TimeoutError):
                async with asyncio.timeout(retry_seconds):
                    await self._wake.wait()

    async def stop(self) -> None:
        """End the relay and its predecessors, and with them every connection, in less than 5 s."""
        processes = [one for one in (self._process, self._starting, *self._leaving.values()) if one]
        await asyncio.gather(*(one.stop(timeout_seconds=_STOP_SECONDS) for one in processes))

    async def _take_over(self) -> None:
        """Use the relay that answers; of the others, end those that hang, and let the others drain.

        All have the same command line. The control socket leads to the one that is in charge. One that
        listens on no port has handed its ports over, or had none, and only carries its connections: mounts
        depend on them. One that listens, while no relay answers on the socket, hangs.
        """
        pids = [pid for pid in await asyncio.to_thread(self._find_running) if not self._is_known(pid)]
        if not pids:
            return
        state = await self._await_answer(lambda _: True)
        for pid in pids:
            process = DetachedProcess.watch(pid, self._wake.set, self._is_relay)
            if process is None:
                continue
            log.info("relay-adopted", pid=pid, leaving=state is None or state.pid != pid)
            if state and state.pid == pid:
                if self._process:  # this agent was about to replace it
                    self._leaving[self._process.pid] = self._process
                self._process, self._loaded = process, _services(state)
                self._is_unsure = True
            elif state is None and await asyncio.to_thread(listening_ports_of, [pid]) != {pid: ()}:
                await process.stop(timeout_seconds=_STOP_SECONDS)
            else:
                self._leaving[pid] = process

    def _follow(self, pid: int) -> None:
        """Watch the process that answers: a successor may have taken over that an earlier agent started."""
        if self._process is None or self._process.pid == pid:
            return
        successor = self._leaving.pop(pid, None) or DetachedProcess.watch(pid, self._wake.set, self._is_relay)
        if successor:
            self._leaving[self._process.pid] = self._process
            self._process = successor

    def _is_known(self, pid: int) -> bool:
        return pid in self._leaving or (self._process is not None and self._process.pid == pid)

    def _find_running(self) -> list[int]:
        # Also without the socket, which somebody may have removed. The relay creates it again.
        return [pid for pid, command in running_commands() if self._is_relay(command)]

    def _is_relay(self, command: Sequence[str]) -> bool:
        # Python and its options may differ: an upgrade can move it, but must not cut connections.
        return list(command[-3:]) == ["-m", _MODULE, str(self._options.relay_socket)]

    async def _converge(self) -> float | None:
        """Load the wanted services; returns the seconds until a retry, None if none is needed."""
        self._handle_ends()
        # First, because another request can come meanwhile.
        hanging, self._hanging = self._hanging, None
        if self._process and self._process.pid == hanging:
            await self._replace(self._process)
        if self._wanted is None:
            self._set_report({})
            return None
        wanted = dict(self._wanted)
        if self._process is None and wanted:
            await self._start()
        left_out = await self._load(wanted)
        await self._release_predecessor()
        if self._process and not wanted and not await asyncio.to_thread(count_connections, self._process.pid):
            await self._process.stop(timeout_seconds=_STOP_SECONDS)
            self._process, self._loaded = None, {}
        self._set_report(left_out)
        undone = left_out or (self._process and not wanted)
        return self._options.retry_seconds if undone else None

    def _handle_ends(self) -> None:
        self._leaving = {pid: one for pid, one in self._leaving.items() if not one.ended.is_set()}
        process = self._process
        if process is None or not process.ended.is_set():
            return
        log.warning("relay-died", pid=process.pid, lived_seconds=round(process.age_seconds, 1))
        self._delay = self._delay.after_life_of(process.age_seconds)
        self._not_before = asyncio.get_running_loop().time() + self._delay.seconds
        self._metrics.relay_restarts.inc()
        self._process, self._loaded = None, {}
        self._set_report(self.report.left_out)

    async def _start(self) -> None:
        """Start the relay, unless it cannot be started; the next attempt waits longer."""
        await asyncio.sleep(self._not_before - asyncio.get_running_loop().time())
        self._process, _ = await self._spawn()
        self._loaded, self._is_unsure = {}, True

    async def _replace(self, process: DetachedProcess) -> None:
        """Start a successor. A relay that does not answer is ended: it hangs, and so do its connections.

        It is asked several times, because all connections of the node depend on it, and on a busy node it may
        only be slow. One that answers stays for its connections, which work. If no successor starts, it also
        keeps its ports, unless it has handed them over. The next connection that it does not accept leads
        here again.
        """
        if await self._await_answer(lambda _: True, process.ended) is None:
            await process.stop(timeout_seconds=_STOP_SECONDS)
            self._handle_ends()
            return
        successor, has_services = await self._spawn()
        if successor is None and not await self._has_handed_over(process):
            return
        if successor and self._loaded and not has_services and not process.has_files():
            # It ended before its successor could take its listeners, and all connections with it.
            await process.stop(timeout_seconds=_STOP_SECONDS)
            self._handle_ends()
        else:
            self._leaving[process.pid] = process
        # Without a successor, ``_converge`` starts another relay: this one has handed over its ports.
        self._process, self._loaded, self._is_unsure = successor, {}, True

    async def _spawn(self) -> tuple[DetachedProcess | None, bool]:
        """A new relay that answers, and whether it has taken over services.

        None if it does not answer, and the log has the reason.
        """
        command = (sys.executable, "-I", "-m", _MODULE, str(self._options.relay_socket))
        try:
            process = DetachedProcess.spawn(command, self._options.relay_log_path, self._wake.set)
            self._starting = process
        except OSError as error:
            log.warning("relay-not-started", reason=f"{error.filename or sys.executable}: {error.strerror}")
            return None, False
        log.info("relay-started", pid=process.pid)
        if state := await self._await_answer(lambda pid: pid == process.pid, process.ended):
            return process, bool(state.services)
        log.warning("relay-not-started", pid=process.pid, log=str(self._options.relay_log_path))
        self._delay = self._delay.after_life_of(0)
        self._not_before = asyncio.get_running_loop().time() + self._delay.seconds
        await process.stop(timeout_seconds=_STOP_SECONDS)
        return None, False

    async def _await_answer(
        self, is_expected: Callable[[int], bool], ended: asyncio.Event | None = None
    ) -> RelayState | None:
        """The state of the expected relay; None if it does not answer in time, or ends."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_ANSWER_SECONDS):
                while not (ended and ended.is_set()):
                    with suppress(RelayUnavailable):
                        state = await self._control.state()
                        if is_expected(state.pid):
                            return state
                    await asyncio.sleep(_POLL_SECONDS)
        return None

    async def _load(self, wanted: Mapping[str, TunnelService]) -> dict[str, KubeEfsError]:
        """Make the relay serve exactly these services; returns the reason for each that it does not serve."""
        left_out: dict[str, KubeEfsError] = {}
        if self._process is None:
            log_path = str(self._options.relay_log_path)
            return dict.fromkeys(wanted, RelayUnavailable("does not start", field="relay", value=log_path))
        try:
            if self._is_unsure:
                state = await self._control.state()
                self._follow(state.pid)
                self._loaded = _services(state)
                self._is_unsure = False
            for name, loaded in list(self._loaded.items()):
                # A changed port may be that of another service, which must find it free.
                if name not in wanted or wanted[name].port != loaded.port:
                    await self._control.remove(name)
                    del self._loaded[name]
            for name, service in wanted.items():
                if self._loaded.get(name) != service:
                    try:
                        await self._control.add(service)
                        self._loaded[name] = service
                    except RelayUnavailable:
                        raise
                    except (InvalidValue, TunnelError) as error:  # of this service alone
                        left_out[name] = error
        except RelayUnavailable as error:
            self._is_unsure = True
            left_out |= {name: error for name, one in wanted.items() if self._loaded.get(name) != one}
        return left_out

    async def _release_predecessor(self) -> None:
        """Leave the relay to its connections if nobody answers, and it no longer has the ports that it had.

        It has handed them over to a successor that has ended, so ``_converge`` starts another one.
        """
        process = self._process
        if self._is_unsure and self._loaded and process and await self._has_handed_over(process):
            self._leaving[process.pid] = process
            self._process, self._loaded = None, {}
            self._wake.set()

    async def _has_handed_over(self, process: DetachedProcess) -> bool:
        """Whether it runs without its ports, which the kernel knows even if the relay does not answer.

        One that is ending has no ports either, and its end must be noticed as such: it counts as a restart.
        """
        return await asyncio.to_thread(lambda: not listening_ports(process.pid) and process.has_files())

    def _set_report(self, left_out: Mapping[str, KubeEfsError]) -> None:
        pid = self._process.pid if self._process else None
        report = DataPlaneReport(
            relay_pid=pid,
            leaving=tuple(sorted(self._leaving)),
            loaded=MappingProxyType(dict(self._loaded)),
            pid_by_service=MappingProxyType(dict.fromkeys(self._loaded, pid) if pid else {}),
            left_out=MappingProxyType({name: left_out[name] for name in sorted(left_out)}),
        )
        if _comparable(report) == _comparable(self.report):
            return
        for name, error in report.left_out.items():
            if str(error) != str(self.report.left_out.get(name)):
                log.warning("tunnel-left-out", tunnel=name, reason=str(error))
        self.report = report
        self._metrics.relay_processes.set(len(report.leaving) + (pid is not None))
        self._on_change()


def _services(state: RelayState) -> dict[str, TunnelService]:
    return {one.service.name: one.service for one in state.services}


def _facts(one: RelayedService) -> ServiceFacts:
    return ServiceFacts(
        address=one.address,
        tls_version=one.tls_version,
        cipher=one.cipher,
        peer=one.peer,
        reason=one.reason,
        traffic=Traffic(
            connections=one.connected, sent_bytes=one.sent_bytes, received_bytes=one.received_bytes
        ),
    )


def _comparable(report: DataPlaneReport) -> tuple[object, ...]:
    left_out = {name: str(error) for name, error in report.left_out.items()}
    return report.relay_pid, report.leaving, report.loaded, left_out
