"""Security groups: their inbound rules, and the networks of their prefix lists.

https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_IpPermission.html
"""

import ipaddress
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from kube_efs.aws.connection import AwsConnection, Service
from kube_efs.aws.errors import reading
from kube_efs.aws.filters import list_by_ids
from kube_efs.model.efs.ids import MountTargetId

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
_Entry: TypeAlias = Mapping[str, Any]

_ANY: Final = "-1"
_TCP: Final = frozenset({"tcp", "6"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """The sources that may access TCP ports; the networks of a prefix list need another call."""

    first_port: int
    last_port: int
    networks: tuple[Network, ...] = ()
    groups: tuple[str, ...] = ()
    prefix_lists: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityGroup:
    """A security group with its inbound rules about TCP."""

    group_id: str
    permissions: tuple[Permission, ...] = ()


class AwsSecurityGroups:
    """Calls about security groups on an open connection. Every method may raise AwsError."""

    def __init__(self, connection: AwsConnection) -> None:
        self._connection = connection

    async def of_mount_target(self, mount_target_id: MountTargetId) -> tuple[str, ...]:
        """The IDs of the groups of a mount target."""
        answer = await self._connection.call(
            Service.EFS,
            "DescribeMountTargetSecurityGroups",
            subject=mount_target_id,
            MountTargetId=mount_target_id,
        )
        with reading("DescribeMountTargetSecurityGroups", subject=mount_target_id):
            return tuple(map(str, answer.get("SecurityGroups") or ()))

    async def describe(self, group_ids: Collection[str]) -> tuple[SecurityGroup, ...]:
        """These groups; missing ones are omitted."""
        found = await list_by_ids(
            self._connection, "DescribeSecurityGroups", "SecurityGroups", name="group-id", ids=group_ids
        )
        with reading("DescribeSecurityGroups"):
            return tuple(map(parse_security_group, found))

    async def in_prefix_list(self, prefix_list_id: str) -> tuple[Network, ...]:
        """The networks of the newest version of a managed prefix list."""
        entries = await self._connection.list_all(
            Service.EC2,
            "GetManagedPrefixListEntries",
            "Entries",
            subject=prefix_list_id,
            PrefixListId=prefix_list_id,
        )
        with reading("GetManagedPrefixListEntries", subject=prefix_list_id):
            return _networks(entries, "Cidr")


def parse_security_group(entry: _Entry) -> SecurityGroup:
    """The group, without rules about other protocols."""
    permissions = (_parse_permission(one) for one in entry.get("IpPermissions") or ())
    return SecurityGroup(
        group_id=entry["GroupId"], permissions=tuple(one for one in permissions if one is not None)
    )


def _parse_permission(entry: _Entry) -> Permission | None:
    protocol = str(entry.get("IpProtocol", _ANY))
    if protocol != _ANY and protocol not in _TCP:
        return None
    every_port = protocol == _ANY or entry.get("FromPort") in {None, -1}
    return Permission(
        first_port=0 if every_port else int(entry["FromPort"]),
        last_port=65535 if every_port else int(entry["ToPort"]),
        networks=(
            *_networks(entry.get("IpRanges") or (), "CidrIp"),
            *_networks(entry.get("Ipv6Ranges") or (), "CidrIpv6"),
        ),
        groups=tuple(one["GroupId"] for one in entry.get("UserIdGroupPairs") or () if one.get("GroupId")),
        prefix_lists=tuple(one["PrefixListId"] for one in entry.get("PrefixListIds") or ()),
    )


def _networks(entries: Sequence[_Entry], key: str) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(one[key], strict=False) for one in entries if one.get(key))
