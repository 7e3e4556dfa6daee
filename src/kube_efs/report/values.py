"""A cluster's EFS storage at one moment."""

from dataclasses import dataclass

from kube_efs.tunnels.status import TunnelStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class MountTargetReport:
    """An address of a file system; ``zone`` is empty when it is not known."""

    subnet_id: str
    zone: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystemReport:
    """A file system of the tunnel targets; ``volumes`` counts those in it, the root's left out."""

    file_system_id: str
    name: str
    port: int
    mount_targets: tuple[MountTargetReport, ...]
    volumes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimReport:
    """A claim of a class of kube-efs; ``reason`` says why it has no volume, empty when nothing is known."""

    namespace: str
    name: str
    phase: str
    storage_class: str
    volume: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageReport:
    """How much was in a volume at that time, at least so much where it is not ``complete``.

    ``over`` is whether that is more than its claim asks for.
    """

    used_bytes: int
    entries: int
    complete: bool
    over: bool
    time: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeReport:
    """A volume of kube-efs; ``usage`` is None where it was not measured, ``requested_bytes`` its capacity.

    ``claim`` is ``namespace/name``, ``port`` that of its mount option, ``gid`` the group of its users. With
    an ``access_point_id``, ``path`` is below the access point's root directory, which only AWS knows.
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
    """What a node's agent last said, and when (as it wrote it)."""

    node: str
    time: str
    tunnels: tuple[TunnelStatus, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReport:
    """Everything; ``problems`` are those of the tunnel targets themselves, the newest event comes first."""

    file_systems: tuple[FileSystemReport, ...] = ()
    claims: tuple[ClaimReport, ...] = ()
    volumes: tuple[VolumeReport, ...] = ()
    nodes: tuple[NodeReport, ...] = ()
    events: tuple[EventReport, ...] = ()
    problems: tuple[str, ...] = ()
