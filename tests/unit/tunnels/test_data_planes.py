"""Both data planes of a node whose kernel is simulated: agents with another preference take over at any step.

What must always hold: no two data planes listen on one port, and a port stays open whose connection the agent
could know. One that opens while the agent moves an unused port stays with its process; the port then opens
again. Once nothing changes any more, every wanted service listens. Once nothing is connected either, each is
served by the data plane that is preferred for it.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from prometheus_client import CollectorRegistry

from kube_efs.model.efs.ids import FileSystemId, Region
from kube_efs.model.errors import KubeEfsError, PortTaken
from kube_efs.telemetry.metrics import TunnelMetrics
from kube_efs.tunnels import data_planes
from kube_efs.tunnels.data_plane import (
    DataPlaneChoice,
    DataPlaneName,
    DataPlaneReport,
    ServiceFacts,
    TunnelService,
)
from kube_efs.tunnels.data_planes import DataPlanes
from kube_efs.tunnels.options import TunnelOptions
from kube_efs.tunnels.sockets.ports import PortReading

ROUND_SECONDS = 10.0
SETTLED = 100  # steps after which nothing changes any more
NUMBERS = st.sets(st.integers(0, 5), max_size=6)
STEPS = st.integers(0, 8)
PREFERRED = st.sampled_from(DataPlaneName)
FIRST_PORT = 22049
# That one must have the revocation of certificates checked, which only stunnel can.
REVOCATION = 5


def service(number: int) -> TunnelService:
    return TunnelService(
        name=f"fs-{number}",
        file_system_id=FileSystemId("fs-1"),
        port=FIRST_PORT + number,
        addresses=("10.0.1.1",),
        check_host="fs-1.efs.us-east-1.amazonaws.com",
        ca_file=Path("/ca.pem"),
        checks_revocation=number == REVOCATION,
    )


@dataclass
class Kernel:
    """The listening ports of the processes of each data plane, and the connections; they survive agents."""

    listening: dict[DataPlaneName, set[int]] = field(
        default_factory=lambda: {name: set() for name in DataPlaneName}
    )
    connected: set[int] = field(default_factory=set)
    # Those that an agent could see in its last reading, or that are older than the agent.
    known: set[int] = field(default_factory=set)

    @property
    def ports(self) -> set[int]:
        return set().union(*self.listening.values())

    def check(self) -> None:
        assert not set.intersection(*self.listening.values()), "both listen on one port"
        assert self.known & self.connected <= self.ports, "a port with a connection was closed"

    def reading(self) -> PortReading:
        self.known = set(self.connected)
        return PortReading(connections={}, busy=frozenset(self.connected), listening=frozenset(self.ports))


class Plane:
    """Behaves as a data plane at its seams; at each ``sleep``, the agent may be killed."""

    def __init__(self, kernel: Kernel, name: DataPlaneName, on_change: Callable[[], None]) -> None:
        self._kernel = kernel
        self._ports = kernel.listening[name]
        self._on_change = on_change
        self._wanted: Mapping[str, TunnelService] = {}
        self._wake = asyncio.Event()
        self.replaced: set[int] = set()
        self.distributed = 0
        self.report = DataPlaneReport()

    @property
    def is_running(self) -> bool:
        return all(name in self.report.loaded for name in self._wanted)

    def set_services(self, services: Iterable[TunnelService]) -> None:
        self._wanted = {one.name: one for one in services}
        self.distributed += 1
        self._wake.set()

    def reload_or_replace(self, ports: Collection[int]) -> None:
        self.replaced |= set(ports)

    def merge(self, reading: PortReading | None, *, now: float) -> None:
        pass

    async def find_ports(self) -> frozenset[int]:
        await asyncio.sleep(0)
        return frozenset(self._ports)

    async def find_services(self) -> tuple[()]:
        return ()

    async def read_facts(self, names: Collection[str]) -> Mapping[str, ServiceFacts]:
        return dict.fromkeys(names, ServiceFacts())

    async def stop(self) -> None:
        self._ports.clear()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            wanted = dict(self._wanted)
            ports = {one.port for one in wanted.values()}
            await asyncio.sleep(0)
            # As both: a port that is no longer wanted closes, also while connections are open.
            self._ports &= ports
            await asyncio.sleep(0)
            self._ports |= ports - self._kernel.ports
            left_out: dict[str, KubeEfsError] = {
                name: PortTaken("is taken", value=one.port)
                for name, one in wanted.items()
                if one.port not in self._ports
            }
            self.report = DataPlaneReport(
                loaded={name: one for name, one in wanted.items() if name not in left_out}, left_out=left_out
            )
            self._on_change()
            await asyncio.sleep(0)
            if not left_out:
                await self._wake.wait()


class Node(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.kernel = Kernel()
        self.wanted: set[int] = set()
        # Those that were closed since the last pause. If one is requested again, its port may close for a
        # moment, and then it opens again: the data plane has already begun to close it.
        self.closing: set[int] = set()
        self.now = 0.0
        self.patch = pytest.MonkeyPatch()
        for name, replaced in (("STUNNEL", "StunnelShards"), ("KERNEL", "RelayKeeper")):
            plane = DataPlaneName[name]
            self.patch.setattr(
                data_planes, replaced, lambda *given, plane=plane: Plane(self.kernel, plane, given[-1])
            )

    @initialize(preferred=PREFERRED)
    def start(self, preferred: DataPlaneName) -> None:
        self.preferred = preferred
        self.kernel.known = set(self.kernel.connected)
        self.loop = asyncio.new_event_loop()
        options = TunnelOptions(
            region=Region("us-east-1"),
            data_plane=DataPlaneChoice(name=preferred),
            retry_seconds=0,
            probe_interval_seconds=ROUND_SECONDS,
        )
        self.planes = DataPlanes(options, TunnelMetrics(CollectorRegistry()), lambda: None)
        self._want()
        self.running = self.loop.create_task(self.planes.run())

    def _want(self) -> None:
        self.planes.set_services(map(service, self.wanted))

    def _step(self, steps: int) -> None:
        for _ in range(steps):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
            self.kernel.check()
            assert not self.running.done(), self.running

    @rule(numbers=NUMBERS, steps=STEPS)
    def open_tunnels(self, numbers: set[int], steps: int) -> None:
        self.wanted |= numbers
        self._want()
        self._step(steps)

    @rule(numbers=NUMBERS, steps=STEPS)
    def close_unused_tunnels(self, numbers: set[int], steps: int) -> None:
        unused = {one for one in numbers if service(one).port not in self.kernel.connected}
        self.wanted -= unused
        self.closing |= unused
        self._want()
        self._step(steps)

    @rule(numbers=NUMBERS)
    def connect(self, numbers: set[int]) -> None:
        usable = (numbers & self.wanted) - self.closing
        self.kernel.connected |= {service(one).port for one in usable} & self.kernel.ports

    @rule(numbers=NUMBERS)
    def disconnect(self, numbers: set[int]) -> None:
        gone = {service(one).port for one in numbers}
        self.kernel.connected -= gone
        self.kernel.known -= gone

    @rule(rounds=st.integers(1, 4), steps=STEPS)
    def check_the_tunnels(self, rounds: int, steps: int) -> None:
        for _ in range(rounds):
            self.now += ROUND_SECONDS
            reading = self.kernel.reading()
            self.kernel.known -= self._moving()
            self.planes.merge(reading, now=self.now)
            self._step(steps)

    def _moving(self) -> set[int]:
        """The ports that a data plane must give up, and may already have begun to close."""
        listening = self.planes._listening().items()
        return {port for port, name in listening if self.planes._assigned.get(port, name) != name}

    @rule(preferred=PREFERRED, steps=STEPS)
    def kill_the_agent(self, preferred: DataPlaneName, steps: int) -> None:
        self._close()
        self.start(preferred)
        self._step(steps)

    @rule()
    def settle(self) -> None:
        self._step(SETTLED)
        assert self.planes.report.loaded.keys() == {service(one).name for one in self.wanted}
        assert not self.planes.report.left_out
        assert not self.planes.not_running
        assert self.kernel.ports == {service(one).port for one in self.wanted}
        self.closing.clear()

    def _close(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with suppress(RuntimeError, BaseExceptionGroup):
                cast("Any", task.get_coro()).close()
        self.loop.close()

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        try:
            self.settle()
            used = set(self.kernel.connected)
            before = {name: ports & used for name, ports in self.kernel.listening.items()}
            self.check_the_tunnels(rounds=5, steps=SETTLED)
            assert {name: ports & used for name, ports in self.kernel.listening.items()} == before
            self.kernel.connected.clear()
            self.check_the_tunnels(rounds=5, steps=SETTLED)
            self.settle()
            revocation = {service(one).port for one in self.wanted & {REVOCATION}}
            assert self.kernel.listening[self.preferred] >= self.kernel.ports - revocation
            assert self.kernel.listening[DataPlaneName.STUNNEL] >= revocation
        finally:
            self._close()
            self.patch.undo()


TestNode = Node.TestCase


def test_port_that_is_used_again_while_it_moves_stays_with_its_process() -> None:
    """Its data plane has to close it, and acts only after the reading that shows the connection."""
    node = Node()
    node.start(DataPlaneName.KERNEL)
    node.open_tunnels({0}, SETTLED)
    node.kill_the_agent(DataPlaneName.STUNNEL, SETTLED)
    node.check_the_tunnels(3, 1)
    node.connect({0})
    node.check_the_tunnels(1, SETTLED)
    assert node.kernel.listening == {DataPlaneName.KERNEL: {FIRST_PORT}, DataPlaneName.STUNNEL: set()}
    node.teardown()


def test_processes_that_hang_are_those_of_the_data_plane_of_the_port() -> None:
    node = Node()
    node.start(DataPlaneName.KERNEL)
    node.open_tunnels({0, REVOCATION}, SETTLED)
    node.planes.reload_or_replace([service(REVOCATION).port])
    planes = node.planes._planes
    assert cast("Plane", planes[DataPlaneName.STUNNEL]).replaced == {service(REVOCATION).port}
    assert cast("Plane", planes[DataPlaneName.KERNEL]).replaced == set()
    node.teardown()


@pytest.mark.parametrize("state", ["loaded", "left out"])
def test_port_that_a_tunnel_had_before_says_nothing_about_its_new_one(state: str) -> None:
    """A tunnel that was closed and is requested again can get another port before the old one is closed."""
    node = Node()
    node.start(DataPlaneName.STUNNEL)
    old, new = service(0), replace(service(0), port=FIRST_PORT + 9)
    if state == "loaded":
        node.planes.report = DataPlaneReport(loaded={old.name: old})
    else:
        node.planes.report = DataPlaneReport(left_out={old.name: PortTaken("is taken", value=old.port)})
    waiting = node.loop.create_task(node.planes.wait_until_listening(new.name, new.port))
    node._step(1)
    assert not waiting.done()
    node.planes.set_services([new])
    node._step(SETTLED)
    assert waiting.done()
    assert node.kernel.ports == {new.port}
    node.wanted = set()
    node._want()
    node.teardown()


def test_report_without_a_port_elsewhere_distributes_nothing() -> None:
    node = Node()
    node.start(DataPlaneName.STUNNEL)
    node.open_tunnels({0, 1, 2}, SETTLED)
    plane = cast("Plane", node.planes._planes[DataPlaneName.STUNNEL])
    before = plane.distributed
    node.planes._update_report()
    node._step(SETTLED)
    assert plane.distributed == before
    node.open_tunnels({3}, SETTLED)
    assert plane.distributed == before + 1
    node.teardown()
