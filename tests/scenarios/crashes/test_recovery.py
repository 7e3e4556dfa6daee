"""Killed processes of a node are restarted with the same ports, and readers continue."""

import os
import re
import signal

import pytest
from tests.scenarios import steps
from tests.scenarios.nfs import SlowReader
from tests.scenarios.steps import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

SIZE_BYTES = 64 * 1024 * 1024


async def test_reader_continues_when_stunnel_is_killed(cluster: Cluster) -> None:
    system = cluster.file_system_ids[0]
    await steps.tunnel_up(cluster, system)
    before = await _stunnel_pid(cluster)
    async with SlowReader(cluster, system, size_bytes=SIZE_BYTES) as reader:
        os.kill(before, signal.SIGKILL)
        await reader.finish()
        assert reader.reconnects == 1
    after = await steps.eventually(lambda: _other_stunnel(cluster, before), what="another stunnel runs")
    assert after != before


async def test_killed_agent_is_replaced_without_an_interruption(cluster: Cluster) -> None:
    system = cluster.file_system_ids[0]
    await steps.tunnel_up(cluster, system)
    port, stunnel = await steps.port_of(cluster, system), await _stunnel_pid(cluster)
    async with SlowReader(cluster, system, size_bytes=SIZE_BYTES) as reader:
        await cluster.tunnel.kill()
        await cluster.tunnel.start()
        await cluster.tunnel.ready()
        assert await _stunnel_pid(cluster) == stunnel
        await steps.tunnel_up(cluster, system)
        await reader.finish()
        assert reader.reconnects == 0
    assert await steps.port_of(cluster, system) == port


async def test_agent_and_stunnel_killed_together_are_restarted(cluster: Cluster) -> None:
    system = cluster.file_system_ids[0]
    await steps.tunnel_up(cluster, system)
    stunnel = await _stunnel_pid(cluster)
    async with SlowReader(cluster, system, size_bytes=SIZE_BYTES) as reader:
        await cluster.tunnel.kill()
        os.kill(stunnel, signal.SIGKILL)
        await cluster.tunnel.start()
        await reader.finish()
    await steps.tunnel_up(cluster, system)


async def test_tunnels_start_without_an_api_server(cluster: Cluster) -> None:
    system = cluster.file_system_ids[0]
    await steps.tunnel_up(cluster, system)
    stunnel = await _stunnel_pid(cluster)
    kubeconfig = cluster.kubeconfig.read_text()
    await cluster.tunnel.kill()
    os.kill(stunnel, signal.SIGKILL)
    server = re.search(r"https://127.0.0.1:\d+", kubeconfig)
    assert server
    cluster.kubeconfig.write_text(kubeconfig.replace(server[0], "https://127.0.0.1:1"))
    try:
        await cluster.tunnel.start()
        await steps.tunnel_up(cluster, system)
        async with SlowReader(cluster, system, size_bytes=SIZE_BYTES) as reader:
            await reader.finish()
    finally:
        cluster.kubeconfig.write_text(kubeconfig)
        await cluster.tunnel.stop()
        await cluster.tunnel.start()


async def _stunnel_pid(cluster: Cluster) -> int:
    async def look() -> int | None:
        return (await steps.tunnels(cluster)).stunnel_pid

    return await steps.eventually(look, what="stunnel runs")


async def _other_stunnel(cluster: Cluster, before: int) -> int | None:
    pid = (await steps.tunnels(cluster)).stunnel_pid
    return pid if pid != before else None
