"""The rules of efs-provisioner: which claims are served, with which volume, and what is removed with it.

Each volume has its own directory below a base directory of one file system. Source: the README of that
project, and its behavior with its library, sig-storage-lib-external-provisioner 4.0.1.
"""

import hashlib
import re
from dataclasses import dataclass

from kube_efs.model.claims import Claim, ReclaimPolicy, StorageClass
from kube_efs.model.directory_classes import parse_class
from kube_efs.model.efs.directories import NAME_MAX_BYTES, Directory, Permissions, Relation, parse_directory
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.targets import TunnelTargets
from kube_efs.model.errors import ClaimRefused, InvalidValue, RemovalRefused
from kube_efs.model.gids import GidRange
from kube_efs.model.nfs_volumes import refuse_unservable, tunnel_mount_options, tunnel_port
from kube_efs.model.volumes import LOOPBACK, ClaimReference, Location, NfsSource, Volume

DEFAULT_MOUNT_OPTIONS = ("vers=4.1",)

_GROUP_MODE = 0o2771  # only the group lists and writes; new files get the group
_OPEN_MODE = 0o777
_VOLUME_DIRECTORY = re.compile(r".+-(pvc-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryProvisioner:
    """A provisioner of directory volumes.

    ``server`` is the NFS server of volumes without TLS; their directories are below ``base``.
    """

    name: str
    file_system_id: FileSystemId
    server: str
    base: Directory


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryRequest:
    """A valid request of a claim.

    ``gids`` is the range of its group ID, None without a group ID. ``port`` is the loopback port of the
    tunnel, None if the volume is mounted from the server itself.
    """

    claim: Claim
    provisioner: DirectoryProvisioner
    location: Location
    reclaim_policy: ReclaimPolicy
    mount_options: tuple[str, ...]
    gids: GidRange | None
    port: int | None


def parse_request(
    claim: Claim,
    storage_class: StorageClass,
    provisioner: DirectoryProvisioner,
    targets: TunnelTargets | None,
) -> DirectoryRequest:
    """The request of the claim.

    ``targets`` is None without tunnels. Raises ClaimRefused if the claim cannot be served until it or its
    class changes, and NotYet if the class requires TLS and the file system has no tunnel yet.
    """
    refuse_unservable(claim)
    if claim.match_labels is not None:
        remedy = "leave it out, each claim gets a directory of its own"
        raise ClaimRefused("is not supported", field="spec.selector", remedy=remedy)
    rules = parse_class(storage_class)
    options = tunnel_mount_options(storage_class) if rules.tls else storage_class.mount_options
    file_system_id = provisioner.file_system_id
    return DirectoryRequest(
        claim=claim,
        provisioner=provisioner,
        location=Location(file_system_id=file_system_id, directory=provisioner.base / directory_name(claim)),
        reclaim_policy=storage_class.reclaim_policy,
        mount_options=options or DEFAULT_MOUNT_OPTIONS,
        gids=rules.gids,
        port=_port(storage_class, file_system_id, targets) if rules.tls else None,
    )


def _port(storage_class: StorageClass, file_system_id: FileSystemId, targets: TunnelTargets | None) -> int:
    if targets is None:
        raise ClaimRefused(
            "needs tunnels, which this controller does not manage",
            field=f"StorageClass {storage_class.name} parameters.tls",
            value="true",
            remedy="put tunnel into the controller's KUBE_EFS_BACKENDS, or leave it out",
        )
    return tunnel_port(file_system_id, targets)


def volume_name(claim: Claim) -> str:
    """``pvc-<uid of the claim>``, so that a repeated attempt finds the volume of the first one."""
    return f"pvc-{claim.uid}"


def directory_name(claim: Claim) -> str:
    """``<name of the claim>-<name of the volume>``.

    If that is too long for a file system, the name of the claim is truncated and ends with a hash of it.
    """
    suffix = f"-{volume_name(claim)}"
    room = NAME_MAX_BYTES - len(suffix)  # names in Kubernetes are ASCII
    if len(claim.name) <= room:
        return claim.name + suffix
    digest = f"-{hashlib.sha256(claim.name.encode()).hexdigest()[:8]}"
    return claim.name[: room - len(digest)] + digest + suffix


def volume_of_directory(name: str) -> str | None:
    """The name of the volume in the name of its directory; None without one."""
    match = _VOLUME_DIRECTORY.fullmatch(name)
    return match[1] if match else None


def permissions_for(gid: int | None, *, own_group: bool = False) -> Permissions:
    """The permissions of the directory of a volume with that group ID, also of an existing directory.

    Without a group, the mode is exact: efs-provisioner sets it with the chmod of Go, which clears setgid.
    With ``own_group``, no other directory may have the ID.
    """
    mode = _OPEN_MODE if gid is None else _GROUP_MODE
    return Permissions(mode=mode, gid=gid, enforced=True, exact=gid is None, own_group=own_group)


def volume_for(request: DirectoryRequest, *, gid: int | None) -> Volume:
    """The volume that serves the request; ``gid`` is from its range, None without a range."""
    claim, provisioner, port = request.claim, request.provisioner, request.port
    path = str(request.location.directory)
    if port is None:
        # As in the older system: the server identifies the file system.
        file_system_id, server, options = None, provisioner.server, request.mount_options
    else:
        file_system_id, server = str(provisioner.file_system_id), LOOPBACK
        options = (f"port={port}", *request.mount_options)
    return Volume(
        name=volume_name(claim),
        reclaim_policy=request.reclaim_policy,
        storage_class=claim.storage_class or "",
        provisioned_by=provisioner.name,
        file_system_id=file_system_id,
        gid=gid,
        claim=ClaimReference(
            namespace=claim.namespace,
            name=claim.name,
            uid=claim.uid,
            resource_version=claim.resource_version,
        ),
        nfs=NfsSource(server=server, path=path),
        mount_options=options,
        access_modes=claim.access_modes,
        capacity=claim.requested_storage,
    )


def removable_location(volume: Volume, provisioner: DirectoryProvisioner) -> Location:
    """The directory that may be removed with this volume, judged from the volume alone.

    Raises RemovalRefused unless it is on the provisioner's file system and strictly below its base. The
    class does not matter: it may be deleted or different now.
    """
    if volume.nfs is None:
        remedy = "remove the volume manually"
        raise RemovalRefused("has no spec.nfs", field="volume", value=volume.name, remedy=remedy)
    if not is_served_by(volume, provisioner):
        raise RemovalRefused(
            "is not a server of this provisioner's volumes",
            field="spec.nfs.server",
            value=volume.nfs.server,
            remedy=f"{provisioner.name} removes directories only from {provisioner.server}, and from "
            f"{provisioner.file_system_id} through a tunnel; remove the volume manually",
        )
    directory = _below(provisioner.base, volume.nfs.path)
    return Location(file_system_id=provisioner.file_system_id, directory=directory)


def is_served_by(volume: Volume, provisioner: DirectoryProvisioner) -> bool:
    """Whether the volume is on this provisioner's file system, in any directory."""
    if volume.nfs is None:
        return False
    server = volume.nfs.server
    if volume.file_system_id is None:
        return server == provisioner.server
    return server in {provisioner.server, LOOPBACK} and volume.file_system_id == provisioner.file_system_id


def _below(base: Directory, path: str) -> Directory:
    try:
        directory = parse_directory(path)
    except InvalidValue as error:
        raise _not_below(base, path) from error
    # Only a user writes a path in another form, and may mean another directory.
    if directory.relation_to(base) is not Relation.BELOW or str(directory) != path:
        raise _not_below(base, path)
    return directory


def _not_below(base: Directory, path: str) -> RemovalRefused:
    return RemovalRefused(
        "is not a plain path below the base",
        field="spec.nfs.path",
        value=path,
        remedy=f"only directories strictly below {base} are removed; remove the volume manually",
    )


def is_conventional(volume: Volume) -> bool:
    """Whether its directory is named after it, as this provisioner names directories."""
    return volume.nfs is not None and volume.nfs.path.endswith(f"-{volume.name}")
