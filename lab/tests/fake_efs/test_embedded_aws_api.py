"""The embedded AWS API counts its changes, and who knows of none asks nothing twice."""

import json
from collections.abc import AsyncIterator
from ipaddress import IPv4Network

import psutil
import pytest
import pytest_asyncio

from fake_efs.aws_api import AwsApi, AwsClient, RememberingClient, aws_client, create_subnets
from fake_efs.errors import AwsNotFound
from kube_efs.aws.connection import AwsConnection, Service
from kube_efs.aws.gateway import AwsGateway
from kube_efs.model.efs.ids import FileSystemId, Region, SubnetId
from kube_efs_lab.aws import aws_options

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
    async with AwsGateway(aws_options(api.endpoint_url, REGION)) as gateway:
        yield gateway


@pytest_asyncio.fixture(loop_scope="module")
async def connection(api: AwsApi) -> AsyncIterator[AwsConnection]:
    async with AwsConnection(aws_options(api.endpoint_url, REGION)) as connection:
        yield connection


@pytest_asyncio.fixture(loop_scope="module")
async def system(gateway: AwsGateway, request: pytest.FixtureRequest) -> FileSystemId:
    made = await gateway.create_file_system(request.node.name, name=request.node.name)
    return made.file_system_id


async def test_requests_are_served_one_after_the_other(api: AwsApi) -> None:
    # One thread for the connections, and one for the requests.
    assert psutil.Process(api._process.pid).num_threads() == 2


async def test_changes_are_counted_and_no_questions(
    api: AwsApi, gateway: AwsGateway, connection: AwsConnection
) -> None:
    subnet, *_ = await create_subnets(api.endpoint_url, REGION, IPv4Network("10.1.0.0/16"))
    before = api.changes
    made = (await gateway.create_file_system("counted", name="counted")).file_system_id
    target = await gateway.create_mount_target(made, SubnetId(subnet.subnet_id))
    assert await gateway.mount_targets(made) == (target,)
    assert api.changes == before + 2
    await put_policy(connection, made)
    assert await gateway.file_system_policy(made)
    point = await connection.call(
        Service.EFS, "CreateAccessPoint", ClientToken="counted", FileSystemId=made, PosixUser=USER
    )
    await connection.call(Service.EFS, "DescribeAccessPoints", FileSystemId=made)
    assert api.changes == before + 4
    await connection.call(Service.EFS, "DeleteAccessPoint", AccessPointId=point["AccessPointId"])
    await gateway.delete_mount_target(target.mount_target_id)
    await gateway.delete_file_system(made)
    assert api.changes == before + 7


@pytest_asyncio.fixture(loop_scope="module")
async def client(api: AwsApi) -> AsyncIterator[AwsClient]:
    async with aws_client("efs", api.endpoint_url, REGION) as client:
        yield client


async def policy(client: RememberingClient, system: FileSystemId) -> bool:
    try:
        return bool(await client.call("DescribeFileSystemPolicy", FileSystemId=system))
    except AwsNotFound:
        return False


async def test_an_answer_holds_until_something_changes(
    client: AwsClient, connection: AwsConnection, system: FileSystemId
) -> None:
    changes = 1
    remembering = RememberingClient(client, lambda: changes)
    assert not await policy(remembering, system)
    await put_policy(connection, system)
    assert not await policy(remembering, system)
    changes = 2
    assert await policy(remembering, system)


async def test_different_questions_have_different_answers(
    client: AwsClient, connection: AwsConnection, system: FileSystemId
) -> None:
    other = (await connection.call(Service.EFS, "CreateFileSystem", CreationToken="other"))["FileSystemId"]
    await put_policy(connection, system)
    remembering = RememberingClient(client, lambda: 1)
    assert await policy(remembering, system)
    assert not await policy(remembering, other)
    assert await policy(remembering, system)


async def test_long_listings_are_read_to_the_end(client: AwsClient) -> None:
    answers = [await client.call("CreateFileSystem", CreationToken=f"of-{n}") for n in range(3)]
    listed = await client.list_all("DescribeFileSystems", "FileSystems", MaxItems=1)
    assert {one["FileSystemId"] for one in listed} >= {one["FileSystemId"] for one in answers}


async def put_policy(connection: AwsConnection, system: FileSystemId) -> None:
    await connection.call(Service.EFS, "PutFileSystemPolicy", FileSystemId=system, Policy=POLICY)
