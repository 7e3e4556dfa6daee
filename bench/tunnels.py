"""What one more tunnel costs the agent and its stunnels, with few and with many tunnels.

Only the tunnel agent runs, with a mount target that this process serves. Nothing is mounted.
"""

import asyncio
import os
import signal
import statistics
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from bench.authorities import beside_those_of_aws
from bench.figures import Figure, Row, at_most, plain
from bench.processes import cpu_seconds, megabytes_in_parts, resident_megabytes
from tests.integration.nfs_backend import Authority, Backend
from tests.integration.tunnel_node import eventually, host_of, stunnels_of

from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.tunnels.api.client import TunnelClient, connect_tunnels
from kube_efs.tunnels.reservations import Holder, TunnelSpec
from kube_efs_lab.program import Program

_FILE_SYSTEM: Final = FileSystemId("fs-0123456789abcdef0")
_COUNTS: Final = (10, 100, 1000)
_MEASURED: Final = 15
_AT_ONCE: Final = 16
_PORTS: Final = "22049-23148"
_PAUSE_SECONDS: Final = 0.3
_SETTLING_SECONDS: Final = 20.0
_IDLE_SECONDS: Final = 60.0
_MILLISECONDS: Final = 1000.0
# No API server answers: the agent serves its tunnels without one.
_KUBECONFIG: Final = """\
{apiVersion: v1, kind: Config, current-context: none,
 contexts: [{name: none, context: {cluster: none, user: none}}],
 clusters: [{name: none, cluster: {server: "http://127.0.0.1:9"}}], users: [{name: none, user: {}}]}
"""


class _Agent:
    """The agent while it runs, and its stunnels."""

    def __init__(self, folder: Path, program: Program, client: TunnelClient, address: str) -> None:
        self._conf = folder / "stunnel.conf"
        self._program = program
        self._client = client
        self._address = address
        self.tunnels = 0

    async def open(self) -> float:
        """Open one more tunnel; returns the milliseconds until it can be used."""
        self.tunnels += 1
        point = AccessPointId(f"fsap-{self.tunnels:017x}")
        spec = TunnelSpec(file_system_id=_FILE_SYSTEM, address=self._address, access_point_id=point)
        begun = time.perf_counter()
        await self._client.ensure(spec, Holder(f"pod {self.tunnels}"))
        return (time.perf_counter() - begun) * _MILLISECONDS

    def megabytes(self) -> Mapping[str, float]:
        """The memory of all, that of the stunnels as proportional set size."""
        return {
            "agent": resident_megabytes([self._program.pid]),
            "all stunnels": megabytes_in_parts(stunnels_of(self._conf)),
        }

    def cpu_seconds(self) -> Mapping[str, float]:
        """The processor time so far."""
        return {
            "agent": cpu_seconds(self._program.pid),
            "all stunnels": sum(map(cpu_seconds, stunnels_of(self._conf))),
        }

    def stunnels(self) -> int:
        """The number of stunnels."""
        return len(stunnels_of(self._conf))


async def measure(folder: Path) -> AsyncIterator[Figure]:
    """Open tunnels one after the other when there are few, many and very many."""
    authority = Authority(folder, "ca")
    async with (
        Backend(authority, host_of(_FILE_SYSTEM)) as backend,
        _agent(folder, authority, backend) as agent,
    ):
        memory = {}
        for count in _COUNTS:
            await _open_until(agent, count - _MEASURED if count > _MEASURED else 1)
            memory[count] = agent.megabytes()
            before, times = agent.cpu_seconds(), []
            for _ in range(_MEASURED):
                await asyncio.sleep(_PAUSE_SECONDS)
                times.append(await agent.open())
            used = (
                f"{who} {(spent - before[who]) / _MEASURED * _MILLISECONDS:.0f} ms"
                for who, spent in agent.cpu_seconds().items()
            )
            detail = f"least {min(times):.0f} ms; CPU of each: {', '.join(used)}; {agent.stunnels()} stunnels"
            name = f"a new access-point tunnel at {count:,} tunnels"
            yield at_most(name, statistics.median(times), 60, "ms median", detail)
        most, fewer = _COUNTS[-1], _COUNTS[-2]
        grown = {who: (used - memory[fewer][who]) / (most - fewer) for who, used in memory[most].items()}
        detail = ", ".join(f"{who} {megabytes:.3f} MB" for who, megabytes in grown.items())
        name = f"memory of each further tunnel at {most:,}"
        yield at_most(name, sum(grown.values()), 0.3, "MB", detail)
        await asyncio.sleep(_SETTLING_SECONDS)
        before = agent.cpu_seconds()
        await asyncio.sleep(_IDLE_SECONDS)
        for who, spent in agent.cpu_seconds().items():
            share = (spent - before[who]) / _IDLE_SECONDS * 100
            yield plain(f"CPU of {who} idle with {agent.tunnels:,} tunnels", share, "% of a core")


async def _open_until(agent: _Agent, count: int) -> None:
    slots = asyncio.Semaphore(_AT_ONCE)

    async def open_one() -> None:
        async with slots:
            await agent.open()

    await asyncio.gather(*(open_one() for _ in range(count - agent.tunnels)))


@asynccontextmanager
async def _agent(folder: Path, authority: Authority, backend: Backend) -> AsyncIterator[_Agent]:
    kubeconfig, socket, conf = folder / "kubeconfig", folder / "tunnel.sock", folder / "stunnel.conf"
    await asyncio.to_thread(kubeconfig.write_text, _KUBECONFIG)
    environment = {
        "PATH": os.environ["PATH"],
        "KUBECONFIG": str(kubeconfig),
        "NODE_NAME": "node-1",
        "AWS_REGION": "us-east-1",
        "KUBE_EFS_ZONE": "us-east-1a",
        "KUBE_EFS_SUBNETS": "subnet-1",
        "KUBE_EFS_HEALTH_HOST": "127.0.0.1",
        "KUBE_EFS_HEALTH_PORT": "0",
        "KUBE_EFS_CA_FILE": str(await asyncio.to_thread(beside_those_of_aws, authority.file, folder)),
        "KUBE_EFS_TUNNEL_SOCKET": str(socket),
        "KUBE_EFS_TUNNEL_PORTS": _PORTS,
        "STUNNEL_CONF_PATH": str(conf),
    }
    program = Program("tunnel", environment, folder / "tunnel.log")
    await program.start()
    try:
        await eventually(socket.is_socket, "the agent's socket")
        async with connect_tunnels(socket, timeout_seconds=60) as client:
            yield _Agent(folder, program, client, backend.address)
    finally:
        await program.stop()
        _kill(stunnels_of(conf))


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


ROW: Final = Row(name="tunnels", measure=measure)
