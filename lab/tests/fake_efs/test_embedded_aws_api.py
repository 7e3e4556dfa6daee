"""The embedded AWS API counts its changes, and who knows of none asks nothing twice."""

import json
from collections.abc import AsyncIterator
from ipaddress import IPv4Network

import pytest
import pytest_asyncio

from fake_efs.aws_api import AwsApi, create_subnets
from fake_efs.remembering import RememberingConnection
from kube_efs.aws.connection import AwsConnection, Service
from kube_efs.aws.file_system_policy import file_system_policy
from kube_efs.aws.gateway import AwsGateway
from kube_efs.model.efs.ids import FileSystemId, Region

pytestmark = pytest.mark.asyncio(loop_scope="module")

REGION = Region("us-east-1")
USER = {"Uid": 1, "Gid": 1}
POLICY = json.dumps({"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "*"}]})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AwsApi]:
    api = await AwsApi.start(tmp_path_factory.mktemp("aws") / "aws.log")
    yield api
    await api.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def gateway(api: AwsApi) -> AsyncIterator[AwsGateway]:
    async with AwsGateway(api.options(REGION)) as gateway:
        yield gateway


@pytest_asyncio.fixture(loop_scope="module")
async def connection(api: AwsApi) -> AsyncIterator[AwsConnection]:
    async with AwsConnection(api.options(REGION)) as connection:
        yield connection


@pytest_asyncio.fixture(loop_scope="module")
async def system(gateway: AwsGateway, request: pytest.FixtureRequest) -> FileSystemId:
    made = await gateway.create_file_system(request.node.name, name=request.node.name)
    return made.file_system_id


async def test_changes_of_file_systems_are_counted_and_no_questions(api: AwsApi, gateway: AwsGateway) -> None:
    subnet, *_ = await create_subnets(api.options(REGION), IPv4Network("10.1.0.0/16"))
    before = api.changes
    assert before is not None
    made = await gateway.create_file_system("counted", name="counted")
    target = await gateway.create_mount_target(made.file_system_id, subnet.subnet_id)
    assert await gateway.mount_targets(made.file_system_id) == (target,)
    assert api.changes == before + 2
    await gateway.delete_mount_target(target.mount_target_id)
    await gateway.delete_file_system(made.file_system_id)
    assert api.changes == before + 4


async def test_changes_of_who_may_connect_are_counted_and_no_questions(
    api: AwsApi, connection: AwsConnection, system: FileSystemId
) -> None:
    before, systems_before = api.access_changes, api.changes
    assert before is not None
    await put_policy(connection, system)
    assert await file_system_policy(connection, system)
    assert api.access_changes == before + 1
    made = await connection.call(
        Service.EFS, "CreateAccessPoint", ClientToken="counted", FileSystemId=system, PosixUser=USER
    )
    await connection.call(Service.EFS, "DescribeAccessPoints", FileSystemId=system)
    assert api.access_changes == before + 2
    await connection.call(Service.EFS, "DeleteAccessPoint", AccessPointId=made["AccessPointId"])
    assert api.access_changes == before + 3
    assert api.changes == systems_before
    await connection.call(Service.EFS, "DeleteFileSystem", FileSystemId=system)
    assert api.access_changes == before + 4


async def test_an_answer_holds_until_something_changes(
    api: AwsApi, connection: AwsConnection, system: FileSystemId
) -> None:
    changes = 1
    async with RememberingConnection(api.options(REGION), lambda: changes) as remembering:
        assert await file_system_policy(remembering, system) is None
        await put_policy(connection, system)
        assert await file_system_policy(remembering, system) is None
        changes = 2
        assert await file_system_policy(remembering, system)


async def test_where_changes_are_not_counted_everything_is_asked(
    api: AwsApi, connection: AwsConnection, system: FileSystemId
) -> None:
    async with RememberingConnection(api.options(REGION), lambda: None) as remembering:
        assert await file_system_policy(remembering, system) is None
        await put_policy(connection, system)
        assert await file_system_policy(remembering, system)


async def test_different_questions_have_different_answers(
    api: AwsApi, connection: AwsConnection, system: FileSystemId
) -> None:
    other = (await connection.call(Service.EFS, "CreateFileSystem", CreationToken="other"))["FileSystemId"]
    await put_policy(connection, system)
    async with RememberingConnection(api.options(REGION), lambda: 1) as remembering:
        assert await file_system_policy(remembering, system)
        assert await file_system_policy(remembering, other) is None
        assert await file_system_policy(remembering, system)


async def put_policy(connection: AwsConnection, system: FileSystemId) -> None:
    await connection.call(Service.EFS, "PutFileSystemPolicy", FileSystemId=system, Policy=POLICY)
