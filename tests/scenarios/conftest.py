"""The cluster that the scenarios of one module share."""

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio
from tests.scenarios.steps import Cluster

from kube_efs.local.cluster import EmbeddedCluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Cluster, None]:
    """A fresh cluster with two file systems, ``first`` and ``second``."""
    async with EmbeddedCluster(tmp_path_factory.mktemp("cluster")) as embedded:
        yield embedded
