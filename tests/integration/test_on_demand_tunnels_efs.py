"""Files of the embedded EFS through tunnels on demand: TLS, NFS and certificates as on a node."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.integration.on_demand_options import on_demand_options
from tests.integration.tunnel_node import agent_process, end, eventually, stunnels_of

from fake_efs.service import EmbeddedEfs
from kube_efs.model.efs.ids import FileSystemId, Region
from kube_efs.tunnels.api.client import connect_tunnels
from kube_efs.tunnels.options import TunnelOptions
from kube_efs.tunnels.reservations import Holder, TunnelSpec

POD = Holder("volume /pods/1")
MEGABYTES = 200


@pytest.fixture
async def efs(tmp_path: Path) -> AsyncIterator[EmbeddedEfs]:
    async with EmbeddedEfs(tmp_path / "efs", region=Region("us-east-1")) as efs:
        yield efs


async def nfs(tool: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        tool, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )


def url(port: int, name: str) -> str:
    return f"nfs://127.0.0.1//{name}?version=4&nfsport={port}&mountport={port}"


async def spec_of(efs: EmbeddedEfs, file_system: FileSystemId) -> TunnelSpec:
    [target, *_] = await efs.mount_targets(file_system)
    return TunnelSpec(file_system_id=file_system, address=target.address)


async def test_copy_continues_while_agents_are_killed_and_replaced(efs: EmbeddedEfs, tmp_path: Path) -> None:
    socket = tmp_path / "run" / "tunnel.sock"
    options = TunnelOptions(
        region=Region(efs.region),
        conf_path=tmp_path / "stunnel.conf",
        ca_file=efs.ca_file,
        on_demand=on_demand_options(socket),
    )
    file_system = FileSystemId(await efs.create_file_system("data"))
    big = efs.folder(file_system) / "big"
    await asyncio.to_thread(big.write_bytes, os.urandom(1 << 20) * MEGABYTES)
    spec, copy = await spec_of(efs, file_system), tmp_path / "copy"

    def copied() -> int:
        return copy.stat().st_size if copy.exists() else 0

    async with connect_tunnels(socket) as client, agent_process(options) as first:
        port = await client.ensure(spec, POD)
        [pid] = stunnels_of(options.conf_path)
        copying = await nfs("nfs-cp", url(port, "big"), str(copy))
        await eventually(lambda: copied() > 1 << 20, "the copy begun")
        await end(first, signal.SIGKILL)
        went_on_at = copied()
        for number in (signal.SIGTERM, signal.SIGKILL):
            socket.unlink(missing_ok=True)
            async with agent_process(options, stops_stunnel=False) as following:
                assert await client.ensure(spec, POD) == port
                assert stunnels_of(options.conf_path) == [pid]
                await end(following, number)
        output, _ = await copying.communicate()
        assert copying.returncode == 0, output
        assert went_on_at < MEGABYTES << 20, "the copy was too quick for this test"
    assert copy.read_bytes() == big.read_bytes()


async def test_another_file_system_at_the_address_receives_no_data(efs: EmbeddedEfs, tmp_path: Path) -> None:
    socket = tmp_path / "run" / "tunnel.sock"
    options = TunnelOptions(
        region=Region(efs.region),
        conf_path=tmp_path / "stunnel.conf",
        ca_file=efs.ca_file,
        on_demand=on_demand_options(socket),
    )
    file_system = FileSystemId(await efs.create_file_system("data"))
    spec = replace(await spec_of(efs, file_system), file_system_id=FileSystemId("fs-99999999"))
    async with connect_tunnels(socket) as client, agent_process(options):
        port = await client.ensure(spec, POD)
        listing = await nfs("nfs-ls", url(port, ""))
        assert await listing.wait() != 0
