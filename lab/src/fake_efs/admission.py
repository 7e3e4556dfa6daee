"""Who may connect, and through which access point, by what the EFS API says at that moment."""

import asyncio

from fake_efs.access_points import (
    EmbeddedAccessPoint,
    parse_access_point,
    parse_s3_files_access_point,
)
from fake_efs.aws_api import AwsCalls
from fake_efs.client_certificate import ClientCertificate
from fake_efs.errors import AwsNotFound, InvalidValue
from fake_efs.file_systems import Kind
from fake_efs.identities import DRIVER_ARN, Identities
from fake_efs.policy import Client, Statement, check_identity, check_policy, parse_policy


class Admission:
    """Asks the API again for every connection, so that what is deleted or forbidden is so at once.

    Every method may raise AwsError. ``statements`` are the policy of ``DRIVER``; None allows everything.
    """

    def __init__(
        self,
        efs: AwsCalls,
        s3_files: AwsCalls,
        identities: Identities,
        statements: tuple[Statement, ...] | None = None,
    ) -> None:
        self._efs = efs
        self._s3_files = s3_files
        self._identities = identities
        self._statements = statements

    async def admit(
        self, client: ClientCertificate, file_system_id: str, kind: Kind = Kind.EFS
    ) -> EmbeddedAccessPoint | None:
        """What a client of this file system gets: an access point, or None for all of the file system.

        S3 Files admits nobody without a signature, and no identity without a permission. Raises InvalidValue
        when it is to get nothing, MountDenied if this is for a policy.
        """
        if client.file_system_id not in {None, file_system_id}:
            raise InvalidValue(
                f"is not {file_system_id}",
                field="file system of the client certificate",
                value=client.file_system_id,
            )
        arn = self._identities.verify(client.iam, file_system_id, kind) if client.iam else None
        if kind is Kind.S3_FILES:
            if arn is None:
                raise InvalidValue("has no IAM signature", field="client certificate", value=file_system_id)
            if arn == DRIVER_ARN and self._statements is not None:
                check_identity(self._statements, arn)
            return await self._access_point_of(client, file_system_id, kind)
        access_point, policy = await asyncio.gather(
            self._access_point_of(client, file_system_id, kind), self._policy(file_system_id)
        )
        if policy is not None:
            access_point_arn = access_point.arn if access_point else None
            check_policy(policy, Client(arn=arn, access_point_arn=access_point_arn))
        return access_point

    async def access_point(self, access_point_id: str, kind: Kind = Kind.EFS) -> EmbeddedAccessPoint:
        """That access point; raises InvalidValue when there is none."""
        try:
            if kind is Kind.S3_FILES:
                found = await self._s3_files.call("GetAccessPoint", accessPointId=access_point_id)
                return parse_s3_files_access_point(found)
            answer = await self._efs.call("DescribeAccessPoints", AccessPointId=access_point_id)
        except AwsNotFound as error:
            raise InvalidValue("does not exist", field="access point", value=access_point_id) from error
        return parse_access_point(answer["AccessPoints"][0])

    async def _access_point_of(
        self, client: ClientCertificate, file_system_id: str, kind: Kind
    ) -> EmbeddedAccessPoint | None:
        if client.access_point_id is None:
            return None
        access_point = await self.access_point(client.access_point_id, kind)
        if access_point.file_system_id != file_system_id:
            raise InvalidValue(
                f"is not an access point of {file_system_id}",
                field="access point of the client certificate",
                value=client.access_point_id,
            )
        return access_point

    async def _policy(self, file_system_id: str) -> tuple[Statement, ...] | None:
        try:
            answer = await self._efs.call("DescribeFileSystemPolicy", FileSystemId=file_system_id)
        except AwsNotFound:
            return None
        return parse_policy(answer["Policy"])
