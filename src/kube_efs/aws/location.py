"""Where this process runs: what the settings say, else what the instance says of itself."""

from collections.abc import Collection
from dataclasses import dataclass

from kube_efs.aws.metadata import InstanceIdentity, InstanceMetadata
from kube_efs.model.errors import AwsError, AwsNotFound, InvalidSetting, InvalidValue
from kube_efs.model.ids import Region, SubnetId, ZoneName


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLocation:
    """A node's place in AWS. ``zone_id`` and ``instance_id`` are known from the instance only."""

    region: Region
    zone: ZoneName
    subnets: tuple[SubnetId, ...]
    zone_id: str | None = None
    instance_id: str | None = None


async def resolve_region(metadata: InstanceMetadata, *, region: Region | None = None) -> Region:
    """The region given, else the instance's; raises InvalidSetting when neither is there."""
    return region or (await _identity(metadata, missing="AWS_REGION")).region


async def resolve_location(
    metadata: InstanceMetadata,
    *,
    region: Region | None = None,
    zone: ZoneName | None = None,
    subnets: Collection[SubnetId] = (),
) -> NodeLocation:
    """The location, each part from the arguments (the settings) first and from the instance else.

    The instance is not asked at all when all parts are given. Raises InvalidSetting that names the
    variable to set when a part is neither given nor to be had.
    """
    if region and zone and subnets:
        return NodeLocation(region=region, zone=zone, subnets=tuple(subnets))
    missing = "AWS_REGION" if not region else "KUBE_EFS_ZONE" if not zone else "KUBE_EFS_SUBNETS"
    identity = await _identity(metadata, missing=missing)
    return NodeLocation(
        region=region or identity.region,
        zone=zone or identity.zone,
        subnets=tuple(subnets) or await _subnets(metadata),
        # The settings' zone need not be the instance's.
        zone_id=None if zone else await _zone_id(metadata),
        instance_id=identity.instance_id,
    )


async def _identity(metadata: InstanceMetadata, *, missing: str) -> InstanceIdentity:
    try:
        return await metadata.identity()
    except (AwsError, InvalidValue) as error:
        raise _unknown(missing, str(error)) from error


async def _subnets(metadata: InstanceMetadata) -> tuple[SubnetId, ...]:
    try:
        subnets = await metadata.subnets()
    except (AwsError, InvalidValue) as error:
        raise _unknown("KUBE_EFS_SUBNETS", str(error)) from error
    if not subnets:
        raise _unknown("KUBE_EFS_SUBNETS", "no network interface of the instance has a subnet")
    return subnets


async def _zone_id(metadata: InstanceMetadata) -> str | None:
    try:
        return await metadata.zone_id()
    except AwsNotFound:
        return None


def _unknown(variable: str, reason: str) -> InvalidSetting:
    return InvalidSetting(
        f"is not set and the instance does not tell ({reason})", field=variable, remedy=f"set {variable}"
    )
