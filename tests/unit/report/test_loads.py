"""What uses the volumes of a report, and how much."""

from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from kube_efs.report.loads import volume_loads
from kube_efs.report.options import VolumeOrder
from kube_efs.report.top import render_top
from kube_efs.report.values import ClusterReport, NodeReport, PodReport, UsageReport, VolumeReport
from kube_efs.tunnels.status import TunnelState, TunnelStatus

MIB = 1024**2
BEHIND_POINT = VolumeReport(
    name="pvc-1",
    phase="Bound",
    reclaim_policy="Delete",
    claim="web/data",
    file_system_id="fs-a",
    access_point_id="fsap-a",
    path="/",
    port=None,
    usage=UsageReport(
        used_bytes=3 * MIB, entries=1, complete=True, over=False, time="", growth_bytes_a_day=-MIB
    ),
)
IN_DIRECTORY = replace(
    BEHIND_POINT,
    name="pvc-2",
    claim="web/logs",
    access_point_id="",
    port=20490,
    usage=UsageReport(used_bytes=MIB, entries=1, complete=True, over=False, time="", growth_bytes_a_day=MIB),
)
ON_DEMAND = TunnelStatus(
    file_system_id="fs-a",
    access_point_id="fsap-a",
    port=15000,
    state=TunnelState.UP,
    on_demand=True,
    holders=1,
    connections=1,
    sent_bytes=5 * MIB,
    received_bytes=MIB,
)
OF_CONFIG_MAP = TunnelStatus(file_system_id="fs-a", port=20490, state=TunnelState.UP, connections=2)
NODES = (
    NodeReport(node="b", time="2026-11-26T10:00:00Z", tunnels=(ON_DEMAND,), problems=()),
    NodeReport(node="a", time="2026-11-26T10:00:09Z", tunnels=(ON_DEMAND, OF_CONFIG_MAP), problems=()),
)
PODS = tuple(
    PodReport(namespace="web", name=name, node=node, claim="web/data")
    for name, node in (("two", "b"), ("one", "a"), ("waits", ""))
)
REPORT = ClusterReport(volumes=(IN_DIRECTORY, BEHIND_POINT), nodes=NODES, pods=PODS)


def test_volume_has_the_traffic_of_its_access_point_on_all_nodes_and_its_pods() -> None:
    first, _ = volume_loads(REPORT)
    assert first.volume == BEHIND_POINT
    assert (first.sent_bytes, first.received_bytes, first.connections) == (10 * MIB, 2 * MIB, 2)
    assert [pod.name for pod in first.pods or ()] == ["one", "two", "waits"]
    assert first.nodes == ("a", "b")
    assert not first.shares_tunnel


def test_traffic_that_no_agent_reports_is_unknown() -> None:
    _, second = volume_loads(REPORT)
    assert (second.sent_bytes, second.received_bytes, second.connections) == (None, None, 2)
    assert (second.pods, second.nodes) == ((), ())


def test_without_pods_the_tunnels_tell_which_nodes_use_a_volume() -> None:
    first, second = volume_loads(replace(REPORT, pods=None))
    assert (first.pods, first.nodes) == (None, ("a", "b"))
    assert (second.pods, second.nodes) == (None, ("a",))


def test_volumes_behind_one_tunnel_share_its_traffic() -> None:
    other = replace(IN_DIRECTORY, name="pvc-3", claim="web/more")
    shares = {
        one.volume.name: one.shares_tunnel
        for one in volume_loads(replace(REPORT, volumes=(*REPORT.volumes, other)))
    }
    assert shares == {"pvc-1": False, "pvc-2": True, "pvc-3": True}


@pytest.mark.parametrize(
    ("order", "first"),
    [
        (VolumeOrder.SIZE, "pvc-1"),
        (VolumeOrder.GROWTH, "pvc-2"),
        (VolumeOrder.TRAFFIC, "pvc-1"),
        (VolumeOrder.CONNECTIONS, "pvc-1"),
    ],
)
def test_order(order: VolumeOrder, first: str) -> None:
    unknown = replace(IN_DIRECTORY, name="unknown", claim="", usage=None, port=1)
    found = volume_loads(replace(REPORT, volumes=(unknown, *REPORT.volumes)), order)
    assert found[0].volume.name == first


def _shown(report: ClusterReport, **options: Any) -> str:
    console = Console(width=80, color_system=None)
    with console.capture() as captured:
        console.print(
            render_top(volume_loads(report), nodes_since="2026-11-26T10:00:00Z", **{"limit": 0, **options})
        )
    return captured.get()


def test_table_fits_80_columns() -> None:
    lines = [line.split() for line in _shown(REPORT).splitlines()]
    assert ["web/data", "3.0", "MiB", "-1.0", "MiB", "10.0", "MiB", "2.0", "MiB", "2", "2", "3"] in lines
    assert ["web/logs", "1.0", "MiB", "+1.0", "MiB", "-", "-", "2", "0", "0"] in lines
    assert ["web/one", "a", "web/data"] in lines
    assert ["web/waits", "-", "web/data"] in lines
    assert all(len(line) <= 80 for line in _shown(REPORT).splitlines())


def test_notes_say_what_is_missing() -> None:
    words = " ".join(_shown(replace(REPORT, pods=None), limit=1).split())
    assert "1 more volumes; --limit 0 shows all" in words
    assert "as of 2026-11-26T10:00:00Z or later" in words
    assert "pods: this account may not list them" in words
    bare = replace(BEHIND_POINT, usage=None)
    assert "sizes: not measured" in _shown(ClusterReport(volumes=(bare,), pods=()))
