"""The embedded AWS API under the policy that most users of EKS attach."""

from collections.abc import AsyncIterator, Mapping

import pytest
import pytest_asyncio

from fake_efs.aws_api import DRIVER, AwsApi, AwsClient, aws_client
from fake_efs.errors import AwsError
from fake_efs.policy import managed_policy

pytestmark = pytest.mark.asyncio(loop_scope="module")

REGION = "us-east-1"
CLUSTER = "efs.csi.aws.com/cluster"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AwsApi]:
    api = await AwsApi.start(tmp_path_factory.mktemp("aws") / "aws.log", driver_policy=managed_policy())
    yield api
    await api.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def administrator(api: AwsApi) -> AsyncIterator[AwsClient]:
    async with aws_client("efs", api.endpoint_url, REGION) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def driver(api: AwsApi) -> AsyncIterator[AwsClient]:
    async with aws_client("efs", api.endpoint_url, REGION, credentials=DRIVER) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def file_system(administrator: AwsClient, request: pytest.FixtureRequest) -> str:
    made = await administrator.call("CreateFileSystem", CreationToken=request.node.name)
    return str(made["FileSystemId"])


async def create(client: AwsClient, file_system: str, tags: Mapping[str, str]) -> str:
    made = await client.call(
        "CreateAccessPoint",
        FileSystemId=file_system,
        ClientToken="-".join(["token", *tags]).replace("/", "-"),
        Tags=[{"Key": key, "Value": value} for key, value in tags.items()],
    )
    return str(made["AccessPointId"])


async def test_driver_creates_and_deletes_access_points_with_the_cluster_tag(
    driver: AwsClient, file_system: str
) -> None:
    made = await create(driver, file_system, {CLUSTER: "true"})
    assert await driver.list_all("DescribeAccessPoints", "AccessPoints", FileSystemId=file_system)
    await driver.call("DeleteAccessPoint", AccessPointId=made)


@pytest.mark.parametrize(
    "tags", [{}, {"team": "web"}, {CLUSTER: "true", "team": "web"}], ids=["none", "another", "a further one"]
)
async def test_driver_creates_no_access_point_with_other_tags(
    driver: AwsClient, file_system: str, tags: Mapping[str, str]
) -> None:
    with pytest.raises(AwsError, match=r"AccessDeniedException.*elasticfilesystem:CreateAccessPoint"):
        await create(driver, file_system, tags)


async def test_driver_deletes_no_access_point_without_the_cluster_tag(
    administrator: AwsClient, driver: AwsClient, file_system: str
) -> None:
    foreign = await create(administrator, file_system, {"team": "web"})
    with pytest.raises(AwsError, match=r"AccessDeniedException.*elasticfilesystem:DeleteAccessPoint"):
        await driver.call("DeleteAccessPoint", AccessPointId=foreign)
    await administrator.call("DeleteAccessPoint", AccessPointId=foreign)


async def test_driver_may_not_call_what_the_policy_does_not_name(driver: AwsClient, file_system: str) -> None:
    with pytest.raises(AwsError, match=r"AccessDeniedException.*elasticfilesystem:DescribeFileSystemPolicy"):
        await driver.call("DescribeFileSystemPolicy", FileSystemId=file_system)


async def test_refusals_of_ec2_have_its_own_code(api: AwsApi) -> None:
    async with aws_client("ec2", api.endpoint_url, REGION, credentials=DRIVER) as ec2:
        assert (await ec2.call("DescribeAvailabilityZones"))["AvailabilityZones"]
        with pytest.raises(AwsError, match=r"UnauthorizedOperation.*ec2:DescribeSecurityGroups"):
            await ec2.call("DescribeSecurityGroups")
