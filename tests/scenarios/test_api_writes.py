"""The writes of the controller to the API server for claims, which a proxy counts.

The cluster is that of this module alone: what other tests leave behind, such as a trash that is emptied again
after a minute, would be counted, too.
"""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest
from bench.counting import Writes
from lightkube.resources.core_v1 import Pod
from tests.scenarios import csi_steps, directory_steps, steps
from tests.scenarios.conftest import make_plane
from tests.scenarios.directory_steps import Claims
from tests.scenarios.faulty_api import FaultyPlane
from tests.scenarios.steps import Cluster

from kube_efs.model.names import WORKER_LABELS
from kube_efs.model.tunnel_volumes import root_name
from kube_efs_lab.real_control_plane import ControlPlanes

pytestmark = pytest.mark.asyncio(loop_scope="session")

CLAIMS = 10


@pytest.fixture(scope="module")
def plane(pytestconfig: pytest.Config, cluster_folder: Path, control_planes: ControlPlanes) -> FaultyPlane:
    """The control plane of the cluster; not started yet."""
    return FaultyPlane(make_plane(pytestconfig, cluster_folder, control_planes), cluster_folder)


async def _tunnel_class(cluster: Cluster) -> str:
    await steps.port_of(cluster, cluster.file_system_ids[0])
    return await steps.new_class(cluster.client, default_file_system_id=cluster.file_system_ids[0])


async def _directory_class(cluster: Cluster) -> str:
    return await directory_steps.new_class(cluster.client)


async def _csi_class(cluster: Cluster) -> str:
    return await csi_steps.new_class(cluster.client, parameters={"fileSystemId": cluster.file_system_ids[0]})


CLASSES: Mapping[str, Callable[[Cluster], Awaitable[str]]] = {
    "tunnel": _tunnel_class,
    "directory": _directory_class,
    "csi": _csi_class,
}


async def _first_pods_are_gone(cluster: Cluster) -> None:
    """Wait until each trash was emptied after the start of the controller, also after failed pods."""

    async def look() -> bool:
        ended = await steps.metric(cluster.controller, 'kube_efs_worker_pods_total{outcome="succeeded"')
        pods = cluster.client.list(Pod, namespace=cluster.namespace, labels=dict(WORKER_LABELS))
        left = [one async for one in pods]
        return ended >= len(cluster.file_system_ids) and not left

    await steps.eventually(look, what="no worker pod is left")


@pytest.mark.parametrize("kind", CLASSES)
async def test_claims_cost_one_write_each_plus_those_of_few_workers(
    cluster: Cluster, plane: FaultyPlane, kind: str
) -> None:
    storage_class, claims = await CLASSES[kind](cluster), await Claims.of(cluster)
    for system in cluster.file_system_ids:  # whose volumes are made once, and are no claims of people
        await steps.bound_volume(cluster.client, cluster.namespace, root_name(system))
    await _first_pods_are_gone(cluster)
    writes = Writes()
    plane.api.fault = writes.note
    for number in range(CLAIMS):
        name = f"claim-{number}"
        labels = {"volume_name": f"volume_{number}"} if kind == "tunnel" else None
        await cluster.client.create(steps.claim(claims.namespace, name, storage_class, labels))

    await claims.all_bound(CLAIMS)

    assert writes.counted["POST persistentvolumes"] == CLAIMS
    # What auto has chosen is recorded on the claim.
    recorded = writes.counted["PATCH persistentvolumeclaims"]
    assert recorded <= 1.5 * CLAIMS if kind == "tunnel" else not recorded, writes.counted
    assert writes.counted.total() - recorded <= 2 * CLAIMS, writes.counted
    if kind == "csi":
        assert writes.counted.total() == CLAIMS, writes.counted
