"""All stunnels of a node: distributes the services over shards, each with a keeper of its own.

``assignment`` says which shard a service belongs to, ``StunnelKeeper`` runs the stunnel of one shard. This
module connects the two. The shard of a service is not stored, because a file could be wrong after a crash. It
is read from what exists, once at the start, and again when a port is taken:

* The kernel knows which process listens on which port. The service of this port belongs to that process.
* A stunnel that is starting, or loading its configuration, listens on no port at that moment. Its
  configuration file then contains its ports.

So a new agent finds every service where the earlier one left it, and closes no port, also after an agent that
knew no shards. No two stunnels ever compete for a port: a shard gets a service only while no other shard
listens on its port. To move a service is therefore only to assign it to another shard. Its shard closes the
port; the report of that gives the service to the other shard. An agent that is killed between the two steps
leaves a service that runs nowhere, which is a new service for the next agent.

``StunnelShards`` is level-triggered, as its keepers are: after any event, ``run`` looks at everything again,
and distributes it if anything differs.
"""

import asyncio
import glob
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

import structlog

from kube_efs.model.errors import PortTaken
from kube_efs.telemetry.metrics import TunnelMetrics
from kube_efs.tunnels.data_plane import DataPlaneReport, ServiceFacts, TunnelService
from kube_efs.tunnels.options import TunnelOptions
from kube_efs.tunnels.sockets.detection import IdlePorts
from kube_efs.tunnels.sockets.ports import PortReading, listening_ports_of
from kube_efs.tunnels.stunnel.assignment import (
    assign,
    find_merge,
    mergeable,
    shard_files,
    shard_number,
    shard_path,
)
from kube_efs.tunnels.stunnel.configuration import parse_configuration, read_configuration
from kube_efs.tunnels.stunnel.keeper import StunnelKeeper
from kube_efs.tunnels.stunnel.log import ConnectionLog
from kube_efs.tunnels.stunnel.process import find_running, find_stunnel

log = structlog.get_logger()

# After a start of the agent, all shards load. At the same time, all would miss their timeout on a busy node.
_LOADS_AT_ONCE = 4
_PORT = re.compile(r"^accept = 127\.0\.0\.1:(\d+)$", re.MULTILINE)


class StunnelShards:
    """Owns the stunnel processes of the node.

    ``report`` is the current state; ``on_change`` is called after each change of it.
    """

    def __init__(
        self,
        options: TunnelOptions,
        metrics: TunnelMetrics,
        on_change: Callable[[], None],
    ) -> None:
        """Find the program; raises StunnelMissing."""
        self._options = options
        self._metrics = metrics
        self._program = find_stunnel(options.stunnel_path)
        self._connections = ConnectionLog()
        self._on_change = on_change
        self._loading = asyncio.Semaphore(_LOADS_AT_ONCE)
        self._keepers: dict[int, StunnelKeeper] = {}
        self._wanted: Mapping[str, TunnelService] | None = None
        # Both are replaced and never changed, so that the same object is the same content.
        self._assigned: Mapping[str, int] = {}
        self._distributed: tuple[object, object, Mapping[str, int]] = None, None, {}
        self._idle_ports = IdlePorts()
        self._wake = asyncio.Event()
        self.report = DataPlaneReport()

    @property
    def is_running(self) -> bool:
        """Whether all wanted services have a stunnel."""
        running = {number for number, keeper in self._keepers.items() if keeper.report.pid}
        return all(self._assigned.get(name) in running for name in self._wanted or {})

    def set_services(self, services: Iterable[TunnelService]) -> None:
        """Set the services that must be served; ``run`` loads them as soon as possible."""
        wanted = {service.name: service for service in services}
        if wanted != self._wanted:
            self._wanted = wanted
            self._wake.set()

    def reload_or_replace(self, ports: Collection[int]) -> None:
        """Make the stunnels of these ports reload, and replace those that do not: they hang."""
        names = {name for name, service in (self._wanted or {}).items() if service.port in ports}
        # The one that listens, where a tunnel has not moved to its new shard yet.
        numbers = {**self._assigned, **self._shards_by_listener()}
        for number in {numbers[name] for name in names & numbers.keys()}:
            keeper = self._keepers.get(number)
            if keeper and keeper.report.pid:
                log.warning("stunnel-hangs", pid=keeper.report.pid)
                keeper.reload_or_replace()

    def merge(self, reading: PortReading | None, *, now: float) -> None:
        """Empty a shard that is nearly empty and whose ports were unused in several readings, as in this one.

        A tunnel that is used again before its port is closed stays where it is.
        """
        wanted = self._wanted or {}
        name_by_port = {wanted[name].port: name for name in mergeable(self._assigned) & wanted.keys()}
        self._idle_ports = self._idle_ports.after(reading, name_by_port, now=now)
        unused = self._idle_ports.unused(self._options.idle, now=now)
        changes = dict(find_merge(self._assigned, {name_by_port[port] for port in unused}))
        if changes:
            log.info("stunnel-merged", tunnels=sorted(changes))
        if reading:
            # A move that is not complete is taken back if a mount has begun to use the port.
            changes |= {
                name: number
                for name, number in self._shards_by_listener().items()
                if wanted[name].port in reading.busy
            }
        assigned = {**self._assigned, **changes}
        if assigned != self._assigned:
            self._assigned = assigned
            self._wake.set()

    async def find_ports(self) -> frozenset[int]:
        """The ports of the running stunnels, also before they are taken over."""
        return frozenset(await asyncio.to_thread(lambda: self._find_ports(self._find_running())))

    async def find_services(self) -> Collection[TunnelService]:
        """Those in the files of the running stunnels, without the ones that have a client certificate."""

        def find() -> list[TunnelService]:
            paths = [shard_path(self._options.conf_path, number) for number in self._find_running()]
            return [one for path in paths for one in parse_configuration(read_configuration(path))]

        return await asyncio.to_thread(find)

    async def read_facts(self, names: Collection[str]) -> Mapping[str, ServiceFacts]:
        """The facts about these services, from the new lines of the logs too."""
        for keeper in self._keepers.values():
            keeper.read_log()
        self._connections.keep_only(names)
        return {name: self._connections.facts(name) for name in names}

    async def stop(self) -> None:
        """End all stunnels, and with them every connection, in less than 5 s."""
        await asyncio.gather(*(keeper.stop() for keeper in self._keepers.values()))

    async def run(self) -> None:
        """Take over running stunnels and serve the wanted services; does not end stunnel when cancelled."""
        running: dict[int, asyncio.Task[None]] = {}
        await self._take_over()
        await asyncio.to_thread(self._remove_leftovers)
        loop, looked = asyncio.get_running_loop(), -math.inf
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._wake.clear()
                is_taken = any(isinstance(error, PortTaken) for error in self.report.left_out.values())
                if is_taken and loop.time() >= looked + self._options.retry_seconds:
                    # Perhaps by a stunnel that an earlier agent has started while it was killed.
                    await self._take_over()
                    looked = loop.time()
                if self._wanted is not None:
                    self._distribute(self._wanted)
                    await self._end_unused(running)
                    for number in self._keepers.keys() - running.keys():
                        running[number] = tasks.create_task(self._keepers[number].run())
                        running[number].add_done_callback(lambda _: self._wake.set())
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._options.retry_seconds if is_taken else None):
                        await self._wake.wait()

    async def _take_over(self) -> None:
        """Find the running stunnels, and assign the services of their ports to them."""
        pids = await asyncio.to_thread(self._find_running)
        ports = await asyncio.to_thread(self._find_ports, pids)
        for number, pid in pids.items():
            keeper = self._keeper(number)
            if keeper.report.pid != pid:
                keeper.take_over(pid)
        found = {
            name: ports[service.port]
            for name, service in (self._wanted or {}).items()
            if service.port in ports
        }
        self._assigned = {**self._assigned, **found}

    def _find_running(self) -> Mapping[int, int]:
        """The pid of each running shard."""
        return {
            number: pid
            for pid, path in find_running(self._program)
            if (number := shard_number(self._options.conf_path, path)) is not None
        }

    def _find_ports(self, pids: Mapping[int, int]) -> Mapping[int, int]:
        """The shard of each port on which a stunnel listens, or will listen."""
        written = {
            int(port): number
            for number in pids
            for port in _PORT.findall(read_configuration(shard_path(self._options.conf_path, number)))
        }
        listening = listening_ports_of(pids.values())
        # Where both differ, the kernel is right: a file may be newer than what its stunnel has loaded.
        return written | {port: number for number, pid in pids.items() for port in listening[pid]}

    def _keeper(self, number: int) -> StunnelKeeper:
        if number not in self._keepers:
            self._keepers[number] = StunnelKeeper(
                self._program,
                self._options_of(number),
                self._metrics,
                self._connections,
                self._loading,
                self._update_report,
            )
        return self._keepers[number]

    def _options_of(self, number: int) -> TunnelOptions:
        """The options of one shard: with its own configuration file, and a log of the same name."""
        return replace(self._options, conf_path=shard_path(self._options.conf_path, number))

    def _distribute(self, wanted: Mapping[str, TunnelService]) -> None:
        """Give each shard its services, except those on whose ports another shard still listens."""
        wanted_before, assigned_before, elsewhere_before = self._distributed
        is_same = wanted is wanted_before and self._assigned is assigned_before
        if not is_same:
            self._assigned = assign(wanted.values(), self._assigned, running=self._keepers)
        elsewhere = self._shards_by_listener()
        if is_same and elsewhere == elsewhere_before:
            return
        self._distributed = wanted, self._assigned, elsewhere
        services: dict[int, list[TunnelService]] = {number: [] for number in self._keepers}
        for name, number in self._assigned.items():
            if name not in elsewhere:
                services.setdefault(number, []).append(wanted[name])
        for number, some in services.items():
            self._keeper(number).set_services(some)

    def _shards_by_listener(self) -> Mapping[str, int]:
        """The services to which another shard listens than the one that they are assigned to."""
        wanted = self._wanted or {}
        by_port = {service.port: name for name, service in wanted.items()}
        return {
            name: number
            for number, keeper in self._keepers.items()
            for service in keeper.report.loaded.values()
            if (name := by_port.get(service.port)) and self._assigned.get(name, number) != number
        }

    async def _end_unused(self, running: dict[int, asyncio.Task[None]]) -> None:
        """Forget the shards that have neither services nor a stunnel, and remove their files."""
        for number in [number for number, task in running.items() if task.done()]:
            del running[number]
            # If it got a service after its task had ended, ``run`` starts a task for it again.
            if number not in self._assigned.values():
                del self._keepers[number]
                await asyncio.to_thread(self._remove_files, number)

    def _remove_files(self, number: int) -> None:
        """Remove the configuration, whose ports would be missing for the doctor, and the log.

        The log of shard 0 stays: a node without tunnels may have no other.
        """
        options = self._options_of(number)
        log_path = options.log_path
        logs = (log_path, log_path.with_name(f"{log_path.name}.1"))
        for path in (options.conf_path, *(logs if number else ())):
            with suppress(OSError):
                path.unlink()

    def _remove_leftovers(self) -> None:
        """Remove configurations of shards that do not run, and incomplete files of a killed agent."""
        first = self._options.conf_path
        unused = [path for number, path in shard_files(first).items() if number not in {0, *self._keepers}]
        incomplete = first.parent.glob(f".{glob.escape(first.stem)}-*{glob.escape(first.suffix)}.*")
        for path in (*unused, *incomplete):
            with suppress(OSError):
                path.unlink()

    def _update_report(self) -> None:
        """Combine the reports of the keepers."""
        reports = [self._keepers[number].report for number in sorted(self._keepers)]
        self.report = DataPlaneReport(
            pids=tuple(report.pid for report in reports if report.pid),
            loaded={name: service for report in reports for name, service in report.loaded.items()},
            pid_by_service={name: report.pid for report in reports if report.pid for name in report.loaded},
            left_out={name: error for report in reports for name, error in report.left_out.items()},
        )
        self._metrics.processes.set(len(self.report.pids))
        self._wake.set()
        self._on_change()
