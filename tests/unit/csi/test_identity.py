from importlib.metadata import version

from tests.unit.csi.served import Connect

from kube_efs.csi.identity import identity_service
from kube_efs.csi.protocol import csi_pb2 as csi
from kube_efs.csi.protocol.csi_pb2_grpc import IdentityStub


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


async def test_process_that_serves_is_ready(connect: Connect) -> None:
    async with connect(identity_service()) as channel:
        answer = await IdentityStub(channel).Probe(csi.ProbeRequest())

    assert answer.HasField("ready")
    assert answer.ready.value
