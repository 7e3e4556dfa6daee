"""Calls to EC2 about VPCs and subnets, and to create a network for the embedded default."""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NewType

from kube_efs.aws.connection import AwsConnection, Service
from kube_efs.aws.errors import reading
from kube_efs.aws.filters import list_by_ids
from kube_efs.model.efs.ids import SubnetId, ZoneName, parse_subnet_id, parse_zone_name

VpcId = NewType("VpcId", str)


class AwsNetwork:
    """Calls about VPCs and subnets on an open connection. Every method may raise AwsError."""

    def __init__(self, connection: AwsConnection) -> None:
        self._connection = connection

    async def subnets(self, subnet_ids: Collection[SubnetId]) -> Mapping[SubnetId, ZoneName]:
        """The zone of each of these subnets; missing ones are omitted."""
        found = await list_by_ids(
            self._connection, "DescribeSubnets", "Subnets", name="subnet-id", ids=subnet_ids
        )
        with reading("DescribeSubnets"):
            return MappingProxyType(
                {parse_subnet_id(one["SubnetId"]): parse_zone_name(one["AvailabilityZone"]) for one in found}
            )

    async def zone_ids(self) -> Mapping[ZoneName, ZoneName]:
        """The ID of each zone of the region, which is the same in every account, by its name in this one."""
        answer = await self._connection.call(Service.EC2, "DescribeAvailabilityZones")
        with reading("DescribeAvailabilityZones"):
            return MappingProxyType(
                {
                    parse_zone_name(one["ZoneName"]): parse_zone_name(one["ZoneId"])
                    for one in answer["AvailabilityZones"]
                }
            )

    async def create_vpc(self, cidr: str) -> VpcId:
        """A new VPC with this address range, such as ``10.0.0.0/16``."""
        answer = await self._connection.call(Service.EC2, "CreateVpc", subject=cidr, CidrBlock=cidr)
        with reading("CreateVpc", subject=cidr):
            return VpcId(answer["Vpc"]["VpcId"])

    async def create_subnet(self, vpc_id: VpcId, cidr: str, zone: ZoneName) -> SubnetId:
        """A new subnet in a zone, with a part of the VPC's address range."""
        answer = await self._connection.call(
            Service.EC2,
            "CreateSubnet",
            subject=vpc_id,
            VpcId=vpc_id,
            CidrBlock=cidr,
            AvailabilityZone=zone,
        )
        with reading("CreateSubnet", subject=vpc_id):
            return parse_subnet_id(answer["Subnet"]["SubnetId"])
