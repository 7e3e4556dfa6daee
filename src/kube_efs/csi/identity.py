"""The Identity service: the name, the capabilities and the readiness of the driver."""

from functools import partial
from importlib.metadata import version

from google.protobuf.wrappers_pb2 import BoolValue

from kube_efs.csi.protocol import csi_pb2, csi_pb2_grpc
from kube_efs.csi.server import Service
from kube_efs.model.volumes import DRIVER

__all__ = ["IdentityService", "identity_service"]

_Capability = csi_pb2.PluginCapability.Service
_Expansion = csi_pb2.PluginCapability.VolumeExpansion


class IdentityService(csi_pb2_grpc.IdentityServicer):
    """Answers as the AWS driver does, except for expansion."""

    async def GetPluginInfo(
        self, request: csi_pb2.GetPluginInfoRequest, context: object
    ) -> csi_pb2.GetPluginInfoResponse:
        """The driver's name and the version of kube-efs."""
        return csi_pb2.GetPluginInfoResponse(name=DRIVER, vendor_version=f"v{version('kube-efs')}")

    async def GetPluginCapabilities(
        self, request: csi_pb2.GetPluginCapabilitiesRequest, context: object
    ) -> csi_pb2.GetPluginCapabilitiesResponse:
        """The same on controller and nodes; volumes can be expanded while pods use them."""
        kinds = (_Capability.CONTROLLER_SERVICE, _Capability.VOLUME_ACCESSIBILITY_CONSTRAINTS)
        return csi_pb2.GetPluginCapabilitiesResponse(
            capabilities=[
                *(csi_pb2.PluginCapability(service=_Capability(type=kind)) for kind in kinds),
                csi_pb2.PluginCapability(volume_expansion=_Expansion(type=_Expansion.ONLINE)),
            ]
        )

    async def Probe(self, request: csi_pb2.ProbeRequest, context: object) -> csi_pb2.ProbeResponse:
        """Ready: the socket exists only while the process can serve."""
        # Without a look at AWS, the API server or the tunnel agent, which may be unavailable for a while:
        # livenessprobe restarts a container that is not ready, and csi-provisioner waits for it.
        return csi_pb2.ProbeResponse(ready=BoolValue(value=True))


def identity_service() -> Service:
    """The service, to be served."""
    return partial(csi_pb2_grpc.add_IdentityServicer_to_server, IdentityService())
