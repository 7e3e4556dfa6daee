"""csi-sanity with the driver: its controller, and its node, which mounts through real tunnels."""

import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
from tests.conformance.csi_driver import REGION, Driver, sanity
from tests.conformance.kubectl import Kubectl
from tests.integration.folder_mounter import private_folder
from tests.integration.node_programs import NodePrograms, node_programs
from tests.integration.tunnel_node import stunnels_of
from tests.scenarios.steps import eventually

from fake_efs.service import EmbeddedEfs
from kube_efs.aws.gateway import AwsGateway
from kube_efs.model.efs.ids import FileSystemId, Region
from kube_efs.model.names import UNNAMED_INSTALLATION
from kube_efs.mounts.mountinfo import read_mountinfo
from kube_efs.tunnels.api.client import connect_tunnels
from kube_efs_lab.aws import aws_options
from kube_efs_lab.real_control_plane import RealControlPlane

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
]

SKIPPED = "skipped: skipped - "
# csi-sanity's own words for what is not offered; docs/csi.md and docs/csi-node.md have the reasons.
NOT_OFFERED = {
    *("CreateSnapshot", "DeleteSnapshot", "ListSnapshots", "GetSnapshot", "Snapshot", "Volume Cloning"),
    *("ControllerPublishVolume", "ControllerUnpublishVolume", "Controller Publish, UnpublishVolume"),
    *("ControllerModifyVolume", "Modify volume", "Modify Volume"),
    *("ListVolumes", "GetCapacity", "ControllerGetVolumeHealth", "ControllerListVolumeHealth"),
    "GroupControllerService",
    *("NodeStageVolume", "NodeUnstageVolume", "NodeExpandVolume"),
    *("NodeGetVolumeHealth", "NodeGetStorageHealth"),
}


@pytest.fixture
def folder() -> Iterator[Path]:
    with private_folder() as folder:
        yield folder


@pytest_asyncio.fixture(loop_scope="session")
async def efs(tmp_path: Path) -> AsyncIterator[EmbeddedEfs]:
    async with EmbeddedEfs(tmp_path / "efs", region=Region(REGION)) as efs:
        yield efs


@pytest_asyncio.fixture(loop_scope="session")
async def system(efs: EmbeddedEfs) -> FileSystemId:
    return FileSystemId(await efs.create_file_system("data"))


@pytest_asyncio.fixture(loop_scope="session")
async def controller(
    control_plane: RealControlPlane, efs: EmbeddedEfs, system: FileSystemId, folder: Path
) -> AsyncIterator[Path]:
    """The socket of a controller that has also published the file system to the nodes."""
    driver = Driver(control_plane.admin_kubeconfig, efs, folder)
    name = UNNAMED_INSTALLATION.names.config_map  # its process has no KUBE_EFS_NAMES
    targets = partial(
        Kubectl(control_plane.admin_kubeconfig).run,
        "get",
        "configmap",
        name,
        "-oyaml",
    )

    async def told() -> bool:
        return system in (await targets()).output

    async with driver.on_its_socket(backends="tunnel,csi"):
        await eventually(told, what="the nodes know the file system")
        yield driver.socket


@pytest_asyncio.fixture(loop_scope="session")
async def node(
    control_plane: RealControlPlane, efs: EmbeddedEfs, folder: Path
) -> AsyncIterator[NodePrograms]:
    async with node_programs(folder / "node", efs, control_plane.admin_kubeconfig) as programs:
        yield programs


async def test_csi_sanity_passes(
    controller: Path, node: NodePrograms, efs: EmbeddedEfs, system: FileSystemId, folder: Path
) -> None:
    parameters = {"provisioningMode": "efs-ap", "fileSystemId": system, "directoryPerms": "700"}
    outcomes = await sanity(folder, controller=controller, node=node.csi_socket, parameters=parameters)

    skipped = {one for one in outcomes.values() if one.startswith(SKIPPED)}
    assert {one.removeprefix(SKIPPED) for one in skipped} == {f"{what} not supported" for what in NOT_OFFERED}
    others = Counter(one for one in outcomes.values() if one not in skipped)
    # Pending is a test that csi-sanity itself has switched off.
    assert others == {"passed": 36, "skipped: pending": 1}, outcomes

    options = aws_options(efs.endpoint_url)
    async with AwsGateway(options) as account:
        assert await account.access_points.list(system) == ()
    assert [one for one in read_mountinfo() if folder / "mount" in one.mount_point.parents] == []
    # One for access points, and one for file systems if volumes of other tests use a port.
    assert 1 <= len(stunnels_of(node.stunnel_conf)) <= 2
    async with connect_tunnels(node.tunnel_socket) as agent:
        tunnels = await agent.tunnels()
    # One for each of the volumes that csi-sanity has published.
    assert [tunnel.holders for tunnel in tunnels] == [frozenset()] * 5
