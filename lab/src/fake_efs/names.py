"""The names that a file system's mount targets prove by their certificate."""

from kube_efs.model.efs.file_systems import dns_name
from kube_efs.model.efs.ids import FileSystemId, Region


def server_names(file_system_id: FileSystemId, region: Region) -> tuple[str, str]:
    """The names of a file system's certificate: its DNS name, and that of its mount target in any zone."""
    name = dns_name(file_system_id, region)
    return name, f"*.{name}"
