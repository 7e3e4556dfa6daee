"""A cluster's EFS storage at one moment."""

from dataclasses import dataclass, replace

from kube_efs.tunnels.status import TunnelStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class MountTargetReport:
    """An address of a file system; ``zone`` is empty when it is not known."""

    subnet_id: str
    zone: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystemReport:
    """A file system of the tunnel targets; ``volumes`` is the number of volumes without its root volume."""

    file_system_id: str
    name: str
    port: int
    mount_targets: tuple[MountTargetReport, ...]
    volumes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimReport:
    """A claim of a class of kube-efs; ``reason`` is why it has no volume, empty if that is not known."""

    namespace: str
    name: str
    phase: str
    storage_class: str
    volume: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageReport:
    """The usage of a volume at that time; a minimum if it is not ``complete``.

    ``over``: it exceeds the request of the claim. ``growth_bytes_a_day`` is None if it is not known.
    """

    used_bytes: int
    entries: int
    complete: bool
    over: bool
    time: str
    growth_bytes_a_day: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeReport:
    """A volume of kube-efs; ``usage`` is None if it was not measured, ``requested_bytes`` is its capacity.

    ``claim`` is ``namespace/name``, ``port`` is in its mount options, ``gid`` is the group ID of its users.
    With an ``access_point_id``, ``path`` is relative to the root directory of the access point, which is
    known to AWS only.
    """

    name: str
    phase: str
    reclaim_policy: str
    claim: str
    file_system_id: str
    path: str
    port: int | None
    gid: int | None = None
    access_point_id: str = ""
    requested_bytes: int | None = None
    usage: UsageReport | None = None

    def is_of(self, namespace: str) -> bool:
        """Whether its claim is in the namespace."""
        return self.claim.startswith(f"{namespace}/")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodReport:
    """A pod with a claim, which is ``namespace/name``; ``node`` is empty until it is scheduled."""

    namespace: str
    name: str
    node: str
    claim: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventReport:
    """An event of kube-efs about an object, with its last time and count."""

    time: str
    type: str
    reason: str
    kind: str
    namespace: str
    name: str
    message: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """The last status of a node's agent, and its time as the agent wrote it; ``notes`` are no problems."""

    node: str
    time: str
    tunnels: tuple[TunnelStatus, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReport:
    """The whole report; ``problems`` are those of the tunnel targets, and the newest event is first.

    ``pods`` are those with claims; None if they were not read.
    """

    file_systems: tuple[FileSystemReport, ...] = ()
    claims: tuple[ClaimReport, ...] = ()
    volumes: tuple[VolumeReport, ...] = ()
    nodes: tuple[NodeReport, ...] = ()
    events: tuple[EventReport, ...] = ()
    problems: tuple[str, ...] = ()
    pods: tuple[PodReport, ...] | None = None

    def only(self, namespace: str) -> "ClusterReport":
        """The report without claims of other namespaces, and without volumes and events of these."""
        volumes = tuple(one for one in self.volumes if one.is_of(namespace))
        names = {one.name for one in volumes}
        return replace(
            self,
            claims=tuple(one for one in self.claims if one.namespace == namespace),
            volumes=volumes,
            events=tuple(one for one in self.events if one.namespace == namespace or one.name in names),
        )
