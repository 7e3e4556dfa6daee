"""An agent with tunnels on demand: its options, a mount target, and a client on its socket."""

import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.integration.nfs_backend import Authority, Backend
from tests.integration.on_demand_options import on_demand_options
from tests.integration.tunnel_node import FS, host_of, stunnels_of

from kube_efs.model.efs.ids import Region
from kube_efs.tunnels.api.client import TunnelClient, connect_tunnels
from kube_efs.tunnels.options import TunnelOptions


@pytest.fixture
def options(tmp_path: Path) -> Iterator[TunnelOptions]:
    options = TunnelOptions(
        region=Region("us-east-1"),
        conf_path=tmp_path / "stunnel.conf",
        ca_file=Authority(tmp_path, "ca").file,
        probe_interval_seconds=0.1,
        retry_seconds=0.1,
        connect_timeout_seconds=1,
        on_demand=on_demand_options(tmp_path / "run" / "tunnel.sock"),
    )
    yield options
    for pid in stunnels_of(options.conf_path):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
async def backend(tmp_path: Path, options: TunnelOptions) -> AsyncIterator[Backend]:
    authority = Authority(tmp_path, "ca")
    options.authorities(options.region).write_bytes(authority.file.read_bytes())
    async with Backend(authority, host_of(FS)) as backend:
        yield backend


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[TunnelClient]:
    async with connect_tunnels(tmp_path / "run" / "tunnel.sock", timeout_seconds=30) as client:
        yield client
