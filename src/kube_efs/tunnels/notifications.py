"""Events of the node about mount targets that it cannot reach, or reaches again, and about denied tunnels."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from kube_efs.kube.events import EventRecorder, EventType, Subject
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.tunnels.mount_targets import Candidate
from kube_efs.tunnels.plan import PlannedTunnel
from kube_efs.tunnels.status import DENIED, DENIED_REMEDY

_REASONS: Final = {True: "MountTargetReachable", False: "MountTargetUnreachable"}
# A zone can have a mount target of each of 500 file systems, and a thousand nodes see it fail.
_MOST_AT_ONCE: Final = 3


class Notification(Protocol):
    """A change, for an event of the node."""

    @property
    def is_problem(self) -> bool:
        """Whether it is the beginning of a problem; otherwise the end of one."""

    @property
    def reason(self) -> str:
        """The reason of the event."""

    @property
    def message(self) -> str:
        """The message of the event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MountTargetNotification:
    """A mount target accepts connections from this node again, or no longer.

    In the second case, ``instead`` is the nearest mount target of the file system that does, None without
    one.
    """

    file_system_id: FileSystemId
    mount_target: Candidate
    is_reachable: bool
    instead: Candidate | None

    @property
    def is_problem(self) -> bool:
        """Whether it does not accept connections."""
        return not self.is_reachable

    @property
    def reason(self) -> str:
        """The reason of the event."""
        return _REASONS[self.is_reachable]

    @property
    def message(self) -> str:
        """The message of the event."""
        subject = f"mount target {_place(self.mount_target)} of {self.file_system_id}"
        if self.is_reachable:
            return f"{subject} accepts connections again"
        if self.instead is None:
            return f"{subject} accepts no connections, and no other mount target does: its volumes wait"
        return f"{subject} accepts no connections; new ones go to {_place(self.instead)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FurtherMountTargets:
    """So many more mount targets changed together with others, for example those of a zone."""

    number: int
    is_reachable: bool

    @property
    def is_problem(self) -> bool:
        """Whether they do not accept connections."""
        return not self.is_reachable

    @property
    def reason(self) -> str:
        """The reason of the event."""
        return _REASONS[self.is_reachable]

    @property
    def message(self) -> str:
        """The message of the event."""
        change = "accept connections again" if self.is_reachable else "accept no connections"
        return f"{self.number} further mount targets {change}; kube-efs status shows the tunnels"


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelNotification:
    """EFS denies clients without an identity, as all clients of this tunnel are, or no longer."""

    file_system_id: FileSystemId
    is_denied: bool

    @property
    def is_problem(self) -> bool:
        """Whether it is denied."""
        return self.is_denied

    @property
    def reason(self) -> str:
        """The reason of the event."""
        return "TunnelDenied" if self.is_denied else "TunnelAllowed"

    @property
    def message(self) -> str:
        """The message of the event."""
        if self.is_denied:
            return f"tunnel volumes of {self.file_system_id} cannot be mounted: {DENIED}; {DENIED_REMEDY}"
        return f"{self.file_system_id} allows clients without an identity again"


def find_notifications(
    plan: Iterable[PlannedTunnel], down_before: Collection[str], down: Collection[str]
) -> tuple[Notification, ...]:
    """The changes for the file systems of these tunnels, each mount target once.

    Of many changes at once, it contains the first ones and the number of the others.
    """
    found: dict[tuple[FileSystemId, str], MountTargetNotification] = {}
    for tunnel in plan:
        file_system_id = tunnel.target.file_system_id
        up = [one for one in tunnel.candidates if one.address not in down]
        for one in tunnel.candidates:
            if (one.address in down) != (one.address in down_before):
                found.setdefault(
                    (file_system_id, one.address),
                    MountTargetNotification(
                        file_system_id=file_system_id,
                        mount_target=one,
                        is_reachable=one in up,
                        instead=up[0] if up else None,
                    ),
                )
    notifications: list[Notification] = []
    for is_reachable in (False, True):
        some = [one for one in found.values() if one.is_reachable == is_reachable]
        notifications += some[:_MOST_AT_ONCE]
        further = len(some) - _MOST_AT_ONCE
        if further > 0:
            notifications.append(FurtherMountTargets(number=further, is_reachable=is_reachable))
    return tuple(notifications)


def notify_by_events(recorder: EventRecorder, node: str) -> Callable[[Notification], None]:
    """A function that publishes each notification as an event of the node."""
    # As the kubelet does, with the name as the UID: kubectl describe selects events by both.
    subject = Subject(api_version="v1", kind="Node", name=node, uid=node)

    def notify(notification: Notification) -> None:
        kind = EventType.WARNING if notification.is_problem else EventType.NORMAL
        recorder.publish(subject, kind, notification.reason, notification.message)

    return notify


def _place(candidate: Candidate) -> str:
    return f"{candidate.address} ({candidate.zone})" if candidate.zone else candidate.address
