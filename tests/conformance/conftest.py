"""The real control plane that the tests of a module share."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from lightkube import AsyncClient
from tests.conformance.installing import install
from tests.conformance.kubectl import Kubectl

from kube_efs_lab.real_control_plane import ControlPlanes, RealControlPlane


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def control_plane(control_planes: ControlPlanes) -> RealControlPlane:
    return await control_planes.fresh()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client(control_plane: RealControlPlane) -> AsyncIterator[AsyncClient]:
    async with control_plane.connect() as client:
        yield client


@pytest.fixture
def kubectl(control_plane: RealControlPlane) -> Kubectl:
    return Kubectl(control_plane.admin_kubeconfig)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def installed(control_plane: RealControlPlane) -> Kubectl:
    """kubectl for a cluster with kube-efs and the kinds of OpenShift."""
    kubectl = Kubectl(control_plane.admin_kubeconfig)
    await install(kubectl)
    return kubectl
