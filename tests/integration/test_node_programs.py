"""The complete path of a mount on a node: the CSI socket, the driver, the agent, stunnel, EFS with TLS."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from itertools import chain
from pathlib import Path

import grpc.aio
import pytest
from tests.integration.folder_mounter import private_folder
from tests.integration.node_programs import NodePrograms, node_programs
from tests.integration.tunnel_node import shards_of, stunnels_of

from fake_efs.service import EmbeddedEfs
from kube_efs.aws.connection import AwsConnection, Service
from kube_efs.csi.protocol import csi_pb2 as csi
from kube_efs.csi.protocol.csi_pb2_grpc import NodeStub
from kube_efs.model.efs.ids import FileSystemId, Region
from kube_efs.mounts.mountinfo import read_mountinfo
from kube_efs.tunnels.api.client import connect_tunnels
from kube_efs_lab.aws import aws_options
from tinykube.api import ApiServer

pytestmark = [
    pytest.mark.skipif(not Path("/usr/bin/stunnel").exists(), reason="stunnel is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
]

POINTS, PUBLISHES = 20, 200
REGION = Region("us-east-1")
Modes = csi.VolumeCapability.AccessMode


@pytest.fixture
def folder() -> Iterator[Path]:
    with private_folder() as folder:
        yield folder


@pytest.fixture
async def efs(tmp_path: Path) -> AsyncIterator[EmbeddedEfs]:
    async with EmbeddedEfs(tmp_path / "efs", region=REGION) as efs:
        yield efs


@pytest.fixture
async def programs(folder: Path, efs: EmbeddedEfs, api_server: ApiServer) -> AsyncIterator[NodePrograms]:
    kubeconfig = folder / "kubeconfig"
    api_server.write_kubeconfig(kubeconfig)
    async with node_programs(folder, efs, kubeconfig) as programs:
        yield programs


async def access_points(efs: EmbeddedEfs, file_system: FileSystemId) -> list[str]:
    options = aws_options(efs.endpoint_url)
    async with AwsConnection(options) as aws:
        made = [
            await aws.call(
                *(Service.EFS, "CreateAccessPoint"), ClientToken=str(number), FileSystemId=file_system
            )
            for number in range(POINTS)
        ]
    return [str(one["AccessPointId"]) for one in made]


async def test_200_publishes_of_20_access_points_use_20_services_of_two_processes(
    programs: NodePrograms, efs: EmbeddedEfs
) -> None:
    file_system = FileSystemId(await efs.create_file_system("data"))
    [target, *_] = await efs.mount_targets(file_system)
    points = await access_points(efs, file_system)
    volumes = {
        str(programs.folder / "pods" / str(number)): f"{file_system}::{points[number % POINTS]}"
        for number in range(PUBLISHES)
    }
    capability = csi.VolumeCapability(
        mount=csi.VolumeCapability.MountVolume(), access_mode=Modes(mode=Modes.MULTI_NODE_MULTI_WRITER)
    )

    def mounted() -> set[str]:
        return {str(entry.mount_point) for entry in read_mountinfo()}.intersection(volumes)

    async with (
        grpc.aio.insecure_channel(f"unix:{programs.csi_socket}") as channel,
        connect_tunnels(programs.tunnel_socket) as agent,
    ):
        node, slots = NodeStub(channel), asyncio.Semaphore(POINTS)

        async def publish(path: str, volume: str) -> None:
            request = csi.NodePublishVolumeRequest(
                volume_id=volume,
                target_path=path,
                volume_capability=capability,
                volume_context={"mounttargetip": target.address},
            )
            async with slots:
                await node.NodePublishVolume(request, timeout=100)

        async def unpublish(path: str, volume: str) -> None:
            request = csi.NodeUnpublishVolumeRequest(volume_id=volume, target_path=path)
            async with slots:
                await node.NodeUnpublishVolume(request, timeout=100)

        await asyncio.gather(*(publish(path, volume) for path, volume in volumes.items()))

        assert mounted() == volumes.keys()
        tunnels = await agent.tunnels()
        shards = shards_of(programs.stunnel_conf)
        assert sorted(chain(*shards.values())) == [tunnel.name for tunnel in tunnels]
        assert {tunnel.spec and tunnel.spec.access_point_id for tunnel in tunnels} == set(points)
        assert [len(tunnel.holders) for tunnel in tunnels] == [PUBLISHES // POINTS] * POINTS
        assert len(stunnels_of(programs.stunnel_conf)) == len(shards) == 2

        await asyncio.gather(*(unpublish(path, volume) for path, volume in volumes.items()))

        assert mounted() == set()
        assert [len(tunnel.holders) for tunnel in await agent.tunnels()] == [0] * POINTS
