"""A report with everything that a page can show, and with hostile text."""

from dataclasses import replace

from kube_efs.report.values import (
    ClaimReport,
    ClusterReport,
    EventReport,
    FileSystemReport,
    MountTargetReport,
    NodeReport,
    UsageReport,
    VolumeReport,
)
from kube_efs.telemetry.health import Health
from kube_efs.tunnels.status import TunnelState, TunnelStatus
from kube_efs.web.page import PageContent

EVIL = "<script>alert('x')</script>\"&"
GIB = 1024**3

_UP = TunnelStatus(
    file_system_id="fs-0123abcd",
    port=20490,
    state=TunnelState.UP,
    address="10.0.1.9",
    zone="us-east-1a",
    connections=3,
)
_VOLUME = VolumeReport(
    name="pvc-5f0c1f7e-6a49-4c1d-93e9-1f1f1f1f1f1f",
    phase="Bound",
    reclaim_policy="Delete",
    claim="web/uploads",
    file_system_id="fs-0123abcd",
    path="/web/uploads",
    port=20490,
    requested_bytes=GIB,
    usage=UsageReport(
        used_bytes=3 * GIB // 2,
        entries=5000,
        complete=True,
        over=True,
        time="2026-11-21T11:00:00Z",
        growth_bytes_a_day=GIB // 4,
    ),
)


def _targets(last: int, *zones: str) -> tuple[MountTargetReport, ...]:
    return tuple(
        MountTargetReport(subnet_id=f"subnet-{zone}", zone=zone, address=f"10.0.{number}.{last}")
        for number, zone in enumerate(zones, start=1)
    )


def _volumes() -> tuple[VolumeReport, ...]:
    usage = _VOLUME.usage
    assert usage is not None
    return (
        _VOLUME,
        replace(
            _VOLUME,
            name="pv-2",
            claim="analytics/results-of-the-last-quarter",
            usage=replace(usage, used_bytes=GIB // 3, over=False, complete=False, growth_bytes_a_day=None),
        ),
        replace(
            _VOLUME,
            name="pv-3",
            claim="web/sessions",
            access_point_id="fsap-0123abcd",
            path="/",
            usage=replace(usage, used_bytes=9 * GIB // 10, over=False, growth_bytes_a_day=-5),
        ),
        replace(_VOLUME, name="pv-4", claim="old/archive", phase="Released", usage=None),
    )


def _nodes() -> tuple[NodeReport, ...]:
    on_demand = replace(
        _UP,
        on_demand=True,
        name="t",
        access_point_id="fsap-0123abcd",
        port=22049,
        holders=2,
        sent_bytes=3 * GIB,
        received_bytes=GIB,
    )
    down = replace(_UP, file_system_id="fs-4567cdef", state=TunnelState.DOWN, reason="connection refused")
    far = replace(_UP, address="10.0.2.9", zone="us-east-1b", failed_over=True)
    return (
        NodeReport(
            node="ip-10-0-1-17.ec2.internal",
            time="2026-11-21T12:00:00Z",
            tunnels=(_UP, on_demand),
            problems=(),
        ),
        NodeReport(
            node="ip-10-0-2-33.ec2.internal", time="2026-11-21T12:00:00Z", tunnels=(far, down), problems=()
        ),
        NodeReport(
            node="ip-10-0-3-71.ec2.internal",
            time="2026-11-21T11:59:00Z",
            tunnels=(replace(_UP, state=TunnelState.STARTING, address="", zone=""),),
            problems=("the mount table cannot be read",),
        ),
    )


def report() -> ClusterReport:
    """The report."""
    event = EventReport(
        time="2026-11-21T11:58:12Z",
        type="Warning",
        reason="VolumeOverRequest",
        kind="PersistentVolumeClaim",
        namespace="web",
        name="uploads",
        message=(
            "1.5 GiB are in the volume, its claim requests 1.0 GiB; the file system has no quotas and does "
            "not stop writes"
        ),
        count=1,
    )
    return ClusterReport(
        file_systems=(
            FileSystemReport(
                file_system_id="fs-0123abcd",
                name="shared",
                port=20490,
                mount_targets=_targets(9, "us-east-1a", "us-east-1b", "us-east-1c"),
                volumes=3,
            ),
            FileSystemReport(
                file_system_id="fs-4567cdef",
                name=EVIL,
                port=20491,
                mount_targets=_targets(7, "us-east-1a", ""),
                volumes=1,
            ),
        ),
        claims=(
            ClaimReport(
                namespace="web",
                name="uploads",
                phase="Bound",
                storage_class="efs",
                volume=_VOLUME.name,
                reason="",
            ),
            ClaimReport(
                namespace="web",
                name="waits",
                phase="Pending",
                storage_class="efs",
                volume="",
                reason=f"volume_name: {EVIL} is not valid",
            ),
        ),
        volumes=_volumes(),
        nodes=_nodes(),
        events=(
            event,
            replace(event, type="Normal", reason="ProvisioningSucceeded", name="waits", message=EVIL),
            replace(event, kind="PersistentVolume", namespace="", name="pv-4", reason="VolumeFailedDelete"),
        ),
        problems=("fs-x: stunnel_port: is missing",),
    )


def snapshot() -> PageContent:
    """The input of a page."""
    return PageContent(report=report(), time="2026-11-21T12:00:03Z", health=Health(), leading=True)
