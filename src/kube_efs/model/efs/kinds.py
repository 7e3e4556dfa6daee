"""The kinds of file systems, which share claims, tunnels and mounts.

Amazon S3 Files gives the objects of a bucket as files. Its mount targets speak NFS over TLS as those of EFS
do, and it has access points, too. It differs in what this module contains, in the calls of its API
(``aws.s3_files``), and in the options of its mounts (``model.csi.mount_flags``).
Sources: aws-efs-csi-driver 3.4.1, efs-utils 3.2.0 (``mount_s3files``, ``s3files-utils.conf``).
"""

from enum import StrEnum


class FileSystemKind(StrEnum):
    """The kind of a file system; the value is the first word of a volume handle."""

    EFS = "efs"
    S3_FILES = "s3files"

    @property
    def signing_service(self) -> str:
        """The name of the service in the signature of a connection."""
        return "s3files" if self is FileSystemKind.S3_FILES else "elasticfilesystem"

    @property
    def always_signs(self) -> bool:
        """Whether a mount target refuses connections without TLS and an IAM identity."""
        return self is FileSystemKind.S3_FILES

    @property
    def has_ports(self) -> bool:
        """Whether the ConfigMap assigns its file systems a port on every node."""
        return self is FileSystemKind.EFS

    @property
    def has_roles(self) -> bool:
        """Whether the role in a provisioner Secret applies to it, as in the AWS driver."""
        return self is FileSystemKind.EFS

    @property
    def names_zones(self) -> bool:
        """Whether DNS knows its mount targets only by the ID of their zone."""
        return self is FileSystemKind.S3_FILES

    @property
    def nfs_version(self) -> str:
        """The version of NFS that its mounts use by default."""
        return "4.2" if self is FileSystemKind.S3_FILES else "4.1"
