"""What data planes need for the same work, on any kernel: the measurement of ``data_planes``.

Speed and processor time are measured in rounds, in which each plane has its turn, because the load of a
machine changes. Memory and new tunnels are measured for one plane after the other, because both remain.

While this process is a client it does nothing else, so it calls the blocking functions of ``records``.
"""

import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Final

from bench.planes import MountTarget, Plane, planes, start_server
from bench.processes import cpu_seconds, megabytes_in_parts
from bench.records import connect, latencies, read, write
from tests.integration.tunnel_node import eventually

from kube_efs.tunnels.data_plane import TunnelService
from kube_efs.tunnels.sockets.ports import listening_ports_of, open_connections

MANY: Final = 8
COUNTS: Final = (10, 100, 1000)
_ADDED: Final = 20
_GIBIBYTE: Final = 1024
_BUSY_MEBIBYTES: Final = 32
_CLOSED_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.01
_MILLISECONDS: Final = 1000.0


class Metric(StrEnum):
    """What is measured of each plane, with what its figure is called."""

    WRITE_CPU = "CPU of a GiB written"
    READ_CPU = "CPU of a GiB read"
    WRITE_SERVER_CPU = "CPU of the server for a GiB written"
    READ_SERVER_CPU = "CPU of the server for a GiB read"
    WRITE_SPEED = "speed of writes"
    READ_SPEED = "speed of reads"
    P50_OF_ONE = "4 KiB request, one connection, p50"
    P99_OF_ONE = "4 KiB request, one connection, p99"
    P50_OF_MANY = "4 KiB request, eight connections, p50"
    P99_OF_MANY = "4 KiB request, eight connections, p99"
    IDLE_MEMORY = "memory of a tunnel with an idle connection"
    BUSY_MEMORY = "memory of a tunnel with a busy connection"
    ADD_TIME = "time until a new tunnel answers"
    ADD_CPU = "CPU of a new tunnel and its first connection"

    def at(self, count: int) -> str:
        """The name with a number of tunnels."""
        return f"{self} at {count:,} tunnels"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is measured: MiB each way and 4 KiB requests in each round, new tunnels at these numbers."""

    rounds: int
    mebibytes: int
    requests: int
    counts: Sequence[int] = COUNTS


# By the name of the plane, and the name of the metric; one for each round, or one alone.
Samples = Mapping[str, Mapping[str, Sequence[float]]]


async def sample(folder: Path, sizes: Sizes) -> Samples:
    """Measure all planes that can run on this machine."""
    async with AsyncExitStack() as stack:
        target = await asyncio.to_thread(MountTarget.create, folder)
        server = await start_server(stack, folder, target)
        found = await stack.enter_async_context(planes(folder, target))
        tunnels = target.tunnels()
        subjects = [_Subject(plane, tunnels, server.pid) for plane in found]
        for subject in subjects:
            await subject.take_memory()
        for number in range(sizes.rounds):
            first = number % len(subjects)
            for subject in (*subjects[first:], *subjects[:first]):
                subject.transfer(sizes.mebibytes)
                subject.request(sizes.requests)
        for subject in subjects:
            await subject.grow(sizes.counts)
        return {subject.plane.name: dict(subject.samples) for subject in subjects}


@dataclass(slots=True)
class _Subject:
    """A plane with its tunnels, and what was measured of it."""

    plane: Plane
    source: Iterator[TunnelService]
    server: int
    ports: list[int] = field(default_factory=list)
    samples: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    async def take_memory(self) -> None:
        """Give it tunnels, each with a connection that is first idle and then busy."""
        await self._add(1)
        with ExitStack() as stack:
            stack.enter_context(connect(self.ports[0]))
            before = self._memory()
            await self._add(MANY)
            connections = [stack.enter_context(connect(port)) for port in self.ports[1:]]
            self.samples[Metric.IDLE_MEMORY].append((self._memory() - before) / MANY)
            for connection in connections:
                write(connection, _BUSY_MEBIBYTES)
                read(connection, _BUSY_MEBIBYTES)
            self.samples[Metric.BUSY_MEMORY].append((self._memory() - before) / MANY)

    def transfer(self, mebibytes: int) -> None:
        """Write and read through one connection."""
        with connect(self.ports[0]) as connection:
            for work, cpu, server_cpu, speed in (
                (write, Metric.WRITE_CPU, Metric.WRITE_SERVER_CPU, Metric.WRITE_SPEED),
                (read, Metric.READ_CPU, Metric.READ_SERVER_CPU, Metric.READ_SPEED),
            ):
                before, of_server = self._cpu(), cpu_seconds(self.server)
                seconds = work(connection, mebibytes)
                gibibytes = mebibytes / _GIBIBYTE
                self.samples[cpu].append((self._cpu() - before) / gibibytes)
                self.samples[server_cpu].append((cpu_seconds(self.server) - of_server) / gibibytes)
                self.samples[speed].append(mebibytes / seconds)
        self._wait_until_closed(self.ports[0])

    def request(self, requests: int) -> None:
        """Make small requests, first through one connection and then through eight."""
        for ports, p50, p99 in (
            (self.ports[:1], Metric.P50_OF_ONE, Metric.P99_OF_ONE),
            (self.ports[:MANY], Metric.P50_OF_MANY, Metric.P99_OF_MANY),
        ):
            percentiles = statistics.quantiles(latencies(ports, requests), n=100)
            self._wait_until_closed(*ports)
            self.samples[p50].append(percentiles[49] * _MILLISECONDS)
            self.samples[p99].append(percentiles[98] * _MILLISECONDS)

    async def grow(self, counts: Sequence[int]) -> None:
        """Add tunnels when there are few, many and very many."""
        # Where each tunnel has its own process, their number makes no difference.
        for count in counts if self.plane.is_shared else counts[:1]:
            await self._add(count - len(self.ports))
            before = self._cpu()
            times = [await self._add_one() for _ in range(_ADDED)]
            self.samples[Metric.ADD_TIME.at(count)].append(statistics.median(times))
            self.samples[Metric.ADD_CPU.at(count)].append((self._cpu() - before) / _ADDED * _MILLISECONDS)

    async def _add_one(self) -> float:
        """The milliseconds until a new tunnel has answered."""
        begun, tunnel = time.perf_counter(), next(self.source)
        await self.plane.add([tunnel])
        connect(tunnel.port).close()
        self.ports.append(tunnel.port)
        milliseconds = (time.perf_counter() - begun) * _MILLISECONDS
        self._wait_until_closed(tunnel.port)
        return milliseconds

    async def _add(self, count: int) -> None:
        """Give it so many more tunnels; all can be used after that."""
        new = list(islice(self.source, count))
        await self.plane.add(new)
        self.ports += (tunnel.port for tunnel in new)
        await eventually(lambda: self._listens(new), f"the tunnels of {self.plane.name}")
        # stunnel ends if it must reload between listening and serving.
        connect(self.ports[-1]).close()
        self._wait_until_closed(self.ports[-1])

    def _wait_until_closed(self, *ports: int) -> None:
        """Wait until no client is connected to these ports.

        efs-proxy serves one connection of a client. It ends when another one comes and is reset before it
        expects a new one.
        """
        end = time.monotonic() + _CLOSED_SECONDS
        while not open_connections().keys().isdisjoint(ports):
            if time.monotonic() > end:
                raise TimeoutError(f"{self.plane.name} still has connections")
            time.sleep(_PAUSE_SECONDS)

    def _listens(self, tunnels: Sequence[TunnelService]) -> bool:
        found = listening_ports_of(self.plane.pids).values()
        return {one.port for one in tunnels} <= {port for ports in found for port in ports}

    def _cpu(self) -> float:
        return sum(map(cpu_seconds, self.plane.pids))

    def _memory(self) -> float:
        return megabytes_in_parts(self.plane.pids)
