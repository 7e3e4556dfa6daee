"""Nodes without an NFS client, such as those of Bottlerocket: the CSI driver mounts for worker pods."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.scenarios import csi_steps, directory_steps, steps
from tests.scenarios.directory_steps import Claims
from tests.scenarios.forking import fork_module
from tests.scenarios.steps import Cluster

from kube_efs.model.tunnel_volumes import root_name
from kube_efs_lab.cluster import EmbeddedCluster
from kube_efs_lab.control_plane import ControlPlane

pytestmark = pytest.mark.asyncio(loop_scope="session")


class ClusterWithoutNfs(EmbeddedCluster):
    """Its node refuses NFS volumes."""

    node_has_nfs = False


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(plane: ControlPlane, cluster_folder: Path) -> AsyncGenerator[Cluster, None]:
    """A cluster whose kubelet mounts no NFS volume."""
    settings = {"KUBE_EFS_WORKER_MOUNTS": "csi"}
    starting = ClusterWithoutNfs(cluster_folder, settings=settings, control_plane=plane, starter=fork_module)
    async with starting as running:
        yield running


async def test_directories_of_claims_are_created_and_removed(cluster: Cluster) -> None:
    system = directory_steps.file_system(cluster)
    root = cluster.efs.folder(system)
    tunnels = await steps.new_class(cluster.client, default_file_system_id=system)
    directories = await directory_steps.new_class(cluster.client)
    by_driver = await csi_steps.new_class(
        cluster.client,
        parameters={"provisioningMode": "efs-dir", "fileSystemId": system, "basePath": "/dirs"},
    )
    claims = await Claims.of(cluster)
    async with steps.worker_pods(cluster) as pods:
        await cluster.client.create(steps.claim(claims.namespace, "tunnel", tunnels, {"volume_name": "data"}))
        await claims.create(directories, "directory")
        await claims.create(by_driver, "driver")
        found = [await claims.bound(name) for name in ("tunnel", "directory", "driver")]
        paths = [
            root / claims.namespace / "data",
            directory_steps.folder(cluster, found[1]),
            *(path for path in (root / "dirs").iterdir() if not path.name.startswith(".")),
        ]
        assert len(paths) == 3
        assert all(path.is_dir() for path in paths)
        await claims.delete("tunnel", "directory", "driver")
        await claims.no_volumes()
        assert not any(path.exists() for path in paths)
        await steps.trash_is_empty(root)
    assert pods.claims >= pods.names
    assert not pods.claims & {root_name(one) for one in cluster.file_system_ids}
