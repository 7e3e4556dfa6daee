"""One cluster for all the modules of a folder, which need nothing special of it.

Starting one costs as much as ten scenarios. A folder's conftest.py has these fixtures, and the project's
conftest.py names the folder, which goes to one worker.
"""

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio
from tests.scenarios.conftest import make_plane
from tests.scenarios.forking import fork_module
from tests.scenarios.steps import Cluster, delete_waiting_claims

from kube_efs_lab.cluster import EmbeddedCluster
from kube_efs_lab.control_plane import ControlPlane
from kube_efs_lab.real_control_plane import ControlPlanes


@pytest.fixture(scope="package")
def plane(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory, control_planes: ControlPlanes
) -> ControlPlane:
    """What the cluster runs on; not started yet."""
    return make_plane(pytestconfig, tmp_path_factory.mktemp("plane"), control_planes)


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def cluster(
    plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Cluster, None]:
    """A cluster with two file systems, ``first`` and ``second``, and what other modules have left in it."""
    folder = tmp_path_factory.mktemp("cluster")
    async with EmbeddedCluster(folder, control_plane=plane, starter=fork_module) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="session", autouse=True)
async def tidy(cluster: Cluster) -> AsyncGenerator[None, None]:
    """Take away the claims that a module leaves without a volume, or they would be tried for ever."""
    yield
    await delete_waiting_claims(cluster.client)
