"""The first process of the agent's container, with other commands instead of the agent."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from tests.integration.nfs_backend import Authority
from tests.integration.on_demand_options import on_demand_options
from tests.integration.tunnel_node import DEADLINE_SECONDS, eventually, stunnels_of

from kube_efs.model.efs.ids import FileSystemId
from kube_efs.tunnels.api.client import connect_tunnels
from kube_efs.tunnels.reservations import Holder, TunnelSpec

SUPERVISOR = (
    "import sys; from kube_efs.tunnels.supervisor import supervise; sys.exit(supervise(sys.argv[1:]))"
)


@asynccontextmanager
async def supervised(script: str, log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A supervisor of a shell that writes its pid to the log at each start."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SUPERVISOR,
        "/bin/sh",
        "-c",
        f"echo $$ >> {log}; {script}",
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        for pid in lives(log):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def lives(log: Path) -> list[int]:
    return [int(line) for line in log.read_text().split()] if log.exists() else []


def lived(log: Path, times: int) -> Callable[[], bool]:
    return lambda: len(lives(log)) >= times


async def ended(process: asyncio.subprocess.Process) -> int:
    async with asyncio.timeout(DEADLINE_SECONDS):
        return await process.wait()


async def test_crashed_command_is_restarted(tmp_path: Path) -> None:
    log = tmp_path / "lives"
    async with supervised("exec sleep 100", log) as supervisor:
        for number in range(1, 3):
            await eventually(lived(log, number), f"life {number}")
            os.kill(lives(log)[-1], signal.SIGKILL)
        await eventually(lived(log, 3), "life 3")
        assert supervisor.returncode is None
        supervisor.terminate()
        assert await ended(supervisor) == 128 + signal.SIGTERM


async def test_sigterm_is_forwarded_and_the_exit_status_of_the_command_is_returned(tmp_path: Path) -> None:
    log = tmp_path / "lives"
    script = "trap 'kill $sleeper; exit 7' TERM; sleep 100 & sleeper=$!; echo $sleeper >> {log}; wait"
    async with supervised(script.format(log=log), log) as supervisor:
        await eventually(lived(log, 2), "the trap")
        supervisor.terminate()
        assert await ended(supervisor) == 7


@pytest.mark.parametrize("status", [0, 2])
async def test_command_that_fails_at_once_or_succeeds_is_not_restarted(status: int, tmp_path: Path) -> None:
    log = tmp_path / "lives"
    async with supervised(f"exit {status}", log) as supervisor:
        assert await ended(supervisor) == status
        assert len(lives(log)) == 1


async def test_sigterm_during_the_pause_ends_the_supervisor(tmp_path: Path) -> None:
    log = tmp_path / "lives"
    async with supervised("kill -9 $$", log) as supervisor:
        await eventually(lived(log, 4), "some lives, and longer pauses")
        supervisor.terminate()
        assert await ended(supervisor) in {0, 128 + signal.SIGKILL}


KUBECONFIG = """\
{apiVersion: v1, kind: Config, current-context: none,
 contexts: [{name: none, context: {cluster: none, user: none}}],
 clusters: [{name: none, cluster: {server: "http://127.0.0.1:9"}}], users: [{name: none, user: {}}]}
"""


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can create a namespace of processes")
async def test_crash_of_the_agent_in_a_container_keeps_stunnel_and_its_ports(tmp_path: Path) -> None:
    socket, conf, config = tmp_path / "t.sock", tmp_path / "stunnel.conf", tmp_path / "config"
    config.write_text(KUBECONFIG)
    authority = Authority(tmp_path, "ca")
    ports = on_demand_options(socket).ports
    environment = {
        "AWS_REGION": "us-east-1",
        "KUBE_EFS_ZONE": "us-east-1a",
        "KUBE_EFS_SUBNETS": "subnet-1",
        "KUBE_EFS_HEALTH_PORT": "0",
        "KUBE_EFS_HEALTH_HOST": "127.0.0.1",
        "KUBE_EFS_CA_FILE": str(authority.file),
        "KUBE_EFS_TUNNEL_SOCKET": str(socket),
        "KUBE_EFS_TUNNEL_PORTS": f"{ports.first}-{ports.last}",
        "KUBECONFIG": str(config),
        "STUNNEL_CONF_PATH": str(conf),
    }
    spec = TunnelSpec(file_system_id=FileSystemId("fs-1"), address="127.0.0.1")
    command = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-m", "kube_efs")
    container = await asyncio.create_subprocess_exec(
        *command, "tunnel", env={**os.environ, **environment}, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        await eventually(socket.exists, "the socket")
        async with connect_tunnels(socket) as client:
            port = await client.ensure(spec, Holder("pod"))
            [stunnel] = stunnels_of(conf)
            [first] = children(container.pid)
            [agent] = [pid for pid in children(first) if pid != stunnel]
            served = socket.stat().st_ino
            os.kill(agent, signal.SIGKILL)
            await eventually(lambda: socket.stat().st_ino != served, "the socket of the next agent")
            assert await client.ensure(spec, Holder("pod")) == port
        assert stunnels_of(conf) == [stunnel]
        os.kill(first, signal.SIGTERM)
        assert await ended(container) == 0
        assert stunnels_of(conf) == []  # with the container
    finally:
        if container.returncode is None:
            container.kill()
            await container.wait()
