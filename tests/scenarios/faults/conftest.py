"""One cluster for all modules of this directory, whose API server can have faults."""

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio
from tests.scenarios import faulty_api
from tests.scenarios.conftest import make_plane
from tests.scenarios.faulty_api import FaultyApi, FaultyPlane
from tests.scenarios.forking import fork_module
from tests.scenarios.steps import Cluster

from kube_efs_lab.cluster import EmbeddedCluster
from kube_efs_lab.real_control_plane import ControlPlanes

# A long lease, so that faults do not change the leader.
_SETTINGS = {"KUBE_EFS_LEASE_DURATION_SECONDS": "120", "KUBE_EFS_LEASE_RENEW_SECONDS": "90"}


@pytest.fixture(scope="package")
def plane(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory, control_planes: ControlPlanes
) -> FaultyPlane:
    """The control plane of the cluster; not started yet."""
    folder = tmp_path_factory.mktemp("plane")
    return FaultyPlane(make_plane(pytestconfig, folder, control_planes), folder)


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def cluster(
    plane: FaultyPlane, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Cluster, None]:
    """A cluster with the file systems ``first`` and ``second``, and with objects of other modules."""
    folder = tmp_path_factory.mktemp("cluster")
    async with EmbeddedCluster(
        folder, settings=_SETTINGS, control_plane=plane, starter=fork_module
    ) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def api(cluster: Cluster, plane: FaultyPlane) -> FaultyApi:
    """The proxy in front of the API server, without faults when the controller has started."""
    plane.api.fault = faulty_api.no_fault
    if not cluster.controller.running:
        await cluster.controller.start()
    return plane.api
