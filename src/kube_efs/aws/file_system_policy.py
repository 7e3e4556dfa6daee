"""The policy of a file system: who may mount it, write to it, and have root access."""

from kube_efs.aws.connection import AwsConnection, Service
from kube_efs.aws.errors import reading
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import AwsNotFound


async def file_system_policy(connection: AwsConnection, file_system_id: FileSystemId) -> str | None:
    """The policy, as JSON; None without one: then every client that reaches the file system has full access.

    Raises AwsError.
    """
    try:
        answer = await connection.call(
            Service.EFS, "DescribeFileSystemPolicy", subject=file_system_id, FileSystemId=file_system_id
        )
    except AwsNotFound:
        return None
    with reading("DescribeFileSystemPolicy", subject=file_system_id):
        return str(answer["Policy"])
