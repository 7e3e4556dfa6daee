"""The embedded API server for tests of what talks to Kubernetes: a real one on loopback, in this process."""

from collections.abc import AsyncIterator

import pytest
import yaml
from lightkube import AsyncClient, KubeConfig
from lightkube.config.kubeconfig import SingleConfig

from kube_efs.kube.client import connect
from kube_efs.local.apiserver import ApiServer


@pytest.fixture
async def api_server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


@pytest.fixture
def cluster(api_server: ApiServer) -> SingleConfig:
    context = KubeConfig.from_dict(yaml.safe_load(api_server.kubeconfig())).get()
    assert context is not None
    return context


@pytest.fixture
async def kube(cluster: SingleConfig) -> AsyncIterator[AsyncClient]:
    """A client of the embedded API server."""
    async with connect(cluster) as client:
        yield client
