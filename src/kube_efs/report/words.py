"""Single facts of a report in words, for a terminal and the status page."""

from kube_efs.model.sizes import in_words
from kube_efs.report.values import EventReport, VolumeReport
from kube_efs.tunnels.status import TunnelStatus


def place_in_words(volume: VolumeReport) -> str:
    """Where its data lies."""
    if not volume.access_point_id:
        return f"{volume.file_system_id}:{volume.path}"
    below = "" if volume.path == "/" else f":{volume.path}"
    return f"{volume.file_system_id} {volume.access_point_id}{below}"


def used_in_words(volume: VolumeReport) -> str:
    """How much is in it, of how much; empty when that is not known."""
    usage = volume.usage
    if usage is None:
        return ""
    used = in_words(usage.used_bytes) if usage.complete else f"at least {in_words(usage.used_bytes)}"
    return used if volume.requested_bytes is None else f"{used} of {in_words(volume.requested_bytes)}"


def target_in_words(tunnel: TunnelStatus) -> str:
    """The mount target of a tunnel, with its zone."""
    place = f" ({tunnel.zone or tunnel.subnet_id})" if tunnel.zone or tunnel.subnet_id else ""
    return f"{tunnel.address}{place}" if tunnel.address else ""


def notes_in_words(tunnel: TunnelStatus) -> str:
    """What is out of the ordinary about a tunnel."""
    notes = ["failed over"] if tunnel.failed_over else []
    notes += ["closes with its last connection"] if tunnel.leaving else []
    return "; ".join([*notes, *filter(None, [tunnel.reason])])


def object_in_words(event: EventReport) -> str:
    """What an event is about."""
    return f"{event.namespace}/{event.name}" if event.namespace else f"{event.kind} {event.name}"
