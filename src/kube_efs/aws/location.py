"""The location of this process: from the settings, otherwise from instance metadata."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

import structlog

from kube_efs.aws.metadata import InstanceIdentity, InstanceMetadata
from kube_efs.model.efs.ids import Region, SubnetId, VpcId, ZoneName
from kube_efs.model.errors import AwsError, AwsNotFound, AwsOddAnswer, InvalidSetting

log = structlog.get_logger()

_Value = TypeVar("_Value")

_RETRY_SECONDS = (1.0, 60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLocation:
    """A node's location in AWS. ``zone_id`` and ``instance_id`` come only from instance metadata."""

    region: Region
    zone: ZoneName
    subnets: tuple[SubnetId, ...]
    zone_id: str | None = None
    instance_id: str | None = None


async def resolve_region(metadata: InstanceMetadata, *, region: Region | None = None) -> Region:
    """The given region, otherwise the instance's; raises InvalidSetting without both, and AwsOddAnswer."""
    return region or (await _identity(metadata, missing="AWS_REGION")).region


async def find_vpcs(metadata: InstanceMetadata) -> frozenset[VpcId]:
    """The VPCs of the instance; empty when metadata is unavailable, as in some pods."""
    try:
        return await metadata.vpcs()
    except AwsError as error:
        log.info("vpc-not-known", reason=str(error))
        return frozenset()


async def resolve_location(
    metadata: InstanceMetadata,
    *,
    region: Region | None = None,
    zone: ZoneName | None = None,
    subnets: Collection[SubnetId] = (),
) -> NodeLocation:
    """The location; each part comes from the arguments (the settings), otherwise from instance metadata.

    Metadata is not read when all parts are given. Raises InvalidSetting that names the necessary variable
    when a part is neither given nor available, and AwsOddAnswer.
    """
    if region and zone and subnets:
        return NodeLocation(region=region, zone=zone, subnets=tuple(subnets))
    missing = "AWS_REGION" if not region else "KUBE_EFS_ZONE" if not zone else "KUBE_EFS_SUBNETS"
    identity = await _identity(metadata, missing=missing)
    return NodeLocation(
        region=region or identity.region,
        zone=zone or identity.zone,
        subnets=tuple(subnets) or await _subnets(metadata),
        # The zone in the settings can differ from the zone of the instance.
        zone_id=None if zone else await _zone_id(metadata),
        instance_id=identity.instance_id,
    )


async def until_valid(
    ask: Callable[[], Awaitable[_Value]], *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> _Value:
    """The result of ``ask``, which is repeated while its answers are invalid, as they may be at the start.

    Other errors are raised: for example, a missing metadata service needs a change of the settings.
    """
    pause, longest = _RETRY_SECONDS
    while True:
        try:
            return await ask()
        except AwsOddAnswer as error:
            log.warning("instance-metadata-odd", reason=str(error), retry_seconds=pause)
        await sleep(pause)
        pause = min(pause * 2, longest)


async def _identity(metadata: InstanceMetadata, *, missing: str) -> InstanceIdentity:
    try:
        return await metadata.identity()
    except AwsOddAnswer:
        raise
    except AwsError as error:
        raise _unknown(missing, str(error)) from error


async def _subnets(metadata: InstanceMetadata) -> tuple[SubnetId, ...]:
    try:
        subnets = await metadata.subnets()
    except AwsOddAnswer:
        raise
    except AwsError as error:
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
        f"is not set and the instance metadata does not contain it ({reason})",
        field=variable,
        remedy=f"set {variable}",
    )
