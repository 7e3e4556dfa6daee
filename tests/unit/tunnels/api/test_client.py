"""The client of the tunnel agent without an agent."""

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import TunnelAgentUnavailable
from kube_efs.tunnels.api.client import connect_tunnels
from kube_efs.tunnels.protocol import tunnels_pb2 as pb
from kube_efs.tunnels.reservations import Holder, TunnelSpec
from kube_efs.tunnels.status import TunnelState

FS = FileSystemId("fs-0123456789abcdef0")


async def answer_list(_: web.Request) -> web.Response:
    """A tunnel of a kind, and in a state, that this version does not know, and another one."""
    unknown = pb.Tunnel(spec=pb.Spec(file_system_id=FS, kind="tape"), state="rewinding", holders=["a"])
    known = pb.Tunnel(spec=pb.Spec(file_system_id=FS), state="up", holders=["b"])
    return web.Response(body=pb.ListResponse(tunnels=[unknown, known]).SerializeToString())


async def test_closed_client_raises_a_typed_error(tmp_path: Path) -> None:
    async with connect_tunnels(tmp_path / "agent.sock") as client:
        waiting = asyncio.create_task(client.release(Holder("volume")))
        await asyncio.sleep(0)
    with pytest.raises(TunnelAgentUnavailable, match="is not called any more"):
        await waiting
    with pytest.raises(TunnelAgentUnavailable, match="is not called any more"):
        await client.release(Holder("volume"))


async def test_tunnel_of_a_newer_agent_affects_no_other(tmp_path: Path) -> None:
    socket = tmp_path / "agent.sock"
    newer_agent = web.Application()
    newer_agent.router.add_post("/v1/List", answer_list)
    runner = web.AppRunner(newer_agent)
    await runner.setup()
    try:
        await web.UnixSite(runner, str(socket)).start()
        async with connect_tunnels(socket) as client:
            unknown, known = await client.tunnels()
    finally:
        await runner.cleanup()
    # Its holder must be in the next reconciliation.
    assert (unknown.spec, unknown.state, set(unknown.holders)) == (None, TunnelState.DOWN, {"a"})
    assert (known.spec, known.state) == (TunnelSpec(file_system_id=FS), TunnelState.UP)
