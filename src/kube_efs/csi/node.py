"""The Node service: messages of the protocol to values, and back. It is the door of this process.

What comes in is checked here and nowhere behind: a target, a handle, attributes and a capability become types
of ``model`` before anything is asked or changed. ``mounting`` does the rest.

CSI specification 1.12, "Node Service RPC". Volumes are mounted where they are published, so there is nothing
to stage or to expand: our part of the protocol has no such calls, and gRPC answers them with UNIMPLEMENTED.
"""

import asyncio
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import grpc.aio
import structlog

from kube_efs.csi.capabilities import read_capability
from kube_efs.csi.mounting import NodeMount, NodeVolumes, Publication, Use
from kube_efs.csi.place import NodePlace
from kube_efs.csi.protocol import csi_pb2, csi_pb2_grpc
from kube_efs.csi.server import Service
from kube_efs.csi.statistics import Statistics
from kube_efs.model.csi.capabilities import check_capabilities
from kube_efs.model.csi.errors import InvalidArgument, VolumeMissing, VolumePending
from kube_efs.model.csi.mount_options import plan_mount
from kube_efs.model.csi.volume_attributes import parse_attributes
from kube_efs.model.csi.volume_handles import parse_volume_handle
from kube_efs.model.volumes import ZONE_LABEL

__all__ = ["Node", "NodeOptions", "node_service"]

log = structlog.get_logger()

# In quotes: the class takes parameters in the type stubs only.
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_Rpc = csi_pb2.NodeServiceCapability.RPC
_Unit = csi_pb2.VolumeUsage

_LONGEST_PATH: Final = 4095  # bytes: PATH_MAX without the zero at the end
_LONGEST_NAME: Final = 255  # bytes: NAME_MAX
_UNFIT: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
# So that the caller gets the reason, not only DEADLINE_EXCEEDED.
_MARGIN_SECONDS: Final = 1.0
_LEAST_SECONDS: Final = 0.1


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


class Calls:
    """``most_mounting`` is the most publishing calls at a time; None sets no limit."""

    def __init__(self, most_mounting: int | None = None) -> None:
        self._most_mounting = most_mounting
        self._mounting = 0
        self._targets: set[Path] = set()

    @contextmanager
    def mounting(self) -> Iterator[None]:
        """While a call mounts; raises VolumePending when there are too many, and the caller tries again."""
        if self._most_mounting is not None and self._mounting >= self._most_mounting:
            raise VolumePending(
                "are in progress, which is the limit",
                field="mounts of this node",
                value=self._mounting,
                remedy="the call is retried; KUBE_EFS_MAX_INFLIGHT_MOUNTS sets the limit",
            )
        self._mounting += 1
        try:
            yield
        finally:
            self._mounting -= 1

    @contextmanager
    def alone(self, target: Path) -> Iterator[None]:
        """While a call works on the target; raises VolumePending when another does."""
        if target in self._targets:
            raise VolumePending("is in use by an earlier call", field="target_path", value=str(target))
        self._targets.add(target)
        try:
            yield
        finally:
            self._targets.discard(target)


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
            raise InvalidArgument(
                "is missing", field="volume_capability", remedy="give the volume's capability"
            )
        capability = read_capability(request.volume_capability)
        check_capabilities([capability])
        with self._calls.mounting():
            attributes = parse_attributes(request.volume_context)
            handle = parse_volume_handle(request.volume_id)
            plan = plan_mount(handle, attributes, capability, read_only=request.readonly)
            for oddity in plan.oddities:
                log.warning("mount-option-odd", oddity=str(oddity))
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
        try:
            path = parse_target(request.volume_path, field="volume_path")
        except InvalidArgument as error:
            if not request.volume_path:
                raise
            # Where no volume can ever be there is none, as csi-sanity wants it.
            raise VolumeMissing(error.problem, field=error.field, value=error.value) from error
        path = await asyncio.to_thread(resolve_target, path)
        if not await self._volumes.is_mounted(path):
            self._statistics.forget(path)
            raise VolumeMissing("has no volume mounted on it", field="volume_path", value=str(path))
        report = await self._statistics.report(path)
        usage = report.usage
        shares = [
            csi_pb2.VolumeUsage(
                unit=_Unit.BYTES,
                total=usage.total_bytes,
                used=usage.used_bytes,
                available=usage.available_bytes,
            )
        ]
        if usage.total_inodes:
            shares.append(
                csi_pb2.VolumeUsage(
                    unit=_Unit.INODES,
                    total=usage.total_inodes,
                    used=usage.used_inodes,
                    available=usage.available_inodes,
                )
            )
        condition = csi_pb2.VolumeCondition(abnormal=bool(report.problem), message=report.problem)
        return csi_pb2.NodeGetVolumeStatsResponse(usage=shares, volume_condition=condition)

    def _time_for(self, context: _Context) -> float:
        remaining = context.time_remaining()
        limit = self._options.timeout_seconds
        return limit if remaining is None else max(_LEAST_SECONDS, min(limit, remaining - _MARGIN_SECONDS))


def node_service(node: Node) -> Service:
    """The service, to be served."""
    return partial(csi_pb2_grpc.add_NodeServicer_to_server, node)


def parse_target(text: str, *, field: str) -> Path:
    """The path; raises InvalidArgument unless it is absolute, without ``..``, and fit for a line of text."""
    remedy = "give an absolute path"
    if not text:
        raise InvalidArgument("is missing", field=field, remedy=remedy)
    if not text.startswith("/") or ".." in text.split("/") or text.strip("/") == "":
        raise InvalidArgument("is not an absolute path below /", field=field, value=text, remedy=remedy)
    if _UNFIT.search(text):
        remedy = "give a path of printable characters"
        raise InvalidArgument("has control characters", field=field, value=text, remedy=remedy)
    if len(text.encode()) > _LONGEST_PATH:
        problem = f"is longer than {_LONGEST_PATH} bytes"
        raise InvalidArgument(problem, field=field, value=text, remedy="give a shorter path")
    if any(len(name.encode()) > _LONGEST_NAME for name in text.split("/")):
        problem = f"has a name longer than {_LONGEST_NAME} bytes"
        raise InvalidArgument(problem, field=field, value=text, remedy="give shorter names")
    return Path(text)


def resolve_target(path: Path) -> Path:
    """The path with the links in its parents followed, whether or not they exist."""
    parent = os.path.realpath(path.parent)  # looks at the parents only, as Path.resolve of the path would not
    return Path(parent) / path.name


def _require_id(volume_id: str) -> None:
    if not volume_id:
        raise InvalidArgument("is missing", field="volume_id", remedy="give the volume's handle")
