"""Parses entries of answers of the EFS API; malformed ones raise InvalidValue.

Shapes: https://docs.aws.amazon.com/efs/latest/ug/API_FileSystemDescription.html and
https://docs.aws.amazon.com/efs/latest/ug/API_MountTargetDescription.html and
https://docs.aws.amazon.com/efs/latest/ug/API_AccessPointDescription.html.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, TypeVar

import structlog

from kube_efs.aws.errors import InvalidAnswer, cause_of, reading
from kube_efs.model.csi.access_points import AccessPoint, PosixUser
from kube_efs.model.csi.volume_handles import parse_access_point_id
from kube_efs.model.efs.directories import read_directory
from kube_efs.model.efs.file_systems import FileSystem, LifeCycleState, MountTarget
from kube_efs.model.efs.ids import (
    MountTargetId,
    ZoneName,
    parse_file_system_id,
    parse_subnet_id,
    parse_vpc_id,
    parse_zone_name,
)
from kube_efs.model.efs.targets import parse_address
from kube_efs.model.errors import InvalidValue

log = structlog.get_logger(__name__)

Value = TypeVar("Value")

_TAGS_MOST: Final = 256
_ID: Final = re.compile(r"(?:fs|fsap|fsmt)-[0-9a-f]{1,40}")
_IDS: Final = ("AccessPointId", "MountTargetId", "FileSystemId")


def understood(
    parse: Callable[[Mapping[str, Any]], Value], entries: Iterable[Mapping[str, Any]]
) -> tuple[Value, ...]:
    """The entries as values; invalid ones are logged, and do not hide the others.

    An entry that is left out is invisible to every caller. That includes the guards of removal, which look
    for access points in and below the directory.
    """
    values = []
    for entry in entries:
        try:
            values.append(parse(entry))
        except Exception as error:  # noqa: BLE001 - an entry may be anything
            log.warning("aws-entry-not-understood", entry=_name_of(entry), problem=cause_of(error))
    return tuple(values)


def _name_of(entry: object) -> str:
    """The ID in an entry, if it is valid; no other part of an answer is logged."""
    ids = (entry.get(key) for key in _IDS) if isinstance(entry, Mapping) else ()
    return next((one for one in ids if isinstance(one, str) and _ID.fullmatch(one)), "unknown")


def understood_one(
    parse: Callable[[Mapping[str, Any]], Value],
    entries: Sequence[Mapping[str, Any]],
    *,
    operation: str,
    subject: object,
    key: str | None = None,
) -> Value:
    """The only entry of an answer; raises AwsInvalidAnswer, because the effect of the call is unknown.

    ``key`` is the field of the entry that must contain the subject: a service that imitates AWS may ignore
    the ID in a request, and answer with the first resource of all.
    """
    with reading(operation, subject=subject):
        if not entries:
            raise InvalidAnswer("it is empty")
        if key is not None and entries[0].get(key) != subject:
            raise InvalidAnswer(f"it has another {key}")
        return parse(entries[0])


def parse_file_system(entry: Mapping[str, Any]) -> FileSystem:
    """The file system, without its mount targets, which need another call."""
    name, size = entry.get("Name"), (entry.get("SizeInBytes") or {}).get("Value")
    number = entry.get("NumberOfMountTargets")
    return FileSystem(
        file_system_id=parse_file_system_id(entry.get("FileSystemId"), field="FileSystemId"),
        name=str(name) if name else None,
        state=parse_state(entry),
        zone=_parse_optional_zone(entry),
        size_bytes=int(size) if size is not None else None,
        number_of_mount_targets=int(number) if number is not None else None,
    )


def parse_mount_target(entry: Mapping[str, Any]) -> MountTarget:
    """The mount target; it has its IPv6 address only without an IPv4 address."""
    mount_target_id = entry.get("MountTargetId")
    if not isinstance(mount_target_id, str) or not mount_target_id:
        raise InvalidValue("is not a valid mount target ID", field="MountTargetId", value=mount_target_id)
    return MountTarget(
        mount_target_id=MountTargetId(mount_target_id),
        file_system_id=parse_file_system_id(entry.get("FileSystemId"), field="FileSystemId"),
        subnet_id=parse_subnet_id(entry.get("SubnetId"), field="SubnetId"),
        zone=_parse_optional_zone(entry),
        address=parse_address(entry.get("IpAddress") or entry.get("Ipv6Address"), field="IpAddress"),
        state=parse_state(entry),
        zone_id=_parse_optional_zone(entry, "AvailabilityZoneId"),
        vpc_id=parse_vpc_id(entry["VpcId"], field="VpcId") if entry.get("VpcId") else None,
    )


def parse_access_point(entry: Mapping[str, Any]) -> AccessPoint:
    """The access point; without a root in the answer, it has that of the file system."""
    user = entry.get("PosixUser")
    return AccessPoint(
        access_point_id=parse_access_point_id(str(entry.get("AccessPointId") or ""), field="AccessPointId"),
        file_system_id=parse_file_system_id(entry.get("FileSystemId"), field="FileSystemId"),
        directory=read_directory(str((entry.get("RootDirectory") or {}).get("Path") or "/")),
        user=PosixUser(uid=int(user["Uid"]), gid=int(user["Gid"])) if user else None,
        client_token=str(entry.get("ClientToken") or ""),
        tags=_tags(tuple((str(tag["Key"]), str(tag["Value"])) for tag in entry.get("Tags") or ())),
        leaving=entry.get("LifeCycleState") in {LifeCycleState.DELETING, LifeCycleState.DELETED},
    )


@lru_cache(maxsize=_TAGS_MOST)
def _tags(pairs: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    """The tags; equal tags are stored once, because thousands of access points may have the same."""
    return MappingProxyType(dict(pairs))


def parse_state(entry: Mapping[str, Any], field: str = "LifeCycleState") -> LifeCycleState:
    """The state in that field; raises InvalidValue."""
    text = entry.get(field)
    try:
        return LifeCycleState(str(text))
    except ValueError as error:
        raise InvalidValue("is an unknown state", field=field, value=text) from error


def _parse_optional_zone(entry: Mapping[str, Any], field: str = "AvailabilityZoneName") -> ZoneName | None:
    zone = entry.get(field)
    return parse_zone_name(zone, field=field) if zone else None
