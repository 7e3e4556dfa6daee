"""Entries of answers of the EFS API, as values of the model; malformed ones raise InvalidValue.

Shapes: https://docs.aws.amazon.com/efs/latest/ug/API_FileSystemDescription.html and
https://docs.aws.amazon.com/efs/latest/ug/API_MountTargetDescription.html.
"""

from collections.abc import Mapping
from typing import Any

from kube_efs.model.errors import InvalidValue
from kube_efs.model.file_systems import FileSystem, LifeCycleState, MountTarget
from kube_efs.model.ids import MountTargetId, ZoneName, parse_file_system_id, parse_subnet_id, parse_zone_name
from kube_efs.model.targets import parse_address


def parse_file_system(entry: Mapping[str, Any]) -> FileSystem:
    """The file system, without its mount targets: they are another call."""
    name, size = entry.get("Name"), (entry.get("SizeInBytes") or {}).get("Value")
    return FileSystem(
        file_system_id=parse_file_system_id(entry.get("FileSystemId"), field="FileSystemId"),
        name=str(name) if name else None,
        state=_parse_state(entry),
        zone=_parse_optional_zone(entry),
        size_bytes=int(size) if size is not None else None,
    )


def parse_mount_target(entry: Mapping[str, Any]) -> MountTarget:
    """The mount target; its IPv6 address only when it has no IPv4 address."""
    mount_target_id = entry.get("MountTargetId")
    if not isinstance(mount_target_id, str) or not mount_target_id:
        raise InvalidValue("is no mount target id", field="MountTargetId", value=mount_target_id)
    return MountTarget(
        mount_target_id=MountTargetId(mount_target_id),
        file_system_id=parse_file_system_id(entry.get("FileSystemId"), field="FileSystemId"),
        subnet_id=parse_subnet_id(entry.get("SubnetId"), field="SubnetId"),
        zone=_parse_optional_zone(entry),
        address=parse_address(entry.get("IpAddress") or entry.get("Ipv6Address"), field="IpAddress"),
        state=_parse_state(entry),
    )


def _parse_state(entry: Mapping[str, Any]) -> LifeCycleState:
    text = entry.get("LifeCycleState")
    try:
        return LifeCycleState(str(text))
    except ValueError as error:
        raise InvalidValue("is an unknown state", field="LifeCycleState", value=text) from error


def _parse_optional_zone(entry: Mapping[str, Any]) -> ZoneName | None:
    zone = entry.get("AvailabilityZoneName")
    return parse_zone_name(zone, field="AvailabilityZoneName") if zone else None
