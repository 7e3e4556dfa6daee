"""Formats single values of a report, for a terminal and the status page."""

from kube_efs.model.sizes import format_size
from kube_efs.report.values import EventReport, VolumeReport
from kube_efs.tunnels.status import TunnelStatus


def format_location(volume: VolumeReport) -> str:
    """The location of its data."""
    if not volume.access_point_id:
        return f"{volume.file_system_id}:{volume.path}"
    below = "" if volume.path == "/" else f":{volume.path}"
    return f"{volume.file_system_id} {volume.access_point_id}{below}"


def format_usage(volume: VolumeReport) -> str:
    """Its usage and capacity; empty if the usage is not known."""
    usage = volume.usage
    if usage is None:
        return ""
    used = format_size(usage.used_bytes) if usage.complete else f"at least {format_size(usage.used_bytes)}"
    return used if volume.requested_bytes is None else f"{used} of {format_size(volume.requested_bytes)}"


def format_growth(volume: VolumeReport) -> str:
    """The growth of its usage in a day, such as ``+1.5 GiB``; ``-`` if it is not known."""
    growth = volume.usage.growth_bytes_a_day if volume.usage else None
    if growth is None:
        return "-"
    return f"{'-' if growth < 0 else '+'}{format_size(abs(growth))}"


def format_mount_target(tunnel: TunnelStatus) -> str:
    """The mount target of a tunnel, with its zone."""
    place = f" ({tunnel.zone or tunnel.subnet_id})" if tunnel.zone or tunnel.subnet_id else ""
    return f"{tunnel.address}{place}" if tunnel.address else ""


def format_notes(tunnel: TunnelStatus) -> str:
    """The unusual facts about a tunnel."""
    notes = ["failed over"] if tunnel.failed_over else []
    notes += ["closes with its last connection"] if tunnel.leaving else []
    notes += ["encrypted by the kernel"] if tunnel.relay_pid else []
    return "; ".join([*notes, *filter(None, [tunnel.reason])])


def format_object(event: EventReport) -> str:
    """The object of an event."""
    return f"{event.namespace}/{event.name}" if event.namespace else f"{event.kind} {event.name}"
