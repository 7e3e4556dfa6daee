"""The location of this process in AWS. The controller, the tunnels and the CSI driver of a node use it.

The sources, in this order. The first one that has a part (region, zone, …) determines it:

1. the settings
2. the instance metadata, unless the instance belongs to an account of AWS, as with SageMaker HyperPod
3. the Node object: its labels, which the cloud controller of the cluster writes, and its provider ID
4. OpenShift's Infrastructure object, for the region only
5. the location that an earlier process on this node has stored (only the tunnels store it)

Pods on the host network reach the instance metadata, others only with a hop limit of 2, and on some nodes it
is off. So each process reads the next source after a few seconds, and one DaemonSet fits all nodes.

In a cluster, a missing location may appear later: the API server may not be reachable yet, or the cloud
controller may not have labeled a new Node yet. Therefore a process waits, with its health endpoint open, and
does not end.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeVar

import structlog
from lightkube import AsyncClient
from lightkube.generic_resource import create_global_resource
from lightkube.resources.core_v1 import Node

from kube_efs.aws.metadata import InstanceMetadata
from kube_efs.kube.errors import translated
from kube_efs.model.efs.ids import Region, SubnetId, VpcId, ZoneName, parse_region, parse_zone_name
from kube_efs.model.errors import (
    AwsError,
    AwsInvalidAnswer,
    InvalidSetting,
    InvalidValue,
    KubeError,
    KubeUnavailable,
    NotYet,
)
from kube_efs.model.volumes import ZONE_LABEL
from kube_efs.settings.base import AwsSettings

log = structlog.get_logger()

_Value = TypeVar("_Value")

_Infrastructure = create_global_resource("config.openshift.io", "v1", "Infrastructure", "infrastructures")
_REGION_LABEL: Final = "topology.kubernetes.io/region"
# The same in every account, unlike the name of the zone. Newer cloud controllers of AWS write it.
_ZONE_ID_LABEL: Final = "topology.k8s.aws/zone-id"
# On a new Node until its cloud controller has written the labels.
_UNINITIALIZED: Final = "node.cloudprovider.kubernetes.io/uninitialized"
# Instances of SageMaker HyperPod belong to an account of AWS, so their metadata contain another location.
_FOREIGN_PREFIX: Final = "hyperpod-"
_INSTANCE_ID: Final = re.compile(r"i-[a-z0-9]+$|[a-z0-9]{32}")
# Without instance metadata, requests may time out one after the other; mounts wait for the process meanwhile.
_SOURCE_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = (1.0, 60.0)


class LocationSource(StrEnum):
    """Where a part of a location comes from."""

    SETTINGS = "settings"
    METADATA = "instance metadata"
    NODE = "Node object"
    INFRASTRUCTURE = "Infrastructure object"
    STORED = "stored location"


class Part(StrEnum):
    """A part of a location that a process needs; the values are names of fields."""

    NODE_ID = "node_id"
    REGION = "region"
    ZONE = "zone"
    ZONE_ID = "zone_id"
    SUBNETS = "subnets"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLocation:
    """A location in AWS; None, or no subnets, for unknown parts.

    ``zone_id`` is the ID of ``zone``. ``node_id`` is the ID of the instance, otherwise the name of the node.
    """

    region: Region | None = None
    zone: ZoneName | None = None
    zone_id: ZoneName | None = None
    subnets: tuple[SubnetId, ...] = ()
    node_id: str | None = None
    region_source: LocationSource | None = field(default=None, compare=False)
    zone_source: LocationSource | None = field(default=None, compare=False)

    def has(self, parts: Collection[Part]) -> bool:
        """Whether all these parts are known."""
        return all(getattr(self, part) for part in parts)

    def completed_by(self, other: "ProcessLocation", source: LocationSource) -> "ProcessLocation":
        """This location, with the parts that it lacks from that source.

        The zone of the settings can differ from the zone of the instance, and then has another ID.
        """
        zone_id = other.zone_id if self.zone in {None, other.zone} else None
        return ProcessLocation(
            region=self.region or other.region,
            zone=self.zone or other.zone,
            zone_id=self.zone_id or zone_id,
            subnets=self.subnets or other.subnets,
            node_id=self.node_id or other.node_id,
            region_source=self.region_source or (source if other.region else None),
            zone_source=self.zone_source or (source if other.zone else None),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LocationSources:
    """The sources that a process has; ``client`` None means no connection to the cluster."""

    settings: AwsSettings
    node_name: str
    metadata: InstanceMetadata
    client: AsyncClient | None
    stored: ProcessLocation | None = None


async def find_location(
    sources: LocationSources,
    *,
    required: Part,
    also: Collection[Part] = (),
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> ProcessLocation:
    """The location, with the ``required`` part, and the others if a source has them.

    Waits until a source has the required part, if that is possible. Raises InvalidSetting if it is not: there
    is no cluster, and the instance metadata are unreachable.
    """
    pause, longest = _RETRY_SECONDS
    while True:
        try:
            return await locate(sources, required=required, also=also)
        except NotYet as error:
            log.warning("location-not-found", reason=str(error), retry_seconds=pause)
        await sleep(pause)
        pause = min(pause * 2, longest)


async def locate(sources: LocationSources, *, required: Part, also: Collection[Part] = ()) -> ProcessLocation:
    """The location as the sources have it now; a source is not read if all parts that it has are known.

    Raises NotYet if a later call may find the required part, or a zone that the Node does not contain yet.
    Otherwise raises InvalidSetting.
    """
    wanted = {required, *also}
    settings, reasons = sources.settings, []
    location = ProcessLocation().completed_by(
        ProcessLocation(
            region=settings.region,
            zone=settings.zone,
            zone_id=settings.zone_id,
            subnets=tuple(map(SubnetId, settings.subnets)),
        ),
        LocationSource.SETTINGS,
    )
    can_change = sources.client is not None
    node_is_final = True
    if not location.has(wanted):
        try:
            found = await _from_metadata(sources, wanted)
            location = location.completed_by(found, LocationSource.METADATA)
        except AwsError as error:
            reasons.append(str(error))
            # An invalid answer is from something else that answers while a node starts.
            can_change = can_change or isinstance(error, AwsInvalidAnswer)
    deadline = asyncio.get_running_loop().time() + _SOURCE_SECONDS
    if not location.has(wanted - {Part.SUBNETS}):
        try:
            found, node_is_final, invalid = await _from_node(sources, deadline)
            location = location.completed_by(found, LocationSource.NODE)
            reasons += invalid
        except KubeError as error:
            reasons.append(str(error))
            node_is_final = not isinstance(error, KubeUnavailable)
    if Part.REGION in wanted and not location.region and sources.client is not None:
        try:
            found = await _from_infrastructure(sources.client, deadline)
            location = location.completed_by(found, LocationSource.INFRASTRUCTURE)
        except (KubeError, InvalidValue) as error:
            reasons.append(str(error))
    stored = sources.stored
    # A node stays in its zone. So a location with another one is of the node from which the disk was copied.
    if stored is not None and location.zone in {None, stored.zone} and not location.has(wanted):
        location = location.completed_by(stored, LocationSource.STORED)
    if not location.has({required}):
        raise _missing(required, sources.node_name, reasons, can_change=can_change)
    if Part.ZONE in wanted and location.zone is None and not node_is_final:
        raise NotYet(
            f"is not known yet ({'; '.join(reasons) or 'the cloud controller has not initialized the Node'})",
            field="zone",
            value=sources.node_name,
            remedy="wait, or set KUBE_EFS_ZONE",
        )
    log.info(
        "location-found",
        region=location.region,
        region_source=location.region_source,
        zone=location.zone,
        zone_source=location.zone_source,
        not_available=reasons,
    )
    return location


async def find_vpcs(metadata: InstanceMetadata) -> frozenset[VpcId]:
    """The VPCs of the instance; empty when metadata is unavailable, as in some pods."""
    try:
        return await metadata.vpcs()
    except AwsError as error:
        log.info("vpc-not-known", reason=str(error))
        return frozenset()


async def _from_metadata(sources: LocationSources, wanted: Collection[Part]) -> ProcessLocation:
    """Raises AwsError without the identity of the instance; the other parts may be missing."""
    if sources.node_name.startswith(_FOREIGN_PREFIX):
        raise AwsError("are of another account", field="instance metadata", value=sources.node_name)
    metadata = sources.metadata
    deadline = asyncio.get_running_loop().time() + _SOURCE_SECONDS

    async def ask(asking: Awaitable[_Value]) -> _Value | None:
        try:
            async with asyncio.timeout_at(deadline):
                return await asking
        except (AwsError, TimeoutError) as error:
            log.info("instance-metadata-incomplete", reason=str(error) or "timed out")
            return None

    identity = await metadata.identity()
    zone_id = await ask(metadata.zone_id())
    subnets = await ask(metadata.subnets()) if Part.SUBNETS in wanted else None
    return ProcessLocation(
        region=identity.region,
        zone=identity.zone,
        zone_id=ZoneName(zone_id) if zone_id else None,
        subnets=subnets or (),
        node_id=identity.instance_id,
    )


async def _from_node(
    sources: LocationSources, deadline: float
) -> tuple[ProcessLocation, bool, Collection[str]]:
    """The location in the Node, whether its cloud controller has initialized it, and its invalid labels.

    Outside of AWS, people name their zones themselves, so an invalid label is a missing one.
    """
    if sources.client is None:
        raise KubeError("is not read: there is no kubeconfig and no service account", field="Node")
    with translated(f"node {sources.node_name}"):
        async with asyncio.timeout_at(deadline):
            node = await sources.client.get(Node, sources.node_name)
    labels = (node.metadata.labels if node.metadata else None) or {}
    provider_id = (node.spec.providerID if node.spec else None) or ""
    taints = (node.spec.taints if node.spec else None) or ()
    instance = _INSTANCE_ID.search(provider_id)
    invalid: list[str] = []

    def parsed(label: str, parse: Callable[[str], _Value]) -> _Value | None:
        try:
            return parse(labels[label]) if labels.get(label) else None
        except InvalidValue as error:
            invalid.append(f"node {sources.node_name}, label {label}: {error}")
            return None

    location = ProcessLocation(
        node_id=instance[0] if instance else sources.node_name,
        region=parsed(_REGION_LABEL, parse_region),
        zone=parsed(ZONE_LABEL, parse_zone_name),
        zone_id=parsed(_ZONE_ID_LABEL, parse_zone_name),
    )
    return location, all(taint.key != _UNINITIALIZED for taint in taints), invalid


async def _from_infrastructure(client: AsyncClient, deadline: float) -> ProcessLocation:
    """The region of the cluster; raises KubeError on other platforms, because they do not have the kind."""
    with translated("Infrastructure cluster"):
        async with asyncio.timeout_at(deadline):
            found = await client.get(_Infrastructure, "cluster")
    status = found.get("status") or {}
    region = ((status.get("platformStatus") or {}).get("aws") or {}).get("region")
    return ProcessLocation(region=parse_region(region) if region else None)


def _missing(
    required: Part, node_name: str, reasons: Collection[str], *, can_change: bool
) -> NotYet | InvalidSetting:
    """The error for a missing part; with ``can_change`` a later call may succeed."""
    kind = NotYet if can_change else InvalidSetting
    told = "; ".join(reasons) or "no source contains it"
    if required is Part.NODE_ID:
        return kind(
            f"cannot be identified ({told})",
            field="NODE_NAME",
            value=node_name,
            remedy=(
                "set the instance's metadata hop limit to 2, or allow the service account to read its Node"
            ),
        )
    return kind(
        f"is not set and no other source contains it ({told})", field="AWS_REGION", remedy="set AWS_REGION"
    )
