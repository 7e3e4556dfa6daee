"""Calls to EFS about the file systems that the driver creates for claims.

https://docs.aws.amazon.com/efs/latest/ug/API_CreateFileSystem.html, PutLifecycleConfiguration,
PutFileSystemPolicy and TagResource of that API.
"""

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any
from uuid import uuid4

from kube_efs.aws.connection import AwsConnection, Service
from kube_efs.aws.responses import parse_file_system, understood, understood_one
from kube_efs.model.csi.file_system_templates import FileSystemTemplate, PerformanceMode, client_policy
from kube_efs.model.csi.made_file_systems import (
    CHECKED_TAG,
    STAGE_TAG,
    USED_TAG,
    MadeFileSystem,
    Stage,
    read_owner,
)
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import AwsAlreadyExists, AwsNotFound


class AwsMadeFileSystems:
    """Calls about file systems for claims on an open connection. Every method may raise AwsError."""

    def __init__(self, connection: AwsConnection) -> None:
        self._connection = connection

    async def with_token(self, token: str) -> MadeFileSystem | None:
        """The file system that was created with this token; None without one."""
        try:
            answer = await self._connection.call(
                Service.EFS, "DescribeFileSystems", subject=token, CreationToken=token
            )
        except AwsNotFound:
            return None
        found = answer.get("FileSystems") or ()
        if not found:
            return None
        return understood_one(
            _parse_made, found, operation="DescribeFileSystems", subject=token, key="CreationToken"
        )

    async def get(self, file_system_id: FileSystemId) -> MadeFileSystem | None:
        """That file system; None if the driver has not created it. Raises AwsNotFound."""
        answer = await self._connection.call(
            Service.EFS, "DescribeFileSystems", subject=file_system_id, FileSystemId=file_system_id
        )
        found = answer.get("FileSystems") or ()
        return understood_one(
            _parse_if_made, found, operation="DescribeFileSystems", subject=file_system_id, key="FileSystemId"
        )

    async def list(self) -> tuple[MadeFileSystem, ...]:
        """All of them in the region, also those of other clusters."""
        found = await self._connection.read_all(
            Service.EFS, "DescribeFileSystems", "FileSystems", partial(understood, _parse_if_made)
        )
        return tuple(one for one in found if one is not None)

    async def create(
        self, token: str, template: FileSystemTemplate, tags: Mapping[str, str]
    ) -> MadeFileSystem:
        """A new file system; raises AwsAlreadyExists if one has this token."""
        parameters: dict[str, object] = {
            "CreationToken": token,
            "Encrypted": True,
            "PerformanceMode": str(template.performance),
            "ThroughputMode": str(template.throughput),
            "Backup": template.backup,
            "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
        }
        if template.throughput_mibps is not None:
            parameters["ProvisionedThroughputInMibps"] = template.throughput_mibps
        if template.kms_key is not None:
            parameters["KmsKeyId"] = template.kms_key
        if template.zone is not None:
            parameters["AvailabilityZoneName"] = template.zone
        answer = await self._connection.call(Service.EFS, "CreateFileSystem", subject=token, **parameters)
        return understood_one(_parse_made, [answer], operation="CreateFileSystem", subject=token)

    async def configure(self, file_system_id: FileSystemId, template: FileSystemTemplate) -> None:
        """Set the policy and the lifecycle of a file system; repetitions change nothing."""
        policy = client_policy(template.policy)
        if policy is not None:
            await self._connection.call(
                Service.EFS,
                "PutFileSystemPolicy",
                subject=file_system_id,
                FileSystemId=file_system_id,
                Policy=policy,
            )
        if template.transitions:
            await self._connection.call(
                Service.EFS,
                "PutLifecycleConfiguration",
                subject=file_system_id,
                FileSystemId=file_system_id,
                LifecyclePolicies=[{name: value} for name, value in template.transitions],
            )

    async def set_stage(
        self, file_system_id: FileSystemId, stage: Stage, *, keeps_check: bool = False
    ) -> None:
        """Record the stage in the tags; ``ready`` also records that it is used from now on.

        With ``keeps_check``, it is not used yet, and an earlier check of its contents still counts.
        """
        used = {USED_TAG: uuid4().hex} if stage is Stage.READY and not keeps_check else {}
        await self._tag(file_system_id, {STAGE_TAG: str(stage), **used})

    async def set_checked(self, found: MadeFileSystem) -> None:
        """Record that it contains nothing that must stay, until it is used again."""
        await self._tag(found.file_system_id, {CHECKED_TAG: found.use})

    async def _tag(self, file_system_id: FileSystemId, tags: Mapping[str, str]) -> None:
        await self._connection.call(
            Service.EFS,
            "TagResource",
            subject=file_system_id,
            ResourceId=file_system_id,
            Tags=[{"Key": key, "Value": value} for key, value in tags.items()],
        )


def _parse_made(entry: Mapping[str, Any]) -> MadeFileSystem:
    found = _parse_if_made(entry)
    if found is None:
        raise AwsAlreadyExists(
            "has the token of a claim's file system, but not its tags",
            field="file system",
            value=parse_file_system(entry).file_system_id,
            remedy="restore the tags efs.csi.aws.com/..., or delete it",
        )
    return found


def _parse_if_made(entry: Mapping[str, Any]) -> MadeFileSystem | None:
    """The file system; None if it does not have the driver's tags."""
    tags = {str(one["Key"]): str(one["Value"]) for one in entry.get("Tags") or ()}
    token = str(entry.get("CreationToken"))
    known = read_owner(tags, token)
    if known is None:
        return None
    found = parse_file_system(entry)
    created = entry.get("CreationTime")
    return MadeFileSystem(
        file_system_id=found.file_system_id,
        owner=known[0],
        stage=known[1],
        is_used=USED_TAG in tags,
        use=tags.get(USED_TAG, ""),
        is_checked=tags.get(CHECKED_TAG) == tags.get(USED_TAG, ""),
        token=token,
        state=found.state,
        mount_targets=found.number_of_mount_targets or 0,
        created=created.timestamp() if isinstance(created, datetime) else 0.0,
        performance=PerformanceMode(entry.get("PerformanceMode") or PerformanceMode.GENERAL_PURPOSE),
        zone=found.zone,
    )
