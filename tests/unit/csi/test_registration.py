from pathlib import Path

from structlog.testing import capture_logs
from tests.unit.csi.served import Connect

from kube_efs.csi.protocol import registration_pb2 as protocol
from kube_efs.csi.protocol.registration_pb2_grpc import RegistrationStub
from kube_efs.csi.registration import RegistrationService, registration_endpoint, registration_service
from kube_efs.telemetry.health import Health

SOCKET = Path("/var/lib/kubelet/plugins/efs.csi.aws.com/csi.sock")


def test_socket_has_the_name_of_node_driver_registrar() -> None:
    endpoint = registration_endpoint(Path("/var/lib/kubelet/plugins_registry"))
    assert endpoint.path == Path("/var/lib/kubelet/plugins_registry/efs.csi.aws.com-reg.sock")


async def test_kubelet_gets_name_and_socket_of_the_driver(connect: Connect) -> None:
    async with connect(registration_service(RegistrationService(SOCKET))) as channel:
        info = await RegistrationStub(channel).GetInfo(protocol.InfoRequest())

    assert info == protocol.PluginInfo(
        type="CSIPlugin", name="efs.csi.aws.com", endpoint=str(SOCKET), supported_versions=["1.0.0"]
    )


async def test_outcome_of_the_registration_is_logged_and_determines_the_health(connect: Connect) -> None:
    registration = RegistrationService(SOCKET)
    states = [registration.health()]

    async with connect(registration_service(registration)) as channel:
        notify = RegistrationStub(channel).NotifyRegistrationStatus
        with capture_logs() as logs:
            await notify(protocol.RegistrationStatus(plugin_registered=False, error="no such node"))
            states.append(registration.health())
            assert not registration.registered.is_set()
            await notify(protocol.RegistrationStatus(plugin_registered=True))
            states.append(registration.health())
            assert registration.registered.is_set()

    assert states == [
        Health.failing("the kubelet has not registered the driver yet"),
        Health.failing("the kubelet could not register the driver: no such node"),
        Health(),
    ]
    told = [(line["log_level"], line["event"], line.get("reason")) for line in logs if "driver" in line]
    assert told == [("error", "driver-not-registered", "no such node"), ("info", "driver-registered", None)]
