"""The cluster that the scenarios of a module share: embedded, or real with ``--cluster real``."""

import logging
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import structlog
from tests.scenarios.forking import fork_module
from tests.scenarios.steps import Cluster

from kube_efs_lab.cluster import EmbeddedCluster
from kube_efs_lab.control_plane import ControlPlane, EmbeddedControlPlane
from kube_efs_lab.real_control_plane import ControlPlanes
from kube_efs_lab.real_plane import RealPlane


@pytest.fixture(scope="module", autouse=True)
def quiet_parts() -> Iterator[None]:
    """Omit the connections of probes from the output of failed tests."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    yield
    structlog.configure(**before)


@pytest.fixture(scope="module")
def cluster_settings() -> dict[str, str]:
    """Settings of kube-efs's processes that a module overrides."""
    return {}


@pytest.fixture(scope="module")
def driver_policy() -> str | None:
    """The IAM policy of kube-efs; None: everything is allowed."""
    return None


@pytest.fixture(scope="module")
def cluster_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory for all files of the cluster."""
    return tmp_path_factory.mktemp("cluster")


def make_plane(config: pytest.Config, folder: Path, control_planes: ControlPlanes) -> ControlPlane:
    """The control plane for ``--cluster``, with its files in that directory; not started yet."""
    if config.getoption("--cluster") == "real":
        return RealPlane(control_planes)
    return EmbeddedControlPlane(folder / "kubeconfig")


@pytest.fixture(scope="module")
def plane(pytestconfig: pytest.Config, cluster_folder: Path, control_planes: ControlPlanes) -> ControlPlane:
    """The control plane for the cluster of a module; not started yet."""
    return make_plane(pytestconfig, cluster_folder, control_planes)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(
    plane: ControlPlane, cluster_folder: Path, cluster_settings: dict[str, str], driver_policy: str | None
) -> AsyncGenerator[Cluster, None]:
    """A new cluster with two file systems, ``first`` and ``second``."""
    async with EmbeddedCluster(
        cluster_folder,
        settings=cluster_settings,
        control_plane=plane,
        starter=fork_module,
        driver_policy=driver_policy,
    ) as running:
        yield running
