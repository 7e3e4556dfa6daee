"""Nodes with and without instance metadata, and the startup taint of a node."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from lightkube.models.apps_v1 import DaemonSetSpec
from lightkube.models.core_v1 import Container, PodSpec, PodTemplateSpec, Taint
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.resources.apps_v1 import DaemonSet
from lightkube.resources.core_v1 import Node
from lightkube.types import PatchType
from tests.scenarios import steps
from tests.scenarios.steps import Cluster

from kube_efs.csi.startup_taint import STARTUP_TAINT
from kube_efs.tunnels.status import LocationStatus
from kube_efs_lab.csi_calls import CsiCalls
from kube_efs_lab.program import Program
from kube_efs_lab.programs import NODE

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECOND = "second"
# As with a hop limit of 1 in a pod, or on a node whose instance metadata are off.
WITHOUT_METADATA = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:9", "NODE_NAME": SECOND}


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondNode:
    """The processes of the second node."""

    tunnel: Program


@pytest.fixture(scope="module")
def cluster_settings() -> dict[str, str]:
    """No region, as in a DaemonSet for all nodes; and no tunnels on demand, which outlive their agent."""
    return {"AWS_REGION": "", "KUBE_EFS_BACKENDS": "tunnel,directory"}


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A directory with a short name, because paths of sockets are limited."""
    with tempfile.TemporaryDirectory(prefix="nodes-") as name:
        yield Path(name)


@pytest_asyncio.fixture(loop_scope="session")
async def second_node(cluster: Cluster) -> AsyncIterator[LocationStatus]:
    """A Node in another zone than the first one, labeled by the cloud controller; its location."""
    region, zone = cluster.efs.region, cluster.efs.subnets[1].zone
    labels = {"topology.kubernetes.io/region": region, "topology.kubernetes.io/zone": zone}
    await cluster.client.create(Node(metadata=ObjectMeta(name=SECOND, labels=labels)))
    yield LocationStatus(region=region, region_source="Node object", zone=zone, zone_source="Node object")
    await cluster.client.delete(Node, SECOND)


async def test_one_daemon_set_serves_nodes_with_and_without_instance_metadata(
    cluster: Cluster, second_node: LocationStatus, sockets: Path
) -> None:
    (sockets / "tunnel").mkdir()
    first = (await steps.tunnels(cluster)).location
    assert first
    assert (first.region_source, first.zone_source) == ("instance metadata", "instance metadata")
    assert (await steps.tunnel_up(cluster, cluster.file_system_ids[0])).zone == first.zone
    changes = {
        **WITHOUT_METADATA,
        "STUNNEL_CONF_PATH": str(sockets / "tunnel" / "stunnel.conf"),
        "CSI_ENDPOINT": f"unix://{sockets}/csi.sock",
        "KUBE_EFS_REGISTRATION_FOLDER": "",
    }
    tunnel = cluster.tunnel.replica(cluster.folder / "second-tunnel.log", changes)
    driver = cluster.node.replica(cluster.folder / "second-node.log", changes)
    on_second = SecondNode(tunnel=tunnel)
    # Both agents would use the same ports of this machine.
    await cluster.tunnel.stop()
    try:
        await asyncio.gather(tunnel.start(), driver.start())
        up = await steps.tunnel_up(on_second, cluster.file_system_ids[0])
        assert (await steps.tunnels(on_second)).location == second_node
        assert up.zone == second_node.zone != first.zone
        await driver.ready()
        assert (await CsiCalls().node_info(sockets / "csi.sock"))[1] == {
            "topology.kubernetes.io/zone": second_node.zone
        }
    finally:
        await driver.stop()
        await tunnel.stop()
        await cluster.tunnel.start()
    await steps.tunnel_up(cluster, cluster.file_system_ids[0])


async def test_controller_without_instance_metadata_gets_the_region_from_its_node(
    cluster: Cluster, second_node: LocationStatus
) -> None:
    log = cluster.folder / "second-controller.log"
    controller = cluster.controller.replica(log, {**WITHOUT_METADATA, "POD_NAME": "efs-manager-1"})
    await cluster.controller.stop()
    try:
        await controller.start()
        await controller.ready()
        namespace = await steps.new_namespace(cluster.client)
        storage_class = await steps.new_class(cluster.client, default_file_system_id="auto")
        await cluster.client.create(steps.claim(namespace, "data", storage_class, {"volume_name": "data"}))
        await steps.bound_volume(cluster.client, namespace, "data")
    finally:
        await controller.stop()
        await cluster.controller.start()
    assert "location-found" in await asyncio.to_thread(log.read_text)


# --- the startup taint


@pytest_asyncio.fixture(loop_scope="session")
async def tunnels_daemon_set(cluster: Cluster) -> AsyncIterator[None]:
    """The DaemonSet of the tunnels. It selects no node, because the agent here does not run in a pod."""
    labels = {"component": cluster.names.tunnel}
    spec = PodSpec(
        containers=[Container(name=cluster.names.tunnel, image="centos")], nodeSelector={"none": "matches"}
    )
    daemon_set = DaemonSet(
        metadata=ObjectMeta(name=cluster.names.tunnel, namespace=cluster.namespace),
        spec=DaemonSetSpec(
            selector=LabelSelector(matchLabels=labels),
            template=PodTemplateSpec(metadata=ObjectMeta(labels=labels), spec=spec),
        ),
    )
    await cluster.client.create(daemon_set)
    yield
    await cluster.client.delete(DaemonSet, cluster.names.tunnel, namespace=cluster.namespace)


async def test_startup_taint_stays_until_a_late_tunnel_agent_serves(
    cluster: Cluster, tunnels_daemon_set: None
) -> None:
    await cluster.tunnel.stop()
    await cluster.node.stop()
    await _taint(cluster)
    before = await _kept(cluster.node)
    await cluster.node.start()
    await cluster.node.ready()

    async def is_kept() -> bool:
        return await _kept(cluster.node) > before

    # Registered with the kubelet, and it has looked for the agent.
    await steps.eventually(is_kept, what="the driver keeps the taint")
    assert await _has_taint(cluster)
    await cluster.tunnel.start()
    await _taint_is_gone(cluster)


async def test_startup_taint_stays_until_a_late_driver_serves(
    cluster: Cluster, tunnels_daemon_set: None
) -> None:
    await cluster.node.stop()
    await _taint(cluster)
    await steps.tunnel_up(cluster, cluster.file_system_ids[0])
    assert await _has_taint(cluster)
    await cluster.node.start()
    await _taint_is_gone(cluster)


async def test_startup_taint_goes_with_the_driver_where_no_tunnels_are_installed(cluster: Cluster) -> None:
    await cluster.node.stop()
    await cluster.tunnel.stop()
    await _taint(cluster)
    await cluster.node.start()
    await _taint_is_gone(cluster)
    await cluster.tunnel.start()


async def _kept(driver: Program) -> int:
    return (await asyncio.to_thread(driver.log_file.read_text)).count("startup-taint-kept")


async def _taint(cluster: Cluster) -> None:
    taint = Taint(key=STARTUP_TAINT, effect="NoExecute").to_dict()
    patch = {"spec": {"taints": [taint]}}
    await cluster.client.patch(Node, NODE, patch, patch_type=PatchType.MERGE)


async def _has_taint(cluster: Cluster) -> bool:
    node = await cluster.client.get(Node, NODE)
    return STARTUP_TAINT in {one.key for one in (node.spec and node.spec.taints) or ()}


async def _taint_is_gone(cluster: Cluster) -> None:
    async def look() -> bool:
        return not await _has_taint(cluster)

    await steps.eventually(look, what="the startup taint is gone")
