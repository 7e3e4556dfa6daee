"""Reports as tables."""

from dataclasses import replace

from rich.console import Console

from kube_efs.report.tables import render_cluster
from kube_efs.report.values import (
    ClaimReport,
    ClusterReport,
    EventReport,
    NodeReport,
    UsageReport,
    VolumeReport,
)
from kube_efs.tunnels.status import TunnelState, TunnelStatus


def _shown(report: ClusterReport, width: int = 200) -> str:
    console = Console(width=width, color_system=None, force_terminal=True)
    with console.capture() as captured:
        console.print(render_cluster(report))
    return captured.get()


def test_pending_claim_shows_its_reason_instead_of_a_volume() -> None:
    claim = ClaimReport(
        namespace="web",
        name="data",
        phase="Pending",
        storage_class="efs",
        volume="",
        reason="volume_name: is missing",
    )
    shown = _shown(ClusterReport(claims=(claim,)))
    row = next(line for line in shown.splitlines() if "web/data" in line)
    assert "volume_name: is missing" in row


def test_failed_over_tunnel_shows_its_mount_target() -> None:
    tunnel = TunnelStatus(
        file_system_id="fs-a",
        port=20490,
        state=TunnelState.UP,
        address="10.0.1.9",
        zone="us-east-1b",
        failed_over=True,
        tls_version="TLSv1.3",
        cipher="TLS_AES_256_GCM_SHA384",
    )
    node = NodeReport(
        node="node-a", time="", tunnels=(tunnel,), problems=("fs-x: no port",), notes=("relay 7 ends",)
    )
    shown = _shown(ClusterReport(nodes=(node,)))
    row = next(line for line in shown.splitlines() if "20490" in line)
    for part in ("node-a", "up", "10.0.1.9 (us-east-1b)", "TLSv1.3 TLS_AES_256_GCM_SHA384", "failed over"):
        assert part in row
    assert "! node-a: fs-x: no port" in shown
    assert "\nnode-a: relay 7 ends" in shown


def test_volume_shows_its_group_id_if_it_has_one() -> None:
    volume = VolumeReport(
        name="pvc-1",
        phase="Bound",
        reclaim_policy="Delete",
        claim="web/data",
        file_system_id="fs-a",
        path="/data-pvc-1",
        port=None,
        gid=40000,
    )
    shown = _shown(ClusterReport(volumes=(volume, replace(volume, name="pvc-2", gid=None))))
    rows = {line.split()[0]: line.split() for line in shown.splitlines() if "pvc-" in line}
    assert rows["pvc-1"][-2:] == ["fs-a:/data-pvc-1", "40000"]
    assert rows["pvc-2"][-1] == "fs-a:/data-pvc-1"
    assert "gid" in shown


def test_volume_shows_its_access_point() -> None:
    volume = VolumeReport(
        name="pvc-1",
        phase="Bound",
        reclaim_policy="Delete",
        claim="web/data",
        file_system_id="fs-a",
        path="/",
        port=None,
        access_point_id="fsap-b",
    )
    shown = _shown(ClusterReport(volumes=(volume, replace(volume, name="pvc-2", path="/logs"))))
    rows = {line.split()[0]: line.split() for line in shown.splitlines() if "pvc-" in line}
    assert rows["pvc-1"][-2:] == ["fs-a", "fsap-b"]
    assert rows["pvc-2"][-2:] == ["fs-a", "fsap-b:/logs"]


def test_tunnels_of_csi_mounts_have_a_separate_table() -> None:
    always = TunnelStatus(file_system_id="fs-a", port=20490, state=TunnelState.UP, address="10.0.1.9")
    on_demand = replace(
        always,
        port=22049,
        on_demand=True,
        access_point_id="fsap-b",
        holders=3,
        connections=2,
        zone="us-east-1b",
        certificate_ends="2026-11-21T14:00:00Z",
    )
    node = NodeReport(node="node-a", time="", tunnels=(always, on_demand), problems=())
    shown = _shown(ClusterReport(nodes=(node,)))
    heading, row = shown.index("Tunnels of CSI mounts"), shown.index("22049")
    assert shown.index("20490") < heading < row
    words = next(line for line in shown.splitlines() if "22049" in line).split()
    assert words == [
        *("node-a", "fs-a", "fsap-b", "22049", "up", "10.0.1.9", "(us-east-1b)"),
        *("3", "2", "2026-11-21T14:00:00Z"),
    ]
    alone = _shown(ClusterReport(nodes=(replace(node, tunnels=(always,)),)))
    assert "CSI mounts" not in alone


def test_text_from_the_cluster_is_not_markup() -> None:
    claim = ClaimReport(
        namespace="web",
        name="data",
        phase="Pending",
        storage_class="[red]efs[/]",
        volume="",
        reason="[/nonsense]",
    )
    shown = _shown(ClusterReport(claims=(claim,)))
    assert "[red]efs[/]" in shown
    assert "[/nonsense]" in shown


def test_usage_has_a_column_if_it_is_measured() -> None:
    volume = VolumeReport(
        name="pvc-1",
        phase="Bound",
        reclaim_policy="Delete",
        claim="web/data",
        file_system_id="fs-a",
        path="/",
        port=None,
        requested_bytes=1024**3,
    )
    usage = UsageReport(used_bytes=3 * 1024**3 // 2, entries=5, complete=True, over=True, time="12:00")
    partly = replace(usage, complete=False)
    volumes = (
        replace(volume, usage=usage),
        replace(volume, name="pvc-2", usage=partly),
        replace(volume, name="pvc-3"),
    )
    shown = _shown(ClusterReport(volumes=volumes))
    rows = {line.split()[0]: " ".join(line.split()) for line in shown.splitlines() if "pvc-" in line}
    assert "used" in shown
    assert "web/data 1.5 GiB of 1.0 GiB" in rows["pvc-1"]
    assert "web/data at least 1.5 GiB of 1.0 GiB" in rows["pvc-2"]
    assert "GiB" not in rows["pvc-3"]
    assert "used" not in _shown(ClusterReport(volumes=volumes[2:]))


def test_events_show_their_object() -> None:
    event = EventReport(
        time="2026-11-21T12:00:00Z",
        type="Warning",
        reason="ProvisioningFailed",
        kind="PersistentVolumeClaim",
        namespace="web",
        name="data",
        message="[red]no[/] group ids",
        count=3,
    )
    of_volume = replace(event, kind="PersistentVolume", namespace="", name="pv")
    shown = _shown(ClusterReport(events=(event, of_volume)))
    assert "web/data" in shown
    assert "PersistentVolume pv" in shown
    assert "[red]no[/] group ids" in shown
    assert "Recent events" not in _shown(ClusterReport())


def test_narrow_terminal_gets_a_list_in_which_no_name_is_broken() -> None:
    volume = VolumeReport(
        name="pvc-6ab6ca3c-1f2a-4a8e-b593-ba0e8e2260ad",
        phase="Bound",
        reclaim_policy="Delete",
        claim="web/data",
        file_system_id="fs-0123456789abcdef0",
        access_point_id="fsap-0123456789abcdef0",
        port=None,
        path="/",
    )
    shown = _shown(ClusterReport(volumes=(volume,)), width=80)
    lines = [line.split() for line in shown.splitlines()]
    assert ["volume", "pvc-6ab6ca3c-1f2a-4a8e-b593-ba0e8e2260ad"] in lines
    assert ["data", "fs-0123456789abcdef0", "fsap-0123456789abcdef0"] in lines
    assert max(map(len, shown.splitlines())) <= 80
    # A table that fits, and one without rows, keep their form.
    assert ["claim", "phase", "class", "volume,", "or", "why", "it", "is", "missing"] in lines


def test_long_texts_continue_on_the_next_line_and_names_do_not() -> None:
    event = EventReport(
        time="2026-11-26T18:34:54Z",
        type="Normal",
        reason="Provisioning",
        kind="PersistentVolumeClaim",
        namespace="web",
        name="data",
        count=1,
        message="the reason is " + "long " * 20,
    )
    shown = _shown(ClusterReport(events=(event,)), width=110)
    row = next(line for line in shown.splitlines() if "2026-11-26T18:34:54Z" in line)
    assert "web/data" in row
    assert shown.count("long") == 20
    assert max(map(len, shown.splitlines())) <= 110


def test_texts_of_tenants_do_not_control_the_terminal() -> None:
    sequences = "\x1b]0;owned\x07\x1b[2J\x9b8m\u202etxt\u200b\r"
    event = EventReport(
        time="",
        type=f"Warning{sequences}",
        reason=sequences,
        kind="Pod",
        namespace="web",
        name="a",
        message=f"{sequences}\nsecond line",
        count=1,
    )
    node = NodeReport(node="a", time="", tunnels=(), problems=(f"{sequences}\n! b",), notes=(sequences,))
    report = ClusterReport(events=(event,), nodes=(node,), problems=(sequences,))
    console = Console(width=300, color_system=None)
    with console.capture() as captured:
        console.print(render_cluster(report))
    shown = captured.get()
    assert not {"\x1b", "\x07", "\x9b", "\u202e", "\u200b", "\r"} & set(shown)
    escaped = sequences.encode("unicode_escape").decode()
    assert f"Warning{escaped}" in shown
    assert rf"! a: {escaped}\n! b" in shown
