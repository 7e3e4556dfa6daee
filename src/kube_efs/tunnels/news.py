"""The events about mount targets that this node cannot reach, and about those that it reaches again."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from kube_efs.kube.events import EventRecorder, EventType, Subject
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.tunnels.mount_targets import Candidate
from kube_efs.tunnels.plan import PlannedTunnel


@dataclass(frozen=True, slots=True, kw_only=True)
class MountTargetNews:
    """A mount target that accepts connections from this node again, or no more.

    ``instead`` is then the nearest of the file system that does, None if there is none.
    """

    file_system_id: FileSystemId
    mount_target: Candidate
    is_reachable: bool
    instead: Candidate | None = None

    @property
    def reason(self) -> str:
        """What ``kubectl describe`` shows as the reason."""
        return "MountTargetReachable" if self.is_reachable else "MountTargetUnreachable"

    @property
    def message(self) -> str:
        """A sentence for users."""
        subject = f"mount target {_place(self.mount_target)} of {self.file_system_id}"
        if self.is_reachable:
            return f"{subject} accepts connections again"
        if self.instead is None:
            return f"{subject} accepts no connections, and no other mount target does: its volumes wait"
        return f"{subject} accepts no connections; new ones go to {_place(self.instead)}"


def find_news(
    plan: Iterable[PlannedTunnel], down_before: Collection[str], down: Collection[str]
) -> tuple[MountTargetNews, ...]:
    """What has changed for the file systems of these tunnels, each mount target once."""
    found: dict[tuple[FileSystemId, str], MountTargetNews] = {}
    for tunnel in plan:
        file_system_id = tunnel.target.file_system_id
        up = [one for one in tunnel.candidates if one.address not in down]
        for one in tunnel.candidates:
            if (one.address in down) != (one.address in down_before):
                found.setdefault(
                    (file_system_id, one.address),
                    MountTargetNews(
                        file_system_id=file_system_id,
                        mount_target=one,
                        is_reachable=one in up,
                        instead=up[0] if up else None,
                    ),
                )
    return tuple(found.values())


def telling_by_events(recorder: EventRecorder, node: str) -> Callable[[MountTargetNews], None]:
    """Writes news as events of the node."""
    # The kubelet, too, gives a node's name for its uid; kubectl describe asks for events by both.
    subject = Subject(api_version="v1", kind="Node", name=node, uid=node)

    def tell(news: MountTargetNews) -> None:
        kind = EventType.NORMAL if news.is_reachable else EventType.WARNING
        recorder.publish(subject, kind, news.reason, news.message)

    return tell


def _place(candidate: Candidate) -> str:
    return f"{candidate.address} ({candidate.zone})" if candidate.zone else candidate.address
