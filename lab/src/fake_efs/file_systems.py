"""File systems and mount targets as the APIs of EFS and S3 Files describe them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fake_efs.errors import InvalidValue

_FILE_SYSTEM_ID = re.compile(r"fs-([0-9a-f]{8}|[0-9a-f]{17})")
_ACCESS_POINT_ID = re.compile(r"fsap-([0-9a-f]{8}|[0-9a-f]{17})")
_USABLE = frozenset({"available", "updating"})


class Kind(StrEnum):
    """The service of a file system; the value is its name in signatures of connections."""

    EFS = "elasticfilesystem"
    S3_FILES = "s3files"

    @property
    def minor_versions(self) -> tuple[int, ...]:
        """The minor versions of NFS 4 that it serves."""
        return (1, 2) if self is Kind.S3_FILES else (0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MountTarget:
    """An address in the subnet of a zone, which is a name or, for S3 Files, an ID."""

    mount_target_id: str
    subnet_id: str
    zone: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """A file system with those of its mount targets that accept connections."""

    file_system_id: str
    mount_targets: tuple[MountTarget, ...] = ()
    kind: Kind = Kind.EFS


def read_mount_target(description: Mapping[str, Any]) -> MountTarget:
    """An entry of DescribeMountTargets."""
    return MountTarget(
        mount_target_id=description["MountTargetId"],
        subnet_id=description["SubnetId"],
        zone=description["AvailabilityZoneName"],
        address=description["IpAddress"],
    )


def read_s3_files_mount_target(description: Mapping[str, Any]) -> MountTarget:
    """An entry of ListMountTargets."""
    return MountTarget(
        mount_target_id=description["mountTargetId"],
        subnet_id=description["subnetId"],
        zone=description["availabilityZoneId"],
        address=description["ipv4Address"],
    )


def is_usable(description: Mapping[str, Any]) -> bool:
    """Whether a mount target accepts connections."""
    return description["LifeCycleState"] in _USABLE


def parse_file_system_id(text: str, *, field: str) -> str:
    """The id of a file system; raises InvalidValue."""
    return _matching(_FILE_SYSTEM_ID, text, field, "file system")


def parse_access_point_id(text: str, *, field: str) -> str:
    """The id of an access point; raises InvalidValue."""
    return _matching(_ACCESS_POINT_ID, text, field, "access point")


def dns_name(file_system_id: str, region: str, kind: Kind = Kind.EFS) -> str:
    """The name of a file system in one of the regions of the partition ``aws``."""
    if kind is Kind.S3_FILES:
        return f"{file_system_id}.s3files.{region}.on.aws"
    return f"{file_system_id}.efs.{region}.amazonaws.com"


def server_names(file_system_id: str, region: str, kind: Kind = Kind.EFS) -> tuple[str, str]:
    """The names of a file system's certificate: its DNS name, and that of its mount target in any zone."""
    name = dns_name(file_system_id, region, kind)
    return name, f"*.{name}"


def _matching(pattern: re.Pattern[str], text: str, field: str, what: str) -> str:
    if not pattern.fullmatch(text):
        raise InvalidValue(f"is not a valid {what} ID", field=field, value=text)
    return text
