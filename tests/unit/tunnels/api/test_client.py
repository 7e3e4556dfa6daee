"""The client of the tunnel agent without an agent."""

import asyncio
from pathlib import Path

import pytest

from kube_efs.model.errors import TunnelAgentUnavailable
from kube_efs.tunnels.api.client import connect_tunnels
from kube_efs.tunnels.reservations import Holder


async def test_closed_client_raises_a_typed_error(tmp_path: Path) -> None:
    async with connect_tunnels(tmp_path / "agent.sock") as client:
        waiting = asyncio.create_task(client.release(Holder("volume")))
        await asyncio.sleep(0)
    with pytest.raises(TunnelAgentUnavailable, match="is not called any more"):
        await waiting
    with pytest.raises(TunnelAgentUnavailable, match="is not called any more"):
        await client.release(Holder("volume"))
