"""The cluster that the sessions of all pages share."""

import os
import sys
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio

from kube_efs.local.cluster import EmbeddedCluster


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def session_environment(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncGenerator[Mapping[str, str], None]:
    """What a reader has in the shell: kube-efs, and the way to a cluster and to AWS."""
    folder = tmp_path_factory.mktemp("docs")
    async with EmbeddedCluster(folder) as cluster:
        yield {
            **cluster.efs.environment(),
            "HOME": str(folder),
            "KUBECONFIG": str(cluster.kubeconfig),
            "LANG": "C.UTF-8",
            "NO_COLOR": "1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
