"""The registration of the node's driver: a socket in the directory that the kubelet watches.

The kubelet requests the driver's name there, then calls NodeGetInfo on the driver's own socket and reports
the result here. When the socket is removed, the driver is no longer registered.

A registration fails if the API server does not answer for a moment, because the kubelet writes the CSINode
and the Node. Only newer kubelets repeat it. Others do so when they see a new socket, so the socket is shown
again.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from kube_efs.csi.protocol import registration_pb2, registration_pb2_grpc
from kube_efs.csi.server import Service, UnixEndpoint, show_again
from kube_efs.model.volumes import DRIVER
from kube_efs.telemetry.health import Health

__all__ = ["RegistrationService", "keep_registering", "registration_endpoint", "registration_service"]

log = structlog.get_logger()

# The version of csi-node-driver-registrar; the kubelet accepts every 1.x.
_VERSIONS: Final = ("1.0.0",)
# The zone of the driver is not that in the label of the Node, which people may have written.
_COLLISION: Final = "topology value collision"
# A newer kubelet may repeat the registration itself.
_PAUSE_SECONDS: Final = 5.0
_LONGEST_PAUSE_SECONDS: Final = 60.0


def registration_endpoint(folder: Path) -> UnixEndpoint:
    """The socket in the kubelet's ``plugins_registry``, with the name that csi-node-driver-registrar uses.

    With the same name, the later one of the two replaces the other.
    """
    return UnixEndpoint(path=folder / f"{DRIVER}-reg.sock")


class RegistrationService(registration_pb2_grpc.RegistrationServicer):
    """Gives the kubelet the driver's name and ``socket``, a path as the kubelet sees it.

    ``registered`` is set once the kubelet has registered the driver. ``failed`` is set after a failed
    registration, until one succeeds. ``withhold_zone`` is called if the kubelet refuses the zone.
    """

    def __init__(self, socket: Path, *, withhold_zone: Callable[[], None] = lambda: None) -> None:
        self.registered = asyncio.Event()
        self.failed = asyncio.Event()
        self._socket = socket
        self._withhold_zone = withhold_zone
        self._health = Health.failing("the kubelet has not registered the driver yet")

    def health(self) -> Health:
        """Failing until the kubelet has registered the driver, and after a failed registration."""
        return self._health

    async def GetInfo(
        self, request: registration_pb2.InfoRequest, context: object
    ) -> registration_pb2.PluginInfo:
        """The information for the registration."""
        return registration_pb2.PluginInfo(
            type="CSIPlugin", name=DRIVER, endpoint=str(self._socket), supported_versions=_VERSIONS
        )

    async def NotifyRegistrationStatus(
        self, request: registration_pb2.RegistrationStatus, context: object
    ) -> registration_pb2.RegistrationStatusResponse:
        """Record the result."""
        if request.plugin_registered:
            self._health = Health()
            self.registered.set()
            self.failed.clear()
            log.info("driver-registered", driver=DRIVER, socket=str(self._socket))
        else:
            self._health = Health.failing(f"the kubelet could not register the driver: {request.error}")
            self.failed.set()
            if _COLLISION in request.error:
                self._withhold_zone()
            log.error("driver-not-registered", driver=DRIVER, socket=str(self._socket), reason=request.error)
        return registration_pb2.RegistrationStatusResponse()


def registration_service(registration: RegistrationService) -> Service:
    """The service, to be served."""
    return partial(registration_pb2_grpc.add_RegistrationServicer_to_server, registration)


async def keep_registering(registration: RegistrationService, folder: Path) -> None:
    """Show the socket again after each failed registration, until cancelled; raises OSError.

    The pause before it doubles until a registration succeeds.
    """
    path = registration_endpoint(folder).path
    while True:
        await registration.failed.wait()
        pause = _PAUSE_SECONDS
        await asyncio.sleep(pause)
        while registration.failed.is_set():
            show_again(path)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            await asyncio.sleep(pause)
