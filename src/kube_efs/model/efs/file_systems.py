"""EFS as AWS describes it: file systems and their mount targets."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from kube_efs.model.efs.ids import FileSystemId, MountTargetId, Region, SubnetId, VpcId, ZoneName
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.efs.partitions import partition_of


class LifeCycleState(StrEnum):
    """State of a file system or mount target, as the EFS API names it (``LifeCycleState``).

    Only file systems of S3 Files can be ``misconfigured``. AWS does not say whether they can be read then.
    """

    CREATING = "creating"
    AVAILABLE = "available"
    UPDATING = "updating"
    DELETING = "deleting"
    DELETED = "deleted"
    ERROR = "error"
    MISCONFIGURED = "misconfigured"

    @property
    def usable(self) -> bool:
        """Whether data can be read and written; ``updating`` changes throughput, not access."""
        return self in {LifeCycleState.AVAILABLE, LifeCycleState.UPDATING}

    @property
    def ending(self) -> bool:
        """Whether it is being deleted, or is deleted."""
        return self in {LifeCycleState.DELETING, LifeCycleState.DELETED}


@dataclass(frozen=True, slots=True, kw_only=True)
class MountTarget:
    """An address in one subnet under which a file system can be reached on TCP port 2049.

    ``zone_id`` is the zone ID, which all accounts share (``use1-az1``); None if AWS did not report it.
    """

    mount_target_id: MountTargetId
    file_system_id: FileSystemId
    subnet_id: SubnetId
    zone: ZoneName | None
    address: str
    state: LifeCycleState
    zone_id: ZoneName | None = None
    vpc_id: VpcId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """A file system with the mount targets that were last seen.

    ``zone`` is set for One Zone file systems only; ``name`` is the Name tag. ``number_of_mount_targets`` is
    from the list of file systems; None if AWS did not report it.
    """

    file_system_id: FileSystemId
    name: str | None = None
    state: LifeCycleState = LifeCycleState.AVAILABLE
    zone: ZoneName | None = None
    size_bytes: int | None = None
    number_of_mount_targets: int | None = None
    kind: FileSystemKind = FileSystemKind.EFS
    mount_targets: tuple[MountTarget, ...] = ()

    @property
    def usable_mount_targets(self) -> tuple[MountTarget, ...]:
        """The mount targets that accept connections."""
        return tuple(target for target in self.mount_targets if target.state.usable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """Every file system of the region at one moment; ``complete`` once a poll has succeeded.

    ``unclear`` are the file systems whose existence or mount targets are uncertain. A file system in neither
    is certainly deleted.
    """

    file_systems: Mapping[FileSystemId, FileSystem] = field(default_factory=lambda: MappingProxyType({}))
    unclear: frozenset[FileSystemId] = frozenset()
    complete: bool = False

    @property
    def usable(self) -> tuple[FileSystemId, ...]:
        """Ids of the file systems that can hold volumes, in order."""
        return tuple(sorted(fs for fs, system in self.file_systems.items() if system.state.usable))


def dns_name(
    file_system_id: FileSystemId,
    region: Region,
    suffix: str | None = None,
    *,
    kind: FileSystemKind = FileSystemKind.EFS,
) -> str:
    """The name in the server certificate of the file system; for EFS, it is also its DNS name.

    The DNS name of a mount target begins with its zone (EFS) or the zone's ID (S3 Files). ``suffix`` replaces
    that of EFS in the partition of the region.
    """
    partition = partition_of(region)
    if kind is FileSystemKind.S3_FILES:
        return f"{file_system_id}.s3files.{region}.{partition.s3_files_dns_suffix}"
    return f"{file_system_id}.efs.{region}.{suffix or partition.dns_suffix}"
