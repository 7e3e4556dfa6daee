"""A file system with nearly as many access points as EFS allows: another volume costs one call."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest
import pytest_asyncio
from tests.conformance.csi_driver import Driver
from tests.scenarios.steps import metric

from fake_efs.aws_api import AwsApi
from fake_efs.process import ChildProcess
from kube_efs.csi.protocol import csi_pb2 as csi
from kube_efs.csi.protocol.csi_pb2_grpc import ControllerStub
from kube_efs_lab.program import Program
from tinykube.api import ApiServer

FILE_SYSTEM = "fs-0123456789abcdef0"
MANY = 9_990
PAGES = 10

# The embedded AWS API with access points that were there before; made by calls, they would take minutes.
PROGRAM = f"""
from moto.efs.models import EFSBackend, efs_backends
from fake_efs import aws_server

efs = efs_backends["123456789012"]["us-east-1"]
made = efs.create_file_system("full", None, False, None, None, None, None, False, [])
del efs.file_systems_by_id[made.file_system_id]
made.file_system_id = "{FILE_SYSTEM}"
efs.file_systems_by_id[made.file_system_id] = made
for number in range({MANY}):
    user, root = {{"Uid": 50_000 + number, "Gid": 50_000 + number}}, {{"Path": "/x"}}
    one = EFSBackend.create_access_point(efs, f"t-{{number}}", [], made.file_system_id, user, root)
    del efs.access_points[one.access_point_id]
    one.access_point_id = f"fsap-{{number:017x}}"
    efs.access_points[one.access_point_id] = one
aws_server.main()
"""


@pytest_asyncio.fixture
async def aws(tmp_path: Path) -> AsyncIterator[AwsApi]:
    arguments = ("-c", PROGRAM, "127.0.0.1", str(tmp_path / "changes"))
    process = await ChildProcess.start(sys.executable, *arguments, log_file=tmp_path / "aws-api.log")
    try:
        port = await process.listening_port(timeout_seconds=60)
        yield AwsApi(process, f"http://127.0.0.1:{port}", tmp_path / "changes")
    finally:
        await process.kill()


@pytest.fixture
def driver(aws: AwsApi, api_server: ApiServer, tmp_path: Path) -> Driver:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(api_server.kubeconfig())
    return Driver(kubeconfig, aws, tmp_path)


async def calls(program: Program) -> dict[str, float]:
    """The number of the program's calls about access points."""
    operations = ("CreateAccessPoint", "DescribeAccessPoints")
    return {one: await metric(program, f'kube_efs_aws_calls_total{{operation="{one}"') for one in operations}


async def test_another_volume_costs_one_call(driver: Driver) -> None:
    mode = csi.VolumeCapability.AccessMode(mode=csi.VolumeCapability.AccessMode.MULTI_NODE_MULTI_WRITER)
    capability = csi.VolumeCapability(mount=csi.VolumeCapability.MountVolume(), access_mode=mode)
    parameters = {"provisioningMode": "efs-ap", "fileSystemId": FILE_SYSTEM, "directoryPerms": "700"}

    async with (
        driver.on_its_socket() as program,
        grpc.aio.insecure_channel(f"unix:{driver.socket}") as channel,
    ):

        async def make(name: str) -> None:
            wanted = csi.CreateVolumeRequest(
                name=name, volume_capabilities=[capability], parameters=parameters
            )
            await ControllerStub(channel).CreateVolume(wanted, timeout=30)

        await make("the-first")
        # Every access point is read once, in pages.
        assert await calls(program) == {"CreateAccessPoint": 1, "DescribeAccessPoints": PAGES}
        await make("one-more")
        assert await calls(program) == {"CreateAccessPoint": 2, "DescribeAccessPoints": PAGES}
        for number in range(8):
            await make(f"the-rest-{number}")

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await make("too-many")
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"'{FILE_SYSTEM}' have no room for another access point" in (caught.value.details() or "")
