"""Access points for volumes through the embedded AWS API: creation, number of calls, reuse."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from prometheus_client import CollectorRegistry
from tests.serving import answering, serving

from fake_efs.aws_api import AwsApi
from kube_efs.aws.connection import AwsCredentials, AwsOptions
from kube_efs.aws.gateway import AwsGateway
from kube_efs.model.csi.access_point_tags import DEFAULT_TAGS, Tag, TagPolicy
from kube_efs.model.csi.access_points import (
    AccessPoint,
    AccessPointRequest,
    PosixUser,
    VolumeRequest,
    access_point_request,
)
from kube_efs.model.csi.errors import ExistingVolumeDiffers
from kube_efs.model.csi.parameters import parse_parameters
from kube_efs.model.csi.root_directories import VolumeOrigin
from kube_efs.model.csi.volume_handles import VolumeHandle
from kube_efs.model.efs.ids import FileSystemId, Region
from kube_efs.model.errors import AwsLimitReached, AwsUnavailable, GidRangeFull, RemovalRefused
from kube_efs.provisioning.backends.csi.access_points import AccessPoints
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.telemetry.metrics import AwsMetrics
from kube_efs_lab.aws import aws_options

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def aws(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AwsApi]:
    api = await AwsApi.start(tmp_path_factory.mktemp("aws") / "aws-api.log")
    yield api
    await api.stop()


class Account:
    """A new account with file systems, and the access points of a controller."""

    def __init__(self, gateway: AwsGateway, metrics: AwsMetrics) -> None:
        self.gateway = gateway
        self.index = VolumeIndex()
        self._metrics = metrics
        self.points = self.controller()

    def controller(self, *, quota: int = 10_000, tags: TagPolicy = DEFAULT_TAGS) -> AccessPoints:
        """Start another controller without any state."""
        self.index = VolumeIndex()
        self.points = AccessPoints(self.gateway.access_points, self.index, quota=quota, tags=tags)
        return self.points

    async def file_system(self, name: str = "one") -> FileSystemId:
        return (await self.gateway.create_file_system(name)).file_system_id

    def calls(self) -> dict[str, int]:
        """The number of calls since the last time, by operation."""
        found = {
            sample.labels["operation"]: int(sample.value)
            for metric in self._metrics.calls.collect()
            for sample in metric.samples
            if sample.name.endswith("_total")
        }
        self._metrics.calls.clear()
        return found


@pytest_asyncio.fixture(loop_scope="module")
async def account(aws: AwsApi) -> AsyncIterator[Account]:
    reset = f"{aws.endpoint_url}/moto-api/reset"
    async with aiohttp.ClientSession() as session, session.post(reset) as answer:
        assert answer.status == 200
    metrics = AwsMetrics(CollectorRegistry())
    options = replace(aws_options(aws.endpoint_url, Region("us-east-1")), max_attempts=1)
    async with AwsGateway(options, metrics) as gateway:
        yield Account(gateway, metrics)


def wanted(file_system_id: FileSystemId, name: str = "pvc-1", **parameters: str) -> VolumeRequest:
    given = {
        "provisioningMode": "efs-ap",
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


async def test_access_point_matches_its_class(account: Account) -> None:
    file_system_id = await account.file_system()
    account.controller(tags=TagPolicy(of_driver=(Tag(key="team", value="storage"),)))
    made = await account.points.create(wanted(file_system_id), [file_system_id])
    assert (made.file_system_id, str(made.directory), made.user, made.client_token) == (
        file_system_id,
        "/dynamic_provisioning/pvc-1",
        PosixUser(uid=1000, gid=1000),
        "pvc-1",
    )
    assert made.tags["efs.csi.aws.com/cluster"] == "true"
    assert made.tags["team"] == "storage"
    assert await account.gateway.access_points.list(file_system_id) == (made,)


async def test_another_volume_costs_one_call_for_any_number_of_volumes(account: Account) -> None:
    file_system_id = await account.file_system()
    for number in range(30):
        await account.points.create(wanted(file_system_id, f"pvc-{number}"), [file_system_id])
    account.controller()
    await account.points.create(wanted(file_system_id, "the first"), [file_system_id])
    account.calls()
    made = await account.points.create(wanted(file_system_id, "one more"), [file_system_id])
    assert account.calls() == {"CreateAccessPoint": 1}
    assert made.user == PosixUser(uid=1031, gid=1031)


async def test_concurrent_volumes_share_no_id_and_list_once(account: Account) -> None:
    file_system_id = await account.file_system()
    requests = [wanted(file_system_id, f"pvc-{number}") for number in range(40)]
    made = await asyncio.gather(*(account.points.create(one, [file_system_id]) for one in requests))
    assert len({one.user for one in made}) == 40
    assert account.calls()["DescribeAccessPoints"] == 1


async def test_repeated_attempt_finds_the_first_access_point(account: Account) -> None:
    file_system_id = await account.file_system()
    first = await account.points.create(wanted(file_system_id), [file_system_id])
    again = await account.points.create(wanted(file_system_id), [file_system_id])
    account.controller()
    after_a_restart = await account.points.create(wanted(file_system_id), [file_system_id])
    assert again == after_a_restart == first
    assert len(await account.gateway.access_points.list(file_system_id)) == 1
    another = await account.points.create(wanted(file_system_id, "pvc-2"), [file_system_id])
    assert another.user == PosixUser(uid=1001, gid=1001)


async def test_access_point_of_another_volume_is_not_used(account: Account) -> None:
    file_system_id = await account.file_system()
    await account.points.create(wanted(file_system_id), [file_system_id])
    with pytest.raises(ExistingVolumeDiffers) as caught:
        await account.points.create(wanted(file_system_id, basePath="/elsewhere"), [file_system_id])
    assert "is not in basePath /elsewhere" in str(caught.value)


async def test_full_file_system_is_followed_by_the_next(account: Account) -> None:
    first, second = await account.file_system("one"), await account.file_system("two")
    account.controller(quota=2)
    both = [first, second]
    made = [await account.points.create(wanted(first, f"pvc-{number}"), both) for number in range(4)]
    assert [one.file_system_id for one in made] == [first, first, second, second]
    with pytest.raises(AwsLimitReached) as caught:
        await account.points.create(wanted(first, "pvc-5"), both)
    assert f"{first}, {second}" in str(caught.value)
    await account.points.delete(made[1], is_directory_gone=False)
    assert (await account.points.create(wanted(first, "pvc-6"), both)).file_system_id == first


async def test_ids_are_assigned_until_the_range_is_full(account: Account) -> None:
    file_system_id = await account.file_system()
    narrow = {"gidRangeStart": "1000", "gidRangeEnd": "1001"}
    made = [
        await account.points.create(wanted(file_system_id, f"pvc-{number}", **narrow), [file_system_id])
        for number in range(2)
    ]
    with pytest.raises(GidRangeFull) as caught:
        await account.points.create(wanted(file_system_id, "pvc-3", **narrow), [file_system_id])
    assert "1000-1001" in str(caught.value)
    await account.points.delete(made[0], is_directory_gone=True)
    third = await account.points.create(wanted(file_system_id, "pvc-3", **narrow), [file_system_id])
    assert third.user == made[0].user


async def test_ids_with_a_remaining_directory_are_assigned_last(account: Account) -> None:
    file_system_id = await account.file_system()
    narrow = {"gidRangeStart": "1000", "gidRangeEnd": "1001"}
    first = await account.points.create(wanted(file_system_id, "pvc-1", **narrow), [file_system_id])
    await account.points.delete(first, is_directory_gone=False)
    ids = [
        (await account.points.create(wanted(file_system_id, name, **narrow), [file_system_id])).user
        for name in ("pvc-2", "pvc-3")
    ]
    assert ids == [PosixUser(uid=1001, gid=1001), PosixUser(uid=1000, gid=1000)]


async def test_volumes_of_a_class_with_fixed_ids_share_them(account: Account) -> None:
    file_system_id = await account.file_system()
    fixed = {"uid": "0", "gid": "7"}
    for name in ("pvc-1", "pvc-2"):
        made = await account.points.create(wanted(file_system_id, name, **fixed), [file_system_id])
        assert made.user == PosixUser(uid=0, gid=7)


async def test_access_point_is_deleted_once_and_a_repetition_is_not_an_error(account: Account) -> None:
    file_system_id = await account.file_system()
    made = await account.points.create(wanted(file_system_id), [file_system_id])
    account.calls()
    await account.points.delete(await account.points.to_delete(_handle(made)), is_directory_gone=True)
    assert account.calls() == {"DeleteAccessPoint": 1}
    await account.points.delete(await account.points.to_delete(_handle(made)), is_directory_gone=True)
    await account.points.delete(made, is_directory_gone=True)
    assert await account.gateway.access_points.list(file_system_id) == ()


async def test_handle_with_a_foreign_access_point_deletes_nothing(account: Account) -> None:
    first, second = await account.file_system("one"), await account.file_system("two")
    made = await account.points.create(wanted(first), [first])
    crafted = VolumeHandle(file_system_id=second, access_point_id=made.access_point_id)
    account.controller()
    with pytest.raises(RemovalRefused) as caught:
        await account.points.to_delete(crafted)
    assert f"belongs to {first}" in str(caught.value)
    assert await account.gateway.access_points.list(first) == (made,)


async def test_lost_answer_uses_no_second_id(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    file_system_id = await account.file_system()
    real = account.gateway.access_points.create

    async def unanswered(request: AccessPointRequest) -> AccessPoint:
        await real(request)
        raise AwsUnavailable("was not answered in time", field="CreateAccessPoint")

    monkeypatch.setattr(account.gateway.access_points, "create", unanswered)
    with pytest.raises(AwsUnavailable):
        await account.points.create(wanted(file_system_id), [file_system_id])
    monkeypatch.undo()
    other = await account.points.create(wanted(file_system_id, "pvc-2"), [file_system_id])
    first = await account.points.create(wanted(file_system_id), [file_system_id])
    assert (first.user, other.user) == (PosixUser(uid=1000, gid=1000), PosixUser(uid=1001, gid=1001))


async def test_foreign_access_point_is_found_by_the_next_listing(account: Account) -> None:
    file_system_id = await account.file_system()
    await account.points.create(wanted(file_system_id, "pvc-1"), [file_system_id])
    foreign = access_point_request(
        wanted(file_system_id, "foreign"), file_system_id, PosixUser(uid=1001, gid=1001)
    )
    await account.gateway.access_points.create(foreign)
    await account.points.known.refresh(file_system_id)
    made = await account.points.create(wanted(file_system_id, "pvc-2"), [file_system_id])
    assert made.user == PosixUser(uid=1002, gid=1002)


async def test_failed_listing_is_retried_with_the_next_volume(account: Account) -> None:
    missing = FileSystemId("fs-0123456789abcdef0")

    async def refuse(request: web.Request) -> web.Response:
        return web.json_response({"ErrorCode": "InternalServerError", "Message": "no"}, status=500)

    async with serving(answering(refuse)) as url:
        options = AwsOptions(
            region=Region("us-east-1"),
            endpoint_url=url,
            credentials=AwsCredentials(access_key_id="test", secret_access_key="test"),
            max_attempts=1,
        )
        async with AwsGateway(options) as broken:
            points = AccessPoints(broken.access_points, VolumeIndex(), quota=10)
            for _ in range(2):
                with pytest.raises(AwsUnavailable):
                    await points.create(wanted(missing), [missing])


def _handle(made: AccessPoint) -> VolumeHandle:
    return VolumeHandle(file_system_id=made.file_system_id, access_point_id=made.access_point_id)
