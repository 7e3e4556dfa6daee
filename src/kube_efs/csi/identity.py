"""The Identity service: the name, the capabilities and the readiness of the driver."""

from collections.abc import Callable
from functools import partial
from importlib.metadata import version

import structlog
from google.protobuf.wrappers_pb2 import BoolValue

from kube_efs.csi.protocol import csi_pb2, csi_pb2_grpc
from kube_efs.csi.server import Service
from kube_efs.model.volumes import DRIVER
from kube_efs.telemetry.health import Health

__all__ = ["IdentityService", "identity_service"]

log = structlog.get_logger()

_Capability = csi_pb2.PluginCapability.Service
_Expansion = csi_pb2.PluginCapability.VolumeExpansion


class IdentityService(csi_pb2_grpc.IdentityServicer):
    """Answers as the AWS driver does, except for expansion, and that Probe reports the real state.

    livenessprobe restarts the container if Probe is not ready, and csi-provisioner starts when it is.
    ``readiness`` therefore reports what this process itself needs, not services that may be unavailable for
    a while.
    """

    def __init__(self, readiness: Callable[[], Health] = Health) -> None:
        self._readiness = readiness
        self._last = Health()

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
        """Whether the process can serve. The answer has no field for reasons; changes are logged."""
        health, before = self._readiness(), self._last
        self._last = health
        if health != before:
            note = log.info if health.ok else log.warning
            note("readiness-changed", ready=health.ok, reasons=health.reasons)
        return csi_pb2.ProbeResponse(ready=BoolValue(value=health.ok))


def identity_service(readiness: Callable[[], Health] = Health) -> Service:
    """The service, to be served."""
    return partial(csi_pb2_grpc.add_IdentityServicer_to_server, IdentityService(readiness))
