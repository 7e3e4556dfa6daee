"""What is left of an embedded cluster when it ends."""

import asyncio
import os
from pathlib import Path

import psutil
import pytest

from fake_efs.errors import PlatformError
from kube_efs.tunnels.api.client import connect_tunnels
from kube_efs.tunnels.reservations import Holder, TunnelSpec
from kube_efs.tunnels.sockets.ports import listening_ports
from kube_efs_lab.cluster import EmbeddedCluster

_SECONDS = 60.0
_PAUSE_SECONDS = 0.1


def stunnels_of(folder: Path) -> list[psutil.Process]:
    configurations = str(folder / "tunnel" / "stunnel")
    return [
        one
        for one in psutil.process_iter(["cmdline"])
        if any(argument.startswith(configurations) for argument in one.info["cmdline"] or ())
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="the embedded cluster needs root")
async def test_the_stunnels_that_an_agent_leaves_to_mounts_end_with_the_cluster(tmp_path: Path) -> None:
    async with EmbeddedCluster(tmp_path, file_systems=["only"]) as cluster:
        [file_system_id] = cluster.file_system_ids
        [target, *_] = await cluster.efs.mount_targets(file_system_id)
        spec = TunnelSpec(file_system_id=file_system_id, address=target.address)
        async with connect_tunnels(cluster.tunnel_socket) as tunnels:
            await tunnels.ensure(spec, Holder("a mount that stays"))
        # One for the file system of the ConfigMap, which the agent reads meanwhile, and one on demand.
        async with asyncio.timeout(_SECONDS):
            while True:
                if len(await asyncio.to_thread(stunnels_of, tmp_path)) == 2:
                    break
                await asyncio.sleep(_PAUSE_SECONDS)
        await cluster.tunnel.stop()
        assert len(await asyncio.to_thread(stunnels_of, tmp_path)) == 2
    assert await asyncio.to_thread(stunnels_of, tmp_path) == []


async def test_what_is_missing_is_reported_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = listening_ports(os.getpid())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PlatformError, match=r"'ganesha\.nfsd' is not installed; apt install nfs-ganesha"):
        async with EmbeddedCluster(tmp_path):
            pytest.fail("it has started without an NFS server")
    assert listening_ports(os.getpid()) == before
