"""The status of an agent's tunnels, as ``kube-efs status`` reads it from a real API server."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from lightkube import AsyncClient
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, Node

from kube_efs.model.names import OPENSHIFT_EFS_STUNNEL
from kube_efs.report.reading import read_cluster
from kube_efs.report.values import NodeReport
from kube_efs.tunnels.status import TunnelsStatus, TunnelState, TunnelStatus
from kube_efs.tunnels.status_config_map import publish_status

Eventually = Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]

_UP = TunnelStatus(file_system_id="fs-a", port=20490, state=TunnelState.UP, probe_seconds=0.1)
_DOWN = replace(_UP, state=TunnelState.DOWN, reason="no route to host")


NAMES = replace(OPENSHIFT_EFS_STUNNEL, namespace="default")


class _Agent:
    def __init__(self) -> None:
        self.tunnel = _UP

    def status(self) -> TunnelsStatus:
        # As in life, a probe never takes twice the same time.
        self.tunnel = replace(self.tunnel, probe_seconds=(self.tunnel.probe_seconds or 0) + 0.1)
        return TunnelsStatus(tunnels=(self.tunnel,))


@asynccontextmanager
async def _publishing(client: AsyncClient, agent: _Agent) -> AsyncIterator[None]:
    task = asyncio.create_task(
        publish_status(
            client, agent.status, names=NAMES, node="node-a", interval_seconds=0.01, spread_seconds=0.01
        )
    )
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _nodes(client: AsyncClient) -> tuple[NodeReport, ...]:
    return (await read_cluster(client, NAMES)).nodes


async def test_status_is_published_after_changes_and_removed_at_the_end(
    kube: AsyncClient, eventually: Eventually
) -> None:
    agent = _Agent()
    await kube.create(Node(metadata=ObjectMeta(name="node-a")))

    async def says(state: TunnelState) -> bool:
        return [tunnel.state for node in await _nodes(kube) for tunnel in node.tunnels] == [state]

    async with _publishing(kube, agent):
        await eventually(lambda: says(TunnelState.UP))
        (node,) = await _nodes(kube)
        assert node.node == "node-a"
        assert node.time.endswith("Z")
        agent.tunnel = _DOWN
        await eventually(lambda: says(TunnelState.DOWN))
        assert (await _nodes(kube))[0].tunnels[0].reason == "no route to host"
    assert await _nodes(kube) == ()


async def test_status_is_not_written_if_only_probe_times_change(
    kube: AsyncClient, eventually: Eventually
) -> None:
    agent = _Agent()

    async def version() -> str | None:
        found = [item async for item in kube.list(ConfigMap, namespace="default")]
        ours = [
            one
            for one in found
            if one.metadata and (one.metadata.name or "").startswith("efs-stunnel-status")
        ]
        return ours[0].metadata.resourceVersion if ours and ours[0].metadata else None

    async def looked_often() -> bool:
        return (agent.tunnel.probe_seconds or 0) > 2

    async with _publishing(kube, agent):
        await eventually(version)
        first = await version()
        await eventually(looked_often)
        assert await version() == first
