"""The driver's parts in the controller: refreshing access points, and the socket for csi-provisioner."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import grpc.aio
import pytest
from lightkube import AsyncClient
from prometheus_client import CollectorRegistry
from tests.unit.provisioning.backends.csi.csi_world import FS, CsiWorld, request

from kube_efs.aws.connection import AwsCredentials, AwsOptions
from kube_efs.aws.gateway import AwsGateway
from kube_efs.controllers.csi import Aws, CsiService, guards_of
from kube_efs.controllers.csi_socket import serve_csi
from kube_efs.csi.protocol import csi_pb2 as csi
from kube_efs.csi.protocol.csi_pb2_grpc import ControllerStub, IdentityStub
from kube_efs.model.csi.file_system_templates import Scope
from kube_efs.model.csi.made_file_systems import FileSystemOwner, MadeFileSystem, Stage
from kube_efs.model.efs.ids import Region
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.errors import InvalidSetting, RemovalRefused
from kube_efs.model.volumes import NfsSource, Volume, VolumePhase
from kube_efs.provisioning.backends.csi.accounts import Accounts
from kube_efs.provisioning.guards import Removal
from kube_efs.settings.controller import ControllerSettings
from kube_efs.settings.loading import load
from kube_efs.telemetry.duties import Duties
from kube_efs.telemetry.metrics import AwsMetrics, ControllerMetrics

Eventually = Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]


class Refreshed(Accounts):
    """Counts refreshes."""

    def __init__(self) -> None:
        self.looks = 0

    async def refresh(self) -> None:
        self.looks += 1


async def test_access_points_are_refreshed_until_the_end(eventually: Eventually) -> None:
    world, accounts = CsiWorld(), Refreshed()
    service = CsiService(volumes=world.volumes, accounts=accounts, refresh_seconds=0.001)
    looking = asyncio.create_task(service.refresh_regularly())

    async def has_looked_twice() -> bool:
        return accounts.looks > 1

    await eventually(has_looked_twice)
    looking.cancel()
    with suppress(asyncio.CancelledError):
        await looking


async def test_access_points_deleted_by_others_are_forgotten() -> None:
    now = 0.0
    world = CsiWorld(quota=1, clock=lambda: now)
    await world.volumes.create(request("pvc-1"))
    async with world.accounts.of(None) as account:
        known = account.access_points[FileSystemKind.EFS].known
        assert known.counts == {FS: 1}
        world.api.points.clear()
        now = 60.0  # A list may omit one that is newer.
        await known.refresh_known()
        assert known.counts == {FS: 0}
    assert (await world.volumes.create(request("pvc-2"))).handle.file_system_id == FS


async def _serve(stack: AsyncExitStack, kube: AsyncClient, endpoint: str) -> None:
    """Serve that endpoint, in an AWS account that does not answer."""
    nobody = AwsOptions(
        region=Region("us-east-1"),
        endpoint_url="http://127.0.0.1:9",
        credentials=AwsCredentials(access_key_id="a", secret_access_key="b"),
        max_attempts=1,
    )
    metrics = AwsMetrics(CollectorRegistry())
    gateway = await stack.enter_async_context(AwsGateway(nobody, metrics))
    aws, registry = Aws(gateway=gateway, options=nobody, metrics=metrics), CollectorRegistry()
    settings = load(ControllerSettings, {"KUBE_EFS_BACKENDS": "csi", "CSI_ENDPOINT": endpoint})
    await serve_csi(endpoint, settings, kube, aws, ControllerMetrics(registry), registry, Duties(registry))


async def test_socket_is_served_until_the_controller_ends(kube: AsyncClient, eventually: Eventually) -> None:
    with tempfile.TemporaryDirectory(prefix="csi-") as name:
        socket = Path(name) / "csi.sock"
        async with AsyncExitStack() as stack:
            serving = asyncio.create_task(_serve(stack, kube, f"unix://{socket}"))

            async def is_served() -> bool:
                return await asyncio.to_thread(socket.is_socket)

            await eventually(is_served)
            async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
                assert (await IdentityStub(channel).Probe(csi.ProbeRequest(), timeout=30)).ready.value
                await ControllerStub(channel).ControllerGetCapabilities(
                    csi.ControllerGetCapabilitiesRequest(), timeout=30
                )
                gone = csi.DeleteVolumeRequest(volume_id=f"efs:{FS}::fsap-0123456789abcdef0")
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await ControllerStub(channel).DeleteVolume(gone, timeout=10)
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving
        assert not socket.exists()


async def test_endpoint_that_cannot_be_bound_ends_the_controller(kube: AsyncClient) -> None:
    async with AsyncExitStack() as stack:
        with pytest.raises(BaseExceptionGroup) as caught:
            await _serve(stack, kube, "unix:///no/such/folder/csi.sock")
        assert caught.group_contains(InvalidSetting)


async def test_guards_of_a_process_look_for_volumes_at_the_addresses_of_mount_targets() -> None:
    world = CsiWorld()
    settings = load(ControllerSettings, {"KUBE_EFS_BACKENDS": "csi"})
    guards = guards_of(settings, world.index, world.store, world.accounts)
    owner = FileSystemOwner(scope=Scope.CLAIM, name="pvc-1", cluster="cluster-uid")
    made = MadeFileSystem(file_system_id=FS, owner=owner, stage=Stage.REMOVING, token="token")
    await guards.check_without_volume(Removal(file_system=made))
    static = Volume(
        name="static", uid="s", phase=VolumePhase.BOUND, nfs=NfsSource(server="10.0.1.1", path="/")
    )
    world.index.put_volume(static)
    with pytest.raises(RemovalRefused, match="also used by volume static"):
        await guards.check_without_volume(Removal(file_system=made))
