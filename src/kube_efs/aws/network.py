"""The few calls to EC2: where subnets are, and making a network for the embedded default."""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final, NewType

from kube_efs.aws.connection import AwsConnection, Service
from kube_efs.model.ids import SubnetId, ZoneName, parse_subnet_id, parse_zone_name

VpcId = NewType("VpcId", str)

_FILTER_VALUES: Final = 200  # EC2 takes no more values in one filter


class AwsNetwork:
    """VPCs and subnets, by a connection that is open. Every method may raise AwsError."""

    def __init__(self, connection: AwsConnection) -> None:
        self._connection = connection

    async def subnets(self, subnet_ids: Collection[SubnetId]) -> Mapping[SubnetId, ZoneName]:
        """The zone of each of these subnets; those that do not exist are left out."""
        wanted = sorted(subnet_ids)
        zones: dict[SubnetId, ZoneName] = {}
        for start in range(0, len(wanted), _FILTER_VALUES):
            # A filter, since one unknown id among SubnetIds makes the whole call fail.
            chosen = {"Name": "subnet-id", "Values": wanted[start : start + _FILTER_VALUES]}
            for entry in await self._connection.list_all(
                Service.EC2, "DescribeSubnets", "Subnets", Filters=[chosen]
            ):
                zones[parse_subnet_id(entry["SubnetId"])] = parse_zone_name(entry["AvailabilityZone"])
        return MappingProxyType(zones)

    async def create_vpc(self, cidr: str) -> VpcId:
        """A new VPC with this range of addresses, such as ``10.0.0.0/16``."""
        answer = await self._connection.call(Service.EC2, "CreateVpc", subject=cidr, CidrBlock=cidr)
        return VpcId(answer["Vpc"]["VpcId"])

    async def create_subnet(self, vpc_id: VpcId, cidr: str, zone: ZoneName) -> SubnetId:
        """A new subnet in a zone, with a part of its VPC's range."""
        answer = await self._connection.call(
            Service.EC2,
            "CreateSubnet",
            subject=vpc_id,
            VpcId=vpc_id,
            CidrBlock=cidr,
            AvailabilityZone=zone,
        )
        return parse_subnet_id(answer["Subnet"]["SubnetId"])
