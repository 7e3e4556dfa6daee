"""The Node service: converts messages of the protocol to values, and back.

It checks the whole request before anything is read or changed: target, handle, attributes and capability.
``node_volumes`` does the rest, and refuses only what depends on this node, such as its zone.

CSI specification 1.12, "Node Service RPC". Volumes are mounted where they are published, so there is nothing
to stage or to expand: our part of the protocol has no such calls, and gRPC answers them with UNIMPLEMENTED.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import grpc.aio
import structlog

from kube_efs.csi.capabilities import read_capability
from kube_efs.csi.file_counts import FileCounts
from kube_efs.csi.interceptors import mark_as_routine
from kube_efs.csi.node_info import NodeInfo
from kube_efs.csi.node_volumes import NodeVolumes
from kube_efs.csi.pod_tokens import read_pod_tokens
from kube_efs.csi.protocol import csi_pb2, csi_pb2_grpc
from kube_efs.csi.publication import NodeMount, Publication, VolumeUse
from kube_efs.csi.server import Service
from kube_efs.csi.statistics import Statistics
from kube_efs.csi.target import parse_target, resolve_target
from kube_efs.model.csi.errors import InvalidArgument, VolumeMissing, VolumePending
from kube_efs.model.csi.mount_options import plan_mount
from kube_efs.model.csi.volume_attributes import parse_attributes
from kube_efs.model.csi.volume_handles import parse_volume_handle
from kube_efs.model.volumes import ZONE_LABEL

__all__ = ["NodeOptions", "NodeService", "node_service"]

log = structlog.get_logger()

# In quotes: the class takes parameters in the type stubs only.
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_Rpc = csi_pb2.NodeServiceCapability.RPC
_Unit = csi_pb2.VolumeUsage

# So that the caller gets the reason, not only DEADLINE_EXCEEDED.
_MARGIN_SECONDS: Final = 1.0
_LEAST_SECONDS: Final = 0.1
_MOST: Final = 2**63 - 1  # int64


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """The options of the service.

    A call takes ``timeout_seconds`` at most, or less when its caller waits less. ``attach_limit`` is the
    most volumes that Kubernetes may place on this node, zero leaves that to Kubernetes; ``max_inflight`` the
    most volumes that are mounted at the same time, None sets no limit. ``has_statistics`` has the kubelet
    ask how full volumes are.
    """

    timeout_seconds: float = 110.0
    attach_limit: int = 0
    max_inflight: int | None = None
    has_statistics: bool = False


class RunningCalls:
    """The calls in progress; ``max_publishing`` limits those that publish, None sets no limit.

    Both methods check and change without an await, so of two calls at the same time one is refused. The
    kubelet repeats a call after ABORTED, as the CSI specification wants for a volume with a pending
    operation. ``max_publishing`` never keeps a call from unpublishing.
    """

    def __init__(self, max_publishing: int | None = None) -> None:
        self._max_publishing = max_publishing
        self._publishing = 0
        self._targets: set[Path] = set()

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """Count a call that publishes; raises VolumePending at the limit, and the caller retries."""
        if self._max_publishing is not None and self._publishing >= self._max_publishing:
            raise VolumePending(
                "are in progress, which is the limit",
                field="mounts of this node",
                value=self._publishing,
                remedy="the call is retried; KUBE_EFS_MAX_INFLIGHT_MOUNTS sets the limit",
            )
        self._publishing += 1
        try:
            yield
        finally:
            self._publishing -= 1

    @contextmanager
    def exclusive(self, target: Path) -> Iterator[None]:
        """Reserve the target for one call; raises VolumePending when another call works on it."""
        if target in self._targets:
            raise VolumePending("is in use by an earlier call", field="target_path", value=str(target))
        self._targets.add(target)
        try:
            yield
        finally:
            self._targets.discard(target)


class NodeService(csi_pb2_grpc.NodeServicer):
    """Answers the kubelet of this node; with ``file_counts``, used bytes are those of the volume's files."""

    def __init__(
        self,
        volumes: NodeVolumes,
        statistics: Statistics,
        node_info: NodeInfo,
        options: NodeOptions,
        file_counts: FileCounts | None = None,
    ) -> None:
        self._volumes = volumes
        self._statistics = statistics
        self._node_info = node_info
        self._options = options
        self._file_counts = file_counts
        self._calls = RunningCalls(options.max_inflight)
        self._reports_zone = True

    def withhold_zone(self) -> None:
        """Do not report the zone any more: the kubelet has refused it."""
        self._reports_zone = False
        log.warning(
            "zone-not-reported",
            zone=self._node_info.zone,
            reason=f"the Node has another label {ZONE_LABEL}",
        )

    async def NodeGetInfo(
        self, request: csi_pb2.NodeGetInfoRequest, context: _Context
    ) -> csi_pb2.NodeGetInfoResponse:
        """Which node this is, and in which zone."""
        zone = self._node_info.zone if self._reports_zone else None
        return csi_pb2.NodeGetInfoResponse(
            node_id=self._node_info.node_id,
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
        """Mount the volume at the target unless it is mounted there already.

        The kubelet repeats the call about once a minute, with new tokens of the pod, which are the only
        secrets that are read.
        """
        target = parse_target(request.target_path, field="target_path")
        if not request.HasField("volume_capability"):
            raise InvalidArgument(
                "is missing", field="volume_capability", remedy="give the volume's capability"
            )
        capability = read_capability(request.volume_capability)
        attributes = parse_attributes(request.volume_context)
        handle = parse_volume_handle(request.volume_id)
        plan = plan_mount(handle, attributes, capability, read_only=request.readonly)
        tokens = read_pod_tokens(request.volume_context, request.secrets) if plan.signs_as_pod else None
        target = await asyncio.to_thread(resolve_target, target)
        with self._calls.exclusive(target):
            mount = NodeMount(volume_id=request.volume_id, target=target)
            use = VolumeUse(mount=mount, is_for_one_pod=capability.access_mode.is_for_one_pod)
            wanted = Publication(use=use, plan=plan, tokens=tokens)
            # Before the limit of concurrent mounts: it renews the tokens of mounts that exist.
            if await self._volumes.refresh(wanted):
                mark_as_routine()
                return csi_pb2.NodePublishVolumeResponse()
            for warning in plan.warnings:
                log.warning("mount-option-warning", reason=str(warning))
            with self._calls.publishing():
                await self._volumes.publish(wanted, timeout_seconds=self._timeout_of(context))
        return csi_pb2.NodePublishVolumeResponse()

    async def NodeUnpublishVolume(
        self, request: csi_pb2.NodeUnpublishVolumeRequest, context: _Context
    ) -> csi_pb2.NodeUnpublishVolumeResponse:
        """Unmount the target and remove it."""
        _require_id(request.volume_id)
        target = parse_target(request.target_path, field="target_path")
        target = await asyncio.to_thread(resolve_target, target)
        mount = NodeMount(volume_id=request.volume_id, target=target)
        with self._calls.exclusive(target):
            self._statistics.forget(target)
            if self._file_counts is not None:
                await self._file_counts.forget(target)
            await self._volumes.unpublish(mount, timeout_seconds=self._timeout_of(context))
        return csi_pb2.NodeUnpublishVolumeResponse()

    async def NodeGetVolumeStats(
        self, request: csi_pb2.NodeGetVolumeStatsRequest, context: _Context
    ) -> csi_pb2.NodeGetVolumeStatsResponse:
        """How full the volume is, and whether it answers; also without the opt-in."""
        _require_id(request.volume_id)
        try:
            path = parse_target(request.volume_path, field="volume_path")
        except InvalidArgument as error:
            if not request.volume_path:
                raise
            # csi-sanity expects NOT_FOUND for a path at which no volume can be.
            raise VolumeMissing(error.problem, field=error.field, value=error.value) from error
        path = await asyncio.to_thread(resolve_target, path)
        await self._check_mounted(path)
        report = await self._statistics.report(path)
        usage, used_bytes = report.usage, report.usage.used_bytes
        # A count that starts while the target is unmounted would keep the mount busy. One that starts later
        # would count what is on the disk of the node.
        with self._calls.exclusive(path):
            await self._check_mounted(path)
            if self._file_counts is not None:
                file_system_id = parse_volume_handle(request.volume_id).file_system_id
                used_bytes = self._file_counts.used_bytes(request.volume_id, file_system_id, path)
        shares = [
            csi_pb2.VolumeUsage(
                unit=_Unit.BYTES,
                total=_figure(usage.total_bytes),
                used=_figure(used_bytes),
                available=_figure(usage.available_bytes),
            )
        ]
        if usage.total_inodes:
            shares.append(
                csi_pb2.VolumeUsage(
                    unit=_Unit.INODES,
                    total=_figure(usage.total_inodes),
                    used=_figure(usage.used_inodes),
                    available=_figure(usage.available_inodes),
                )
            )
        condition = csi_pb2.VolumeCondition(abnormal=bool(report.problem), message=report.problem)
        return csi_pb2.NodeGetVolumeStatsResponse(usage=shares, volume_condition=condition)

    async def _check_mounted(self, path: Path) -> None:
        if not await self._volumes.is_mounted(path):
            self._statistics.forget(path)
            raise VolumeMissing("has no volume mounted on it", field="volume_path", value=str(path))

    def _timeout_of(self, context: _Context) -> float:
        remaining = context.time_remaining()
        limit = self._options.timeout_seconds
        return limit if remaining is None else max(_LEAST_SECONDS, min(limit, remaining - _MARGIN_SECONDS))


def node_service(node: NodeService) -> Service:
    """The service, to be served."""
    return partial(csi_pb2_grpc.add_NodeServicer_to_server, node)


def _figure(exact: int) -> int:
    """The figure as the protocol can have it. A file system without a limit may report 2^63 bytes or more."""
    return min(exact, _MOST)


def _require_id(volume_id: str) -> None:
    if not volume_id:
        raise InvalidArgument("is missing", field="volume_id", remedy="give the volume's handle")
