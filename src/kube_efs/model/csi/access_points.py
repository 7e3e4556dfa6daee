"""EFS access points: what one is made with for a volume, and whether one that exists can serve it."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from kube_efs.model.csi.access_point_tags import DEFAULT_TAGS, REQUESTED_BYTES, Tag, TagPolicy
from kube_efs.model.csi.errors import ExistingVolumeDiffers, InvalidArgument
from kube_efs.model.csi.parameters import ProvisioningMode, VolumeParameters
from kube_efs.model.csi.root_directories import (
    VolumeOrigin,
    check_access_point_root,
    check_own_directory,
    plain_name,
    root_directory,
)
from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.model.efs.directories import Directory, Relation
from kube_efs.model.efs.ids import FileSystemId


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeRequest:
    """What CreateVolume asks for; ``required_bytes`` 0 means that no size is asked for."""

    name: str
    parameters: VolumeParameters
    origin: VolumeOrigin = field(default_factory=VolumeOrigin)
    required_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PosixUser:
    """The identity that an access point gives to all its clients."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPointRequest:
    """The fields of CreateAccessPoint; the root directory is made with ``permissions`` and that owner."""

    client_token: str
    file_system_id: FileSystemId
    directory: Directory
    permissions: str
    user: PosixUser
    tags: tuple[Tag, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPoint:
    """An access point as EFS describes it; ``user`` is None when it gives no identity.

    One that is ``leaving`` is being deleted, which nothing stops, and still listed for a moment.
    """

    access_point_id: AccessPointId
    file_system_id: FileSystemId
    directory: Directory = field(default_factory=Directory)
    user: PosixUser | None = None
    client_token: str = ""
    tags: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    leaving: bool = False


def volume_directory(request: VolumeRequest) -> Directory:
    """Where the volume's data will lie; the same for every repetition of the request.

    Raises InvalidArgument when the class names no directory that EFS, or for ``efs-dir`` a volume handle,
    can take.
    """
    parameters = request.parameters
    directory = root_directory(
        parameters.base,
        request.name,
        pattern=parameters.pattern,
        unique=parameters.unique,
        origin=request.origin,
    )
    if parameters.provisioning is ProvisioningMode.ACCESS_POINT:
        check_access_point_root(directory)
    else:
        check_own_directory(directory, parameters.base)
    return directory


def access_point_request(
    request: VolumeRequest, file_system_id: FileSystemId, user: PosixUser, tags: TagPolicy = DEFAULT_TAGS
) -> AccessPointRequest:
    """What to make for the volume; ``user`` has the ids that the class gives or that were allocated."""
    parameters = request.parameters
    return AccessPointRequest(
        client_token=client_token(request, file_system_id),
        file_system_id=file_system_id,
        directory=volume_directory(request),
        permissions=f"{parameters.mode:03o}",
        user=user,
        tags=tags.tags(request.origin, request.required_bytes) if parameters.tagged else (),
    )


def client_token(request: VolumeRequest, file_system_id: FileSystemId) -> str:
    """The token that makes EFS give one access point however often it is asked: at most 64 characters.

    Without ``reuseAccessPoint`` it is the volume's name. EFS keeps tokens by account and region, so that
    an attempt with another file system of the class finds the access point of the first. With it, the
    token stands for namespace and name of the claim and for the file system. (The AWS driver hashes the
    name alone, so that claims of the same name share their data across namespaces; access points that it
    made are not found again.) Raises InvalidArgument when the claim is not known.
    """
    origin = request.origin
    if not request.parameters.reuses_access_point:
        return plain_name(request.name)
    check_reuse(request)
    # No part can have a slash, so no two claims give the same text.
    identity = f"{file_system_id}/{origin.claim_namespace}/{origin.claim_name}"
    return hashlib.sha256(identity.encode()).hexdigest()


def check_reuse(request: VolumeRequest) -> None:
    """Raises InvalidArgument when the class reuses access points and the claim is not known."""
    origin = request.origin
    if request.parameters.reuses_access_point and not (origin.claim_name and origin.claim_namespace):
        raise InvalidArgument(
            "needs the claim's name and namespace",
            field="reuseAccessPoint",
            remedy="run csi-provisioner with --extra-create-metadata",
        )


def check_existing(found: AccessPoint, request: VolumeRequest) -> None:
    """Raises ExistingVolumeDiffers when an access point with the request's token cannot be its volume.

    As in the AWS driver its root must lie in the base, and its identity be the class's or from its range;
    permissions and tags may differ. New: paths are compared by components, the file system must be one of
    the class's, and so must the size, if it was recorded and the access point is not another volume's.
    """
    parameters = request.parameters
    _check_place(found, parameters)
    if found.user is None:
        remedy = "delete it, or give it a POSIX user"
        raise ExistingVolumeDiffers(
            "has no POSIX user", field="access point", value=found.access_point_id, remedy=remedy
        )
    _check_id(found, "gid", found.user.gid, parameters.gid, parameters)
    _check_id(found, "uid", found.user.uid, parameters.uid, parameters)
    recorded = found.tags.get(REQUESTED_BYTES, "")
    if not parameters.reuses_access_point and recorded not in {"", str(request.required_bytes)}:
        raise ExistingVolumeDiffers(
            f"is not what volume {request.name} was created with, {recorded}",
            field="capacity_range.required_bytes",
            value=str(request.required_bytes),
            remedy="ask for that size, or use another name",
        )


def _check_place(found: AccessPoint, parameters: VolumeParameters) -> None:
    known = parameters.file_systems
    if isinstance(known, tuple) and found.file_system_id not in known:
        raise ExistingVolumeDiffers(
            f"is on {found.file_system_id}, which the class does not name",
            field="access point",
            value=found.access_point_id,
            remedy="delete it, or use another name",
        )
    if found.directory.relation_to(parameters.base) not in {Relation.BELOW, Relation.SAME}:
        raise ExistingVolumeDiffers(
            f"has the root {found.directory}, which is not in basePath {parameters.base}",
            field="access point",
            value=found.access_point_id,
            remedy="delete it, or use another name",
        )


def _check_id(
    found: AccessPoint, name: str, actual: int, fixed: int | None, parameters: VolumeParameters
) -> None:
    # The class's range holds for both ids, since one number is allocated for both.
    if actual == fixed or (fixed is None and actual in parameters.gids):
        return
    wanted = f"in {parameters.gids}" if fixed is None else str(fixed)
    raise ExistingVolumeDiffers(
        f"has {name} {actual}, which is not {wanted}",
        field="access point",
        value=found.access_point_id,
        remedy="delete it, or use another name",
    )
