from importlib.metadata import version

from structlog.testing import capture_logs
from tests.unit.csi.served import Connect

from kube_efs.csi.identity import identity_service
from kube_efs.csi.protocol import csi_pb2 as csi
from kube_efs.csi.protocol.csi_pb2_grpc import IdentityStub
from kube_efs.telemetry.health import Health


async def test_driver_has_the_name_of_the_aws_driver_and_its_own_version(connect: Connect) -> None:
    async with connect(identity_service()) as channel:
        info = await IdentityStub(channel).GetPluginInfo(csi.GetPluginInfoRequest())

    assert info == csi.GetPluginInfoResponse(name="efs.csi.aws.com", vendor_version=f"v{version('kube-efs')}")


async def test_capabilities_are_those_of_the_aws_driver_and_expansion(connect: Connect) -> None:
    async with connect(identity_service()) as channel:
        answer = await IdentityStub(channel).GetPluginCapabilities(csi.GetPluginCapabilitiesRequest())

    *services, expansion = answer.capabilities
    kinds = [csi.PluginCapability.Service.Type.Name(one.service.type) for one in services]
    assert kinds == ["CONTROLLER_SERVICE", "VOLUME_ACCESSIBILITY_CONSTRAINTS"]
    assert expansion.volume_expansion.type == csi.PluginCapability.VolumeExpansion.ONLINE


async def test_probe_reports_whether_the_process_can_serve(connect: Connect) -> None:
    health = Health.failing("the tunnel agent does not answer")

    async with connect(identity_service(lambda: health)) as channel:
        probe = IdentityStub(channel).Probe
        with capture_logs() as logs:
            before = [await probe(csi.ProbeRequest()) for _ in range(3)]
            health = Health()
            after = await probe(csi.ProbeRequest())

    assert [answer.ready.value for answer in before] == [False] * 3
    assert after.HasField("ready")
    assert after.ready.value
    changes = [(line["ready"], line["reasons"]) for line in logs if line["event"] == "readiness-changed"]
    assert changes == [(False, ("the tunnel agent does not answer",)), (True, ())]
