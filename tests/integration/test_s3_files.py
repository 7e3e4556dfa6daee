"""Access points of S3 Files through the embedded AWS API, with the policy that AWS manages and without."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from ipaddress import IPv4Network
from typing import Any

import pytest
import pytest_asyncio
from botocore.exceptions import ClientError
from prometheus_client import CollectorRegistry

from fake_efs.aws_api import DRIVER, AwsApi, AwsClient, aws_client, create_subnets
from fake_efs.errors import AwsError as LabError
from fake_efs.policy import managed_policy
from kube_efs.aws.connection import AwsCredentials
from kube_efs.aws.gateway import AwsGateway
from kube_efs.model.csi.access_points import AccessPoint, AccessPointRequest, PosixUser, VolumeRequest
from kube_efs.model.csi.parameters import parse_parameters
from kube_efs.model.csi.root_directories import VolumeOrigin
from kube_efs.model.csi.volume_handles import AccessPointId, VolumeHandle
from kube_efs.model.efs.ids import FileSystemId, Region, ZoneName
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.errors import AwsAlreadyExists, AwsDenied, AwsError, AwsNotFound, AwsUnavailable
from kube_efs.model.volumes import CsiSource, Volume
from kube_efs.provisioning.backends.csi.access_points import AccessPoints
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.telemetry.metrics import AwsMetrics
from kube_efs_lab.aws import aws_options

pytestmark = pytest.mark.asyncio(loop_scope="module")

REGION = Region("us-east-1")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AwsApi]:
    api = await AwsApi.start(tmp_path_factory.mktemp("aws") / "aws.log", driver_policy=managed_policy())
    yield api
    await api.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def administrator(api: AwsApi) -> AsyncIterator[AwsClient]:
    async with aws_client("s3files", api.endpoint_url, REGION) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def file_system(administrator: AwsClient) -> FileSystemId:
    made = await administrator.call(
        "CreateFileSystem", bucket="arn:aws:s3:::photos", roleArn="arn:aws:iam::123456789012:role/s3-files"
    )
    return FileSystemId(made["fileSystemId"])


@pytest_asyncio.fixture(loop_scope="module", params=["managed policy", "administrator"])
async def gateway(api: AwsApi, request: pytest.FixtureRequest) -> AsyncIterator[AwsGateway]:
    """The calls of the controller; the managed policy allows neither GetAccessPoint nor ListMountTargets."""
    options = replace(aws_options(api.endpoint_url, REGION), max_attempts=1)
    if request.param == "managed policy":
        driver = AwsCredentials(
            access_key_id=DRIVER.access_key_id, secret_access_key=DRIVER.secret_access_key
        )
        options = replace(options, credentials=driver)
    async with AwsGateway(options, AwsMetrics(CollectorRegistry())) as gateway:
        yield gateway


class LostAnswers:
    """The calls of a gateway; the answers to creations are lost while ``lost``."""

    def __init__(self, gateway: AwsGateway) -> None:
        self._calls = gateway.s3_files
        self.lost = False

    async def list(self, file_system_id: FileSystemId) -> tuple[AccessPoint, ...]:
        return await self._calls.list(file_system_id)

    async def get(self, access_point_id: AccessPointId, file_system_id: FileSystemId) -> AccessPoint:
        return await self._calls.get(access_point_id, file_system_id)

    async def create(self, request: AccessPointRequest) -> AccessPoint:
        made = await self._calls.create(request)
        if self.lost:
            raise AwsUnavailable("was not answered in time", field="CreateAccessPoint")
        return made

    async def delete(self, access_point_id: AccessPointId) -> None:
        await self._calls.delete(access_point_id)


class Controller:
    """A controller without any state."""

    def __init__(self, gateway: AwsGateway) -> None:
        self.calls, self.index = LostAnswers(gateway), VolumeIndex()
        self.points = AccessPoints(self.calls, self.index, quota=10_000, kind=FileSystemKind.S3_FILES)

    async def create(self, request: VolumeRequest) -> AccessPoint:
        assert isinstance(request.parameters.file_systems, tuple)
        return await self.points.create(request, request.parameters.file_systems)


def wanted(file_system_id: FileSystemId, name: str = "pvc-1", **parameters: str) -> VolumeRequest:
    """The request of a volume; no other test has its name, as tokens are those of the account."""
    name = f"{name}-{file_system_id}"
    given = {
        "provisioningMode": "s3files-ap",
        "fileSystemId": file_system_id,
        "directoryPerms": "700",
        "gidRangeStart": "1000",
        "gidRangeEnd": "2000",
        "basePath": "/dynamic_provisioning",
    }
    return VolumeRequest(
        name=name,
        parameters=parse_parameters({**given, **parameters}),
        origin=VolumeOrigin(claim_name="data", claim_namespace="team", volume_name=name),
    )


def handle_of(made: AccessPoint) -> VolumeHandle:
    return VolumeHandle(
        kind=FileSystemKind.S3_FILES, file_system_id=made.file_system_id, access_point_id=made.access_point_id
    )


async def test_access_point_is_created_found_again_and_deleted(
    gateway: AwsGateway, administrator: AwsClient, file_system: FileSystemId
) -> None:
    controller = Controller(gateway)
    made = await controller.create(wanted(file_system))
    assert str(handle_of(made)) == f"s3files:{file_system}::{made.access_point_id}"
    stored = await administrator.call("GetAccessPoint", accessPointId=made.access_point_id)
    assert stored["posixUser"] == {"uid": 1000, "gid": 1000}
    assert stored["rootDirectory"]["path"] == f"/dynamic_provisioning/pvc-1-{file_system}"
    assert stored["rootDirectory"]["creationPermissions"]["permissions"] == "700"
    assert stored["tags"] == [{"key": "efs.csi.aws.com/cluster", "value": "true"}]

    assert await controller.create(wanted(file_system)) == made
    found = await controller.points.known.find(handle_of(made))
    assert found
    assert found.access_point_id == made.access_point_id
    known = await controller.points.to_delete(handle_of(made))
    await controller.points.delete(known, is_directory_gone=False)
    assert await Controller(gateway).points.known.find(handle_of(made)) is None
    assert await Controller(gateway).points.to_delete(handle_of(made)) is None


async def test_next_controller_finds_what_a_lost_answer_has_created(
    gateway: AwsGateway, file_system: FileSystemId
) -> None:
    first = Controller(gateway)
    first.calls.lost = True
    with pytest.raises(AwsUnavailable):
        await first.create(wanted(file_system))

    # It takes another number than the first one, so AWS answers with a conflict.
    again = await Controller(gateway).create(wanted(file_system))

    points = await gateway.s3_files.list(file_system)
    assert [one.access_point_id for one in points] == [again.access_point_id]
    assert again.user == PosixUser(uid=1000, gid=1000)
    other = await Controller(gateway).create(wanted(file_system, "pvc-2"))
    assert other.user == PosixUser(uid=1001, gid=1001)


async def test_access_point_of_another_volume_of_the_directory_is_not_taken(
    gateway: AwsGateway, file_system: FileSystemId, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed = {"subPathPattern": "shared", "ensureUniqueDirectory": "false"}
    controller = Controller(gateway)
    first = await controller.create(wanted(file_system, "pvc-1", **fixed))
    later = Controller(gateway)
    source = CsiSource(handle=str(handle_of(first)))
    later.index.put_volume(Volume(name=f"pvc-1-{file_system}", uid="1", csi=source))

    async def conflict(_request: AccessPointRequest) -> AccessPoint:
        raise AwsAlreadyExists("was answered with ConflictException", field="CreateAccessPoint")

    monkeypatch.setattr(later.calls, "create", conflict)
    with pytest.raises(AwsAlreadyExists):
        await later.create(wanted(file_system, "pvc-2", **fixed))


async def test_concurrent_claims_share_no_number(gateway: AwsGateway, file_system: FileSystemId) -> None:
    controller = Controller(gateway)
    made = await asyncio.gather(
        *(controller.create(wanted(file_system, f"pvc-{number}")) for number in range(20))
    )
    assert len({one.user for one in made}) == 20


async def test_addresses_of_mount_targets_are_optional(
    api: AwsApi,
    gateway: AwsGateway,
    administrator: AwsClient,
    file_system: FileSystemId,
    request: pytest.FixtureRequest,
) -> None:
    is_restricted = request.node.callspec.params["gateway"] == "managed policy"
    subnets = await create_subnets(api.endpoint_url, REGION, IPv4Network("10.9.0.0/16"))
    made = [
        await administrator.call("CreateMountTarget", fileSystemId=file_system, subnetId=one.subnet_id)
        for one in subnets[:2]
    ]
    if is_restricted:
        with pytest.raises(AwsDenied, match="s3files:ListMountTargets"):
            await gateway.s3_files.addresses(file_system)
    else:
        found = await gateway.s3_files.addresses(file_system)
        assert found == {ZoneName(one["availabilityZoneId"]): one["ipv4Address"] for one in made}
        assert set(found) == {one.zone_id for one in subnets[:2]}
        assert {one.zone: one.zone_id for one in subnets}.items() <= (
            await gateway.network.zone_ids()
        ).items()


async def test_errors_have_their_classes(gateway: AwsGateway, file_system: FileSystemId) -> None:
    missing = FileSystemId("fs-" + "0" * 17)
    with pytest.raises(AwsNotFound):
        await gateway.s3_files.list(missing)
    with pytest.raises(AwsNotFound):
        await Controller(gateway).create(wanted(missing))
    with pytest.raises(AwsError, match="ValidationException"):
        await gateway.s3_files.list(FileSystemId("fs-12345678"))


async def test_driver_needs_the_tag_of_the_cluster(
    api: AwsApi, administrator: AwsClient, file_system: FileSystemId
) -> None:
    other = await administrator.call("CreateAccessPoint", fileSystemId=file_system)
    async with aws_client("s3files", api.endpoint_url, REGION, credentials=DRIVER) as driver:
        with pytest.raises(LabError, match=r"AccessDenied.*s3files:CreateAccessPoint"):
            await driver.call("CreateAccessPoint", fileSystemId=file_system)
        with pytest.raises(LabError, match=r"AccessDenied.*s3files:DeleteAccessPoint"):
            await driver.call("DeleteAccessPoint", accessPointId=other["accessPointId"])


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        pytest.param({"rootDirectory": {"path": "/a/b/c/d/e"}}, "does not match", id="too deep"),
        pytest.param({"rootDirectory": {"path": "/.hidden"}}, "does not match", id="dot"),
        pytest.param({"posixUser": {"uid": 2**32, "gid": 0}}, "is not within 0", id="large user"),
        pytest.param({"clientToken": "x" * 65}, "is not within 1 and 64", id="long token"),
        pytest.param({"fileSystemId": "fs-12345678"}, "does not match", id="short ID"),
    ],
)
async def test_requests_are_checked_by_the_model_of_the_service(
    administrator: AwsClient, file_system: FileSystemId, given: dict[str, Any], problem: str
) -> None:
    with pytest.raises(LabError, match=f"ValidationException.*{problem}") as refused:
        await administrator.call("CreateAccessPoint", **{"fileSystemId": file_system, **given})
    cause = refused.value.__cause__
    assert isinstance(cause, ClientError)
    assert cause.response["ResponseMetadata"]["HTTPStatusCode"] == 400


async def test_operations_that_are_not_served_are_refused(
    administrator: AwsClient, file_system: FileSystemId
) -> None:
    with pytest.raises(LabError, match=r"ValidationException.*GetFileSystemPolicy is not served"):
        await administrator.call("GetFileSystemPolicy", fileSystemId=file_system)


async def test_file_systems_are_listed_with_the_time_of_their_creation(
    administrator: AwsClient, file_system: FileSystemId
) -> None:
    listed = await administrator.list_all("ListFileSystems", "fileSystems")
    (found,) = (one for one in listed if one["fileSystemId"] == file_system)
    assert (
        found["creationTime"]
        == (await administrator.call("GetFileSystem", fileSystemId=file_system))["creationTime"]
    )
    assert found["creationTime"].year > 2000


async def test_mount_targets_of_an_access_point_are_those_of_its_file_system(
    api: AwsApi, administrator: AwsClient, file_system: FileSystemId
) -> None:
    subnet, *_ = await create_subnets(api.endpoint_url, REGION, IPv4Network("10.11.0.0/16"))
    other = await administrator.call(
        "CreateFileSystem", bucket="arn:aws:s3:::other", roleArn="arn:aws:iam::123456789012:role/s3-files"
    )
    made = [
        await administrator.call("CreateMountTarget", fileSystemId=one, subnetId=subnet.subnet_id)
        for one in (file_system, other["fileSystemId"])
    ]
    point = await administrator.call("CreateAccessPoint", fileSystemId=file_system)
    found = await administrator.list_all(
        "ListMountTargets", "mountTargets", accessPointId=point["accessPointId"]
    )
    assert [one["mountTargetId"] for one in found] == [made[0]["mountTargetId"]]
    with pytest.raises(LabError, match="ResourceNotFoundException"):
        await administrator.call("ListMountTargets", accessPointId=f"fsap-{'0' * 17}")


async def test_lists_come_in_pages_without_tokens_and_tags(
    administrator: AwsClient, file_system: FileSystemId
) -> None:
    made = [
        (await administrator.call("CreateAccessPoint", fileSystemId=file_system))["accessPointId"]
        for _ in range(5)
    ]
    found = await administrator.list_all(
        "ListAccessPoints", "accessPoints", fileSystemId=file_system, maxResults=2
    )
    assert [one["accessPointId"] for one in found] == made
    assert all({"clientToken", "tags"}.isdisjoint(one) for one in found)
