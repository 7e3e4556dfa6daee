"""The tables of the status page."""

from collections.abc import Iterable, Sequence
from typing import Final

from kube_efs.model.sizes import format_size
from kube_efs.report.formatting import (
    format_growth,
    format_location,
    format_mount_target,
    format_notes,
    format_object,
)
from kube_efs.report.loads import volume_loads
from kube_efs.report.values import ClusterReport, VolumeReport
from kube_efs.tunnels.status import TunnelState
from kube_efs.web.html import Child, Html, element, joined

# A longer page is hard to read; the JSON contains all rows.
ROWS_MAX: Final = 500

_TONES: Final = {
    "Bound": "good",
    "Available": "good",
    "Normal": "good",
    "Pending": "fair",
    "Released": "fair",
    "Warning": "fair",
    "Lost": "bad",
    "Failed": "bad",
    str(TunnelState.UP): "good",
    str(TunnelState.STARTING): "fair",
    str(TunnelState.DOWN): "bad",
    str(TunnelState.REJECTED): "bad",
    str(TunnelState.NO_MOUNT_TARGET): "bad",
}


def badge(word: str, tone: str | None = None) -> Html:
    """A colored word."""
    return element("span", word, class_=f"badge {tone or _TONES.get(word, 'plain')}")


def moment(text: str) -> Html:
    """A time that users and programs can read; empty without one."""
    return element("time", text.replace("T", " ").replace("Z", " UTC"), datetime=text) if text else Html()


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Child]], *, name: str) -> Html:
    """A section with a table, whose first column has the headers of the rows. A wide table scrolls."""
    heading = f"{name}-heading"
    head = element("tr", *(element("th", column, scope="col") for column in columns))
    body = [_row(row) for row in rows[:ROWS_MAX]]
    if not rows:
        body = [element("tr", element("td", "None", colspan=len(columns), class_="none"))]
    left_out = len(rows) - ROWS_MAX
    return section(
        title,
        name,
        element(
            "div",
            element("table", element("thead", head), element("tbody", *body), aria_labelledby=heading),
            class_="scroll",
            role="region",
            aria_labelledby=heading,
            tabindex=0,
        ),
        element("p", f"{left_out} more are not shown here.") if left_out > 0 else None,
    )


def section(title: str, name: str, *content: Child) -> Html:
    """A section of the page with a heading."""
    heading = f"{name}-heading"
    return element("section", element("h2", title, id=heading), *content, id=name, aria_labelledby=heading)


def _row(cells: Sequence[Child]) -> Html:
    first, *others = cells
    return element("tr", element("th", first, scope="row"), *(element("td", cell) for cell in others))


def _lines(parts: Iterable[str]) -> Html:
    return joined(element("span", part, class_="line") for part in parts)


def file_systems(report: ClusterReport) -> Html:
    """File systems, with their mount targets in a column for each zone."""
    zones = sorted(
        {target.zone for one in report.file_systems for target in one.mount_targets},
        key=lambda zone: (not zone, zone),
    )
    rows: list[list[Child]] = [
        [
            one.file_system_id,
            one.name,
            str(one.port),
            str(one.volumes),
            *(
                _lines(target.address for target in one.mount_targets if target.zone == zone) or "none"
                for zone in zones
            ),
        ]
        for one in report.file_systems
    ]
    columns = ["File system", "Name", "Port", "Volumes", *(zone or "unknown zone" for zone in zones)]
    return table("File systems and mount targets by zone", columns, rows, name="file-systems")


def tunnels(report: ClusterReport) -> Html:
    """Tunnels of every node."""
    rows: list[list[Child]] = [
        [
            node.node,
            tunnel.file_system_id,
            tunnel.access_point_id or ("on demand" if tunnel.on_demand else ""),
            str(tunnel.port),
            badge(str(tunnel.state), "fair" if tunnel.denied else None),
            format_mount_target(tunnel),
            str(tunnel.connections),
            format_notes(tunnel),
        ]
        for node in report.nodes
        for tunnel in node.tunnels
    ]
    columns = ["Node", "File system", "For", "Port", "State", "Mount target", "Connections", "Notes"]
    return table("Tunnels by node", columns, rows, name="tunnels")


def volumes(report: ClusterReport) -> Html:
    """Volumes with their location and usage."""
    rows: list[list[Child]] = [
        [
            one.name,
            badge(one.phase),
            one.reclaim_policy,
            one.claim,
            format_location(one),
            _used(one),
            "" if one.requested_bytes is None else format_size(one.requested_bytes),
            moment(one.usage.time if one.usage else ""),
        ]
        for one in report.volumes
    ]
    columns = ["Volume", "Phase", "Policy", "Claim", "Data", "Used", "Requested", "Measured"]
    return table("Volumes", columns, rows, name="volumes")


def _used(volume: VolumeReport) -> Child:
    usage = volume.usage
    if usage is None:
        return "not measured"
    used = format_size(usage.used_bytes) if usage.complete else f"at least {format_size(usage.used_bytes)}"
    return badge(f"{used}, over request", "bad") if usage.over else used


def loads(report: ClusterReport) -> Html:
    """What uses the volumes and how much, the largest first."""
    rows: list[list[Child]] = [
        [
            one.volume.claim or one.volume.name,
            format_growth(one.volume),
            _traffic(one.sent_bytes, shared=one.shares_tunnel),
            _traffic(one.received_bytes, shared=one.shares_tunnel),
            str(one.connections),
            _lines(one.nodes),
            "unknown" if one.pods is None else _lines(f"{pod.namespace}/{pod.name}" for pod in one.pods),
        ]
        for one in volume_loads(report)
    ]
    columns = ["Claim", "Growth in a day", "Sent", "Received", "Connections", "Nodes", "Pods"]
    return table("Use of volumes", columns, rows, name="loads")


def _traffic(size: int | None, *, shared: bool) -> str:
    if size is None:
        return "unknown"
    return f"{format_size(size)}, with other volumes" if shared else format_size(size)


def claims(report: ClusterReport) -> Html:
    """Claims, with the reason of pending ones."""
    waiting_first = sorted(report.claims, key=lambda one: one.phase == "Bound")
    rows: list[list[Child]] = [
        [f"{one.namespace}/{one.name}", badge(one.phase), one.storage_class, one.volume or one.reason]
        for one in waiting_first
    ]
    return table("Claims", ["Claim", "Phase", "Class", "Volume, or why it is missing"], rows, name="claims")


def events(report: ClusterReport) -> Html:
    """The events of claims and volumes, newest first."""
    rows: list[list[Child]] = [
        [moment(one.time), badge(one.type), one.reason, format_object(one), str(one.count), one.message]
        for one in report.events
    ]
    columns = ["Last", "Type", "Reason", "Object", "Count", "Message"]
    return table("Recent events", columns, rows, name="events")
