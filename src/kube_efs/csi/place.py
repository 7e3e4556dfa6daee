"""Which node this is, and where: by the instance's metadata, else by its Node object, as the AWS driver does.

Metadata of ECS tasks are not asked, since no kubelet runs there.
"""

import re
from dataclasses import dataclass
from typing import Final

import structlog
from lightkube import AsyncClient
from lightkube.resources.core_v1 import Node

from kube_efs.aws.metadata import InstanceMetadata
from kube_efs.kube.errors import translated
from kube_efs.model.efs.ids import Region, ZoneName, parse_region, parse_zone_name
from kube_efs.model.errors import AwsError, AwsNotFound, AwsOddAnswer, InvalidSetting, InvalidValue, KubeError
from kube_efs.model.volumes import ZONE_LABEL

log = structlog.get_logger()

# Instances of SageMaker HyperPod belong to an account of AWS's own, and so speak of another place.
_FOREIGN_PREFIX: Final = "hyperpod-"
_REGION_LABEL: Final = "topology.kubernetes.io/region"
_INSTANCE_ID: Final = re.compile(r"i-[a-z0-9]+$|[a-z0-9]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlace:
    """Who and where this node is; None where that is not known.

    ``node_id`` is the instance's id, where there is one. ``dns_suffix`` None is the region's own.
    """

    node_id: str
    region: Region | None = None
    zone: ZoneName | None = None
    zone_id: str | None = None
    dns_suffix: str | None = None

    @property
    def zones(self) -> tuple[str, ...]:
        """The zone by each of its names, that which means the same in all accounts first."""
        return tuple(name for name in (self.zone_id, self.zone) if name)


async def identify_node(metadata: InstanceMetadata, client: AsyncClient | None, node_name: str) -> NodePlace:
    """The node's id and place; raises InvalidSetting when neither source knows it.

    Raises AwsOddAnswer when metadata give an invalid answer and there is no other source. ``client`` None
    means that there is no way to the cluster. A node that is not an instance has its name as id.
    """
    reason = "the instance belongs to another account"
    if not node_name.startswith(_FOREIGN_PREFIX):
        try:
            return await _from_instance(metadata)
        except AwsError as error:
            if client is None and isinstance(error, AwsOddAnswer):
                raise
            reason = str(error)
    log.info("node-identified-by-its-object", node=node_name, reason=reason)
    if client is None:
        raise _unidentified(node_name, f"{reason}; there is no kubeconfig and no service account")
    try:
        return await _from_object(client, node_name)
    except (KubeError, InvalidValue) as error:
        raise _unidentified(node_name, f"{reason}; {error}") from error


async def _from_instance(metadata: InstanceMetadata) -> NodePlace:
    identity = await metadata.identity()
    try:
        zone_id = await metadata.zone_id()
    except AwsNotFound:
        zone_id = None
    return NodePlace(
        node_id=identity.instance_id, region=identity.region, zone=identity.zone, zone_id=zone_id
    )


async def _from_object(client: AsyncClient, node_name: str) -> NodePlace:
    with translated(f"node {node_name}"):
        node = await client.get(Node, node_name)
    labels = (node.metadata.labels if node.metadata else None) or {}
    provider_id = (node.spec.providerID if node.spec else None) or ""
    instance = _INSTANCE_ID.search(provider_id)
    zone, region = labels.get(ZONE_LABEL), labels.get(_REGION_LABEL)
    return NodePlace(
        node_id=instance[0] if instance else node_name,
        zone=parse_zone_name(zone) if zone else None,
        region=parse_region(region) if region else None,
    )


def _unidentified(node_name: str, reasons: str) -> InvalidSetting:
    return InvalidSetting(
        f"cannot be identified ({reasons})",
        field="NODE_NAME",
        value=node_name,
        remedy="set the instance's metadata hop limit to 2, or allow the service account to read its Node",
    )
