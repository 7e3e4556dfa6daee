"""Tunnels on demand with a real stunnel, requested through the agent's socket."""

import asyncio
import json
import os
import re
import resource
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
import psutil
import pytest
from cryptography import x509
from prometheus_client import CollectorRegistry
from tests.integration.nfs_backend import Authority, Backend
from tests.integration.on_demand_options import FIRST_PORTS, on_demand_options
from tests.integration.tunnel_node import (
    NEAR,
    Node,
    agent_process,
    connected,
    document,
    end,
    eventually,
    host_of,
    running,
    shards_of,
    stunnels_of,
    target,
)

from kube_efs.aws.credential_sources import IamOptions, ProfileFiles
from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.model.efs.ids import FileSystemId, Region, SubnetId, ZoneName
from kube_efs.model.errors import (
    AwsUnavailable,
    InvalidSetting,
    InvalidValue,
    NoTunnelPort,
    TunnelAgentUnavailable,
    TunnelNotReady,
)
from kube_efs.telemetry.metrics import TunnelMetrics
from kube_efs.tunnels.agent import TargetDocuments, TunnelAgent
from kube_efs.tunnels.api.client import TunnelClient, connect_tunnels
from kube_efs.tunnels.mount_targets import NodeLocation
from kube_efs.tunnels.on_demand.certificate import ACCESS_POINT_OID, FILE_SYSTEM_OID, IAM_OID
from kube_efs.tunnels.options import TunnelOptions
from kube_efs.tunnels.protocol import tunnels_pb2 as pb
from kube_efs.tunnels.protocol.tunnels_pb2_grpc import TunnelsStub
from kube_efs.tunnels.reservations import Holder, PortRange, TunnelSpec
from kube_efs.tunnels.status import TunnelState
from kube_efs.tunnels.stunnel.assignment import SHARD_SIZE, shard_path
from kube_efs.tunnels.stunnel.fips import check_fips_mode
from kube_efs.tunnels.stunnel.process import find_stunnel
from kube_efs_lab.programs import BLOCKS, ON_DEMAND_BLOCKS
from tinykube.ports import free_port

pytestmark = pytest.mark.skipif(not Path("/usr/bin/stunnel").exists(), reason="stunnel is not installed")

FS = FileSystemId("fs-0123456789abcdef0")
HOST = host_of(FS)
POD, OTHER_POD = Holder("volume-1 /var/lib/kubelet/pods/1"), Holder("volume-1 /var/lib/kubelet/pods/2")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ca")


@pytest.fixture
def socket_path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "tunnel.sock"


@pytest.fixture
def options(tmp_path: Path, authority: Authority, socket_path: Path) -> Iterator[TunnelOptions]:
    options = TunnelOptions(
        region=Region("us-east-1"),
        location=NodeLocation(subnets=frozenset({SubnetId(NEAR)}), zone=ZoneName("us-east-1a")),
        conf_path=tmp_path / "stunnel.conf",
        ca_file=authority.file,
        probe_interval_seconds=0.1,
        retry_seconds=0.1,
        connect_timeout_seconds=1,
        on_demand=on_demand_options(socket_path),
    )
    yield options
    for pid in stunnels_of(options.conf_path):  # only a test that failed has any left
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
async def client(socket_path: Path) -> AsyncIterator[TunnelClient]:
    async with connect_tunnels(socket_path, timeout_seconds=30) as client:
        yield client


@pytest.fixture
async def backend(authority: Authority) -> AsyncIterator[Backend]:
    async with Backend(authority, HOST) as backend:
        yield backend


@asynccontextmanager
async def serving(options: TunnelOptions, *holders: Holder) -> AsyncIterator[Any]:
    """A running agent; at the end these holders release their tunnels, so that stunnel ends."""
    assert options.on_demand
    socket = options.on_demand.socket_path
    async with running(options) as node:
        await eventually(socket.exists, "the socket")
        try:
            yield node
        finally:
            async with connect_tunnels(socket) as client:
                for holder in {
                    *holders,
                    *(one for tunnel in await client.tunnels() for one in tunnel.holders),
                }:
                    await client.release(holder)


def access_point(number: int) -> AccessPointId:
    return AccessPointId(f"fsap-{number:017x}")


def spec_at(backend: Backend, **rest: Any) -> TunnelSpec:
    return TunnelSpec(file_system_id=FS, address=backend.address, **rest)


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def most_files(pid: int) -> int:
    [found] = re.findall(r"^Max open files +(\d+) ", Path(f"/proc/{pid}/limits").read_text(), re.MULTILINE)
    return int(found)


def has_loaded_grpc(pid: int) -> bool:
    return "grpc" in Path(f"/proc/{pid}/maps").read_text()


def certificate_in(options: TunnelOptions, name: str) -> x509.Certificate:
    path = options.certificates_path / f"{name}.pem"
    assert mode_of(path) == 0o600
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_ports_of_tests_are_not_those_of_embedded_clusters() -> None:
    ports = range(FIRST_PORTS.start, FIRST_PORTS.stop)
    for blocks in (BLOCKS, ON_DEMAND_BLOCKS):
        # The mark of a block is the port before it.
        assert blocks.stop <= ports.start or ports.stop < blocks.start


async def test_tunnel_is_ready_when_its_port_is_returned(
    options: TunnelOptions, client: TunnelClient, backend: Backend, socket_path: Path
) -> None:
    spec = spec_at(backend, access_point_id=access_point(1))
    async with serving(options):
        assert (mode_of(socket_path), mode_of(socket_path.parent)) == (0o600, 0o750)
        port = await client.ensure(spec, POD)
        async with connected(port) as connection:
            await connection.call()
        [tunnel] = await client.tunnels()
        full = replace(spec, region=Region("us-east-1"))
        assert (tunnel.spec, tunnel.port, tunnel.holders) == (full, port, frozenset({POD}))
        certificate = certificate_in(options, full.name)
        values = {one.oid: one.value.public_bytes() for one in certificate.extensions}
        assert values[FILE_SYSTEM_OID][2:].decode() == FS
        assert values[ACCESS_POINT_OID][2:].decode() == access_point(1)
        assert IAM_OID not in values
        assert tunnel.certificate_ends == f"{certificate.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}"
        assert mode_of(options.certificates_path) == 0o700


async def test_status_includes_tunnels_on_demand(
    options: TunnelOptions, client: TunnelClient, backend: Backend
) -> None:
    async with serving(options) as node:
        port = await client.ensure(spec_at(backend), POD)
        async with connected(port):
            await node.until(
                FS, TunnelState.UP, on_demand=True, holders=1, connections=1, address=backend.address
            )
        [tunnel] = await client.tunnels()
        assert tunnel.state is TunnelState.UP
        labels = {"tunnel": tunnel.name, "file_system": FS}
        await eventually(
            lambda: node.registry.get_sample_value("kube_efs_demanded_tunnel_up", labels) == 1, "the metric"
        )
        assert node.registry.get_sample_value("kube_efs_demanded_tunnel_holders", labels) == 1
        ends = node.registry.get_sample_value("kube_efs_certificate_expiry_seconds", labels)
        assert ends == pytest.approx(time.time() + 3 * 3600, abs=60)
        made = node.registry.get_sample_value("kube_efs_certificate_renewals_total", {"outcome": "succeeded"})
        assert made == 1
        assert node.agent.readiness().ok
        assert node.agent.liveness().ok


async def test_200_mounts_of_20_access_points_share_20_services_of_two_processes(
    options: TunnelOptions, client: TunnelClient, backend: Backend
) -> None:
    specs = [spec_at(backend, access_point_id=access_point(number)) for number in range(20)]
    async with serving(replace(options, probe_interval_seconds=5)) as node:
        asked = [(spec, Holder(f"pod {number}")) for number in range(10) for spec in specs]
        held = [(spec, Holder(f"{holder} {spec.access_point_id}")) for spec, holder in asked]
        ports = await asyncio.gather(*(client.ensure(spec, holder) for spec, holder in held))
        assert len(set(ports)) == 20
        assert ports == ports[:20] * 10
        shards = shards_of(options.conf_path)
        assert {number: len(names) for number, names in shards.items()} == {1: 16, 2: 4}
        assert len(stunnels_of(options.conf_path)) == 2
        assert sum(len(tunnel.holders) for tunnel in await client.tunnels()) == 200
        assert node.registry.get_sample_value("kube_efs_tunnels_configured") == 20
        assert node.registry.get_sample_value("kube_efs_stunnel_processes") == 2


async def test_another_tunnel_is_ready_quickly(
    options: TunnelOptions, client: TunnelClient, backend: Backend
) -> None:
    async with serving(replace(options, probe_interval_seconds=60)):
        await client.ensure(spec_at(backend), POD)
        times = []
        for number in range(15):
            start = time.perf_counter()
            await client.ensure(spec_at(backend, access_point_id=access_point(number)), POD)
            times.append(time.perf_counter() - start)
        print("ensure:", [round(one * 1000) for one in sorted(times)], "ms")  # noqa: T201 - a measurement
        # 30 ms on a quiet machine. None waits for a round of probes.
        assert max(times) < 30


async def test_tunnels_of_the_config_map_keep_their_own_stunnel_and_file(
    options: TunnelOptions, client: TunnelClient, authority: Authority, backend: Backend
) -> None:
    assert options.on_demand
    port = options.on_demand.ports.first
    async with Backend(authority, host_of("fs-1")) as other, serving(options) as node:
        node.push(target("fs-1", port, a=other.address), target(FS, free_port(), a=backend.address))
        await node.until("fs-1", TunnelState.UP)
        pid = node.pid
        # Without an address of its own it follows the ConfigMap's mount targets.
        spec = TunnelSpec(file_system_id=FS)
        demanded = await client.ensure(spec, POD)
        assert demanded != port
        async with connected(demanded) as connection, connected(port) as another:
            await connection.call()
            await another.call()
        name = replace(spec, region=Region("us-east-1")).name
        assert shards_of(options.conf_path) == {0: [FS, "fs-1"], 1: [name]}
        first, second = stunnels_of(options.conf_path)
        assert first == node.pid == pid
        await node.until(FS, TunnelState.UP, on_demand=True, stunnel_pid=second)
        await node.until(FS, TunnelState.UP, on_demand=False, stunnel_pid=first)


async def test_file_system_of_the_config_map_does_not_get_the_port_of_a_held_tunnel(
    options: TunnelOptions, client: TunnelClient, authority: Authority, backend: Backend
) -> None:
    async with Backend(authority, host_of("fs-1")) as other, serving(options) as node:
        port = await client.ensure(spec_at(backend), POD)
        node.push(target("fs-1", port, a=other.address))
        await node.until("fs-1", TunnelState.REJECTED, reason=f"port {port} belongs to a tunnel on demand")
        async with connected(port) as connection:
            await connection.call()
        assert other.connections == 0


async def test_tunnels_work_in_fips_mode_where_openssl_has_a_provider(
    options: TunnelOptions, client: TunnelClient, backend: Backend
) -> None:
    refusal = ""
    try:
        await check_fips_mode(find_stunnel(None), required_by="this test")
    except InvalidSetting as error:
        refusal = str(error)
    if refusal:
        # The agent refuses to start, with the words of this stunnel.
        assert "FIPS" in refusal.partition("has no FIPS mode")[2].upper()
        return
    async with serving(replace(options, fips=True)) as node:
        port = await client.ensure(spec_at(backend, access_point_id=access_point(1)), POD)
        async with connected(port) as connection:
            await connection.call()
        await node.until(FS, TunnelState.UP, on_demand=True)
        log_path = replace(options, conf_path=shard_path(options.conf_path, 1)).log_path
        assert "FIPS mode enabled" in log_path.read_text()


async def test_tunnel_trusts_the_file_of_authorities_that_the_mount_names(
    options: TunnelOptions, client: TunnelClient, backend: Backend, tmp_path: Path
) -> None:
    allowed = tmp_path / "authorities"
    allowed.mkdir()
    own = allowed / "own.pem"
    own.write_bytes(options.authorities(options.region).read_bytes())
    # By default, the tunnels trust an authority that has not signed the server's certificate.
    options = replace(options, ca_file=Authority(tmp_path, "foreign").file, ca_directory=allowed)
    spec = spec_at(backend, ca_file=str(own))
    async with serving(options) as node:
        port = await client.ensure(spec, POD)
        await node.until(FS, TunnelState.UP, on_demand=True)
        async with connected(port) as connection:
            await connection.call()
        untrusting = await client.ensure(spec_at(backend), OTHER_POD)
        assert untrusting != port
        reason = "the server's certificate is not trusted"
        await eventually(
            lambda: any(
                one.port == untrusting and reason in one.reason for one in node.agent.status().tunnels
            ),
            reason,
        )

        # Without the file, its tunnel cannot be loaded again. It keeps its holder, and the others continue.
        own.unlink()
        with pytest.raises(InvalidValue, match="cannot be read"):
            await client.ensure(spec, Holder("another pod"))
        await client.ensure(spec_at(backend, access_point_id=access_point(1)), OTHER_POD)
        assert {one.port: one.holders for one in await client.tunnels()}[port] == {POD}


async def test_file_of_authorities_is_refused_without_an_allowed_directory(
    options: TunnelOptions, client: TunnelClient, backend: Backend
) -> None:
    named = str(options.authorities(options.region))
    async with serving(options):
        with pytest.raises(
            InvalidValue, match="would change the authorities that the tunnel trusts; leave it"
        ):
            await client.ensure(spec_at(backend, ca_file=named), POD)
        assert not options.reservations_path.exists()


async def test_stunnel_resolves_the_name_without_a_config_map(
    options: TunnelOptions, client: TunnelClient
) -> None:
    async with serving(options):
        with pytest.raises(TunnelNotReady) as failed:
            await client.ensure(TunnelSpec(file_system_id=FS, zone=ZoneName("us-east-1b")), POD)
        assert failed.value.value == f"us-east-1b.{HOST}"
        assert failed.value.problem.startswith("is not known to DNS") or "within 3 s" in failed.value.problem
        assert await client.tunnels() == ()


async def test_zone_id_is_required_for_other_accounts(options: TunnelOptions, client: TunnelClient) -> None:
    spec = TunnelSpec(file_system_id=FS, cross_account=True)
    async with serving(options):
        with pytest.raises(InvalidSetting, match="KUBE_EFS_ZONE_ID"):
            await client.ensure(spec, POD)


async def test_mount_targets_in_the_requested_zone_are_preferred(
    options: TunnelOptions, client: TunnelClient, authority: Authority, backend: Backend
) -> None:
    zones = {"subnet-a": "us-east-1a", "subnet-b": "us-east-1b"}
    async with Backend(authority, HOST) as far, serving(options) as node:
        one = document(target(FS, free_port(), a=backend.address, b=far.address))
        node.queue.put_nowait(replace(one, zones=json.dumps(zones)))
        await node.until(FS, TunnelState.UP, address=backend.address)
        port = await client.ensure(TunnelSpec(file_system_id=FS, zone=ZoneName("us-east-1b")), POD)
        async with connected(port):
            await node.until(FS, TunnelState.UP, on_demand=True, address=far.address)
        await far.stop()
        async with connected(port) as connection:
            await connection.call()


@pytest.mark.parametrize(
    ("iam", "kind", "text"),
    [
        pytest.param(IamOptions(profile="nobody"), InvalidValue, "profile nobody", id="missing profile"),
        pytest.param(IamOptions(), AwsUnavailable, "instance metadata", id="no credentials"),
    ],
)
async def test_tunnel_with_iam_requires_credentials(
    iam: IamOptions,
    kind: type[Exception],
    text: str,
    options: TunnelOptions,
    client: TunnelClient,
    backend: Backend,
) -> None:
    async with serving(options) as node:
        with pytest.raises(kind, match=text):
            await client.ensure(spec_at(backend, iam=iam), POD)
        assert await client.tunnels() == ()
        outcome = {"outcome": "failed"}
        assert node.registry.get_sample_value("kube_efs_certificate_renewals_total", outcome) == 1


async def test_certificate_is_signed_with_the_identity(
    options: TunnelOptions, client: TunnelClient, backend: Backend, tmp_path: Path
) -> None:
    profiles = tmp_path / "credentials"
    profiles.write_text("[team]\naws_access_key_id = AKIATEAM\naws_secret_access_key = hidden\n")
    files = ProfileFiles(credentials=profiles, config=tmp_path / "config")
    assert options.on_demand
    on_demand = on_demand_options(options.on_demand.socket_path, files=files)
    spec = spec_at(backend, iam=IamOptions(profile="team"))
    async with serving(replace(options, on_demand=on_demand)):
        await client.ensure(spec, POD)
        certificate = certificate_in(options, replace(spec, region=Region("us-east-1")).name)
        signed = certificate.extensions.get_extension_for_oid(IAM_OID).value.public_bytes()
        assert b"AKIATEAM" in signed
        assert b"hidden" not in signed
        assert '"target":"team"' in options.reservations_path.read_text()
        assert "hidden" not in options.reservations_path.read_text()


async def test_full_port_range_is_an_error(
    options: TunnelOptions, client: TunnelClient, backend: Backend
) -> None:
    assert options.on_demand
    first = options.on_demand.ports.first
    on_demand = replace(options.on_demand, ports=PortRange(first=first, last=first))
    async with serving(replace(options, on_demand=on_demand)):
        await client.ensure(spec_at(backend), POD)
        with pytest.raises(NoTunnelPort) as failed:
            await client.ensure(spec_at(backend, access_point_id=access_point(1)), OTHER_POD)
        assert failed.value.value == f"{first}-{first}"


async def test_released_tunnel_is_closed_after_the_idle_time(
    options: TunnelOptions, client: TunnelClient, backend: Backend
) -> None:
    spec = replace(spec_at(backend), region=Region("us-east-1"))
    async with serving(options) as node:
        port = await client.ensure(spec, POD)
        await client.ensure(spec, OTHER_POD)
        certificate = options.certificates_path / f"{spec.name}.pem"
        async with connected(port) as connection:
            await client.release(POD)
            await client.release(OTHER_POD)
            await node.until(FS, TunnelState.UP, leaving=True, holders=0, connections=1)
            await asyncio.sleep(1.0)  # twice the time after which an idle one goes
            await connection.call()
            assert [tunnel.port for tunnel in await client.tunnels()] == [port]
        await eventually(lambda: not node.agent.status().tunnels, "the tunnel closed")
        await eventually(lambda: not certificate.exists(), "the certificate removed")
        await eventually(
            lambda: not stunnels_of(options.conf_path), "stunnel ended, which has no service left"
        )
        assert await client.ensure(spec, POD) == port


async def test_missing_holder_is_removed_after_two_reconciliations(
    options: TunnelOptions, client: TunnelClient, backend: Backend
) -> None:
    async with serving(options):
        await client.ensure(spec_at(backend), POD)
        await client.ensure(spec_at(backend), OTHER_POD)
        assert await client.reconcile([POD]) == frozenset()
        await asyncio.sleep(0.4)
        assert await client.reconcile([POD, OTHER_POD]) == frozenset()  # it was only a torn reading
        assert await client.reconcile([POD]) == frozenset()
        await asyncio.sleep(0.4)
        assert await client.reconcile([POD]) == {OTHER_POD}
        [tunnel] = await client.tunnels()
        assert tunnel.holders == {POD}


async def test_error_for_a_missing_agent_names_its_socket(socket_path: Path, backend: Backend) -> None:
    async with connect_tunnels(socket_path, timeout_seconds=2) as client:
        with pytest.raises(TunnelAgentUnavailable) as failed:
            await client.ensure(spec_at(backend), POD)
    assert failed.value.value == str(socket_path)
    assert "kube-efs tunnel" in failed.value.remedy


async def test_client_reconnects_to_the_next_agent(
    options: TunnelOptions, client: TunnelClient, backend: Backend
) -> None:
    async with serving(options):
        port = await client.ensure(spec_at(backend), POD)
    with pytest.raises(TunnelAgentUnavailable):
        await client.tunnels()
    async with serving(options):
        assert await client.ensure(spec_at(backend), POD) == port


async def test_agent_loads_grpc_only_for_an_older_driver(
    options: TunnelOptions, client: TunnelClient, backend: Backend, socket_path: Path
) -> None:
    async with agent_process(options) as agent:
        await client.ensure(spec_at(backend), POD)
        assert not has_loaded_grpc(agent.pid)
        async with grpc.aio.insecure_channel(f"unix:{socket_path}") as channel:
            answer = await TunnelsStub(channel).List(pb.ListRequest(), timeout=30)
        assert [tunnel.name for tunnel in answer.tunnels] == [one.name for one in await client.tunnels()]
        assert has_loaded_grpc(agent.pid)


@pytest.mark.parametrize(
    ("spec", "holder"),
    [
        pytest.param({"file_system_id": "fs-1]\n[evil"}, "pod", id="file system with a forged section"),
        pytest.param({"access_point_id": "fsap-1\n"}, "pod", id="access point with a line break"),
        pytest.param({"address": "10.0.0.1\nverifyChain = no"}, "pod", id="address with a forged line"),
        pytest.param({"address": "evil.example.com"}, "pod", id="name instead of an address"),
        pytest.param({"region": "us-east-1\n"}, "pod", id="region with a line break"),
        pytest.param({"zone": "a.b"}, "pod", id="domain instead of a zone"),
        pytest.param(
            {"cross_account": True, "zone": "us-east-1a"}, "pod", id="address and zone of another account"
        ),
        pytest.param({}, "", id="no holder"),
        pytest.param({}, "pod\n", id="holder with a line break"),
    ],
)
async def test_malformed_requests_are_refused(
    spec: dict[str, Any], holder: str, options: TunnelOptions, socket_path: Path
) -> None:
    request = pb.EnsureRequest(spec=pb.Spec(**{"file_system_id": FS, **spec}), holder=holder)
    async with serving(options), grpc.aio.insecure_channel(f"unix:{socket_path}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await TunnelsStub(channel).Ensure(request, timeout=30)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert not options.reservations_path.exists()
        assert shards_of(options.conf_path) == {}


async def test_transfer_continues_and_ports_stay_when_the_agent_is_killed(
    options: TunnelOptions, client: TunnelClient, backend: Backend, socket_path: Path
) -> None:
    specs = [spec_at(backend, access_point_id=access_point(number)) for number in range(3)]
    async with agent_process(options) as first:
        ports = [await client.ensure(spec, POD) for spec in specs]
        stop = asyncio.Event()
        async with connected(ports[0]) as connection:
            transfer = asyncio.create_task(connection.call_until(stop))
            [pid] = stunnels_of(options.conf_path)
            await end(first, signal.SIGKILL)
            remove(socket_path)
            before = connection.calls
            async with serving(options) as node:
                assert [await client.ensure(spec, OTHER_POD) for spec in specs] == ports
                assert stunnels_of(options.conf_path) == [node.pid] == [pid]
                await eventually(lambda: connection.calls > before + 10, "the transfer to continue")
                assert [tunnel.holders for tunnel in await client.tunnels()] == [{POD, OTHER_POD}] * 3
                stop.set()
                await transfer


async def test_held_tunnel_stays_when_the_agent_ends(
    options: TunnelOptions, client: TunnelClient, backend: Backend
) -> None:
    async with agent_process(options) as first:
        port = await client.ensure(spec_at(backend), POD)
        async with connected(port) as connection:
            [pid] = stunnels_of(options.conf_path)
            assert await end(first, signal.SIGTERM) == 0
            assert stunnels_of(options.conf_path) == [pid]
            await connection.call()
            async with serving(options) as node:
                await node.until(FS, TunnelState.UP, on_demand=True)
                assert node.pid == pid
                await connection.call()


MOMENTS: dict[str, Callable[[TunnelOptions], object]] = {
    "nothing yet": lambda _options: True,
    "certificate written": lambda options: list(options.certificates_path.glob("*.pem")),
    "reservation stored": lambda options: options.reservations_path.exists(),
    "configuration written": lambda options: shards_of(options.conf_path),
    "stunnel started": lambda options: stunnels_of(options.conf_path),
}


@pytest.mark.parametrize("moment", MOMENTS)
async def test_agent_killed_at_any_moment_keeps_its_reservations(
    moment: str, options: TunnelOptions, client: TunnelClient, backend: Backend, socket_path: Path
) -> None:
    async with agent_process(options) as first:
        asked = asyncio.create_task(client.ensure(spec_at(backend), POD))
        await eventually(lambda: MOMENTS[moment](options), moment)
        await end(first, signal.SIGKILL)
        answers = await asyncio.gather(asked, return_exceptions=True)
        remove(socket_path)
        async with serving(options) as node:
            port = await client.ensure(spec_at(backend), POD)
            assert isinstance(answers[0], TunnelAgentUnavailable) or answers[0] == port
            async with connected(port) as connection:
                await connection.call()
            assert stunnels_of(options.conf_path) == [node.pid]
            assert [tunnel.holders for tunnel in await client.tunnels()] == [{POD}]


async def test_hanging_stunnel_is_replaced(
    options: TunnelOptions, client: TunnelClient, backend: Backend
) -> None:
    quick = replace(options, probe_timeout_seconds=0.2, stall_seconds=1)
    async with serving(quick) as node:
        port = await client.ensure(spec_at(backend), POD)
        pid = node.pid
        os.kill(pid, signal.SIGSTOP)
        await eventually(lambda: node.agent.status().stunnel_pid not in {pid, None}, "another stunnel")
        async with connected(port) as connection:
            await connection.call()
        assert stunnels_of(options.conf_path) == [node.pid]


async def test_responsive_stunnel_continues_after_the_reload(
    options: TunnelOptions, client: TunnelClient, backend: Backend
) -> None:
    async with serving(options) as node:
        port = await client.ensure(spec_at(backend), POD)
        async with connected(port) as connection:
            pid, reloads = node.pid, "kube_efs_stunnel_reloads_total"
            node.agent._data_planes.reload_or_replace([port])
            await eventually(lambda: node.registry.get_sample_value(reloads), "stunnel has been asked")
            await node.until(FS, TunnelState.UP)
            await connection.call()
        assert node.pid == pid
        assert node.registry.get_sample_value("kube_efs_stunnel_restarts_total") == 0


async def test_stunnel_raises_the_limit_of_open_files(
    options: TunnelOptions, client: TunnelClient, backend: Backend
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
    try:
        async with serving(options) as node:
            await client.ensure(spec_at(backend), POD)
            files = most_files(node.pid)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert files == min(hard, 65536)


def reloads_of(node: Node) -> float:
    return node.registry.get_sample_value("kube_efs_stunnel_reloads_total") or 0


def has_reloaded(node: Node, before: float) -> bool:
    return reloads_of(node) > before


async def test_hundred_reloads_under_load_interrupt_no_connection(
    options: TunnelOptions, client: TunnelClient, backend: Backend
) -> None:
    async with serving(replace(options, probe_interval_seconds=5)) as node:
        port = await client.ensure(spec_at(backend), POD)
        stop = asyncio.Event()
        async with connected(port) as one, connected(port) as two:
            # With a pause that leaves some of the processor to what is tested.
            transfers = [
                asyncio.create_task(connection.call_until(stop, pause_seconds=0.001))
                for connection in (one, two)
            ]
            for number in range(SHARD_SIZE - 1):
                await client.ensure(spec_at(backend, access_point_id=access_point(number)), OTHER_POD)
            certificates, tunnels = node.agent._certificates, node.agent._on_demand
            assert tunnels
            while reloads_of(node) < 100:
                before = reloads_of(node)
                [first, *_] = certificates._renewals
                certificates._renewals[first] = replace(certificates._renewals[first], due=datetime.now(UTC))
                await certificates.renew_due(tunnels.all())
                await eventually(partial(has_reloaded, node, before), f"reload {before + 1}")
            stop.set()
            await asyncio.gather(*transfers)
            assert one.calls > 50
            assert two.calls > 50
            assert len(stunnels_of(options.conf_path)) == 1
        assert node.registry.get_sample_value("kube_efs_stunnel_restarts_total") == 0


async def test_memory_of_stunnel_does_not_grow_with_reloads(
    options: TunnelOptions, client: TunnelClient, backend: Backend
) -> None:
    warm_up, reloads = 5, 30
    # Only what is served again is probed, so that the connections are those which are made here.
    async with serving(replace(options, probe_interval_seconds=600)) as node:
        ports = [
            await client.ensure(spec_at(backend, access_point_id=access_point(number)), POD)
            for number in range(SHARD_SIZE)
        ]
        resident = []
        for number in range(warm_up + reloads):
            for each in ports:
                async with connected(each):
                    pass
            before = reloads_of(node)
            node.agent._data_planes.reload_or_replace(ports)
            await eventually(partial(has_reloaded, node, before), f"reload {number}")
            resident.append(psutil.Process(node.pid).memory_info().rss)
        assert backend.connections >= SHARD_SIZE * (warm_up + reloads)
        assert node.registry.get_sample_value("kube_efs_stunnel_restarts_total") == 0
    # With sessions that are remembered, stunnel 5.68 leaks 16 KiB a tunnel at each reload.
    assert resident[-1] - resident[warm_up - 1] < SHARD_SIZE * reloads * 4096, resident


async def test_socket_that_cannot_be_bound_is_an_error_at_the_start(
    options: TunnelOptions, tmp_path: Path
) -> None:
    assert options.on_demand
    on_demand = replace(options.on_demand, socket_path=tmp_path / ("long" * 40) / "tunnel.sock")
    agent = TunnelAgent(replace(options, on_demand=on_demand), TunnelMetrics(CollectorRegistry()))

    async def documents() -> AsyncIterator[TargetDocuments]:
        yield TargetDocuments(targets="")

    with pytest.raises(InvalidSetting, match=r"KUBE_EFS_TUNNEL_SOCKET: .* cannot be bound"):
        await agent.run(documents())
