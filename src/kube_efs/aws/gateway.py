"""Reads and creates file systems and mount targets of EFS."""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType, TracebackType
from typing import Final, Self

from kube_efs.aws.access_points import AwsAccessPoints
from kube_efs.aws.connection import AwsConnection, AwsOptions, Service
from kube_efs.aws.errors import error_code, reading
from kube_efs.aws.interfaces import AwsInterfaces
from kube_efs.aws.made_file_systems import AwsMadeFileSystems
from kube_efs.aws.network import AwsNetwork
from kube_efs.aws.network_acls import AwsNetworkAcls
from kube_efs.aws.owned import AwsOwned, Subnet
from kube_efs.aws.responses import parse_file_system, parse_mount_target, understood, understood_one
from kube_efs.aws.s3_files import AwsS3Files
from kube_efs.aws.security_groups import AwsSecurityGroups
from kube_efs.model.efs.file_systems import FileSystem, MountTarget
from kube_efs.model.efs.ids import FileSystemId, MountTargetId, SubnetId, ZoneName
from kube_efs.model.errors import AwsError, AwsNotFound
from kube_efs.telemetry.metrics import AwsMetrics

_TARGET_EXISTS: Final = "MountTargetConflict"


class AwsGateway:
    """Calls about file systems and mount targets of EFS while its context is open.

    ``network`` contains calls about subnets and zones, ``access_points`` calls about access points of EFS,
    ``s3_files`` those to S3 Files, ``made_file_systems`` calls about file systems for claims, and ``owned``
    calls about objects of a cluster. ``interfaces``, ``security_groups`` and ``network_acls`` contain calls
    about network access. Every method may raise AwsError. Lists omit and log invalid entries: one invalid
    entry must not hide the others.
    """

    def __init__(self, options: AwsOptions, metrics: AwsMetrics | None = None) -> None:
        self._connection = AwsConnection(options, metrics)
        self.network = AwsNetwork(self._connection)
        self.access_points = AwsAccessPoints(self._connection)
        self.s3_files = AwsS3Files(self._connection)
        self.made_file_systems = AwsMadeFileSystems(self._connection)
        self.owned = AwsOwned(self._connection)
        self.interfaces = AwsInterfaces(self._connection)
        self.security_groups = AwsSecurityGroups(self._connection)
        self.network_acls = AwsNetworkAcls(self._connection)

    async def __aenter__(self) -> Self:
        await self._connection.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._connection.__aexit__(kind, error, traceback)

    @property
    def is_busy(self) -> bool:
        """Whether a call is running."""
        return self._connection.is_busy

    async def close(self) -> None:
        """Release the memory of the clients until the next call; none may be running."""
        await self._connection.close()

    async def file_systems(self) -> tuple[FileSystem, ...]:
        """All file systems of the region in every state, without their mount targets."""
        entries = await self._connection.list_all(Service.EFS, "DescribeFileSystems", "FileSystems")
        return understood(parse_file_system, entries)

    async def file_system(self, file_system_id: FileSystemId) -> FileSystem:
        """That file system, without its mount targets; raises AwsNotFound."""
        answer = await self._connection.call(
            Service.EFS, "DescribeFileSystems", subject=file_system_id, FileSystemId=file_system_id
        )
        found = answer.get("FileSystems") or ()
        return understood_one(
            parse_file_system,
            found,
            operation="DescribeFileSystems",
            subject=file_system_id,
            key="FileSystemId",
        )

    async def mount_targets(self, file_system_id: FileSystemId) -> tuple[MountTarget, ...]:
        """All mount targets of a file system in every state."""
        entries = await self._connection.list_all(
            Service.EFS,
            "DescribeMountTargets",
            "MountTargets",
            subject=file_system_id,
            FileSystemId=file_system_id,
        )
        return understood(parse_mount_target, entries)

    async def file_system_policy(self, file_system_id: FileSystemId) -> str | None:
        """The policy, as JSON; None without one: then every client has full access."""
        operation = "DescribeFileSystemPolicy"
        try:
            answer = await self._connection.call(
                Service.EFS, operation, subject=file_system_id, FileSystemId=file_system_id
            )
        except AwsNotFound:
            return None
        with reading(operation, subject=file_system_id):
            return str(answer["Policy"])

    async def create_file_system(
        self,
        creation_token: str,
        *,
        name: str | None = None,
        tags: Mapping[str, str] = MappingProxyType({}),
        zone: ZoneName | None = None,
    ) -> FileSystem:
        """A new, encrypted file system, or the one that was created with this token before.

        ``zone`` makes it a One Zone file system. It may still be in the state ``creating``.
        """
        all_tags = {**tags, **({"Name": name} if name else {})}
        operation = "CreateFileSystem"
        try:
            answer = await self._connection.call(
                Service.EFS,
                operation,
                subject=creation_token,
                CreationToken=creation_token,
                Encrypted=True,
                Tags=[{"Key": key, "Value": value} for key, value in all_tags.items()],
                **({"AvailabilityZoneName": zone} if zone else {}),
            )
        except AwsError as error:
            if error_code(error) != "FileSystemAlreadyExists":
                raise
            return await self._file_system_of(creation_token)
        return understood_one(parse_file_system, [answer], operation=operation, subject=creation_token)

    async def delete_file_system(self, file_system_id: FileSystemId) -> None:
        """Delete a file system with its data; it must have no mount targets."""
        await self._connection.call(
            Service.EFS, "DeleteFileSystem", subject=file_system_id, FileSystemId=file_system_id
        )

    async def create_mount_target(
        self,
        file_system_id: FileSystemId,
        subnet_id: SubnetId,
        *,
        address: str | None = None,
        security_groups: Collection[str] = (),
    ) -> MountTarget:
        """A new mount target, one for each zone; AWS chooses a free address when none is given."""
        operation, subject = "CreateMountTarget", f"{file_system_id} in {subnet_id}"
        answer = await self._connection.call(
            Service.EFS,
            operation,
            subject=subject,
            FileSystemId=file_system_id,
            SubnetId=subnet_id,
            **({"IpAddress": address} if address else {}),
            **({"SecurityGroups": list(security_groups)} if security_groups else {}),
        )
        return understood_one(parse_mount_target, [answer], operation=operation, subject=subject)

    async def ensure_mount_targets(
        self, file_system_id: FileSystemId, subnets: Iterable[Subnet], security_groups: Collection[str]
    ) -> None:
        """Create the mount targets that are missing, one in the zone of each subnet.

        They may still be in the state ``creating``. One that AWS is deleting is replaced by a later call.
        """
        zones = {one.zone for one in await self.mount_targets(file_system_id) if not one.state.ending}
        for subnet in subnets:
            if subnet.zone in zones:
                continue
            try:
                await self.create_mount_target(
                    file_system_id, subnet.subnet_id, security_groups=security_groups
                )
            except AwsError as error:
                # By an earlier call whose answer was lost, or by another process; or AWS still deletes one.
                if error_code(error) != _TARGET_EXISTS:
                    raise

    async def delete_mount_targets(self, file_system_id: FileSystemId) -> int:
        """Delete all mount targets of a file system; gives how many still exist, in any state.

        The deletion takes AWS a minute or so: repeat the call until it gives 0, as for a missing file system.
        """
        try:
            targets = await self.mount_targets(file_system_id)
        except AwsNotFound:
            return 0
        for one in targets:
            if not one.state.ending:
                with suppress(AwsNotFound):
                    await self.delete_mount_target(one.mount_target_id)
        return len(targets)

    async def delete_mount_target(self, mount_target_id: MountTargetId) -> None:
        """Delete a mount target; connections through it break."""
        await self._connection.call(
            Service.EFS, "DeleteMountTarget", subject=mount_target_id, MountTargetId=mount_target_id
        )

    async def _file_system_of(self, creation_token: str) -> FileSystem:
        entries = await self._connection.list_all(
            Service.EFS,
            "DescribeFileSystems",
            "FileSystems",
            subject=creation_token,
            CreationToken=creation_token,
        )
        if not entries:
            # Removed between the two calls.
            raise AwsNotFound("has no file system", field="creation token", value=creation_token)
        return understood_one(
            parse_file_system, entries, operation="DescribeFileSystems", subject=creation_token
        )
