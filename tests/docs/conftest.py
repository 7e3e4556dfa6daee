"""The clusters that the sessions of pages share."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from kube_efs_lab.cluster import EmbeddedCluster


def environment_of(cluster: EmbeddedCluster, home: Path) -> Mapping[str, str]:
    """The environment of a reader's shell: kube-efs, and access to a cluster and to AWS."""
    return {
        **cluster.efs.environment(),
        # For what is given.
        "FILE_SYSTEM": cluster.file_system_ids[0],
        "REPLICA": cluster.file_system_ids[-1],
        "HOME": str(home),
        "KUBECONFIG": str(cluster.kubeconfig),
        "LANG": "C.UTF-8",
        "NO_COLOR": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[EmbeddedCluster, None]:
    """A cluster for most pages, with running processes of kube-efs."""
    async with EmbeddedCluster(tmp_path_factory.mktemp("docs")) as cluster:
        yield cluster
    await _last_callbacks()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def bare_cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[EmbeddedCluster, None]:
    """A cluster without kube-efs, where pages install it in pods."""
    settings = {"KUBE_EFS_RESYNC_SECONDS": "2"}
    async with EmbeddedCluster(
        tmp_path_factory.mktemp("bare"), file_systems=("first",), settings=settings, installed=False
    ) as cluster:
        yield cluster
    await _last_callbacks()


async def _last_callbacks() -> None:
    """Let closed connections end, because the loop does not run between fixtures and other tests.

    While another cluster runs, one second must be enough.
    """
    for _ in range(20):
        await asyncio.sleep(0)
        if not _speaks_to_itself():
            break
        await asyncio.sleep(0.05)


def _speaks_to_itself() -> bool:
    """Whether this process has both ends of a connection, as between a cluster and its API server."""
    ends = {(one.laddr, one.raddr) for one in psutil.Process().net_connections("tcp") if one.raddr}
    return any((far, near) in ends for near, far in ends)
