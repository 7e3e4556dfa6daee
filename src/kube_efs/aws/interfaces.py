"""The network interfaces of instances: their subnets, addresses and security groups.

https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_InstanceNetworkInterface.html
"""

import ipaddress
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

from kube_efs.aws.connection import AwsConnection
from kube_efs.aws.errors import reading
from kube_efs.aws.filters import list_by_ids
from kube_efs.model.efs.ids import SubnetId, parse_subnet_id

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """A network interface with its private addresses and the ids of its security groups."""

    subnet_id: SubnetId
    addresses: tuple[Address, ...] = ()
    groups: tuple[str, ...] = ()


class AwsInterfaces:
    """Calls about interfaces on an open connection. Every method may raise AwsError."""

    def __init__(self, connection: AwsConnection) -> None:
        self._connection = connection

    async def of_instances(self, instance_ids: Collection[str]) -> Mapping[str, tuple[Interface, ...]]:
        """The interfaces of each of these instances; missing instances are omitted."""
        found = await list_by_ids(
            self._connection, "DescribeInstances", "Reservations", name="instance-id", ids=instance_ids
        )
        with reading("DescribeInstances"):
            return MappingProxyType(
                {
                    instance["InstanceId"]: tuple(
                        parse_interface(one) for one in instance.get("NetworkInterfaces") or ()
                    )
                    for reservation in found
                    for instance in reservation["Instances"]
                }
            )


def parse_interface(entry: Mapping[str, Any]) -> Interface:
    """The interface with all of its addresses, the primary one first."""
    private = (one["PrivateIpAddress"] for one in entry.get("PrivateIpAddresses") or ())
    public = (one["Ipv6Address"] for one in entry.get("Ipv6Addresses") or ())
    return Interface(
        subnet_id=parse_subnet_id(entry["SubnetId"]),
        addresses=tuple(map(ipaddress.ip_address, (*private, *public))),
        groups=tuple(one["GroupId"] for one in entry.get("Groups") or ()),
    )
