"""Calls to S3 Files: its file systems, access points and mount targets.

The API resembles that of EFS. It has three differences that matter. A list of access points contains neither
tokens nor tags. A creation with a token that was used either answers with the first access point, or with a
conflict that names it. And the managed policy of the AWS driver allows neither GetAccessPoint nor
ListMountTargets, so both are optional here. Without GetAccessPoint, a list shows whether an access point
exists, and lists may omit a new one.
Source: the service model ``s3files`` 2025-05-05 of botocore.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import structlog

from kube_efs.aws.connection import AwsConnection, Service
from kube_efs.aws.errors import reading
from kube_efs.aws.responses import parse_state, understood, understood_one
from kube_efs.model.csi.access_points import NEW_SECONDS, AccessPoint, AccessPointRequest, PosixUser
from kube_efs.model.csi.volume_handles import AccessPointId, parse_access_point_id
from kube_efs.model.efs.directories import read_directory
from kube_efs.model.efs.file_systems import FileSystem, LifeCycleState, MountTarget
from kube_efs.model.efs.ids import (
    FileSystemId,
    MountTargetId,
    ZoneName,
    parse_file_system_id,
    parse_subnet_id,
    parse_vpc_id,
    parse_zone_name,
)
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.efs.targets import parse_address
from kube_efs.model.errors import AwsNoCredentialsYet, AwsNotFound, AwsNotListed, AwsNotPermitted

log = structlog.get_logger(__name__)

_ACCESS_POINTS_PAGE: Final = 1000
_FILE_SYSTEMS_PAGE: Final = 100
_MOUNT_TARGETS_PAGE: Final = 100
# An administrator may allow the call at any time; asking for each access point would only be denied.
_DENIED_SECONDS: Final = 600.0
# A request about a missing access point that is repeated later begins again.
_REMEMBERED_SECONDS: Final = 3600.0


class AwsS3Files:
    """Calls to S3 Files on an open connection. Every method may raise AwsError."""

    def __init__(self, connection: AwsConnection, clock: Callable[[], float] = time.monotonic) -> None:
        self._connection, self._clock = connection, clock
        self._denied_until = clock()
        # From when on a list without the access point proves that it does not exist, the earliest first.
        self._proven_from: dict[AccessPointId, float] = {}

    async def list(self, file_system_id: FileSystemId) -> tuple[AccessPoint, ...]:
        """All access points of a file system, without their tokens and tags; a call for each thousand."""
        found = await self._connection.read_all(
            Service.S3_FILES,
            "ListAccessPoints",
            "accessPoints",
            partial(understood, _parse_access_point),
            subject=file_system_id,
            page_size=_ACCESS_POINTS_PAGE,
            fileSystemId=file_system_id,
        )
        return tuple(found)

    async def get(self, access_point_id: AccessPointId, file_system_id: FileSystemId) -> AccessPoint:
        """That access point of the file system; raises AwsNotFound.

        It comes from a list, without its token, if GetAccessPoint is not allowed, which is tried again later.
        Then, AwsNotListed is raised until lists have omitted the access point for a minute.
        """
        if self._clock() >= self._denied_until:
            try:
                answer = await self._connection.call(
                    Service.S3_FILES, "GetAccessPoint", subject=access_point_id, accessPointId=access_point_id
                )
                return understood_one(
                    _parse_access_point,
                    [answer],
                    operation="GetAccessPoint",
                    subject=access_point_id,
                    key="accessPointId",
                )
            except AwsNoCredentialsYet:
                # This is no answer about the permission.
                raise
            except AwsNotPermitted as error:
                log.info("access-points-listed-instead", reason=str(error))
                self._denied_until = self._clock() + _DENIED_SECONDS
        began = self._clock()
        for found in await self.list(file_system_id):
            if found.access_point_id == access_point_id:
                return found
        if began < self._proof_from(access_point_id):
            raise AwsNotListed(
                "is not in the list, which may omit a new one",
                field="ListAccessPoints",
                value=access_point_id,
                remedy="it is tried again for a minute, or at once if s3files:GetAccessPoint is allowed",
            )
        raise AwsNotFound("does not contain it", field="ListAccessPoints", value=access_point_id)

    async def create(self, request: AccessPointRequest) -> AccessPoint:
        """A new access point, or that of an earlier request with the token.

        Raises AwsAlreadyExists when AWS names the earlier one instead.
        """
        user = {"uid": request.user.uid, "gid": request.user.gid}
        tags = [{"key": tag.key, "value": tag.value} for tag in request.tags]
        subject = f"{request.file_system_id}:{request.directory}"
        answer = await self._connection.call(
            Service.S3_FILES,
            "CreateAccessPoint",
            subject=subject,
            clientToken=request.client_token,
            fileSystemId=request.file_system_id,
            rootDirectory={
                "path": str(request.directory),
                "creationPermissions": {
                    "ownerUid": request.user.uid,
                    "ownerGid": request.user.gid,
                    "permissions": request.permissions,
                },
            },
            # AWS refuses an empty list.
            **({"tags": tags} if tags else {}),
            **({"posixUser": user} if request.enforces_user else {}),
        )
        return understood_one(_parse_access_point, [answer], operation="CreateAccessPoint", subject=subject)

    async def delete(self, access_point_id: AccessPointId) -> None:
        """Delete the access point, but not its data; raises AwsNotFound."""
        await self._connection.call(
            Service.S3_FILES, "DeleteAccessPoint", subject=access_point_id, accessPointId=access_point_id
        )
        # A repeated removal need not wait.
        self._forget_old_proofs()
        self._proven_from.pop(access_point_id, None)
        self._proven_from[access_point_id] = self._clock()

    async def file_systems(self) -> tuple[FileSystem, ...]:
        """All file systems of the region in every state, without their mount targets."""
        found = await self._connection.read_all(
            Service.S3_FILES,
            "ListFileSystems",
            "fileSystems",
            partial(understood, _parse_file_system),
            page_size=_FILE_SYSTEMS_PAGE,
        )
        return tuple(found)

    async def addresses(self, file_system_id: FileSystemId) -> Mapping[ZoneName, str]:
        """The address of the usable mount target in each zone, by the ID of the zone."""
        found = await self.mount_targets(file_system_id)
        usable = (one for one in found if one.state.usable)
        return MappingProxyType({one.zone_id: one.address for one in usable if one.zone_id is not None})

    async def security_groups(self, mount_target_id: MountTargetId) -> tuple[str, ...]:
        """The IDs of the groups of a mount target, which lists do not contain."""
        answer = await self._connection.call(
            Service.S3_FILES, "GetMountTarget", subject=mount_target_id, mountTargetId=mount_target_id
        )
        with reading("GetMountTarget", subject=mount_target_id):
            return tuple(map(str, answer.get("securityGroups") or ()))

    async def mount_targets(self, file_system_id: FileSystemId) -> tuple[MountTarget, ...]:
        """The mount targets of the file system in every state, with the IDs of their zones only."""
        found = await self._connection.read_all(
            Service.S3_FILES,
            "ListMountTargets",
            "mountTargets",
            partial(understood, _parse_mount_target),
            subject=file_system_id,
            page_size=_MOUNT_TARGETS_PAGE,
            fileSystemId=file_system_id,
        )
        return tuple(found)

    def _proof_from(self, access_point_id: AccessPointId) -> float:
        """From when on a list proves that the access point, which a list has omitted, does not exist."""
        self._forget_old_proofs()
        return self._proven_from.setdefault(access_point_id, self._clock() + NEW_SECONDS)

    def _forget_old_proofs(self) -> None:
        now = self._clock()
        while self._proven_from:
            first = next(iter(self._proven_from))
            if self._proven_from[first] > now - _REMEMBERED_SECONDS:
                break
            del self._proven_from[first]


def _parse_access_point(entry: Mapping[str, Any]) -> AccessPoint:
    user = entry.get("posixUser")
    return AccessPoint(
        access_point_id=parse_access_point_id(str(entry.get("accessPointId") or ""), field="accessPointId"),
        file_system_id=parse_file_system_id(entry.get("fileSystemId"), field="fileSystemId"),
        directory=read_directory(str((entry.get("rootDirectory") or {}).get("path") or "/")),
        user=PosixUser(uid=int(user["uid"]), gid=int(user["gid"])) if user else None,
        client_token=str(entry.get("clientToken") or ""),
        tags={str(tag["key"]): str(tag["value"]) for tag in entry.get("tags") or ()},
        leaving=entry.get("status") in {LifeCycleState.DELETING, LifeCycleState.DELETED},
    )


def _parse_file_system(entry: Mapping[str, Any]) -> FileSystem:
    return FileSystem(
        file_system_id=parse_file_system_id(entry.get("fileSystemId"), field="fileSystemId"),
        name=str(entry["name"]) if entry.get("name") else None,
        state=parse_state(entry, "status"),
        kind=FileSystemKind.S3_FILES,
    )


def _parse_mount_target(entry: Mapping[str, Any]) -> MountTarget:
    return MountTarget(
        mount_target_id=MountTargetId(str(entry.get("mountTargetId") or "")),
        file_system_id=parse_file_system_id(entry.get("fileSystemId"), field="fileSystemId"),
        subnet_id=parse_subnet_id(entry.get("subnetId"), field="subnetId"),
        zone=None,
        zone_id=parse_zone_name(entry.get("availabilityZoneId"), field="availabilityZoneId"),
        address=parse_address(entry.get("ipv4Address") or entry.get("ipv6Address"), field="ipv4Address"),
        state=parse_state(entry, "status"),
        vpc_id=parse_vpc_id(entry["vpcId"], field="vpcId") if entry.get("vpcId") else None,
    )
