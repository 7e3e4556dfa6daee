"""One cluster for all modules of a directory, without special requirements.

Starting a cluster takes as long as ten scenarios. The conftest.py of such a directory has these fixtures, and
the project's conftest.py lists the directory, so that one worker runs it.
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
    """The control plane of the cluster; not started yet."""
    return make_plane(pytestconfig, tmp_path_factory.mktemp("plane"), control_planes)


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def cluster(
    plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Cluster, None]:
    """A cluster with the file systems ``first`` and ``second``, and with objects of other modules."""
    folder = tmp_path_factory.mktemp("cluster")
    async with EmbeddedCluster(folder, control_plane=plane, starter=fork_module) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="session", autouse=True)
async def tidy(cluster: Cluster) -> AsyncGenerator[None, None]:
    """Delete the claims that a module leaves without a volume, which would be retried indefinitely."""
    yield
    await delete_waiting_claims(cluster.client)
