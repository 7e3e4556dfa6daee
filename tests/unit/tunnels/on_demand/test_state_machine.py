"""Invariants of the tunnels of a node, for any requests and kills of the agent.

Requests, documents, readings of the kernel's tables, full disks and kills come in any order and concurrently.
After each step, every tunnel with a holder or a connection is served at its port, no port is assigned twice,
and the disk contains what was answered.
"""

import shutil
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from structlog.testing import capture_logs
from tests.unit.tunnels.on_demand.failing_disk import Killed, full_disk, killed_at
from tests.unit.tunnels.on_demand.node import IDLE, PORTS, Answer, Connection, Node, Sight, leads_to, spec

from kube_efs.model.errors import ConfigurationRejected, NoTunnelPort, TunnelNotReady
from kube_efs.tunnels.config_map import Served, load_served
from kube_efs.tunnels.on_demand.store import load_reservations
from kube_efs.tunnels.reservations import Holder, Reservations

NUMBERS = range(8)
HOLDERS = "abcd"
FILE_SYSTEMS = ("fs-1", "fs-2", "fs-3")
NUMBER_OF = {spec(number).name: number for number in NUMBERS}
# An error that may be answered; every other one is a fault.
EXPECTED = (TunnelNotReady, NoTunnelPort, ConfigurationRejected)


@dataclass(frozen=True)
class Ensure:
    number: int
    holder: str


@dataclass(frozen=True)
class Release:
    holder: str


@dataclass(frozen=True)
class Reconcile:
    present: frozenset[str]


@dataclass(frozen=True)
class Document:
    ports: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Look:
    sight: Sight


Operation = Ensure | Release | Reconcile | Document | Look

_PORTS = st.integers(PORTS.first, PORTS.last)
DOCUMENTS = st.dictionaries(st.sampled_from(FILE_SYSTEMS), _PORTS, max_size=3).map(
    lambda ports: Document(tuple(ports.items()))
)
ENSURES = st.builds(Ensure, st.sampled_from(NUMBERS), st.sampled_from(HOLDERS))
RELEASES = st.builds(Release, st.sampled_from(HOLDERS))
REQUESTS = (
    ENSURES
    | RELEASES
    | st.builds(Reconcile, st.frozensets(st.sampled_from(HOLDERS)))
    | DOCUMENTS
    | st.just(Look(Sight.CLEAR))
)

# Most of them are unsure, to test incomplete readings.
LOOKS = st.lists(
    st.tuples(
        st.sampled_from([1, 20, 40]), st.sampled_from([Sight.BLIND, Sight.BLIND, Sight.FAILED, Sight.CLEAR])
    ),
    max_size=6,
)
DAMAGES = ("missing", "torn", "of a later version")
IDLE_LOOKS = st.sampled_from([0, IDLE.readings - 1, IDLE.readings - 1])


def kept(served: Served | None) -> object:
    """The expected tunnels of the ConfigMap on the disk."""
    return served and (served.document, sorted(served.lingering, key=lambda one: one.port))


def damage_targets(node: Node, damage: str) -> None:
    """Make the file of the ConfigMap's targets unusable for the next agent, in this way."""
    path = node.options.state_path
    match damage:
        case "missing":
            path.unlink(missing_ok=True)
        case "torn" if path.exists():
            path.write_text(path.read_text()[:30])
        case "of a later version":
            path.write_text('{"version": 2}')


class Tunnels(RuleBasedStateMachine):
    """A node, and the ports that its callers got."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.logs = capture_logs()
        self.logs.__enter__()
        self.node = Node(self.folder)
        self.blind_looks = 0
        # The certain and the possible holders of each tunnel, and the port that they got.
        self.held: set[tuple[int, str]] = set()
        self.perhaps: set[tuple[int, str]] = set()
        self.ports: dict[int, int] = {}

    def teardown(self) -> None:
        self.node.close()
        self.logs.__exit__(None, None, None)
        shutil.rmtree(self.folder)

    # --- what happens

    @rule(one=ENSURES)
    def ensure(self, one: Ensure) -> None:
        self.do([one])

    @rule(one=RELEASES)
    def release(self, one: Release) -> None:
        self.do([one])

    @rule(one=DOCUMENTS)
    def document(self, one: Document) -> None:
        self.do([one])
        assert kept(load_served(self.node.options.state_path)) == kept(self.node.agent._plan.served)

    @rule(requests=st.lists(REQUESTS, min_size=2, max_size=5))
    def many_at_once(self, requests: list[Operation]) -> None:
        self.do(requests)

    @rule(requests=st.lists(REQUESTS, min_size=1, max_size=3), after=st.integers(0, 8))
    def full_disk(self, requests: list[Operation], after: int) -> None:
        self.do(requests, disk=full_disk(self.folder, after=after))

    @rule(requests=st.lists(REQUESTS, min_size=1, max_size=3), steps=st.integers(1, 30))
    def kill_in_the_middle(self, requests: list[Operation], steps: int) -> None:
        self.do(requests, steps=steps)
        self.follow()

    @rule(requests=st.lists(REQUESTS, min_size=1, max_size=3), after=st.integers(0, 12))
    def kill_while_it_writes(self, requests: list[Operation], after: int) -> None:
        self.do(requests, disk=killed_at(self.folder, after=after))
        self.follow()

    @rule()
    def kill(self) -> None:
        self.follow()

    @rule(damage=st.sampled_from(DAMAGES))
    def kill_and_lose_the_targets(self, damage: str) -> None:
        before = self.node.stunnel.ports
        damage_targets(self.node, damage)
        self.node.follow()
        assert before.keys() <= self.node.stunnel.ports.keys()

    @rule()
    def restart(self) -> None:
        """Restart the container as the kubelet does; stunnel and all connections end without a holder."""
        self.node.run(self.node.end())
        self.follow()

    @rule()
    def stunnel_dies(self) -> None:
        self.node.stunnel.connections = []

    @rule(number=st.sampled_from(NUMBERS), holder=st.sampled_from(HOLDERS))
    def stunnel_refuses(self, number: int, holder: str) -> None:
        self.node.stunnel.refusal = ConfigurationRejected("is not accepted")
        self.do([Ensure(number, holder)])
        self.node.stunnel.refusal = None

    @precondition(lambda self: self.node.known_ports)
    @rule(data=st.data())
    def connect(self, data: st.DataObject) -> None:
        self.connect_to(data.draw(st.sampled_from(sorted(self.node.known_ports))))
        self.look([(1, Sight.CLEAR)])  # an unexpected tunnel must have been seen once

    @rule(number=st.sampled_from(NUMBERS), idle_looks=IDLE_LOOKS, looks=LOOKS)
    def release_while_connected(self, number: int, idle_looks: int, looks: list[tuple[float, Sight]]) -> None:
        """Release a tunnel that was idle for some readings, but not for long enough."""
        self.hold_and_release(number)
        self.look([(IDLE.seconds, Sight.CLEAR)] * idle_looks)
        self.hold_and_release(number, connected=True)
        self.look(looks)

    def hold_and_release(self, number: int, *, connected: bool = False) -> None:
        self.do([Ensure(number, "a")])
        tunnel = self.node.tunnels.reservations.tunnels.get(spec(number).name)
        if tunnel and connected:
            self.connect_to(tunnel.port)
        for one in HOLDERS:
            self.do([Release(one)])

    @rule(before=DOCUMENTS, after=DOCUMENTS, idle_looks=IDLE_LOOKS, looks=LOOKS)
    def remove_while_connected(
        self, before: Document, after: Document, idle_looks: int, looks: list[tuple[float, Sight]]
    ) -> None:
        """The same for a tunnel of the ConfigMap."""
        self.do([before])
        self.do([after])
        self.look([(IDLE.seconds, Sight.CLEAR)] * idle_looks)
        self.do([before])
        for name in self.node.stunnel.services.keys() & set(FILE_SYSTEMS):
            self.connect_to(self.node.stunnel.services[name].port)
        self.do([after])
        self.look(looks)

    def connect_to(self, port: int) -> None:
        service = self.node.stunnel.ports[port]
        self.node.stunnel.connections.append(Connection(port, leads_to(service)))

    @precondition(lambda self: self.node.stunnel.connections)
    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        connections = self.node.stunnel.connections
        connections.pop(data.draw(st.integers(0, len(connections) - 1)))

    @rule(port=_PORTS)
    def foreign_listener_changes(self, port: int) -> None:
        if port in self.node.strangers:
            self.node.strangers.remove(port)
        elif port not in self.node.stunnel.ports:
            self.node.strangers.add(port)

    @rule(looks=LOOKS)
    def look(self, looks: list[tuple[float, Sight]]) -> None:
        for seconds, asked in looks:
            # So many in a row would be no accident any more.
            is_too_blind = asked is Sight.BLIND and self.blind_looks >= IDLE.readings - 1
            sight = Sight.CLEAR if is_too_blind else asked
            self.blind_looks = self.blind_looks + 1 if sight is Sight.BLIND else 0
            self.node.now += seconds
            self.do([Look(sight)])
            self.open_connections_stay_open()

    @rule(times=st.integers(1, 4))
    def rounds_over_mount_targets(self, times: int) -> None:
        for _ in range(times):
            self.node.run(self.node.look_at_mount_targets())

    @rule()
    def quiet_minutes(self) -> None:
        """Tunnels without holders and connections are closed eventually."""
        self.look([(IDLE.seconds, Sight.CLEAR)] * IDLE.readings)
        used = {one.port for one in self.node.stunnel.connections}
        for tunnel in self.node.tunnels.all():
            assert tunnel.holders or tunnel.port in used
        served = self.node.agent._plan.served
        assert {one.port for one in served.lingering} <= used if served else True

    # --- how it is followed

    def do(
        self,
        operations: Sequence[Operation],
        *,
        steps: int | None = None,
        disk: AbstractContextManager[None] | None = None,
    ) -> None:
        before = set(self.node.tunnels.reservations.tunnels)
        with disk or nullcontext():
            answers = self.node.run(*map(self.coroutine, operations), steps=steps)
        for operation, answer in zip(operations, answers, strict=True):
            if isinstance(answer, BaseException) and not isinstance(answer, (*EXPECTED, Killed)):
                raise answer
            others = [one for one in operations if one is not operation]
            self.account(operation, answer, others, before)

    async def coroutine(self, operation: Operation) -> Answer:
        tunnels = self.node.tunnels
        match operation:
            case Ensure(number, holder):
                return await tunnels.ensure(spec(number), Holder(holder))
            case Release(holder):
                await tunnels.release(Holder(holder))
                return True
            case Reconcile(present):
                return await tunnels.reconcile([Holder(one) for one in present])
            case Document(ports):
                return await self.node.push(dict(ports))
            case Look(sight):
                self.node.sight = sight
                try:
                    return await self.node.look()
                finally:
                    self.node.sight = Sight.CLEAR

    def account(
        self, operation: Operation, answer: Answer, others: Iterable[Operation], before: set[str]
    ) -> None:
        """Record the answer; concurrent or failed calls may or may not have had an effect."""
        changed = self.changed_by(operation)
        told = answer is not None and not isinstance(answer, BaseException)
        in_doubt = not told or any(changed & self.changed_by(other) for other in others)
        match operation:
            case Ensure(number, holder):
                is_new = spec(number).name not in before
                if is_new and not self.is_held(number):
                    self.ports.pop(number, None)  # an earlier step of this rule closed the tunnel
                self.perhaps.add((number, holder))
                if told and not in_doubt:
                    self.held.add((number, holder))
                if isinstance(answer, int):
                    self.check_port(number, answer, is_new=is_new)
            case Release() | Reconcile():
                gone = {one for one in self.perhaps if one[1] in changed}
                if isinstance(answer, frozenset):
                    gone = {one for one in gone if one[1] in answer}
                self.held -= gone
                if not in_doubt:
                    self.perhaps -= gone

    @staticmethod
    def changed_by(operation: Operation) -> frozenset[str]:
        """The holders of a request."""
        match operation:
            case Ensure(_, holder) | Release(holder):
                return frozenset({holder})
            case Reconcile(present):
                return frozenset(HOLDERS) - present
        return frozenset()

    def check_port(self, number: int, port: int, *, is_new: bool) -> None:
        if self.is_held(number):
            assert self.ports.setdefault(number, port) == port
        self.ports[number] = port
        if is_new:
            assert port not in self.node.strangers

    def is_held(self, number: int) -> bool:
        return any(one == number for one, _ in self.held)

    def follow(self) -> None:
        told = kept(self.node.agent._plan.served)
        self.node.follow()
        if told != kept(self.node.agent._plan.served):
            self.forgive_what_was_never_written()
        names = {f"{name}.pem" for name in self.node.tunnels.reservations.tunnels}
        assert self.node.certificates == names
        assert not list(self.folder.glob(".*"))

    def forgive_what_was_never_written(self) -> None:
        """Tunnels of the ConfigMap are served even if they cannot be stored."""
        served = self.node.agent._plan.served
        targets = (*served.current, *served.lingering) if served else ()
        known = {Connection(one.port, one.file_system_id) for one in targets}
        stunnel = self.node.stunnel
        stunnel.connections = [
            one for one in stunnel.connections if one in known or one.leads_to in NUMBER_OF
        ]

    # --- what always holds

    @invariant()
    def what_was_answered_is_on_the_disk(self) -> None:
        found = load_reservations(self.node.options.reservations_path)
        assert found.problems == ()
        assert found.reservations == self.node.tunnels.reservations

    @invariant()
    def holders_keep_their_tunnel_and_its_port(self) -> None:
        reservations: Reservations = self.node.tunnels.reservations
        holding = {
            (NUMBER_OF[name], str(holder))
            for name, tunnel in reservations.tunnels.items()
            for holder in tunnel.holders
        }
        assert self.held <= holding <= self.held | self.perhaps
        for number in NUMBERS:
            if self.is_held(number) and number in self.ports:
                assert reservations.tunnels[spec(number).name].port == self.ports[number]
            elif spec(number).name not in reservations.tunnels:
                self.ports.pop(number, None)

    @invariant()
    def no_port_is_reserved_twice(self) -> None:
        reservations: Reservations = self.node.tunnels.reservations
        assert len(reservations.ports) == len(reservations.tunnels)

    @invariant()
    def stunnel_listens_for_each_reservation(self) -> None:
        services = self.node.stunnel.services
        for tunnel in self.node.tunnels.all():
            assert services[tunnel.name].port == tunnel.port

    @invariant()
    def open_connections_stay_open(self) -> None:
        ports = self.node.stunnel.ports
        for connection in self.node.stunnel.connections:
            assert connection.port in ports, f"the tunnel of {connection} was closed"
            assert leads_to(ports[connection.port]) == connection.leads_to


@pytest.mark.parametrize("has_on_demand", [False, True])
@pytest.mark.parametrize("has_previous", [False, True])
@pytest.mark.parametrize("damage", DAMAGES)
def test_unusable_file_of_targets_closes_no_port(
    tmp_path: Path, damage: str, has_previous: bool, has_on_demand: bool
) -> None:
    node = Node(tmp_path)
    try:
        node.run(node.agent._load_state())
        if has_previous:
            node.run(node.push({"fs-1": 20490}))
        node.run(node.push({"fs-1": 20490, "fs-2": 20491}))
        if has_on_demand:
            node.run(node.tunnels.ensure(spec(1), Holder("a")))
        services = node.stunnel.services
        damage_targets(node, damage)
        node.follow()  # the API server does not answer
        assert node.stunnel.services == services
        # Also when the first mount requests a tunnel before the ConfigMap is known.
        node.run(node.tunnels.ensure(spec(2), Holder("b")))
        assert services.items() <= node.stunnel.services.items()
        # From the next document on, a target that it does not have is closed when it is unused.
        node.stunnel.connections.append(Connection(20490, "fs-1"))
        node.run(node.push({"fs-2": 20491}))
        for _ in range(IDLE.readings + 1):
            node.now += IDLE.seconds
            node.run(node.look())
        assert {20490, 20491} <= node.stunnel.ports.keys()
        assert leads_to(node.stunnel.ports[20490]) == "fs-1"
        node.stunnel.connections.clear()
        for _ in range(IDLE.readings + 1):
            node.now += IDLE.seconds
            node.run(node.look())
        assert 20490 not in node.stunnel.ports
        assert 20491 in node.stunnel.ports
    finally:
        node.close()


Tunnels.TestCase.settings = settings(max_examples=settings().max_examples // 2, stateful_step_count=20)
TestTunnels = Tunnels.TestCase
