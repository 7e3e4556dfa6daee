"""The tunnel agent with a real stunnel, real TLS, and mount targets on loopback addresses."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs
from tests.integration.nfs_backend import Authority, Backend, free_address
from tests.integration.tunnel_node import (
    NEAR,
    agent_process,
    connect,
    connected,
    document,
    end,
    eventually,
    host_of,
    listening,
    running,
    stunnels_of,
    target,
)

from kube_efs.model.efs.ids import Region, SubnetId
from kube_efs.model.errors import InvalidSetting, StunnelMissing
from kube_efs.telemetry.metrics import TunnelMetrics
from kube_efs.tunnels.agent import TargetDocuments, TunnelAgent
from kube_efs.tunnels.authorities import find_hashed_directories, hashed_directory
from kube_efs.tunnels.config_map import load_served
from kube_efs.tunnels.mount_targets import NodeLocation
from kube_efs.tunnels.notifications import TunnelNotification
from kube_efs.tunnels.options import TunnelOptions
from kube_efs.tunnels.status import DENIED, TunnelState
from kube_efs.tunnels.stunnel import keeper
from tinykube.ports import free_port

pytestmark = pytest.mark.skipif(not Path("/usr/bin/stunnel").exists(), reason="stunnel is not installed")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ca")


@pytest.fixture
def options(tmp_path: Path, authority: Authority) -> TunnelOptions:
    return TunnelOptions(
        region=Region("us-east-1"),
        location=NodeLocation(subnets=frozenset({SubnetId(NEAR)})),
        conf_path=tmp_path / "stunnel.conf",
        ca_file=authority.file,
        probe_interval_seconds=0.1,
        retry_seconds=0.1,
        connect_timeout_seconds=1,
    )


async def test_tunnels_start_and_report_their_state(options: TunnelOptions, authority: Authority) -> None:
    ports = free_port(), free_port()
    async with (
        Backend(authority, host_of("fs-1")) as one,
        Backend(authority, host_of("fs-2")) as two,
        running(options) as node,
    ):
        assert not node.agent.readiness().ok
        node.push(target("fs-1", ports[0], a=one.address), target("fs-2", ports[1], b=two.address))
        await node.until("fs-1", TunnelState.UP)
        await node.until("fs-2", TunnelState.UP, address=two.address)
        found = node.tunnel("fs-1")
        assert (found.address, found.subnet_id, found.port) == (one.address, NEAR, ports[0])
        assert (found.tls_version, found.peer) == ("TLSv1.3", f"CN={host_of('fs-1')}")
        assert found.cipher.startswith("TLS_")
        assert found.probe_seconds is not None
        assert found.probe_seconds < 5
        assert node.agent.readiness().ok
        assert node.agent.liveness().ok
        assert options.conf_path.stat().st_mode & 0o777 == 0o600
        labels = {"file_system": "fs-1"}
        await eventually(
            lambda: node.registry.get_sample_value("kube_efs_tunnel_up", labels) == 1, "the metric"
        )
        assert node.registry.get_sample_value("kube_efs_tunnel_in_own_zone", labels) == 1
        assert node.registry.get_sample_value("kube_efs_tunnels_configured") == 2


async def test_probes_do_not_count_as_open_connections(options: TunnelOptions, authority: Authority) -> None:
    port = free_port()
    async with Backend(authority, host_of("fs-1")) as backend, running(options) as node:
        node.push(target("fs-1", port, a=backend.address))
        await node.until("fs-1", TunnelState.UP, connections=0)
        async with connected(port), connected(port):
            await node.until("fs-1", TunnelState.UP, connections=2)
        await node.until("fs-1", TunnelState.UP, connections=0)


async def test_killed_stunnel_is_restarted_with_its_ports(
    options: TunnelOptions, authority: Authority
) -> None:
    port = free_port()
    async with Backend(authority, host_of("fs-1")) as backend, running(options) as node:
        node.push(target("fs-1", port, a=backend.address))
        await node.until("fs-1", TunnelState.UP)
        killed = node.pid
        os.kill(killed, signal.SIGKILL)
        await eventually(lambda: node.agent.status().stunnel_pid not in {None, killed}, "another stunnel")
        await node.until("fs-1", TunnelState.UP, port=port)
        async with connected(port) as client:
            await client.call()
        assert node.registry.get_sample_value("kube_efs_stunnel_restarts_total") == 1


async def test_change_of_another_tunnel_does_not_interrupt_a_transfer(
    options: TunnelOptions, authority: Authority
) -> None:
    ports = free_port(), free_port()
    async with (
        Backend(authority, host_of("fs-1")) as one,
        Backend(authority, host_of("fs-2")) as two,
        Backend(authority, host_of("fs-2")) as moved,
        running(options) as node,
    ):
        first = target("fs-1", ports[0], a=one.address)
        node.push(first)
        await node.until("fs-1", TunnelState.UP)
        stop = asyncio.Event()
        async with connected(ports[0]) as client:
            transfer = asyncio.create_task(client.call_until(stop))
            node.push(first, target("fs-2", ports[1], a=two.address))
            await node.until("fs-2", TunnelState.UP, address=two.address)
            node.push(first, target("fs-2", ports[1], a=moved.address))
            await node.until("fs-2", TunnelState.UP, address=moved.address)
            node.push(first)
            await eventually(lambda: len(node.agent.status().tunnels) == 1, "fs-2 gone")
            done = client.calls
            await eventually(lambda: client.calls > done, "the transfer to continue")
            stop.set()
            await transfer
        assert node.registry.get_sample_value("kube_efs_stunnel_restarts_total") == 0
        assert node.tunnel("fs-1").port == ports[0]


async def test_removed_tunnel_in_use_and_its_port_are_kept(
    options: TunnelOptions, authority: Authority
) -> None:
    port = free_port()
    async with (
        Backend(authority, host_of("fs-1")) as one,
        Backend(authority, host_of("fs-2")) as two,
        running(options) as node,
    ):
        node.push(target("fs-1", port, a=one.address))
        await node.until("fs-1", TunnelState.UP)
        async with connected(port) as client:
            await node.until("fs-1", TunnelState.UP, connections=1)
            node.push(target("fs-2", port, a=two.address))
            await node.until("fs-1", TunnelState.UP, leaving=True, connections=1)
            assert node.tunnel("fs-2").state == TunnelState.REJECTED
            assert node.tunnel("fs-2").reason == f"port {port} still belongs to fs-1"
            await client.call()
            async with connected(port):  # the kernel's client, connecting again
                assert two.connections == 0
        await node.until("fs-2", TunnelState.UP, address=two.address)
        assert [one.file_system_id for one in node.agent.status().tunnels] == ["fs-2"]


async def test_new_connections_move_to_another_zone_and_back(
    options: TunnelOptions, authority: Authority
) -> None:
    port = free_port()
    near = Backend(authority, host_of("fs-1"))
    async with near, Backend(authority, host_of("fs-1")) as far, running(options) as node:
        node.push(target("fs-1", port, a=near.address, b=far.address))
        await node.until("fs-1", TunnelState.UP, address=near.address, failed_over=False)
        await near.stop()
        await node.until("fs-1", TunnelState.UP, address=far.address, failed_over=True)
        conf = options.conf_path
        await eventually(
            lambda: conf.read_text().index(far.address) < conf.read_text().index(near.address), "the order"
        )
        async with connected(port) as client:
            await near.__aenter__()
            await node.until("fs-1", TunnelState.UP, address=near.address, failed_over=False)
            await client.call()  # open connections stay where they are
        labels = {"file_system": "fs-1"}
        assert node.registry.get_sample_value("kube_efs_tunnel_fail_overs_total", labels) == 1


@pytest.mark.parametrize(
    ("certificate_host", "stranger", "reason"),
    [
        pytest.param("fs-2", False, "the server's certificate is for another name", id="another name"),
        pytest.param("fs-1", True, "the server's certificate is not trusted", id="another authority"),
    ],
)
async def test_server_with_the_wrong_certificate_receives_no_byte(
    *,
    certificate_host: str,
    stranger: bool,
    reason: str,
    options: TunnelOptions,
    authority: Authority,
    tmp_path: Path,
) -> None:
    port = free_port()
    signer = Authority(tmp_path, "stranger") if stranger else authority
    async with Backend(signer, host_of(certificate_host)) as backend, running(options) as node:
        node.push(target("fs-1", port, a=backend.address))
        await eventually(
            lambda: node.has("fs-1", TunnelState.DOWN) and node.tunnel("fs-1").reason.startswith(reason),
            reason,
        )
        assert f"CN={host_of(certificate_host)}" in node.tunnel("fs-1").reason
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await connect(port)
        assert backend.bytes_received == 0


async def test_stunnel_trusts_the_authorities_of_a_directory_and_no_others(
    options: TunnelOptions, authority: Authority, tmp_path: Path
) -> None:
    stranger, directory = Authority(tmp_path, "stranger"), hashed_directory(authority.file)
    ask = ("openssl", "x509", "-noout", "-subject_hash", "-in", str(authority.file))
    name = await asyncio.to_thread(subprocess.check_output, ask, text=True, timeout=60)
    directory.mkdir()
    shutil.copy(authority.file, directory / f"{name.strip()}.0")
    options = replace(options, hashed_directories=find_hashed_directories([authority.file]))
    async with (
        Backend(authority, host_of("fs-1")) as good,
        Backend(stranger, host_of("fs-2")) as bad,
        running(options) as node,
    ):
        node.push(target("fs-1", free_port(), a=good.address), target("fs-2", free_port(), a=bad.address))
        await node.until("fs-1", TunnelState.UP)
        await node.until("fs-2", TunnelState.DOWN)
        assert bad.bytes_received == 0
    assert "CAfile" not in options.conf_path.read_text()


async def test_status_names_a_mount_target_that_refuses_connections(options: TunnelOptions) -> None:
    address = free_address()
    async with running(options) as node:
        node.push(target("fs-1", free_port(), a=address))
        await node.until("fs-1", TunnelState.DOWN, reason=f"{address}: connection refused")


async def test_targets_that_could_not_be_stored_are_stored_later(
    options: TunnelOptions, authority: Authority
) -> None:
    options.state_path.mkdir()  # so that the file cannot be written
    async with Backend(authority, host_of("fs-1")) as backend, running(options) as node:
        node.push(target("fs-1", free_port(), a=backend.address))
        await node.until("fs-1", TunnelState.UP)
        options.state_path.rmdir()
        await eventually(options.state_path.is_file, "the targets stored without a new document")
        stored = load_served(options.state_path)
        assert stored
        assert [str(one) for one in stored.document.targets] == ["fs-1"]


async def test_denied_tunnel_is_reported_once_and_is_down_only_while_it_is_used(
    options: TunnelOptions, authority: Authority
) -> None:
    port, labels = free_port(), {"file_system": "fs-1"}
    async with (
        Backend(authority, host_of("fs-1"), denies=True) as denying,
        Backend(authority, host_of("fs-2")) as other,
        running(options) as node,
    ):
        node.push(target("fs-1", port, a=denying.address), target("fs-2", free_port(), a=other.address))
        await node.until("fs-1", TunnelState.REJECTED, denied=True, reason=DENIED)
        await node.until("fs-2", TunnelState.UP, denied=False)
        assert node.registry.get_sample_value("kube_efs_tunnel_up", labels) is None
        assert node.registry.get_sample_value("kube_efs_tunnel_denied", labels) == 1
        async with connected(port) as client:
            await client.call()
            await node.until("fs-1", TunnelState.DOWN, denied=False, connections=1)
            await eventually(
                lambda: node.registry.get_sample_value("kube_efs_tunnel_up", labels) == 0, "the metric"
            )
        await node.until("fs-1", TunnelState.REJECTED, denied=True)
        (denied,) = node.notifications
        assert isinstance(denied, TunnelNotification)
        assert (denied.reason, denied.file_system_id) == ("TunnelDenied", "fs-1")

        denying.denies = False
        await node.until("fs-1", TunnelState.UP, denied=False, reason="")
        assert [one.reason for one in node.notifications] == ["TunnelDenied", "TunnelAllowed"]
        assert node.registry.get_sample_value("kube_efs_tunnel_denied", labels) == 0


async def test_port_in_use_affects_one_tunnel_until_it_is_free(
    options: TunnelOptions, authority: Authority
) -> None:
    port = free_port()
    with socket.socket() as taker:
        taker.bind(("127.0.0.1", 0))
        taker.listen()
        taken = taker.getsockname()[1]
        async with (
            Backend(authority, host_of("fs-1")) as one,
            Backend(authority, host_of("fs-2")) as two,
            running(options) as node,
        ):
            node.push(target("fs-1", port, a=one.address), target("fs-2", taken, a=two.address))
            await node.until("fs-1", TunnelState.UP)
            rejected = node.tunnel("fs-2")
            assert rejected.state == TunnelState.REJECTED
            assert f"stunnel_port: {taken} is taken by" in rejected.reason
            assert f"(pid {os.getpid()})" in rejected.reason
            taker.close()
            await node.until("fs-2", TunnelState.UP)


@pytest.mark.parametrize(
    "running_before", [pytest.param(False, id="at the start"), pytest.param(True, id="at a reload")]
)
async def test_port_bound_at_the_last_moment_affects_one_tunnel(
    *,
    running_before: bool,
    options: TunnelOptions,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keeper, "find_taken", lambda _ports, *, except_by: {})
    port = free_port()
    with socket.socket() as taker:
        taker.bind(("127.0.0.1", 0))
        taker.listen()
        taken = taker.getsockname()[1]
        async with Backend(authority, host_of("fs-1")) as backend, running(options) as node:
            first = target("fs-1", port, a=backend.address)
            if running_before:
                node.push(first)
                await node.until("fs-1", TunnelState.UP)
            node.push(first, target("fs-2", taken, a=backend.address))
            await node.until("fs-2", TunnelState.REJECTED)
            assert f"stunnel_port: {taken} is taken by" in node.tunnel("fs-2").reason
            await node.until("fs-1", TunnelState.UP)


async def test_failed_start_of_stunnel_is_reported_and_retried(
    options: TunnelOptions, authority: Authority, tmp_path: Path
) -> None:
    repaired, starts = tmp_path / "repaired", tmp_path / "starts"
    program = tmp_path / "stunnel"
    program.write_text(
        f"#!/bin/sh\necho >> {starts}\n"
        f'test -e {repaired} && exec /usr/bin/stunnel "$1"\n'
        "echo '[!] Out of luck' >&2\nexit 1\n"
    )
    program.chmod(0o755)
    options = replace(options, stunnel_path=program)
    async with Backend(authority, host_of("fs-1")) as backend, running(options) as node:
        node.push(target("fs-1", free_port(), a=backend.address))
        await node.until("fs-1", TunnelState.REJECTED)
        assert node.tunnel("fs-1").reason == "stunnel does not accept its configuration (Out of luck)"
        assert node.agent.readiness().reasons == ("stunnel is not running",)
        assert starts.read_text().count("\n") < 5
        repaired.touch()
        await node.until("fs-1", TunnelState.UP)


async def test_hostile_entries_are_refused_and_nothing_else_is_affected(
    options: TunnelOptions, authority: Authority
) -> None:
    good, known, other = free_port(), free_port(), free_port()
    async with (
        Backend(authority, host_of("fs-1")) as backend,
        Backend(authority, host_of("fs-2")) as second,
        running(options) as node,
    ):
        node.push(target("fs-1", good, a=backend.address), target("fs-2", known, a=second.address))
        await node.until("fs-2", TunnelState.UP)
        before = options.conf_path.read_text()
        node.push(
            target("fs-1", good, a=backend.address),
            target("fs-2", 22, a=second.address),
            target("fs-evil]\n[x", other, a=backend.address),
            target("fs-3", other, a="10.0.0.1\nconnect = 6.6.6.6"),
            target("fs-4", 65536, a=backend.address),
            target("fs-5", other, a="attacker.example.com"),
            target("../../etc/passwd", other, a=backend.address),
            target("fs-6", good, a=backend.address),
            target("fs-7", known, a=backend.address),
            {"fs-8": "; rm -rf /"},
        )
        await eventually(lambda: len(node.agent.status().problems) == 9, "nine problems")
        assert options.conf_path.read_text() == before
        assert {one.file_system_id for one in node.agent.status().tunnels} == {"fs-1", "fs-2"}
        # A known file system keeps what was good, so its mounted volumes still work.
        assert node.tunnel("fs-2").port == known
        assert node.has("fs-2", TunnelState.UP)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("{", id="not YAML"),
        pytest.param("- a\n- b", id="list"),
        pytest.param("[" * 5000, id="deeply nested"),
        pytest.param("efs_stunnel_targets: 7", id="number instead of targets"),
    ],
)
async def test_invalid_document_keeps_the_last_valid_one(
    text: str, options: TunnelOptions, authority: Authority
) -> None:
    port = free_port()
    async with Backend(authority, host_of("fs-1")) as backend, running(options) as node:
        node.push(target("fs-1", port, a=backend.address))
        await node.until("fs-1", TunnelState.UP)
        node.queue.put_nowait(TargetDocuments(targets=text))
        await eventually(lambda: node.agent.status().problems, "a problem")
        assert node.has("fs-1", TunnelState.UP)
        node.push(target("fs-1", port, a=backend.address))
        await eventually(lambda: not node.agent.status().problems, "no problem any more")


async def test_stunnel_ends_without_targets_and_the_agent_is_healthy(
    options: TunnelOptions, authority: Authority
) -> None:
    async with Backend(authority, host_of("fs-1")) as backend, running(options) as node:
        node.push(target("fs-1", free_port(), a=backend.address))
        await node.until("fs-1", TunnelState.UP)
        node.push()
        await eventually(lambda: node.agent.status().stunnel_pid is None, "stunnel gone")
        assert node.agent.readiness().ok
        assert node.agent.status().tunnels == ()


async def test_file_system_without_mount_targets_is_reported_and_affects_no_other(
    options: TunnelOptions, authority: Authority
) -> None:
    async with Backend(authority, host_of("fs-1")) as backend, running(options) as node:
        node.push(target("fs-1", free_port(), a=backend.address), target("fs-2", free_port()))
        await node.until("fs-1", TunnelState.UP)
        assert node.tunnel("fs-2").state == TunnelState.NO_MOUNT_TARGET
        assert node.tunnel("fs-2").reason == "the file system has no usable mount target"


async def test_unreadable_ca_file_does_not_close_the_tunnels(
    options: TunnelOptions, authority: Authority
) -> None:
    good = authority.file.read_bytes()
    ports = free_port(), free_port()
    async with Backend(authority, host_of("fs-1")) as backend, running(options) as node:
        first = target("fs-1", ports[0], a=backend.address)
        node.push(first)
        await node.until("fs-1", TunnelState.UP)
        loaded = options.conf_path.read_text()
        authority.file.write_text("no certificate\n")
        node.push(first, target("fs-2", ports[1], a=backend.address))
        await node.until("fs-2", TunnelState.REJECTED)
        assert "No trusted certificates found" in node.tunnel("fs-2").reason
        async with connected(ports[0]) as client:
            await client.call()
        await eventually(lambda: options.conf_path.read_text() == loaded, "the good configuration put back")
        authority.file.write_bytes(good)
        await node.until("fs-1", TunnelState.UP)
        await node.until("fs-2", TunnelState.DOWN)  # the backend is that of fs-1


async def test_stored_targets_are_served_without_a_document(
    options: TunnelOptions, authority: Authority
) -> None:
    port = free_port()
    async with Backend(authority, host_of("fs-1")) as backend:
        async with running(options) as node:
            node.push(target("fs-1", port, a=backend.address))
            await node.until("fs-1", TunnelState.UP)
            await eventually(options.state_path.exists, "the remembered targets")
        async with running(options) as node:
            await node.until("fs-1", TunnelState.UP, port=port)
            assert node.agent.readiness().ok


async def test_large_log_of_stunnel_is_truncated(options: TunnelOptions, authority: Authority) -> None:
    options = replace(options, log_size_bytes=20_000)
    async with Backend(authority, host_of("fs-1")) as backend, running(options) as node:
        node.push(target("fs-1", free_port(), a=backend.address))
        old = options.log_path.with_name(f"{options.log_path.name}.1")
        await eventually(old.exists, "a rotation")
        await node.until("fs-1", TunnelState.UP)
        assert options.log_path.stat().st_size < old.stat().st_size
        assert b"\0" not in options.log_path.read_bytes()


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        pytest.param(
            {"stunnel_path": Path("/nowhere/stunnel")},
            StunnelMissing,
            "STUNNEL_PATH: '/nowhere/stunnel' is not an executable program; install stunnel",
            id="no stunnel",
        ),
        pytest.param(
            {"ca_file": Path("/nowhere/ca.pem")},
            InvalidSetting,
            "KUBE_EFS_CA_FILE: '/nowhere/ca.pem' is not a file",
            id="no authorities",
        ),
        pytest.param(
            {"ca_file": Path("/tmp/ca.pem\nverifyChain = no")},
            InvalidSetting,
            "KUBE_EFS_CA_FILE: '/tmp/ca.pem\\nverifyChain = no' must not enter stunnel.conf",
            id="path with a line break",
        ),
        pytest.param(
            {"region": "us-iso-east-1", "ca_file": None, "system_ca_file": Path("/nowhere/system.pem")},
            InvalidSetting,
            "KUBE_EFS_CA_FILE: '/nowhere/system.pem' is not a file",
            id="no authorities of the partition",
        ),
        pytest.param(
            {"conf_path": Path("/nowhere/stunnel.conf")},
            InvalidSetting,
            "STUNNEL_CONF_PATH: '/nowhere/stunnel.conf' is in a directory that is not writable",
            id="no directory for the configuration",
        ),
    ],
)
def test_invalid_settings_are_refused_at_the_start(
    change: dict[str, Any], error: type[Exception], text: str, options: TunnelOptions
) -> None:
    with pytest.raises(error) as refused:
        TunnelAgent(replace(options, **change), TunnelMetrics(CollectorRegistry()))
    assert text in str(refused.value)


@pytest.mark.parametrize("is_stored", [True, False])
async def test_next_agent_takes_over_after_a_kill(
    options: TunnelOptions, authority: Authority, is_stored: bool
) -> None:
    port = free_port()
    async with Backend(authority, host_of("fs-1")) as backend:
        targets = document(target("fs-1", port, a=backend.address))
        async with agent_process(options, targets) as first:
            await listening(port)
            async with connected(port) as client:
                [pid] = stunnels_of(options.conf_path)
                await eventually(options.state_path.exists, "the targets are stored")
                await end(first, signal.SIGKILL)
                assert stunnels_of(options.conf_path) == [pid]
                await client.call()
                if not is_stored:
                    options.state_path.unlink()
                async with agent_process(options) as second:
                    reading = "Reading configuration from file"
                    await eventually(
                        lambda: options.log_path.read_text().count(reading) == 2,
                        "the configuration read again",
                    )
                    assert stunnels_of(options.conf_path) == [pid]
                    await client.call()
                    async with connected(port) as another:
                        await another.call()
                    assert await end(second, signal.SIGTERM) == 0
                    assert stunnels_of(options.conf_path) == []


def start_early_stunnel(conf: Path) -> int:
    """Start a program that never handles SIGHUP, as stunnel before it is ready."""
    conf.write_text("import time\ntime.sleep(60)\n")
    # With nohup(1) the tests themselves ignore it.
    return os.posix_spawn(sys.executable, ["/usr/bin/stunnel", str(conf)], {}, setsigdef=[signal.SIGHUP])


async def test_stunnel_that_ends_while_it_is_adopted_is_replaced(
    options: TunnelOptions, authority: Authority
) -> None:
    early, port = start_early_stunnel(options.conf_path), free_port()
    with capture_logs() as logs:
        async with Backend(authority, host_of("fs-1")) as backend, running(options) as node:
            node.push(target("fs-1", port, a=backend.address))
            await node.until("fs-1", TunnelState.UP)
            assert node.pid != early
    told = [line["event"] for line in logs]
    assert "stunnel-adopted" in told
    assert "tunnel-left-out" not in told


async def test_adopted_stunnel_in_use_is_not_ended(options: TunnelOptions, authority: Authority) -> None:
    port = free_port()
    async with Backend(authority, host_of("fs-1")) as backend:
        targets = document(target("fs-1", port, a=backend.address))
        async with agent_process(options, targets) as first:
            await listening(port)
            async with connected(port) as client:
                [pid] = stunnels_of(options.conf_path)
                await eventually(options.state_path.exists, "the targets are stored")
                await end(first, signal.SIGKILL)
                options.state_path.unlink()
                async with running(options) as node:
                    node.push()  # no targets at all
                    await eventually(lambda: node.agent.readiness().ok, "the document served")
                    await client.call()
                    assert stunnels_of(options.conf_path) == [pid]
                    client.writer.close()
                    await eventually(lambda: stunnels_of(options.conf_path) == [], "stunnel ended")


MOMENTS: dict[str, Callable[[TunnelOptions], object]] = {
    "at its start": lambda _options: True,
    "targets stored": lambda options: options.state_path.exists(),
    "configuration written": lambda options: options.conf_path.exists(),
    "log opened": lambda options: options.log_path.exists(),
    "stunnel started": lambda options: stunnels_of(options.conf_path),
}


@pytest.mark.parametrize("moment", MOMENTS)
async def test_next_agent_converges_after_a_kill_at_any_moment(
    moment: str, options: TunnelOptions, authority: Authority
) -> None:
    port = free_port()
    async with Backend(authority, host_of("fs-1")) as backend:
        targets = document(target("fs-1", port, a=backend.address))
        async with agent_process(options, targets) as first:
            await eventually(lambda: MOMENTS[moment](options), moment)
            await end(first, signal.SIGKILL)
            async with running(options) as node:
                node.queue.put_nowait(targets)
                await node.until("fs-1", TunnelState.UP, port=port)
                # A stunnel that the first one was just starting may show itself after the next one's.
                await eventually(
                    lambda: stunnels_of(options.conf_path) == [node.agent.status().stunnel_pid],
                    "one stunnel, which the agent knows",
                )
