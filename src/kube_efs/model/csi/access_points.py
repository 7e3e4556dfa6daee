"""EFS access points: how one is created for a volume, and whether an existing one can serve it."""

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from kube_efs.model.copies import CopySource
from kube_efs.model.csi.access_point_tags import DEFAULT_TAGS, REQUESTED_BYTES, Tag, TagPolicy
from kube_efs.model.csi.errors import ExistingVolumeDiffers, InvalidArgument
from kube_efs.model.csi.parameters import VolumeParameters, with_choices
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

# AWS knows a new access point everywhere after seconds. Until then, a list may omit it.
NEW_SECONDS: Final = 60.0

_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeRequest:
    """The request of CreateVolume; ``required_bytes`` is 0 without a size.

    ``source`` is what the volume is a copy of, if it is one.
    """

    name: str
    parameters: VolumeParameters
    origin: VolumeOrigin = field(default_factory=VolumeOrigin)
    required_bytes: int = 0
    source: CopySource | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PosixUser:
    """The identity that an access point gives to all its clients."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPointRequest:
    """The fields of CreateAccessPoint, of EFS or S3 Files.

    The root directory is created with ``permissions`` for ``user``. If ``enforces_user`` is false, clients
    keep their own identities.
    """

    client_token: str
    file_system_id: FileSystemId
    directory: Directory
    permissions: str
    user: PosixUser
    enforces_user: bool = True
    tags: tuple[Tag, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPoint:
    """An access point as EFS describes it; ``user`` is None without a POSIX user.

    ``leaving``: it is being deleted, which cannot be stopped, and is still listed for a moment.
    """

    access_point_id: AccessPointId
    file_system_id: FileSystemId
    directory: Directory = field(default_factory=Directory)
    user: PosixUser | None = None
    client_token: str = ""
    tags: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    leaving: bool = False


def volume_request(
    name: str, parameters: VolumeParameters, origin: VolumeOrigin, required_bytes: int
) -> VolumeRequest:
    """The request of a claim, with the choices in its annotations.

    Raises InvalidArgument for a choice that is refused, and if the claim is not known although its class
    allows choices.
    """
    if parameters.allowed and not origin.is_known:
        raise InvalidArgument(
            "needs the claim's name and namespace",
            field="allowedUids, allowedGids, allowedDirectoryPerms",
            remedy="run csi-provisioner with --extra-create-metadata",
        )
    return VolumeRequest(
        name=name,
        parameters=with_choices(parameters, origin.annotations),
        origin=origin,
        required_bytes=required_bytes,
    )


def volume_directory(request: VolumeRequest) -> Directory:
    """The directory for the volume's data; a repeated request gives the same one.

    Raises InvalidArgument for a directory that EFS or, with ``efs-dir``, a volume handle does not accept.
    """
    parameters = request.parameters
    directory = root_directory(
        parameters.base,
        request.name,
        pattern=parameters.pattern,
        unique=parameters.unique,
        origin=request.origin,
    )
    if parameters.provisioning.makes_access_points:
        check_access_point_root(directory)
    else:
        check_own_directory(directory, parameters.base)
    return directory


def access_point_request(
    request: VolumeRequest, file_system_id: FileSystemId, user: PosixUser, tags: TagPolicy = DEFAULT_TAGS
) -> AccessPointRequest:
    """The access point to create for the volume; ``user`` has the IDs of the class or allocated ones."""
    parameters = request.parameters
    return AccessPointRequest(
        client_token=client_token(request),
        file_system_id=file_system_id,
        directory=volume_directory(request),
        permissions=f"{parameters.mode:03o}",
        user=user,
        enforces_user=parameters.enforces_user,
        tags=tags.tags(request.origin, request.required_bytes) if parameters.tagged else (),
    )


def client_token(request: VolumeRequest) -> str:
    """The token with which repeated requests give the same access point: at most 64 characters.

    Without ``reuseAccessPoint`` it is the volume's name. With it, it is the AWS driver's: the hash of the
    claim's name alone, so that claims of this name in all namespaces and clusters share one access point. EFS
    stores tokens by account and region, so that an attempt with another file system of the class finds the
    access point of the first attempt. Raises InvalidArgument if the claim is not known.
    """
    if not request.parameters.reuses_access_point:
        return plain_name(request.name)
    check_reuse(request)
    return hashlib.sha256(request.origin.claim_name.encode()).hexdigest()


def own_token(request: VolumeRequest, file_system_id: FileSystemId) -> str:
    """The token of a reused access point that only claims of one namespace, name and file system have.

    kube-efs used it for all of them before it used the AWS driver's. It still does if that one belongs to an
    access point on another file system. Raises InvalidArgument if the claim is not known.
    """
    check_reuse(request)
    # No part can contain a slash, so two claims never give the same text.
    identity = f"{file_system_id}/{request.origin.claim_namespace}/{request.origin.claim_name}"
    return hashlib.sha256(identity.encode()).hexdigest()


def known_tokens(request: VolumeRequest, file_system_id: FileSystemId) -> tuple[str, ...]:
    """The tokens of the access points on the file system that may serve the request, the best one first."""
    if not request.parameters.reuses_access_point:
        return (client_token(request),)
    return (own_token(request, file_system_id), client_token(request))


def is_reusable(found: AccessPoint) -> bool:
    """Whether claims of other namespaces and clusters can find it by its token, the hash of a name."""
    return _HASH.fullmatch(found.client_token) is not None


def check_reuse(request: VolumeRequest) -> None:
    """Raises InvalidArgument when the class reuses access points and the claim is not known."""
    if request.parameters.reuses_access_point and not request.origin.is_known:
        raise InvalidArgument(
            "needs the claim's name and namespace",
            field="reuseAccessPoint",
            remedy="run csi-provisioner with --extra-create-metadata",
        )


def check_existing(found: AccessPoint, request: VolumeRequest, candidates: Collection[FileSystemId]) -> None:
    """Raises ExistingVolumeDiffers if an access point with the token of the request cannot be its volume.

    As in the AWS driver, its root must be in the base, and its IDs must be those of the class or in its
    range; permissions and tags may differ. New: paths are compared by components, the file system must be one
    of the ``candidates``, and a recorded size must be the requested one, unless the class reuses access
    points.
    """
    parameters = request.parameters
    _check_place(found, parameters, candidates)
    if parameters.enforces_user != (found.user is not None):
        problem = "has no POSIX user" if found.user is None else "has a POSIX user"
        remedy = "delete it, or use another name"
        raise ExistingVolumeDiffers(problem, field="access point", value=found.access_point_id, remedy=remedy)
    if found.user is not None:
        _check_id(found, "gid", found.user.gid, parameters.gid, parameters)
        _check_id(found, "uid", found.user.uid, parameters.uid, parameters)
    recorded = found.tags.get(REQUESTED_BYTES, "")
    if not parameters.reuses_access_point and recorded not in {"", str(request.required_bytes)}:
        raise ExistingVolumeDiffers(
            f"is not what volume {request.name} was created with, {recorded}",
            field="capacity_range.required_bytes",
            value=str(request.required_bytes),
            remedy="request that size, or use another name",
        )


def _check_place(
    found: AccessPoint, parameters: VolumeParameters, candidates: Collection[FileSystemId]
) -> None:
    if found.file_system_id not in candidates:
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
    # The range of the class applies to both IDs, because one number is allocated for both.
    if actual == fixed or (fixed is None and actual in parameters.gids):
        return
    wanted = f"in {parameters.gids}" if fixed is None else str(fixed)
    raise ExistingVolumeDiffers(
        f"has {name} {actual}, which is not {wanted}",
        field="access point",
        value=found.access_point_id,
        remedy="delete it, or use another name",
    )
