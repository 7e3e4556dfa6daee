"""The shards of a node whose kernel and stunnels are simulated: agents are killed at any step.

What must always hold: no two stunnels listen on one port, and a port with a connection stays open. Once
nothing changes any more, every wanted service listens, and no shard is too large.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from prometheus_client import CollectorRegistry

from kube_efs.model.efs.ids import FileSystemId, Region
from kube_efs.model.errors import KubeEfsError, PortTaken
from kube_efs.telemetry.metrics import TunnelMetrics
from kube_efs.tunnels.data_plane import CertificateFile, TunnelService
from kube_efs.tunnels.options import TunnelOptions
from kube_efs.tunnels.sockets.ports import PortReading
from kube_efs.tunnels.stunnel import assignment, shards
from kube_efs.tunnels.stunnel.assignment import assign, shard_number, shard_path
from kube_efs.tunnels.stunnel.keeper import KeeperReport
from kube_efs.tunnels.stunnel.shards import StunnelShards

CONF = Path("/nowhere/stunnel.conf")
SIZE = 4  # of a shard, so that few tunnels need several
ROUND_SECONDS = 10.0
SETTLED = 300  # steps after which nothing changes any more
OPTIONS = TunnelOptions(
    region=Region("us-east-1"),
    conf_path=CONF,
    stunnel_path=Path("/bin/true"),
    retry_seconds=0,
    probe_interval_seconds=ROUND_SECONDS,
)
CERTIFICATE = CertificateFile(path=Path("/c.pem"), serial=1, not_after=datetime(2030, 1, 1, tzinfo=UTC))
ON_DEMAND = st.sets(st.integers(0, 11), max_size=12)


def service(number: int, *, on_demand: bool = True) -> TunnelService:
    return TunnelService(
        name=f"fs-{number}" if on_demand else f"own-{number}",
        file_system_id=FileSystemId("fs-1"),
        port=(22049 if on_demand else 20490) + number,
        addresses=("10.0.1.1",),
        check_host="fs-1.efs.us-east-1.amazonaws.com",
        ca_file=Path("/ca.pem"),
        certificate=CERTIFICATE if on_demand else None,
    )


@dataclass
class Stunnel:
    shard: int
    ports: frozenset[int] = frozenset()


@dataclass
class Kernel:
    """The processes, the connections and the configuration files of a node; they survive each agent."""

    stunnels: dict[int, Stunnel] = field(default_factory=dict)
    connected: set[int] = field(default_factory=set)
    written: dict[int, frozenset[int]] = field(default_factory=dict)
    pids: int = 0

    def start(self, shard: int) -> int:
        self.pids += 1
        self.stunnels[self.pids] = Stunnel(shard)
        return self.pids

    def end(self, pid: int) -> None:
        self.connected -= self.stunnels.pop(pid).ports

    def listen(self, pid: int, ports: frozenset[int]) -> None:
        """What a load does; a real one would open none of the ports if one is taken."""
        self.stunnels[pid].ports = ports - self.taken(but=pid)
        self.check()

    def taken(self, but: int | None) -> frozenset[int]:
        return frozenset(port for pid, one in self.stunnels.items() if pid != but for port in one.ports)

    def check(self) -> None:
        ports = [port for one in self.stunnels.values() for port in one.ports]
        assert len(ports) == len(set(ports)), "two stunnels listen on one port"
        assert self.connected <= set(ports), "a port with a connection was closed"

    def reading(self) -> PortReading:
        return PortReading(connections={}, busy=frozenset(self.connected), listening=self.taken(but=None))


class Keeper:
    """Behaves as ``StunnelKeeper`` at its seams; at each ``sleep``, the agent may be killed."""

    def __init__(self, kernel: Kernel, shard: int, on_change: Callable[[], None]) -> None:
        self._kernel = kernel
        self._shard = shard
        self._on_change = on_change
        self._wanted: Mapping[str, TunnelService] = {}
        self._loaded: Mapping[str, TunnelService] = {}
        self._left_out: Mapping[str, KubeEfsError] = {}
        self._pid: int | None = None
        self._found: int | None = None
        self._wake = asyncio.Event()
        self.report = KeeperReport()
        self.hangs = False

    def reload_or_replace(self) -> None:
        self.hangs = False
        self._wake.set()

    def set_services(self, services: Iterable[TunnelService]) -> None:
        wanted = {one.name: one for one in services}
        if wanted != self._wanted:
            self._wanted = wanted
            self._wake.set()

    def take_over(self, pid: int) -> None:
        self._found = pid
        self._wake.set()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            await asyncio.sleep(0)
            if self.hangs:
                await self._wake.wait()
                continue
            if self._pid not in self._kernel.stunnels:
                self._pid, self._loaded = self._found, {}
            self._pid = self._pid if self._pid in self._kernel.stunnels else None
            await self._converge(self._wanted)
            self._set_report()
            if not (self._wanted or self._pid or self._wake.is_set()):
                return
            if not self._left_out and self._wanted:
                await self._wake.wait()

    async def _converge(self, wanted: Mapping[str, TunnelService]) -> None:
        self._left_out = {}
        if not wanted:
            if self._pid and not self._kernel.connected & self._kernel.stunnels[self._pid].ports:
                self._kernel.end(self._pid)
                self._pid, self._loaded = None, {}
            return
        taken = self._kernel.taken(but=self._pid)
        usable = {name: one for name, one in wanted.items() if one.port not in taken}
        ports = frozenset(one.port for one in usable.values())
        if usable and usable != self._loaded:
            self._kernel.written[self._shard] = ports
            await asyncio.sleep(0)
            if self._pid is None:
                self._pid = self._kernel.start(self._shard)
            await asyncio.sleep(0)
            if self._pid in self._kernel.stunnels:
                self._kernel.listen(self._pid, ports)
                self._loaded = usable
        self._left_out = {
            name: PortTaken("is taken", field="stunnel_port", value=wanted[name].port)
            for name in wanted.keys() - usable.keys()
        }

    def _set_report(self) -> None:
        report = KeeperReport(pid=self._pid, loaded=self._loaded, left_out=self._left_out)
        known = self.report
        if (report.pid, report.loaded, set(report.left_out)) != (
            known.pid,
            known.loaded,
            set(known.left_out),
        ):
            self.report = report
            self._on_change()


class AtOnce(ThreadPoolExecutor):
    """Runs threads synchronously, so that a run can be repeated exactly."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class Node(RuleBasedStateMachine):
    """Tunnels are opened and closed, mounts connect, and processes are killed."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = Kernel()
        self.own: set[int] = set()
        self.on_demand: set[int] = set()
        self.now = 0.0
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(assignment, "SHARD_SIZE", SIZE)
        self.patch.setattr(assignment, "_NEARLY_EMPTY", SIZE // 2)
        self.patch.setattr(shards, "StunnelKeeper", self._new_keeper)
        self.patch.setattr(shards, "find_running", self._find_running)
        self.patch.setattr(shards, "listening_ports_of", self._listening_ports)
        self.patch.setattr(shards, "read_configuration", self._read)
        self._start()

    def _new_keeper(self, *given: Any) -> Keeper:
        _, options, *_, on_change = given
        return Keeper(self.kernel, cast("int", shard_number(CONF, options.conf_path)), on_change)

    def _find_running(self, _: Path) -> Iterator[tuple[int, Path]]:
        for pid, one in self.kernel.stunnels.items():
            yield pid, shard_path(CONF, one.shard)

    def _listening_ports(self, pids: Collection[int]) -> dict[int, tuple[int, ...]]:
        ended = Stunnel(0)
        return {pid: tuple(self.kernel.stunnels.get(pid, ended).ports) for pid in pids}

    def _read(self, path: Path) -> str:
        ports = self.kernel.written.get(cast("int", shard_number(CONF, path)), ())
        return "".join(f"accept = 127.0.0.1:{port}\n" for port in ports)

    def _start(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(AtOnce())
        metrics = TunnelMetrics(CollectorRegistry())
        self.shards = StunnelShards(OPTIONS, metrics, lambda: None)
        self._want()
        self.running = self.loop.create_task(self.shards.run())

    def _want(self) -> None:
        own = (service(number, on_demand=False) for number in self.own)
        self.shards.set_services([*own, *map(service, self.on_demand)])

    def _step(self, steps: int) -> None:
        for _ in range(steps):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
            self.kernel.check()
            assert not self.running.done(), self.running

    @rule(numbers=ON_DEMAND, steps=st.integers(0, 12))
    def open_tunnels(self, numbers: set[int], steps: int) -> None:
        self.on_demand |= numbers
        self._want()
        self._step(steps)

    @rule(numbers=ON_DEMAND, steps=st.integers(0, 12))
    def close_unused_tunnels(self, numbers: set[int], steps: int) -> None:
        self.on_demand -= {one for one in numbers if service(one).port not in self.kernel.connected}
        self._want()
        self._step(steps)

    @rule(numbers=st.sets(st.integers(0, 9)), steps=st.integers(0, 12))
    def change_the_config_map(self, numbers: set[int], steps: int) -> None:
        used = {one for one in self.own if service(one, on_demand=False).port in self.kernel.connected}
        self.own = numbers | used
        self._want()
        self._step(steps)

    @rule(numbers=ON_DEMAND)
    def connect(self, numbers: set[int]) -> None:
        wanted = {service(one).port for one in numbers & self.on_demand}
        self.kernel.connected |= wanted & self.kernel.taken(but=None)

    @rule(numbers=ON_DEMAND)
    def disconnect(self, numbers: set[int]) -> None:
        self.kernel.connected -= {service(one).port for one in numbers}

    @rule(rounds=st.integers(1, 5), steps=st.integers(0, 12))
    def check_the_tunnels(self, rounds: int, steps: int) -> None:
        for _ in range(rounds):
            self.now += ROUND_SECONDS
            self.shards.merge(self.kernel.reading(), now=self.now)
            self._step(steps)

    @rule(which=st.integers(0, 9), steps=st.integers(0, 12))
    def kill_a_stunnel(self, which: int, steps: int) -> None:
        pids = sorted(self.kernel.stunnels)
        if pids:
            self.kernel.end(pids[which % len(pids)])
        for keeper in self.shards._keepers.values():
            cast("Any", keeper)._wake.set()
        self._step(steps)

    @rule(late=st.booleans(), steps=st.integers(0, 12))
    def kill_the_agent(self, *, late: bool, steps: int) -> None:
        """The next one starts; perhaps the killed one has just started a stunnel that listens later."""
        self._close()
        written = self.kernel.written.get(3)
        if late and written and all(one.shard != 3 for one in self.kernel.stunnels.values()):
            self.kernel.listen(self.kernel.start(3), written)
        self._start()
        self._step(steps)

    def keepers(self) -> Iterator[Keeper]:
        return (cast("Keeper", one) for one in self.shards._keepers.values())

    @rule()
    def settle(self) -> None:
        self._step(SETTLED)
        wanted = {service(one).name for one in self.on_demand} | {f"own-{one}" for one in self.own}
        assert self.shards.report.loaded.keys() == wanted
        assert not self.shards.report.left_out
        assert self.shards.is_running
        sizes = [len(one.ports) for one in self.kernel.stunnels.values() if one.shard]
        assert all(size <= SIZE for size in sizes)
        assert self.kernel.taken(but=None) >= {one.port for one in self.shards.report.loaded.values()}

    def _close(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with suppress(RuntimeError, BaseExceptionGroup):
                cast("Any", task.get_coro()).close()
        self.loop.close()

    def teardown(self) -> None:
        try:
            self.settle()
            self.kernel.connected.clear()
            for _ in range(8):
                self.check_the_tunnels(rounds=4, steps=60)
            self.settle()
            on_demand = [one for one in self.kernel.stunnels.values() if one.shard and one.ports]
            small = [one for one in on_demand if len(one.ports) <= SIZE // 2]
            room = sum(SIZE - len(one.ports) for one in on_demand)
            assert len(small) <= 1 or all(room - (SIZE - len(one.ports)) < len(one.ports) for one in small)
        finally:
            self._close()
            self.patch.undo()


TestNode = Node.TestCase


def test_next_agent_finds_tunnels_in_use_where_they_are() -> None:
    node = Node()
    node.open_tunnels(set(range(3 * SIZE)), steps=0)
    node.settle()
    # With what is left, an agent that did not ask the kernel would choose other shards.
    node.close_unused_tunnels({0, 1, 2, 10}, steps=0)
    node.settle()
    node.connect(set(range(3 * SIZE)))
    before = dict(node.shards._assigned)
    node.kill_the_agent(late=False, steps=0)
    node.settle()
    assert node.shards._assigned == before
    node.teardown()


def test_report_of_a_shard_assigns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    node.open_tunnels({1, 2, 3}, 50)
    assigned: list[int] = []

    def counted(*given: Any, **options: Any) -> Mapping[str, int]:
        found = assign(*given, **options)
        assigned.append(len(found))
        return found

    monkeypatch.setattr(shards, "assign", counted)
    node.shards._update_report()
    node._step(50)
    assert assigned == []
    node.open_tunnels({4}, 50)
    assert assigned == [4]
    node.teardown()


def test_tunnel_that_is_used_again_before_its_move_stays() -> None:
    node = Node()
    node.open_tunnels(set(range(2 * SIZE)), steps=0)
    node.settle()
    node.close_unused_tunnels({0, SIZE, SIZE + 1, SIZE + 2}, steps=0)
    node.settle()
    [last] = [number for number in node.on_demand if node.shards._assigned[service(number).name] == 2]
    node.check_the_tunnels(rounds=3, steps=0)
    assert node.shards._assigned[service(last).name] == 1
    node.connect({last})
    node.check_the_tunnels(rounds=1, steps=SETTLED)
    assert node.shards._assigned[service(last).name] == 2
    node.settle()
    node.disconnect({last})
    node.check_the_tunnels(rounds=3, steps=SETTLED)
    assert node.shards._assigned[service(last).name] == 1
    node.teardown()


def test_stall_is_about_the_stunnel_that_listens() -> None:
    """A tunnel of a shard that hangs was closed and opened again, and belongs to another shard now."""
    node = Node()
    node.open_tunnels(set(range(3 * SIZE)), steps=SETTLED)
    node.close_unused_tunnels(set(range(SIZE)), steps=SETTLED)
    [hanging] = [one for one in node.keepers() if "fs-11" in one.report.loaded]
    hanging.hangs = True
    node.close_unused_tunnels({11}, steps=SETTLED)
    node.open_tunnels({12}, steps=SETTLED)
    node.on_demand.add(11)
    node._want()
    node.shards._distribute(node.shards._wanted or {})
    node.shards.reload_or_replace({service(11).port})
    assert not hanging.hangs
    node.teardown()
