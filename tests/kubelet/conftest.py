"""The one cluster of all scenarios on a real kubelet."""

import logging
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import structlog
from scripts.images import own_image
from tests.conformance.programs import PROGRAMS
from tests.kernel.uml import KERNEL
from tests.kubelet import installing
from tests.kubelet.cluster import Cluster, running_cluster

_NEEDED = (KERNEL, "containerd", "crun", "busybox", "buildah", "mkfs.ext4", "ip", "mount.nfs4")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip all of it where a guest with a kubelet cannot run.

    First comes the longest module, so that another node can run all others. Those that share an installation
    follow one another.
    """
    items.sort(key=_is_late)
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    reason = ""
    if missing:
        reason = f"{', '.join(missing)} cannot be found; scripts/install-programs kubelet installs them"
    elif not (PROGRAMS / "kubelet").exists():
        reason = "tests/conformance/tools/build has not built the kubelet"
    elif os.geteuid() != 0:
        reason = "guests with networks need root"
    for item in items:
        if reason and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


def _is_late(item: pytest.Item) -> tuple[bool, bool]:
    shares_installation = isinstance(item, pytest.Function) and "installed" in item.fixturenames
    return item.path.stem != "test_storage_suite", not shares_installation


@pytest.fixture(scope="session", autouse=True)
def quiet_parts() -> None:
    """Omit the connections of probes from the output of failed tests."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """The cluster, without kube-efs."""
    async with running_cluster(tmp_path_factory.mktemp("cluster"), image=own_image()) as cluster:
        yield cluster


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def installed(cluster: Cluster) -> Cluster:
    """The cluster with kube-efs."""
    await installing.install(cluster)
    return cluster


@pytest.fixture(autouse=True)
def node_log(request: pytest.FixtureRequest) -> Iterator[None]:
    """Print the ends of the node's logs where a test fails."""
    yield
    if "cluster" in request.fixturenames:
        print(request.getfixturevalue("cluster").node.log())  # noqa: T201 - shown where a test fails
