"""What security groups let in: those of mount targets, and those of instances that want to get there.

https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_IpPermission.html
"""

import ipaddress
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from kube_efs.aws.connection import AwsConnection, Service
from kube_efs.model.ids import MountTargetId

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
_Entry: TypeAlias = Mapping[str, Any]

_FILTER_VALUES: Final = 200  # EC2 takes no more values in one filter
_ANY: Final = "-1"
_TCP: Final = frozenset({"tcp", "6"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """Who gets in at which TCP ports.

    What is in a prefix list is not known here; ``prefix_lists`` only says that there are some.
    """

    first_port: int
    last_port: int
    networks: tuple[Network, ...] = ()
    groups: tuple[str, ...] = ()
    prefix_lists: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityGroup:
    """A security group with what it lets in by TCP."""

    group_id: str
    permissions: tuple[Permission, ...] = ()


class AwsSecurityGroups:
    """Calls about security groups, by a connection that is open. Every method may raise AwsError."""

    def __init__(self, connection: AwsConnection) -> None:
        self._connection = connection

    async def of_mount_target(self, mount_target_id: MountTargetId) -> tuple[str, ...]:
        """The ids of the groups of a mount target."""
        answer = await self._connection.call(
            Service.EFS,
            "DescribeMountTargetSecurityGroups",
            subject=mount_target_id,
            MountTargetId=mount_target_id,
        )
        return tuple(answer.get("SecurityGroups") or ())

    async def of_instances(self, instance_ids: Collection[str]) -> Mapping[str, tuple[str, ...]]:
        """The ids of the groups of each of these instances; those that do not exist are left out."""
        found = await self._filtered("DescribeInstances", "Reservations", "instance-id", instance_ids)
        return MappingProxyType(
            {
                instance["InstanceId"]: tuple(one["GroupId"] for one in instance.get("SecurityGroups") or ())
                for reservation in found
                for instance in reservation["Instances"]
            }
        )

    async def describe(self, group_ids: Collection[str]) -> tuple[SecurityGroup, ...]:
        """These groups; those that do not exist are left out."""
        found = await self._filtered("DescribeSecurityGroups", "SecurityGroups", "group-id", group_ids)
        return tuple(map(parse_security_group, found))

    async def _filtered(self, operation: str, key: str, name: str, ids: Collection[str]) -> list[_Entry]:
        """By a filter, since one unknown id as a parameter makes the whole call fail."""
        wanted, found = sorted(ids), list[_Entry]()
        for start in range(0, len(wanted), _FILTER_VALUES):
            chosen = {"Name": name, "Values": wanted[start : start + _FILTER_VALUES]}
            found += await self._connection.list_all(Service.EC2, operation, key, Filters=[chosen])
        return found


def parse_security_group(entry: _Entry) -> SecurityGroup:
    """The group; what it lets in by other protocols is left out."""
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
