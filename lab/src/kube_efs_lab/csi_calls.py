"""The calls of the embedded kubelet to CSI drivers, by the protocol that kube-efs itself serves."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import grpc
import grpc.aio

from kube_efs.csi.protocol import csi_pb2, registration_pb2
from kube_efs.csi.protocol.csi_pb2_grpc import NodeStub
from kube_efs.csi.protocol.registration_pb2_grpc import RegistrationStub
from tinykube.errors import NotYet
from tinykube.kubelet.csi import PublishRequest

# What pkg/volume/csi allows a call that mounts or unmounts.
_MOUNT_SECONDS = 120.0
_ANSWER_SECONDS = 10.0
_Capability = csi_pb2.VolumeCapability


class CsiCalls:
    """Calls over gRPC; each raises NotYet in the words of Kubernetes when it fails."""

    async def plugin_info(self, socket: Path) -> tuple[str, str]:
        """Ask a plugin for its name and for the socket that it serves at."""
        async with _connected(socket) as channel:
            request = registration_pb2.InfoRequest()
            found = await RegistrationStub(channel).GetInfo(request, timeout=_ANSWER_SECONDS)
        return found.name, found.endpoint

    async def notify_registration(self, socket: Path) -> None:
        """Tell a plugin that it is registered."""
        status = registration_pb2.RegistrationStatus(plugin_registered=True)
        async with _connected(socket) as channel:
            await RegistrationStub(channel).NotifyRegistrationStatus(status, timeout=_ANSWER_SECONDS)

    async def node_info(self, socket: Path) -> tuple[str, Mapping[str, str]]:
        """Ask a CSI driver for this node's id and topology."""
        async with _connected(socket) as channel:
            request = csi_pb2.NodeGetInfoRequest()
            node = await NodeStub(channel).NodeGetInfo(request, timeout=_ANSWER_SECONDS)
        return node.node_id, dict(node.accessible_topology.segments)

    async def publish(self, socket: Path, request: PublishRequest) -> None:
        """Have a volume mounted."""
        mount = _Capability.MountVolume(mount_flags=request.options)
        mode = _Capability.AccessMode(mode=_Capability.AccessMode.Mode.Value(request.access_mode))
        message = csi_pb2.NodePublishVolumeRequest(
            volume_id=request.handle,
            target_path=request.target,
            volume_capability=_Capability(mount=mount, access_mode=mode),
            readonly=request.read_only,
            volume_context=request.context,
        )
        async with _connected(socket) as channel:
            await NodeStub(channel).NodePublishVolume(message, timeout=_MOUNT_SECONDS)

    async def unpublish(self, socket: Path, handle: str, target: str) -> None:
        """Have a volume unmounted."""
        message = csi_pb2.NodeUnpublishVolumeRequest(volume_id=handle, target_path=target)
        async with _connected(socket) as channel:
            await NodeStub(channel).NodeUnpublishVolume(message, timeout=_MOUNT_SECONDS)


@asynccontextmanager
async def _connected(socket: Path) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(f"unix:{quote(str(socket))}") as channel:
        try:
            yield channel
        except grpc.aio.AioRpcError as error:
            # The words of Go's gRPC, which people look for.
            code = error.code().name.title().replace("_", "")
            raise NotYet(f"rpc error: code = {code} desc = {error.details()}") from error
