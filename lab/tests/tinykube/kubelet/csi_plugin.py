"""A CSI driver that does what a test says, on sockets in a folder with a short name."""

# ruff: noqa: N802 - methods are named by the protocol

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio

from kube_efs.csi.protocol import csi_pb2, csi_pb2_grpc, registration_pb2, registration_pb2_grpc
from kube_efs.csi.server import UnixEndpoint, serving

NAME = "csi.example.com"


class Plugin(csi_pb2_grpc.NodeServicer, registration_pb2_grpc.RegistrationServicer):
    """Answers all calls; ``told`` is what the kubelet has said of the registration."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "csi.sock"
        self.registry = folder / "registry"
        self.topology: dict[str, str] = {}
        self.told: list[bool] = []
        self.published: list[csi_pb2.NodePublishVolumeRequest] = []
        self.unpublished: list[str] = []
        self.refusal: tuple[grpc.StatusCode, str] | None = None
        self.on_publish: Callable[[Path], Awaitable[None]] | None = None

    async def GetInfo(self, request: Any, context: Any) -> registration_pb2.PluginInfo:
        return registration_pb2.PluginInfo(
            type="CSIPlugin", name=NAME, endpoint=str(self.socket), supported_versions=["1.0.0"]
        )

    async def NotifyRegistrationStatus(
        self, request: registration_pb2.RegistrationStatus, context: Any
    ) -> registration_pb2.RegistrationStatusResponse:
        self.told.append(request.plugin_registered)
        return registration_pb2.RegistrationStatusResponse()

    async def NodeGetInfo(self, request: Any, context: Any) -> csi_pb2.NodeGetInfoResponse:
        topology = csi_pb2.Topology(segments=self.topology)
        return csi_pb2.NodeGetInfoResponse(node_id="i-1", accessible_topology=topology)

    async def NodeGetCapabilities(self, request: Any, context: Any) -> csi_pb2.NodeGetCapabilitiesResponse:
        raise AssertionError("the embedded kubelet does not ask this")

    async def NodePublishVolume(
        self, request: csi_pb2.NodePublishVolumeRequest, context: Any
    ) -> csi_pb2.NodePublishVolumeResponse:
        if self.refusal:
            await context.abort(*self.refusal)
        self.published.append(request)
        if self.on_publish:
            await self.on_publish(Path(request.target_path))
        return csi_pb2.NodePublishVolumeResponse()

    async def NodeUnpublishVolume(
        self, request: csi_pb2.NodeUnpublishVolumeRequest, context: Any
    ) -> csi_pb2.NodeUnpublishVolumeResponse:
        if self.refusal:
            await context.abort(*self.refusal)
        self.unpublished.append(f"{request.volume_id} {request.target_path}")
        return csi_pb2.NodeUnpublishVolumeResponse()

    async def NodeGetVolumeStats(self, request: Any, context: Any) -> csi_pb2.NodeGetVolumeStatsResponse:
        raise AssertionError("the embedded kubelet does not ask this")

    @asynccontextmanager
    async def running(self, name: str = "csi.example.com-reg.sock") -> AsyncIterator[None]:
        """While it serves both sockets."""
        self.registry.mkdir(exist_ok=True)
        node = partial(csi_pb2_grpc.add_NodeServicer_to_server, self)
        registration = partial(registration_pb2_grpc.add_RegistrationServicer_to_server, self)
        async with (
            serving(UnixEndpoint(path=self.socket), node),
            serving(UnixEndpoint(path=self.registry / name), registration),
        ):
            yield
