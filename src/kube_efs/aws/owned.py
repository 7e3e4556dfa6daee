"""The AWS objects of one cluster, which have the tag of OpenShift's installer.

https://docs.aws.amazon.com/efs/latest/ug/API_DescribeAccessPoints.html
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kube_efs.aws.connection import AwsConnection, Service
from kube_efs.aws.errors import error_code, reading
from kube_efs.model.csi.made_file_systems import TOKEN_PREFIX
from kube_efs.model.csi.volume_handles import AccessPointId, parse_access_point_id
from kube_efs.model.efs.ids import (
    FileSystemId,
    SubnetId,
    VpcId,
    ZoneName,
    parse_file_system_id,
    parse_subnet_id,
)
from kube_efs.model.errors import AwsError, InvalidValue

NFS_PORT: Final = 2049
_BATCH: Final = 100
_GROUP_EXISTS: Final = "InvalidGroup.Duplicate"
_RULE_EXISTS: Final = "InvalidPermission.Duplicate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subnet:
    """A subnet, its zone and its VPC."""

    subnet_id: SubnetId
    zone: ZoneName
    vpc_id: VpcId


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """The objects of a cluster: file systems, access points (on any file system) and security groups."""

    file_systems: tuple[FileSystemId, ...] = ()
    access_points: tuple[tuple[AccessPointId, FileSystemId], ...] = ()
    security_groups: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether the cluster owns nothing."""
        return not (self.file_systems or self.access_points or self.security_groups)


def owner_tag(infra_id: str) -> str:
    """The key of the tag with the value ``owned``."""
    return f"kubernetes.io/cluster/{infra_id}"


def creation_token(infra_id: str, name: str) -> str:
    """The token by which EFS recognizes the file system of that name; EFS accepts 64 characters."""
    return f"{TOKEN_PREFIX}{hashlib.sha256(f'{infra_id}/{name}'.encode()).hexdigest()[:40]}"


class AwsOwned:
    """Calls about the objects of a cluster on an open connection. Every method may raise AwsError."""

    def __init__(self, connection: AwsConnection) -> None:
        self._connection = connection

    async def subnets_of_instances(self, instance_ids: Collection[str]) -> tuple[Subnet, ...]:
        """The subnets of these instances."""
        # EC2 accepts IDs as a parameter only without a page size, and at most 200 values of filters.
        ids = sorted(instance_ids)
        batches = [ids[start : start + _BATCH] for start in range(0, len(ids), _BATCH)]
        reservations = [
            one
            for batch in batches
            for one in await self._connection.list_all(
                Service.EC2,
                "DescribeInstances",
                "Reservations",
                Filters=[{"Name": "instance-id", "Values": batch}],
            )
        ]
        with reading("DescribeInstances"):
            found = {
                parse_subnet_id(instance["SubnetId"])
                for one in reservations
                for instance in one["Instances"]
                if instance.get("SubnetId")
            }
        return await self.subnets(found)

    async def subnets(self, subnet_ids: Collection[SubnetId]) -> tuple[Subnet, ...]:
        """These subnets, sorted by ID; raises AwsNotFound when one does not exist."""
        if not subnet_ids:
            return ()  # Without IDs, EC2 would describe all of them.
        wanted = sorted(subnet_ids)
        subject = ", ".join(wanted)
        entries = await self._connection.list_all(
            Service.EC2, "DescribeSubnets", "Subnets", subject=subject, SubnetIds=wanted
        )
        with reading("DescribeSubnets", subject=subject):
            found = (
                Subnet(
                    subnet_id=parse_subnet_id(one["SubnetId"]),
                    zone=ZoneName(one["AvailabilityZone"]),
                    vpc_id=VpcId(one["VpcId"]),
                )
                for one in entries
            )
            return tuple(sorted(found, key=lambda one: one.subnet_id))

    async def network_ranges(self, vpc_id: VpcId) -> tuple[str, ...]:
        """All address ranges of a VPC, including the primary one."""
        found = await self._connection.list_all(Service.EC2, "DescribeVpcs", "Vpcs", VpcIds=[vpc_id])
        with reading("DescribeVpcs", subject=vpc_id):
            (vpc,) = found
            ranges = {one["CidrBlock"] for one in vpc.get("CidrBlockAssociationSet", ())}
            return tuple(sorted({vpc["CidrBlock"], *ranges}))

    async def ensure_security_group(
        self, name: str, vpc_id: VpcId, ranges: Iterable[str], tags: Mapping[str, str]
    ) -> str:
        """The security group of that name for mount targets, which allows NFS from these ranges."""
        group = await self._security_group(name, vpc_id)
        if group is None:
            try:
                group = await self._create_group(name, vpc_id, tags)
            except AwsError as error:
                # By an earlier call whose answer was lost, or by another process.
                group = (
                    await self._security_group(name, vpc_id) if error_code(error) == _GROUP_EXISTS else None
                )
                if group is None:
                    raise
        permission = {
            "IpProtocol": "tcp",
            "FromPort": NFS_PORT,
            "ToPort": NFS_PORT,
        }
        # One call for each: EC2 refuses all rules of a call if one of them exists.
        for one in ranges:
            try:
                await self._connection.call(
                    Service.EC2,
                    "AuthorizeSecurityGroupIngress",
                    subject=group,
                    GroupId=group,
                    IpPermissions=[{**permission, "IpRanges": [{"CidrIp": one}]}],
                )
            except AwsError as error:
                if error_code(error) != _RULE_EXISTS:
                    raise
        return group

    async def find(self, infra_id: str) -> Owned:
        """All objects with the cluster's tag and the value ``owned``."""
        systems = await self._connection.list_all(Service.EFS, "DescribeFileSystems", "FileSystems")
        with reading("DescribeFileSystems"):
            names = [parse_file_system_id(system["FileSystemId"]) for system in systems]
        points = [
            point
            for name in names
            for point in await self._connection.list_all(
                Service.EFS, "DescribeAccessPoints", "AccessPoints", FileSystemId=name
            )
        ]
        groups = await self._connection.list_all(
            Service.EC2,
            "DescribeSecurityGroups",
            "SecurityGroups",
            Filters=[{"Name": f"tag:{owner_tag(infra_id)}", "Values": ["owned"]}],
        )
        with reading("DescribeFileSystems, DescribeAccessPoints, DescribeSecurityGroups"):
            owned = {name for name, one in zip(names, systems, strict=True) if _is_owned(one, infra_id)}
            return Owned(
                file_systems=tuple(sorted(owned)),
                access_points=tuple(
                    (
                        parse_access_point_id(one["AccessPointId"], field="AccessPointId"),
                        parse_file_system_id(one["FileSystemId"]),
                    )
                    for one in points
                    if one["FileSystemId"] in owned or _is_owned(one, infra_id)
                ),
                # The installer has its own groups, and removes them itself.
                security_groups=tuple(
                    one["GroupId"] for one in groups if _is_for_mount_targets(one["GroupName"], infra_id)
                ),
            )

    async def security_groups_named(self, name: str, tag: tuple[str, str]) -> tuple[str, ...]:
        """The IDs of the security groups of that name with that tag, in every VPC."""
        found = await self._connection.list_all(
            Service.EC2,
            "DescribeSecurityGroups",
            "SecurityGroups",
            Filters=[
                {"Name": "group-name", "Values": [name]},
                {"Name": f"tag:{tag[0]}", "Values": [tag[1]]},
            ],
        )
        with reading("DescribeSecurityGroups", subject=name):
            return tuple(str(one["GroupId"]) for one in found)

    async def delete_security_group(self, group: str) -> None:
        """Delete a security group without mount targets."""
        await self._connection.call(Service.EC2, "DeleteSecurityGroup", subject=group, GroupId=group)

    async def _security_group(self, name: str, vpc_id: VpcId) -> str | None:
        found = await self._connection.list_all(
            Service.EC2,
            "DescribeSecurityGroups",
            "SecurityGroups",
            Filters=[
                {"Name": "group-name", "Values": [name]},
                {"Name": "vpc-id", "Values": [vpc_id]},
            ],
        )
        with reading("DescribeSecurityGroups", subject=name):
            return str(found[0]["GroupId"]) if found else None

    async def _create_group(self, name: str, vpc_id: VpcId, tags: Mapping[str, str]) -> str:
        answer = await self._connection.call(
            Service.EC2,
            "CreateSecurityGroup",
            subject=name,
            GroupName=name,
            Description="NFS from the cluster to its file systems on EFS",
            VpcId=vpc_id,
            TagSpecifications=[
                {
                    "ResourceType": "security-group",
                    "Tags": [{"Key": key, "Value": value} for key, value in {**tags, "Name": name}.items()],
                }
            ],
        )
        with reading("CreateSecurityGroup", subject=name):
            return str(answer["GroupId"])


def one_of_each_zone(subnets: Iterable[Subnet]) -> tuple[Subnet, ...]:
    """The first subnet of each zone, because EFS allows one mount target in a zone; raises InvalidValue."""
    chosen: dict[ZoneName, Subnet] = {}
    for one in subnets:
        chosen.setdefault(one.zone, one)
    networks = {one.vpc_id for one in chosen.values()}
    if len(networks) != 1:
        problem = "are in no VPC" if not networks else "are in more than one VPC"
        remedy = "name subnets of one VPC"
        raise InvalidValue(problem, field="subnets", value=", ".join(sorted(networks)), remedy=remedy)
    return tuple(chosen.values())


def cluster_security_group(infra_id: str) -> str:
    """The name of the security group of a cluster's file systems."""
    return f"{infra_id}-sg"


def _is_for_mount_targets(name: str, infra_id: str) -> bool:
    """Whether a security group of the cluster was created for file systems."""
    return name == cluster_security_group(infra_id) or name.startswith(TOKEN_PREFIX)


def _is_owned(entry: Mapping[str, Any], infra_id: str) -> bool:
    tag = {"Key": owner_tag(infra_id), "Value": "owned"}
    return tag in (entry.get("Tags") or ())
