"""The operator on a whole control plane: what it installs, keeps, takes over and removes."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
import pytest_asyncio
from tests.conformance.control_plane import ServiceAccountName
from tests.scenarios.operator_steps import (
    DRIVER,
    NAMESPACE,
    OperatorCluster,
    connected,
    install_operator,
    operator_cluster,
)
from tests.scenarios.real_plane import RealPlane

from kube_efs.local.control_plane import ControlPlane
from kube_efs.local.controllers.running import run_controllers

pytestmark = pytest.mark.asyncio(loop_scope="session")

WORKLOADS = (("DaemonSet", "efs-stunnel"), ("DaemonSet", "efs-csi-node"), ("Deployment", "efs-manager"))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(plane: ControlPlane, cluster_folder: Path) -> AsyncGenerator[OperatorCluster, None]:
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(plane)
        client = await stack.enter_async_context(connected(running.kubeconfig))
        await install_operator(running.kubeconfig)
        if isinstance(running, RealPlane):
            account = ServiceAccountName(NAMESPACE, "kube-efs-operator")
            kubeconfig = await running.plane.kubeconfig(account)
        else:
            kubeconfig = running.kubeconfig
            task = asyncio.create_task(run_controllers(client, node=None))
            stack.push_async_callback(_end, task)
        yield await stack.enter_async_context(
            operator_cluster(running.kubeconfig, kubeconfig, client, cluster_folder)
        )


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest_asyncio.fixture(loop_scope="session")
async def cluster(shared: OperatorCluster) -> AsyncGenerator[OperatorCluster, None]:
    """The cluster without a driver; what a test installs is removed after it."""
    yield shared
    shared.nodes.broken.clear()
    shared.nodes.recheck()
    await shared.ask(managementState="Managed")
    await shared.withdraw()


async def test_nothing_is_installed_before_it_is_asked_for(cluster: OperatorCluster) -> None:
    await cluster.until(lambda: cluster.events("DriverNotRequested"), "the reminder is written")
    assert await cluster.get("CSIDriver", DRIVER, "") is None


async def test_the_driver_is_installed_and_said_to_be_available(cluster: OperatorCluster) -> None:
    await cluster.ask(managementState="Managed")
    await cluster.condition("Available", status=True)
    await cluster.condition("Progressing", status=False)
    for kind, name in WORKLOADS:
        assert await cluster.get(kind, name)
    assert await cluster.get("CSIDriver", DRIVER, "")
