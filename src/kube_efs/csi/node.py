"""The Node service: messages of the protocol to values, and back.

CSI specification 1.12, "Node Service RPC". Volumes are mounted where they are published, so there is nothing
to stage or to expand: our part of the protocol has no such calls, and gRPC answers them with UNIMPLEMENTED.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import grpc.aio
import structlog

from kube_efs.csi.calls import Calls
from kube_efs.csi.capabilities import read_capability
from kube_efs.csi.holders import NodeMount
from kube_efs.csi.mounting import NodeVolumes, Publication, Use
from kube_efs.csi.protocol import csi_pb2, csi_pb2_grpc
from kube_efs.csi.routes import NodePlace
from kube_efs.csi.server import Service
from kube_efs.csi.statistics import Report, Statistics
from kube_efs.csi.targets import parse_target, resolve_target
from kube_efs.model.capabilities import VolumeCapability, check_capabilities
from kube_efs.model.csi_errors import InvalidArgument, VolumeMissing
from kube_efs.model.mount_options import MountPlan, plan_mount
from kube_efs.model.volume_attributes import parse_attributes
from kube_efs.model.volume_handles import parse_volume_handle
from kube_efs.model.volumes import ZONE_LABEL

__all__ = ["Node", "NodeOptions", "node_service"]

log = structlog.get_logger()

# In quotes: the class takes parameters in the type stubs only.
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_Rpc = csi_pb2.NodeServiceCapability.RPC
_Unit = csi_pb2.VolumeUsage

# So that the caller is told the reason, not only that its time is over.
_MARGIN_SECONDS: Final = 1.0
_LEAST_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """What the service is told.

    A call takes ``timeout_seconds`` at most, or less when its caller waits less. ``attach_limit`` is the
    most volumes that Kubernetes may place on this node, zero leaves that to Kubernetes; ``max_inflight`` the
    most volumes that are mounted at the same time, None sets no limit. ``has_statistics`` has the kubelet
    ask how full volumes are.
    """

    timeout_seconds: float = 110.0
    attach_limit: int = 0
    max_inflight: int | None = None
    has_statistics: bool = False


class Node(csi_pb2_grpc.NodeServicer):
    """Answers the kubelet of the node at that place."""

    def __init__(
        self, volumes: NodeVolumes, statistics: Statistics, place: NodePlace, options: NodeOptions
    ) -> None:
        self._volumes = volumes
        self._statistics = statistics
        self._place = place
        self._options = options
        self._calls = Calls(options.max_inflight)

    async def NodeGetInfo(
        self, request: csi_pb2.NodeGetInfoRequest, context: _Context
    ) -> csi_pb2.NodeGetInfoResponse:
        """Which node this is, and in which zone."""
        zone = self._place.zone
        return csi_pb2.NodeGetInfoResponse(
            node_id=self._place.node_id,
            max_volumes_per_node=self._options.attach_limit,
            accessible_topology=csi_pb2.Topology(segments={ZONE_LABEL: zone}) if zone else None,
        )

    async def NodeGetCapabilities(
        self, request: csi_pb2.NodeGetCapabilitiesRequest, context: _Context
    ) -> csi_pb2.NodeGetCapabilitiesResponse:
        """Without SINGLE_NODE_MULTI_WRITER, Kubernetes would send no ReadWriteOncePod."""
        kinds = [_Rpc.SINGLE_NODE_MULTI_WRITER]
        if self._options.has_statistics:
            kinds += [_Rpc.GET_VOLUME_STATS, _Rpc.VOLUME_CONDITION]
        return csi_pb2.NodeGetCapabilitiesResponse(
            capabilities=[csi_pb2.NodeServiceCapability(rpc=_Rpc(type=kind)) for kind in kinds]
        )

    async def NodePublishVolume(
        self, request: csi_pb2.NodePublishVolumeRequest, context: _Context
    ) -> csi_pb2.NodePublishVolumeResponse:
        """The volume is mounted at the target, whether or not it was before. Secrets are not read."""
        target = parse_target(request.target_path, field="target_path")
        if not request.HasField("volume_capability"):
            raise InvalidArgument("is missing", field="volume_capability", remedy="give the volume's")
        capability = read_capability(request.volume_capability)
        check_capabilities([capability])
        with self._calls.mounting():
            plan = _plan(request, capability)
            target = await asyncio.to_thread(resolve_target, target)
            with self._calls.alone(target):
                mount = NodeMount(volume_id=request.volume_id, target=target)
                use = Use(mount=mount, is_for_one_pod=capability.access_mode.is_for_one_pod)
                wanted = Publication(use=use, plan=plan)
                await self._volumes.publish(wanted, timeout_seconds=self._time_for(context))
        return csi_pb2.NodePublishVolumeResponse()

    async def NodeUnpublishVolume(
        self, request: csi_pb2.NodeUnpublishVolumeRequest, context: _Context
    ) -> csi_pb2.NodeUnpublishVolumeResponse:
        """Nothing is mounted at the target, and the target is gone."""
        _require_id(request.volume_id)
        target = parse_target(request.target_path, field="target_path")
        target = await asyncio.to_thread(resolve_target, target)
        mount = NodeMount(volume_id=request.volume_id, target=target)
        with self._calls.alone(target):
            self._statistics.forget(target)
            await self._volumes.unpublish(mount, timeout_seconds=self._time_for(context))
        return csi_pb2.NodeUnpublishVolumeResponse()

    async def NodeGetVolumeStats(
        self, request: csi_pb2.NodeGetVolumeStatsRequest, context: _Context
    ) -> csi_pb2.NodeGetVolumeStatsResponse:
        """How full the volume is, and whether it answers; also without the opt-in."""
        _require_id(request.volume_id)
        path = await asyncio.to_thread(resolve_target, _volume_path(request.volume_path))
        if not await self._volumes.is_mounted(path):
            self._statistics.forget(path)
            raise VolumeMissing("has no volume mounted on it", field="volume_path", value=str(path))
        return _statistics(await self._statistics.report(path))

    def _time_for(self, context: _Context) -> float:
        remaining = context.time_remaining()
        limit = self._options.timeout_seconds
        return limit if remaining is None else max(_LEAST_SECONDS, min(limit, remaining - _MARGIN_SECONDS))


def node_service(node: Node) -> Service:
    """The service, to be served."""
    return partial(csi_pb2_grpc.add_NodeServicer_to_server, node)


def _require_id(volume_id: str) -> None:
    if not volume_id:
        raise InvalidArgument("is missing", field="volume_id", remedy="give the volume's handle")


def _volume_path(text: str) -> Path:
    """The path; one where no volume can ever be is a place where none is, as csi-sanity wants it."""
    try:
        return parse_target(text, field="volume_path")
    except InvalidArgument as error:
        if not text:
            raise
        raise VolumeMissing(error.problem, field=error.field, value=error.value) from error


def _plan(request: csi_pb2.NodePublishVolumeRequest, capability: VolumeCapability) -> MountPlan:
    attributes = parse_attributes(request.volume_context)
    handle = parse_volume_handle(request.volume_id)
    plan = plan_mount(handle, attributes, capability, read_only=request.readonly)
    for oddity in plan.oddities:
        log.warning("mount-option-odd", oddity=str(oddity))
    return plan


def _statistics(report: Report) -> csi_pb2.NodeGetVolumeStatsResponse:
    condition = csi_pb2.VolumeCondition(abnormal=bool(report.problem), message=report.problem)
    return csi_pb2.NodeGetVolumeStatsResponse(usage=_usage(report), volume_condition=condition)


def _usage(report: Report) -> Iterator[csi_pb2.VolumeUsage]:
    usage = report.usage
    yield csi_pb2.VolumeUsage(
        unit=_Unit.BYTES,
        total=usage.total_bytes,
        used=usage.used_bytes,
        available=usage.available_bytes,
    )
    if usage.total_inodes:
        yield csi_pb2.VolumeUsage(
            unit=_Unit.INODES,
            total=usage.total_inodes,
            used=usage.used_inodes,
            available=usage.available_inodes,
        )
