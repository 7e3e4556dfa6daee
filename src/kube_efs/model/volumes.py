"""PersistentVolumes, and the location of their data."""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from kube_efs.model.claims import ReclaimPolicy
from kube_efs.model.csi.mount_flags import named_access_point
from kube_efs.model.csi.volume_handles import VolumeHandle, parse_volume_handle
from kube_efs.model.efs.directories import Directory, Relation, read_directory
from kube_efs.model.efs.ids import ClaimUid, FileSystemId, parse_file_system_id
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.efs.targets import TunnelTargets
from kube_efs.model.errors import InvalidValue
from kube_efs.model.loopback import is_loopback, ports_of

# The CSI driver, which is also the provisioner of its classes.
DRIVER = "efs.csi.aws.com"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
ZONE_LABEL = "topology.kubernetes.io/zone"
# Where csi-provisioner records the Secret with which it created the volume.
DELETION_SECRET_NAME = "volume.kubernetes.io/provisioner-deletion-secret-name"  # noqa: S105
DELETION_SECRET_NAMESPACE = "volume.kubernetes.io/provisioner-deletion-secret-namespace"  # noqa: S105
# The finalizer of csi-provisioner and every other external provisioner, so that one can replace another.
FINALIZER = "external-provisioner.volume.kubernetes.io/finalizer"
LOOPBACK = "127.0.0.1"

_NFS_DRIVER = "nfs.csi.k8s.io"
# What a subdirectory of that driver can contain, and the attribute that it stands for.
_NFS_PLACEHOLDERS = {
    "${pvc.metadata.name}": "csi.storage.k8s.io/pvc/name",
    "${pvc.metadata.namespace}": "csi.storage.k8s.io/pvc/namespace",
    "${pv.metadata.name}": "csi.storage.k8s.io/pv/name",
}
_EFS_DNS_NAME = re.compile(r"(?:[a-z0-9-]+\.)?(fs-[0-9a-z]+)\.efs\.[a-z0-9-]+\..+")


class VolumePhase(StrEnum):
    """``status.phase`` of a volume."""

    PENDING = "Pending"
    AVAILABLE = "Available"
    BOUND = "Bound"
    RELEASED = "Released"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimReference:
    """The claim that a volume belongs to; ``uid`` is None when a user bound it by name only.

    ``resource_version`` is that of the claim when the volume was created.
    """

    namespace: str
    name: str
    uid: ClaimUid | None = None
    resource_version: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class NfsSource:
    """Server and exported path of an NFS volume.

    ``options`` are mount options beside those of the volume, which they follow.
    """

    server: str
    path: str
    options: tuple[str, ...] = ()

    @property
    def address(self) -> str | None:
        """The address of the server in its shortest form, as that of a mount target; None for a name."""
        try:
            return str(ipaddress.ip_address(self.server.removeprefix("[").removesuffix("]")))
        except ValueError:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class CsiSource:
    """Handle and attributes of a volume of a CSI driver, as text."""

    driver: str = DRIVER
    handle: str
    attributes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def volume_handle(self) -> VolumeHandle | None:
        """The handle alone as kube-efs reads it, whatever the driver; None for a malformed one."""
        try:
            return parse_volume_handle(self.handle)
        except InvalidValue:
            return None

    @property
    def nfs_source(self) -> NfsSource | None:
        """What nodes mount for a volume of the CSI driver for NFS; None for any other driver."""
        if self.driver != _NFS_DRIVER:
            return None
        given = {key.lower(): value for key, value in self.attributes.items()}
        subdirectory = given.get("subdir", "")
        for placeholder, attribute in _NFS_PLACEHOLDERS.items():
            subdirectory = subdirectory.replace(placeholder, given.get(attribute, placeholder))
        path = f"{given.get('share', '')}/{subdirectory}"
        options = (given["mountoptions"],) if "mountoptions" in given else ()
        return NfsSource(server=given.get("server", ""), path=path, options=options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A directory of a file system.

    ``kind`` says which service to ask about the file system. It does not matter for equality, because no two
    file systems have the same ID.
    """

    file_system_id: FileSystemId
    directory: Directory
    kind: FileSystemKind = field(default=FileSystemKind.EFS, compare=False)

    def __str__(self) -> str:
        return f"{self.file_system_id}:{self.directory}"

    @property
    def root(self) -> "Location":
        """The root of its file system."""
        return replace(self, directory=Directory())

    def is_below(self, other: "Location") -> bool:
        """Whether it is strictly inside the other."""
        is_same = self.file_system_id == other.file_system_id
        return is_same and self.directory.relation_to(other.directory) is Relation.BELOW

    def is_child_of(self, other: "Location") -> bool:
        """Whether it is directly inside the other."""
        return self.is_below(other) and self.directory.parts[:-1] == other.directory.parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A PersistentVolume.

    ``file_system_id`` is the unchecked value of its annotation. ``gid`` is the group of its users.
    ``directory_id`` is the user and group ID of its directory, which pods do not get. ``zone`` is the only
    zone in which it can be used. ``deletion_secret`` is the namespace and name of the Secret with the role
    that created it. ``attributes_class`` is that of the claim, because Kubernetes binds no volume of another
    one. ``resource_version`` is that of the time when it was read.
    """

    name: str
    uid: str = ""
    resource_version: str = field(default="", compare=False)
    phase: VolumePhase = VolumePhase.PENDING
    deleting: bool = False
    reclaim_policy: ReclaimPolicy = ReclaimPolicy.RETAIN
    storage_class: str = ""
    provisioned_by: str | None = None
    file_system_id: str | None = None
    gid: int | None = None
    directory_id: int | None = None
    finalizers: tuple[str, ...] = ()
    claim: ClaimReference | None = None
    nfs: NfsSource | None = None
    csi: CsiSource | None = None
    zone: str | None = None
    deletion_secret: tuple[str, str] | None = None
    attributes_class: str | None = None
    mount_options: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    access_modes: tuple[str, ...] = ()
    capacity: str = "1Gi"

    @property
    def to_be_reclaimed(self) -> bool:
        """Whether its claim is deleted and its data must be removed."""
        return self.phase is VolumePhase.RELEASED and self.reclaim_policy is ReclaimPolicy.DELETE

    @property
    def is_finalized(self) -> bool:
        """Whether it is being deleted with its data and no longer has the finalizer."""
        return self.to_be_reclaimed and self.deleting and FINALIZER not in self.finalizers

    @property
    def annotated(self) -> FileSystemId | None:
        """The file system in its annotation; None without a valid one."""
        try:
            return parse_file_system_id(self.file_system_id)
        except InvalidValue:
            return None

    @property
    def entrance(self) -> VolumeHandle | None:
        """What nodes mount for a volume with a handle as ours, whatever its driver; None for any other.

        The access point may be in the mount options instead of the handle.
        """
        handle = self.csi.volume_handle if self.csi is not None else None
        if handle is None or handle.access_point_id is not None:
            return handle
        named = named_access_point(self.mount_options)
        return handle if named is None else replace(handle, access_point_id=named, base=None)

    @property
    def handle(self) -> VolumeHandle | None:
        """The same for a volume of the CSI driver; None for any other driver."""
        return self.entrance if self.csi is not None and self.csi.driver == DRIVER else None

    @property
    def mounted_nfs(self) -> NfsSource | None:
        """What nodes mount with NFS, also with the CSI driver for NFS; None for any other volume."""
        return self.nfs if self.nfs is not None or self.csi is None else self.csi.nfs_source

    @property
    def port(self) -> int | None:
        """The NFS port in its mount options, the last of several, as in the kernel; None without one."""
        return next(reversed(ports_of(self._all_options, ("port",))), None)

    @property
    def loopback_ports(self) -> frozenset[int]:
        """Every loopback port in its mount options; empty if it is mounted from another server."""
        return frozenset(ports_of(self._all_options)) if self.is_behind_port else frozenset()

    @property
    def is_behind_port(self) -> bool:
        """Whether nodes mount it from their loopback address, also with the CSI driver for NFS."""
        nfs = self.mounted_nfs
        return nfs is not None and is_loopback(nfs.server)

    @property
    def _all_options(self) -> tuple[str, ...]:
        nfs = self.mounted_nfs
        return (*self.mount_options, *nfs.options) if nfs else self.mount_options


def locate(
    volume: Volume, targets: TunnelTargets, servers: Mapping[str, FileSystemId] = MappingProxyType({})
) -> Location | None:
    """The location of the volume's data; None if it is not on EFS or is unknown.

    ``targets`` give the file system for a loopback port or the address of a mount target, ``servers`` for any
    other name of a server. The annotation of the volume takes precedence over its port, because volumes from
    before an installation may have the port of another file system. For another server, it only counts if the
    server is not known. Paths are normalized as the kernel does, because this function also finds the volumes
    whose data a removal would affect.
    """
    try:
        if (nfs := volume.mounted_nfs) is not None:
            file_system_id = servers.get(nfs.server) or _behind(volume, nfs, targets) or volume.annotated
            if file_system_id is None:
                return None
            return Location(file_system_id=file_system_id, directory=read_directory(nfs.path))
        entrance = volume.entrance
        if volume.csi is not None and (entrance is None or entrance.access_point_id is None):
            return _locate_handle(volume.csi.handle)
    except InvalidValue:
        return None
    return None


def unlocated_directory(volume: Volume) -> Directory | None:
    """The directory of an NFS volume whose file system is unknown; None for any other volume.

    For volumes that ``locate`` does not find. Their server is loopback, where a tunnel of any file system may
    listen, or an address, which may be that of a mount target.
    """
    nfs = volume.mounted_nfs
    if nfs is None or not (is_loopback(nfs.server) or nfs.address):
        return None
    return read_directory(nfs.path)


def _behind(volume: Volume, nfs: NfsSource, targets: TunnelTargets) -> FileSystemId | None:
    if is_loopback(nfs.server):
        return volume.annotated or (targets.file_system_at(volume.port) if volume.port else None)
    if nfs.address is not None:
        return targets.file_system_with(nfs.address)
    match = _EFS_DNS_NAME.fullmatch(nfs.server.lower())
    return parse_file_system_id(match[1]) if match else None


def _locate_handle(handle: str) -> Location | None:
    """The location in a handle ``[KIND:]FSID[:SUBPATH[:APID]]``; None with an access point.

    Only AWS knows the root directory of an access point.
    """
    fields = handle.split(":")
    kind = FileSystemKind.EFS
    if fields[0] in set(FileSystemKind):
        kind, fields = FileSystemKind(fields[0]), fields[1:] or [""]
    if len(fields) > 2 and fields[2]:
        return None
    path = fields[1] if len(fields) > 1 and fields[1] else "/"
    return Location(file_system_id=parse_file_system_id(fields[0]), directory=read_directory(path), kind=kind)
