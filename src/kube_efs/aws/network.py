"""Calls to EC2 about subnets and zones."""

from collections.abc import Collection, Mapping
from types import MappingProxyType

from kube_efs.aws.connection import AwsConnection, Service
from kube_efs.aws.errors import reading
from kube_efs.aws.filters import list_by_ids
from kube_efs.model.efs.ids import SubnetId, ZoneName, parse_subnet_id, parse_zone_name


class AwsNetwork:
    """Calls about subnets and zones on an open connection. Every method may raise AwsError."""

    def __init__(self, connection: AwsConnection) -> None:
        self._connection = connection

    async def subnets(self, subnet_ids: Collection[SubnetId]) -> Mapping[SubnetId, ZoneName]:
        """The zone of each of these subnets; missing ones are omitted."""
        found = await list_by_ids(
            self._connection, "DescribeSubnets", "Subnets", name="subnet-id", ids=subnet_ids
        )
        with reading("DescribeSubnets", subject=", ".join(sorted(subnet_ids))):
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
