"""Reservations: written before the answer, kept despite crashes, incomplete readings and full disks."""

import asyncio
import errno
import os
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from prometheus_client import CollectorRegistry
from tests.serving import answering, serving
from tests.unit.tunnels.on_demand.failing_disk import full_disk

from kube_efs.aws.credential_sources import CredentialOptions, IamOptions, ProfileFiles, SourceKind
from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.model.efs.ids import FileSystemId, Region
from kube_efs.model.efs.targets import TunnelTarget, TunnelTargets
from kube_efs.model.errors import AwsIdentityLate, PortTaken, TunnelNotReady
from kube_efs.telemetry.duties import Duties
from kube_efs.telemetry.metrics import TunnelMetrics
from kube_efs.tunnels.config_map import Served
from kube_efs.tunnels.data_plane import TunnelService
from kube_efs.tunnels.data_planes import DataPlanes
from kube_efs.tunnels.on_demand import store
from kube_efs.tunnels.on_demand import tunnels as on_demand_tunnels
from kube_efs.tunnels.on_demand.certificate import ClientKey
from kube_efs.tunnels.on_demand.renewal import ClientCertificates
from kube_efs.tunnels.on_demand.store import load_reservations
from kube_efs.tunnels.on_demand.tunnels import OnDemandTunnels
from kube_efs.tunnels.options import ClientInfo, OnDemandOptions, TunnelOptions
from kube_efs.tunnels.plan import NodePlan
from kube_efs.tunnels.reservations import Holder, PortRange, Reservation, TunnelSpec
from kube_efs.tunnels.sockets.ports import PortReading

KEY = ClientKey(rsa.generate_private_key(65537, 1024))  # too short for anything but a quick test
PORTS = PortRange(first=22049, last=22056)
POD, OTHER = Holder("pod"), Holder("other")
CREDENTIALS = CredentialOptions(
    region=Region("us-east-1"), files=ProfileFiles(credentials=Path("/nowhere"), config=Path("/nowhere"))
)
QUIET = PortReading(connections={}, busy=frozenset(), listening=frozenset())


class Certificates(ClientCertificates):
    async def _get_client_key(self) -> ClientKey:
        return KEY


def spec(number: int = 1) -> TunnelSpec:
    return TunnelSpec(
        file_system_id=FileSystemId("fs-0123456789abcdef0"),
        access_point_id=AccessPointId(f"fsap-{number:017x}"),
        region=Region("us-east-1"),
        address="10.0.0.1",
    )


def first_port(number: int) -> int:
    """The port that this spec gets if it is free."""
    return next(PORTS.starting_at(replace(spec(number), region=Region("us-east-1")).name))


@dataclass
class Agent:
    """Tunnels on demand with fake shards; a new one in the same directory is the next agent."""

    folder: Path
    ports_in_use: frozenset[int] | None = frozenset()
    mounted: frozenset[int] | None = None
    asked: list[int] = field(default_factory=list)
    refusal: Exception | None = None
    now: float = 0.0
    applied: int = 0
    stuck: bool = False
    credentials: CredentialOptions = CREDENTIALS
    plan: NodePlan = field(init=False)
    certificates: Certificates = field(init=False)
    tunnels: OnDemandTunnels = field(init=False)

    def __post_init__(self) -> None:
        options = TunnelOptions(region=Region("us-east-1"), conf_path=self.folder / "stunnel.conf")
        on_demand = OnDemandOptions(
            socket_path=self.folder / "tunnel.sock",
            node="node-1",
            credentials=self.credentials,
            client_info=ClientInfo.of("k8s", "1.0"),
            ports=PORTS,
            ensure_timeout_seconds=0.3 if self.stuck else 60,
        )
        self.path = options.reservations_path
        registry = CollectorRegistry()
        metrics = TunnelMetrics(registry)
        self.plan = NodePlan(options, metrics, cast("DataPlanes", self))
        self.certificates = Certificates(
            options,
            on_demand,
            metrics,
            self.plan.apply,
            Duties(registry),
            lambda: datetime.now(UTC) + timedelta(seconds=self.now),
        )
        self.tunnels = OnDemandTunnels(
            options,
            on_demand,
            self.certificates,
            self.plan,
            lambda: self.now,
            self.is_in_use,
            lambda: self.mounted,
        )

    def is_in_use(self, port: int) -> bool | None:
        self.asked.append(port)
        return None if self.ports_in_use is None else port in self.ports_in_use

    def set_services(self, services: Iterable[TunnelService]) -> None:
        del services
        self.applied += 1

    async def wait_until_listening(self, name: str, port: int) -> None:
        assert self.tunnels.reservations.tunnels[name].port == port
        assert load_reservations(self.path).reservations.tunnels[name].port == port
        if self.stuck:
            await asyncio.Event().wait()
        if self.refusal:
            raise self.refusal

    async def look(self, *, seconds: float = 0, times: int = 1, reading: PortReading | None = QUIET) -> None:
        for _ in range(times):
            self.now += seconds / times
            await self.tunnels.close_unused(reading)

    @property
    def open(self) -> int:
        return len(self.tunnels.reservations.tunnels)


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path)


async def test_reservation_is_on_the_disk_before_the_answer(agent: Agent) -> None:
    port = await agent.tunnels.ensure(spec(), POD)
    [tunnel] = load_reservations(agent.path).reservations.tunnels.values()
    assert (tunnel.port, tunnel.holders) == (port, frozenset({POD}))
    assert agent.applied


async def test_next_agent_keeps_the_reservations(agent: Agent) -> None:
    ports = [await agent.tunnels.ensure(spec(number), POD) for number in range(5)]
    after = Agent(agent.folder)
    await after.tunnels.load()
    assert [await after.tunnels.ensure(spec(number), OTHER) for number in range(5)] == ports
    assert after.tunnels.reservations.holders == {POD, OTHER}


async def test_ports_in_use_are_not_reserved(agent: Agent) -> None:
    agent.ports_in_use = frozenset(range(22049, 22053))
    ports = {FileSystemId(f"fs-{port}"): port for port in (22053, 22054)}
    targets = {name: TunnelTarget(file_system_id=name, port=port) for name, port in ports.items()}
    agent.plan.served = Served(document=TunnelTargets(targets=targets))
    numbers = [number for number in range(50) if first_port(number) < 22053][:2]
    assert {await agent.tunnels.ensure(spec(number), POD) for number in numbers} == {22055, 22056}


async def test_new_tunnel_reads_the_sockets_of_one_port(agent: Agent) -> None:
    ports = {await agent.tunnels.ensure(spec(number), POD) for number in range(6)}
    assert (len(agent.asked), set(agent.asked)) == (6, ports)
    await agent.tunnels.ensure(spec(3), OTHER)
    assert len(agent.asked) == 6


async def test_port_that_is_taken_during_its_check_is_not_reserved_twice(agent: Agent) -> None:
    """Both calls check the same port at the same time."""
    both = threading.Barrier(2)

    def check(port: int) -> bool:
        if port == 22049:
            both.wait(10)
        return False

    agent.tunnels._is_in_use = check
    numbers = [number for number in range(50) if first_port(number) == 22049][:2]
    found = await asyncio.gather(*(agent.tunnels.ensure(spec(number), POD) for number in numbers))
    assert set(found) == {22049, 22050}


async def test_new_tunnel_encodes_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = Counter[str]()
    encode = store._encode

    def counted(one: Reservation) -> bytes:
        encoded[one.name] += 1
        return encode(one)

    monkeypatch.setattr(store, "_encode", counted)
    agent = Agent(tmp_path)
    for number in range(5):
        await agent.tunnels.ensure(spec(number), POD)
    assert encoded.total() == 5
    await agent.tunnels.ensure(spec(3), OTHER)
    assert encoded == {**dict.fromkeys(encoded, 1), replace(spec(3), region=Region("us-east-1")).name: 2}


async def test_failed_reading_allows_only_existing_tunnels(agent: Agent) -> None:
    port = await agent.tunnels.ensure(spec(), POD)
    agent.ports_in_use = None
    assert await agent.tunnels.ensure(spec(), OTHER) == port
    with pytest.raises(TunnelNotReady, match="connections of the node"):
        await agent.tunnels.ensure(spec(2), POD)
    assert agent.open == 1


async def test_next_check_removes_the_certificate_of_a_refused_tunnel(agent: Agent) -> None:
    await agent.tunnels.ensure(spec(), POD)
    kept = {one.path for one in agent.certificates.files.values()}
    agent.ports_in_use = None
    with pytest.raises(TunnelNotReady):
        await agent.tunnels.ensure(spec(2), POD)
    [folder] = {path.parent for path in kept}
    assert len(list(folder.iterdir())) == 2
    await agent.look()
    agent.certificates.remove_unused_files([])
    assert set(folder.iterdir()) == kept


async def test_caller_gets_the_reason_and_can_retry_if_stunnel_does_not_listen(agent: Agent) -> None:
    agent.refusal = PortTaken("is taken by another program")
    with pytest.raises(PortTaken):
        await agent.tunnels.ensure(spec(), POD)
    agent.refusal = None
    await agent.tunnels.ensure(spec(), POD)
    assert agent.open == 1


async def test_next_call_gets_another_port_if_a_program_has_taken_it_before_a_mount(agent: Agent) -> None:
    """The kubelet repeats the call before the tunnel was without a holder for long enough to close."""
    port = await agent.tunnels.ensure(spec(), POD)
    agent.refusal = PortTaken("is taken by another program")
    with pytest.raises(PortTaken):
        await agent.tunnels.ensure(spec(), POD)
    agent.ports_in_use = frozenset({port})
    agent.refusal = None
    assert await agent.tunnels.ensure(spec(), POD) != port
    [tunnel] = load_reservations(agent.path).reservations.tunnels.values()
    assert tunnel.holders == {POD}


@pytest.mark.parametrize("used_by", ["another holder", "a mount"])
async def test_port_that_a_program_has_taken_stays_while_it_is_used(used_by: str, agent: Agent) -> None:
    port = await agent.tunnels.ensure(spec(), POD)
    if used_by == "a mount":
        agent.mounted = frozenset({port})
    else:
        await agent.tunnels.ensure(spec(), OTHER)
    agent.refusal = PortTaken("is taken by another program")
    with pytest.raises(PortTaken):
        await agent.tunnels.ensure(spec(), POD)
    agent.ports_in_use = frozenset({port})
    agent.refusal = None
    assert await agent.tunnels.ensure(spec(), POD) == port


@pytest.mark.parametrize("is_answered", [False, True])
async def test_port_that_a_program_has_taken_during_a_reboot_is_given_up_by_all_holders(
    agent: Agent, *, is_answered: bool
) -> None:
    for holder in (POD, OTHER):
        port = await agent.tunnels.ensure(spec(), holder)
    after = Agent(agent.folder)
    await after.tunnels.load()
    for holder in (POD, OTHER):
        after.refusal = PortTaken("is taken by another program")
        with pytest.raises(PortTaken):
            await after.tunnels.ensure(spec(), holder)
        after.refusal = None
        if is_answered and holder == POD:  # and mounts, from now on
            await after.tunnels.ensure(spec(), POD)
    after.ports_in_use = frozenset({port})
    found = [await after.tunnels.ensure(spec(), holder) for holder in (POD, OTHER)]
    assert [one == port for one in found] == [is_answered, is_answered]
    assert len(set(found)) == 1


async def test_port_is_not_given_up_while_another_call_may_get_it(agent: Agent) -> None:
    port = await agent.tunnels.ensure(spec(), POD)
    agent.refusal = PortTaken("is taken by another program")
    is_reading, may_end = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def read_slowly() -> None:
        loop.call_soon_threadsafe(is_reading.set)
        may_end.wait(10)

    agent.tunnels._mounted = read_slowly
    earlier = asyncio.create_task(agent.tunnels.ensure(spec(), POD))
    await is_reading.wait()
    agent.tunnels._mounted = frozenset
    with pytest.raises(PortTaken):
        await agent.tunnels.ensure(spec(), POD)
    agent.ports_in_use, agent.refusal = frozenset({port}), None
    assert await agent.tunnels.ensure(spec(), POD) == port
    may_end.set()
    with pytest.raises(PortTaken):
        await earlier
    assert await agent.tunnels.ensure(spec(), POD) == port


# The source of an identity

SIGNED = replace(spec(), iam=IamOptions())


@dataclass
class Sources:
    """The EKS Pod Identity Agent, which answers with ``status``, and instance metadata with a role."""

    status: int = 200
    gate: asyncio.Event | None = None
    is_asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, request: web.Request) -> web.Response:
        if request.method == "PUT":
            return web.Response(text="metadata-token")
        if request.path.endswith("/security-credentials/"):
            return web.Response(text="node-role")
        if request.path.endswith("/node-role") and self.gate:
            self.is_asked.set()
            await self.gate.wait()
        keys = {"AccessKeyId": "ASIA1", "SecretAccessKey": "hidden", "Token": "session"}
        is_agent = request.path == "/v1/credentials"
        return web.json_response(keys, status=self.status if is_agent else 200)


@pytest.fixture
def sources() -> Sources:
    return Sources()


@pytest.fixture
async def signing(tmp_path: Path, sources: Sources) -> AsyncIterator[Agent]:
    """An agent with Pod Identity, on an instance with a role."""
    token = tmp_path / "token"
    token.write_text("of-the-agent")
    async with serving(answering(sources.handle)) as url:
        environment = {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{url}/v1/credentials",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token),
        }
        yield Agent(
            tmp_path,
            credentials=replace(CREDENTIALS, environment=environment, metadata_endpoint=url, attempts=1),
        )


def signing_source(agent: Agent) -> SourceKind:
    """The source of the only tunnel, which is also the one on the disk."""
    [tunnel] = agent.tunnels.all()
    [stored] = load_reservations(agent.path).reservations.tunnels.values()
    assert stored.source == tunnel.source
    assert tunnel.source
    return tunnel.source.kind


async def test_late_source_does_not_lead_to_the_identity_of_the_instance(
    signing: Agent, sources: Sources
) -> None:
    """The Pod Identity Agent of a new node starts some seconds after this agent."""
    sources.status = 503
    with pytest.raises(AwsIdentityLate, match="pod identity"):
        await signing.tunnels.ensure(SIGNED, POD)
    assert signing.open == 0
    sources.status = 200
    await signing.tunnels.ensure(SIGNED, POD)
    assert signing_source(signing) is SourceKind.POD_IDENTITY


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_tunnel_that_nothing_uses_gets_the_identity_of_a_source_with_higher_priority(
    signing: Agent, sources: Sources, *, is_restarted: bool
) -> None:
    """The role was associated after a mount that EFS denied, which the kubelet repeats every two minutes."""
    sources.status = 403
    port = await signing.tunnels.ensure(SIGNED, POD)
    assert signing_source(signing) is SourceKind.INSTANCE_ROLE
    await signing.tunnels.release(POD)
    sources.status = 200
    agent = signing
    if is_restarted:
        agent = Agent(signing.folder, credentials=signing.credentials)
        await agent.tunnels.load()
    await agent.look(seconds=122, times=12)
    assert await agent.tunnels.ensure(SIGNED, POD) == port
    assert signing_source(agent) is SourceKind.POD_IDENTITY
    # From now on it is the source of all renewals, and no other is asked.
    agent.now += 3600
    sources.status = 503
    await agent.certificates.renew_due(agent.tunnels.all())
    assert "pod identity" in agent.certificates.problems[SIGNED.name]
    await agent.tunnels.ensure(SIGNED, OTHER)
    assert signing_source(agent) is SourceKind.POD_IDENTITY


@pytest.mark.parametrize("used_by", ["a holder", "a connection", "an unknown reading"])
async def test_tunnel_in_use_keeps_its_identity(signing: Agent, sources: Sources, used_by: str) -> None:
    sources.status = 403
    port = await signing.tunnels.ensure(SIGNED, POD)
    if used_by != "a holder":
        await signing.tunnels.release(POD)
    sources.status = 200
    reading = {
        "a holder": QUIET,
        "a connection": replace(QUIET, busy=frozenset({port})),
        "an unknown reading": None,
    }[used_by]
    await signing.look(seconds=122, times=12, reading=reading)
    await signing.tunnels.ensure(SIGNED, OTHER)
    signing.now += 3600
    await signing.certificates.renew_due(signing.tunnels.all())
    assert signing.certificates.problems == {}
    assert signing_source(signing) is SourceKind.INSTANCE_ROLE


async def test_running_renewal_does_not_bring_back_the_identity_before(
    signing: Agent, sources: Sources
) -> None:
    sources.status = 403
    await signing.tunnels.ensure(SIGNED, POD)
    await signing.tunnels.release(POD)
    await signing.look(seconds=3600)
    sources.status, sources.gate = 200, asyncio.Event()
    renewing = asyncio.create_task(signing.certificates.renew_due(signing.tunnels.all()))
    await sources.is_asked.wait()
    ensuring = asyncio.create_task(signing.tunnels.ensure(SIGNED, POD))
    await asyncio.sleep(0.1)
    renewed = signing.certificates.files[SIGNED.name]
    sources.gate.set()
    await renewing
    before = signing.certificates.files[SIGNED.name]
    await ensuring
    assert len({renewed.serial, before.serial, signing.certificates.files[SIGNED.name].serial}) == 3
    assert signing_source(signing) is SourceKind.POD_IDENTITY


async def test_call_ends_after_the_timeout(tmp_path: Path) -> None:
    agent = Agent(tmp_path, stuck=True)
    with pytest.raises(TunnelNotReady) as late:
        await agent.tunnels.ensure(spec(), POD)
    assert late.value.value == spec().name
    assert late.value.problem == "was not ready within 0.3 s"


async def test_reservation_that_cannot_be_written_is_refused(agent: Agent) -> None:
    await agent.tunnels.ensure(spec(), POD)
    hidden = agent.path.with_name("elsewhere")
    agent.path.rename(hidden)
    agent.path.mkdir()
    with pytest.raises(TunnelNotReady, match="state of the tunnels"):
        await agent.tunnels.ensure(spec(2), POD)
    with pytest.raises(TunnelNotReady):
        await agent.tunnels.release(POD)
    assert agent.tunnels.reservations.tunnels[spec().name].holders == {POD}
    agent.path.rmdir()
    hidden.rename(agent.path)
    await agent.tunnels.release(POD)
    assert (
        agent.tunnels.reservations.holders
        == load_reservations(agent.path).reservations.holders
        == frozenset()
    )


async def test_next_check_writes_a_change_that_failed(agent: Agent) -> None:
    await agent.tunnels.ensure(spec(), POD)
    hidden = agent.path.with_name("elsewhere")
    agent.path.rename(hidden)
    agent.path.mkdir()
    with pytest.raises(TunnelNotReady):
        await agent.tunnels.release(POD)
    await agent.look(seconds=200, times=20)
    assert agent.open == 1
    agent.path.rmdir()
    hidden.rename(agent.path)
    # Nobody asks for anything any more.
    await agent.look()
    assert load_reservations(agent.path).reservations.holders == frozenset()
    await agent.look(seconds=200, times=20)
    assert load_reservations(agent.path).reservations.tunnels == {}
    assert agent.open == 0


@dataclass
class SlowDisk:
    """Its next write takes until ``may_end`` is set; then the disk is full, for that write only."""

    patch: pytest.MonkeyPatch
    is_full: bool = True
    began: asyncio.Event = field(default_factory=asyncio.Event)
    may_end: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()

        def save_slowly(*given: Any, **named: Any) -> None:
            self.patch.undo()
            loop.call_soon_threadsafe(self.began.set)
            assert self.may_end.wait(10)
            if self.is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            store.save_reservations(*given, **named)

        self.patch.setattr(on_demand_tunnels, "save_reservations", save_slowly)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - of the object under test, which has no event for it
            await asyncio.sleep(0)


@pytest.mark.parametrize("is_during", [False, True], ids=["after it", "during it"])
async def test_tunnel_whose_close_cannot_be_written_keeps_its_port(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, *, is_during: bool
) -> None:
    """stunnel still listens there, and a connection of a mount may have come meanwhile."""
    port = await agent.tunnels.ensure(spec(), POD)
    await agent.tunnels.release(POD)
    await agent.look(seconds=170, times=20)
    agent.ports_in_use, disk = frozenset({port}), SlowDisk(monkeypatch)
    closing = asyncio.create_task(agent.look(seconds=20))
    await disk.began.wait()
    if is_during:
        asked = asyncio.create_task(agent.tunnels.ensure(spec(), OTHER))
        await until(lambda: agent.tunnels._pending_calls[spec().name].count == 2)
    disk.may_end.set()
    await closing
    assert agent.plan.wanted.ports == agent.tunnels.reservations.ports == {port}
    assert await (asked if is_during else agent.tunnels.ensure(spec(), OTHER)) == port
    assert load_reservations(agent.path).reservations.holders == {OTHER}


async def port_given_during_a_close(agent: Agent, monkeypatch: pytest.MonkeyPatch, port: int) -> int:
    """What another tunnel that prefers the port gets while the close of the tunnel there is written."""
    other = next(number for number in range(2, 100) if first_port(number) == port)
    disk = SlowDisk(monkeypatch)
    closing = asyncio.create_task(agent.look(seconds=20))
    await disk.began.wait()
    asked = asyncio.create_task(agent.tunnels.ensure(spec(other), OTHER))
    await until(lambda: agent.plan.wanted.holders)
    disk.may_end.set()
    await closing
    return await asked


async def test_port_of_a_tunnel_that_may_not_close_is_given_to_no_other(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = await agent.tunnels.ensure(spec(), POD)
    await agent.tunnels.release(POD)
    await agent.look(seconds=170, times=20)
    assert await port_given_during_a_close(agent, monkeypatch, port) != port
    assert await agent.tunnels.ensure(spec(), POD) == port


async def test_port_of_a_closed_tunnel_that_was_never_written_is_free(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full all the time, and another tunnel gets the port while the close is written."""
    agent.path.mkdir()
    for change in (agent.tunnels.ensure(spec(), POD), agent.tunnels.release(POD)):
        with pytest.raises(TunnelNotReady):
            await change
    agent.path.rmdir()
    [port] = agent.plan.wanted.ports
    with full_disk(agent.folder, after=0):
        await agent.look(seconds=170, times=20)
    assert await port_given_during_a_close(agent, monkeypatch, port) == port
    assert await agent.tunnels.ensure(spec(), POD) != port


async def test_repeated_call_gets_the_same_port(agent: Agent) -> None:
    agent.path.mkdir()
    with pytest.raises(TunnelNotReady):
        await agent.tunnels.ensure(spec(), POD)
    kept = agent.plan.on_demand_ports
    assert not agent.tunnels.reservations.ports
    agent.path.rmdir()
    assert kept == {await agent.tunnels.ensure(spec(), POD)}


async def test_write_of_a_cancelled_call_counts(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(monkeypatch, is_full=False)
    asked = asyncio.create_task(agent.tunnels.ensure(spec(), POD))
    await disk.began.wait()
    asked.cancel()
    disk.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert agent.tunnels.reservations == load_reservations(agent.path).reservations
    with full_disk(agent.folder, after=0):  # the repeated call needs no other write
        assert {await agent.tunnels.ensure(spec(), POD)} == agent.tunnels.reservations.ports


async def test_concurrent_reservations_are_written_together(agent: Agent) -> None:
    asked = [agent.tunnels.ensure(spec(number % 4), Holder(f"pod {number}")) for number in range(100)]
    assert len(set(await asyncio.gather(*asked))) == 4
    assert len(load_reservations(agent.path).reservations.holders) == 100
    assert agent.applied < 20


async def test_tunnel_without_holders_is_closed_after_the_idle_time(agent: Agent) -> None:
    await agent.tunnels.ensure(spec(), POD)
    await agent.look(seconds=600, times=60)
    assert agent.open == 1
    await agent.tunnels.release(POD)
    await agent.look(seconds=170, times=17)
    assert agent.open == 1
    await agent.look(seconds=20, times=2)
    assert agent.open == 0
    assert load_reservations(agent.path).reservations.tunnels == {}


@pytest.mark.parametrize("between", ["busy", "torn", "held"])
async def test_connection_holder_or_failed_reading_restarts_the_idle_time(between: str, agent: Agent) -> None:
    port = await agent.tunnels.ensure(spec(), POD)
    await agent.tunnels.release(POD)
    for _ in range(5):
        await agent.look(seconds=170, times=17)
        if between == "held":
            await agent.tunnels.ensure(spec(), OTHER)
            await agent.look(seconds=10)
            await agent.tunnels.release(OTHER)
        else:
            busy = PortReading(connections={port: 1}, busy=frozenset({port}), listening=frozenset())
            await agent.look(seconds=10, reading=busy if between == "busy" else None)
    assert agent.open == 1


async def test_tunnel_is_not_closed_while_a_call_requests_it(agent: Agent) -> None:
    await agent.tunnels.ensure(spec(), POD)
    await agent.tunnels.release(POD)
    await agent.look(seconds=200, times=6)
    asked = asyncio.create_task(agent.tunnels.ensure(spec(), OTHER))
    await asyncio.sleep(0)
    await agent.look(seconds=100)
    await asked
    assert agent.tunnels.reservations.tunnels[spec().name].holders == {OTHER}


@pytest.mark.parametrize(
    ("calls", "left"),
    [
        pytest.param([(0, []), (60, [])], set(), id="twice missing, a minute apart"),
        pytest.param([(0, []), (59, [])], {POD}, id="twice missing, too soon"),
        pytest.param([(100, [])], {POD}, id="once missing"),
        pytest.param([(0, []), (30, [POD]), (60, []), (90, [])], {POD}, id="present in between"),
    ],
)
async def test_holder_is_removed_after_two_reconciliations(
    calls: list[tuple[float, list[Holder]]], left: set[Holder], agent: Agent
) -> None:
    await agent.tunnels.ensure(spec(), POD)
    for agent.now, holders in calls:
        await agent.tunnels.reconcile(holders)
    assert agent.tunnels.reservations.holders == left


async def test_call_between_two_reconciliations_keeps_the_holder(agent: Agent) -> None:
    await agent.tunnels.ensure(spec(), POD)
    await agent.tunnels.reconcile([])
    agent.now = 59
    await agent.tunnels.ensure(spec(), POD)
    agent.now = 61
    assert await agent.tunnels.reconcile([]) == frozenset()


class Lives(RuleBasedStateMachine):
    """Agents that are killed and replaced, between and during requests."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp())
        self.agent = Agent(self.folder)
        self.ports: dict[int, int] = {}
        self.holding: dict[int, set[str]] = {}

    def teardown(self) -> None:
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        shutil.rmtree(self.folder)

    @rule(number=st.integers(0, 7), holder=st.sampled_from("abc"))
    def ensure(self, number: int, holder: str) -> None:
        port = self.loop.run_until_complete(self.agent.tunnels.ensure(spec(number), Holder(holder)))
        if self.holding.get(number):
            assert port == self.ports[number]
        self.ports[number] = port
        self.holding.setdefault(number, set()).add(holder)

    @rule(holder=st.sampled_from("abc"))
    def release(self, holder: str) -> None:
        self.loop.run_until_complete(self.agent.tunnels.release(Holder(holder)))
        for holders in self.holding.values():
            holders.discard(holder)

    @rule()
    def time_passes_without_a_connection(self) -> None:
        self.loop.run_until_complete(self.agent.look(seconds=200, times=7))
        self.ports = {number: port for number, port in self.ports.items() if self.holding[number]}

    @rule()
    def crash(self) -> None:
        self.follow()

    async def _give_up(self, number: int, holder: str, steps: int) -> None:
        asked = asyncio.create_task(self.agent.tunnels.ensure(spec(number), Holder(holder)))
        for _ in range(steps):
            await asyncio.sleep(0)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)

    @rule(number=st.integers(0, 7), steps=st.integers(0, 12))
    def caller_gives_up_for_ever(self, number: int, steps: int) -> None:
        async def reconcile() -> None:
            known = {Holder(one) for holders in self.holding.values() for one in holders}
            for _ in range(2):
                await self.agent.tunnels.reconcile(known)
                self.agent.now += 61

        self.loop.run_until_complete(self._give_up(number, "gone", steps))
        self.loop.run_until_complete(reconcile())
        assert Holder("gone") not in load_reservations(self.agent.path).reservations.holders
        self.time_passes_without_a_connection()

    @rule(number=st.integers(0, 7), holder=st.sampled_from("abc"), steps=st.integers(0, 12))
    def crash_in_the_middle(self, number: int, holder: str, steps: int) -> None:
        self.loop.run_until_complete(self._give_up(number, holder, steps))
        self.follow()
        # Nobody was answered, so the holder may be there or not; but what was held is.
        found = self.agent.tunnels.reservations.tunnels.get(spec(number).name)
        if found and Holder(holder) in found.holders:
            assert found.port == self.ports.get(number, found.port)
            self.ports[number] = found.port
            self.holding.setdefault(number, set()).add(holder)

    def follow(self) -> None:
        self.agent = Agent(self.folder)
        self.loop.run_until_complete(self.agent.tunnels.load())

    @invariant()
    def nothing_held_is_lost_moved_or_shared(self) -> None:
        tunnels = self.agent.tunnels.reservations.tunnels
        assert len({tunnel.port for tunnel in tunnels.values()}) == len(tunnels)
        for number, holders in self.holding.items():
            if holders:
                assert tunnels[spec(number).name].port == self.ports[number]
                assert tunnels[spec(number).name].holders == holders


Lives.TestCase.settings = settings(max_examples=20, stateful_step_count=15, deadline=None)
TestLives = Lives.TestCase
