"""csi-sanity with the driver: its controller, and its node, which mounts through real tunnels."""

import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.conformance.csi_driver import sanity
from tests.integration.folder_mounter import private_folder
from tests.integration.tunnel_node import stunnels_of
from tests.scenarios import csi_steps, snapshot_steps, steps
from tests.scenarios.forking import fork_module
from tests.scenarios.steps import eventually

from kube_efs.aws.gateway import AwsGateway
from kube_efs.model.copies import SNAPSHOTS
from kube_efs.mounts.mountinfo import read_mountinfo
from kube_efs.tunnels.api.client import connect_tunnels
from kube_efs_lab.aws import aws_options
from kube_efs_lab.cluster import EmbeddedCluster
from kube_efs_lab.real_control_plane import ControlPlanes
from kube_efs_lab.real_plane import RealPlane

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
]

SKIPPED = "skipped: skipped - "
# csi-sanity's own words for what is not offered; docs/csi.md and docs/csi-node.md have the reasons.
NOT_OFFERED = {
    *("ListSnapshots", "GetSnapshot", "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS"),
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
async def cluster(control_planes: ControlPlanes, folder: Path) -> AsyncIterator[EmbeddedCluster]:
    """A real control plane with a kubelet, which runs the worker pods that copy."""
    async with EmbeddedCluster(
        folder / "cluster",
        file_systems=["data"],
        settings={"KUBE_EFS_VOLUME_METRICS": "true"},
        control_plane=RealPlane(control_planes),
        starter=fork_module,
    ) as running:
        # csi-sanity creates no VolumeSnapshotContents, but without the kind no snapshot is deleted.
        await snapshot_steps.install_kinds(running)
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def controller(cluster: EmbeddedCluster, folder: Path) -> AsyncIterator[Path]:
    """The socket of a controller that has also published the file system to the nodes."""
    socket = folder / "csi.sock"
    # csi-sanity requests another size under a name that is in use; only a tag shows the size.
    settings = {"CSI_ENDPOINT": f"unix://{socket}", "KUBE_EFS_VOLUME_TAGS": "true"}
    async with csi_steps.controller_with(cluster, **settings):

        async def is_served() -> bool:
            return socket.is_socket()

        await eventually(is_served, what="the socket is served")
        await steps.port_of(cluster, cluster.file_system_ids[0])
        yield socket


async def test_csi_sanity_passes(controller: Path, cluster: EmbeddedCluster, folder: Path) -> None:
    (system,) = cluster.file_system_ids
    parameters = {"provisioningMode": "efs-ap", "fileSystemId": system, "directoryPerms": "700"}
    outcomes = await sanity(folder, controller=controller, node=cluster.driver_socket, parameters=parameters)

    skipped = {one for one in outcomes.values() if one.startswith(SKIPPED)}
    assert {one.removeprefix(SKIPPED) for one in skipped} == {f"{what} not supported" for what in NOT_OFFERED}
    others = Counter(one for one in outcomes.values() if one not in skipped)
    # Pending is a test that csi-sanity itself has switched off.
    assert others == {"passed": 48, "skipped: pending": 1}, outcomes

    options = aws_options(cluster.efs.endpoint_url)
    async with AwsGateway(options) as account:
        assert await account.access_points.list(system) == ()
    assert list((cluster.efs.folder(system) / SNAPSHOTS).iterdir()) == []
    assert [one for one in read_mountinfo() if folder / "mount" in one.mount_point.parents] == []
    # One for access points, and one for file systems if volumes of other tests use a port.
    assert 1 <= len(stunnels_of(cluster.stunnel_conf)) <= 2
    async with connect_tunnels(cluster.tunnel_socket) as agent:
        tunnels = await agent.tunnels()
    # One for each of the volumes that csi-sanity has published.
    assert [tunnel.holders for tunnel in tunnels] == [frozenset()] * 5
