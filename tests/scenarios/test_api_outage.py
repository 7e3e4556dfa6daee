"""The API server stops and starts at the same address; storage in use is not affected."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from tests.scenarios import steps
from tests.scenarios.burst import MANY, Burst
from tests.scenarios.nfs import SlowReader
from tests.scenarios.steps import Cluster

from kube_efs.tunnels.status import TunnelState
from kube_efs_lab.control_plane import ControlPlane, EmbeddedControlPlane
from kube_efs_lab.real_plane import RealPlane

AWAY_SECONDS = 3.0
# The embedded API server goes away without a word, in the midst of connections that it then does not close.
pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

LOOK_SECONDS = 0.1
FILE_BYTES = 64 * 1024 * 1024


@pytest.fixture(scope="module")
def cluster_settings() -> dict[str, str]:
    """A long lease, so that the leader keeps it while the API server restarts."""
    return {"KUBE_EFS_LEASE_DURATION_SECONDS": "120", "KUBE_EFS_LEASE_RENEW_SECONDS": "90"}


async def test_burst_is_served_despite_an_api_server_outage(cluster: Cluster, plane: ControlPlane) -> None:
    first, second = cluster.file_system_ids
    await asyncio.gather(steps.tunnel_up(cluster, first), steps.tunnel_up(cluster, second))
    burst = await Burst.of(cluster, MANY)
    async with SlowReader(cluster, first, size_bytes=FILE_BYTES) as reader:
        async with reader.meanwhile(), _tunnels_stay_up(cluster):
            await burst.create()
            await steps.eventually(burst.has_a_worker, what="directories are being made")
            await _restart(plane)
            await burst.served()
        await reader.finish()
        assert reader.reconnects == 0


async def test_claims_deleted_just_before_an_api_server_outage_are_reclaimed(
    cluster: Cluster, plane: ControlPlane
) -> None:
    burst = await Burst.of(cluster)
    await burst.create()
    await burst.served()

    await burst.delete()
    await _restart(plane)

    await burst.reclaimed()


@asynccontextmanager
async def _tunnels_stay_up(cluster: Cluster) -> AsyncGenerator[None, None]:
    """Fail if the agent reports a tunnel as not up while the context is open."""

    async def look() -> None:
        while True:
            found = (await steps.tunnels(cluster)).tunnels
            states = {tunnel.file_system_id: tunnel.state for tunnel in found}
            assert states == dict.fromkeys(cluster.file_system_ids, TunnelState.UP)
            await asyncio.sleep(LOOK_SECONDS)

    async with asyncio.TaskGroup() as tasks:
        looking = tasks.create_task(look())
        yield
        looking.cancel()


async def _restart(plane: ControlPlane) -> None:
    """Kill the API server, and start it again."""
    if isinstance(plane, RealPlane):
        await plane.plane.restart_api_server()
        return
    assert isinstance(plane, EmbeddedControlPlane)
    await plane.api.pause()
    await asyncio.sleep(AWAY_SECONDS)
    await plane.api.start()
