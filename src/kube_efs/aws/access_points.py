"""Calls to EFS about access points."""

from functools import partial

from kube_efs.aws.connection import AwsConnection, Service
from kube_efs.aws.responses import parse_access_point, understood, understood_one
from kube_efs.model.csi.access_points import AccessPoint, AccessPointRequest
from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.model.efs.ids import FileSystemId

_PAGE_SIZE = 1000  # The maximum of DescribeAccessPoints.


class AwsAccessPoints:
    """Calls about access points on an open connection. Every method may raise AwsError."""

    def __init__(self, connection: AwsConnection) -> None:
        self._connection = connection

    async def list(self, file_system_id: FileSystemId) -> tuple[AccessPoint, ...]:
        """All access points of a file system; one call for each thousand."""
        found = await self._connection.read_all(
            Service.EFS,
            "DescribeAccessPoints",
            "AccessPoints",
            partial(understood, parse_access_point),
            subject=file_system_id,
            page_size=_PAGE_SIZE,
            FileSystemId=file_system_id,
        )
        return tuple(found)

    async def get(self, access_point_id: AccessPointId, _file_system_id: FileSystemId) -> AccessPoint:
        """That access point, on whatever file system it is; raises AwsNotFound."""
        answer = await self._connection.call(
            Service.EFS, "DescribeAccessPoints", subject=access_point_id, AccessPointId=access_point_id
        )
        found = answer.get("AccessPoints") or ()
        return understood_one(
            parse_access_point,
            found,
            operation="DescribeAccessPoints",
            subject=access_point_id,
            key="AccessPointId",
        )

    async def create(self, request: AccessPointRequest) -> AccessPoint:
        """A new access point; raises AwsAlreadyExists when one with the token exists."""
        user = {"Uid": request.user.uid, "Gid": request.user.gid}
        subject = f"{request.file_system_id}:{request.directory}"
        answer = await self._connection.call(
            Service.EFS,
            "CreateAccessPoint",
            subject=subject,
            ClientToken=request.client_token,
            FileSystemId=request.file_system_id,
            RootDirectory={
                "Path": str(request.directory),
                "CreationInfo": {
                    "OwnerUid": request.user.uid,
                    "OwnerGid": request.user.gid,
                    "Permissions": request.permissions,
                },
            },
            Tags=[{"Key": tag.key, "Value": tag.value} for tag in request.tags],
            **({"PosixUser": user} if request.enforces_user else {}),
        )
        return understood_one(parse_access_point, [answer], operation="CreateAccessPoint", subject=subject)

    async def delete(self, access_point_id: AccessPointId) -> None:
        """Delete the access point, but not its data; raises AwsNotFound."""
        await self._connection.call(
            Service.EFS, "DeleteAccessPoint", subject=access_point_id, AccessPointId=access_point_id
        )
