"""AWS accounts of roles in provisioner secrets: users of claims can name any number of them."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace

import pytest
from aiobotocore.session import AioSession
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs
from tests.unit.provisioning.backends.csi.csi_world import FS, OTHER, Api, request

from kube_efs.aws.connection import AwsCredentials, AwsOptions
from kube_efs.aws.gateway import AwsGateway
from kube_efs.model.csi.access_points import AccessPoint
from kube_efs.model.csi.cross_account import CrossAccountRole
from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.model.efs.ids import FileSystemId, Region
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.errors import AwsNotPermitted, AwsUnavailable, KubeEfsError
from kube_efs.provisioning.backends.csi.access_points import AccessPoints
from kube_efs.provisioning.backends.csi.accounts import Account, Accounts
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.telemetry.metrics import AwsMetrics

EFS = FileSystemKind.EFS
ROLE_ARN = "arn:aws:iam::123456789012:role/storage"
FIRST = CrossAccountRole(role_arn=ROLE_ARN, external_id="first")
OTHERS = [CrossAccountRole(role_arn=ROLE_ARN, external_id=f"tenant-{number}") for number in range(3)]
# Nothing listens there.
OPTIONS = AwsOptions(
    region=Region("us-east-1"),
    endpoint_url="http://127.0.0.1:9",
    credentials=AwsCredentials(access_key_id="a", secret_access_key="b"),
    max_attempts=1,
)


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
async def accounts(api: Api) -> AsyncIterator[Accounts]:
    metrics = AwsMetrics(CollectorRegistry())

    def access_points_of(_: AwsGateway) -> Mapping[FileSystemKind, AccessPoints]:
        return {EFS: AccessPoints(api, VolumeIndex(), quota=10)}

    async with (
        AwsGateway(OPTIONS, metrics) as own,
        Accounts(own, OPTIONS, metrics, access_points_of, most_open=1) as made,
    ):
        yield made


async def call(account: Account) -> None:
    """Call EFS, which needs clients."""
    with pytest.raises(AwsUnavailable):
        await account.gateway.file_system(FS)


async def use_others(accounts: Accounts) -> None:
    """Use more accounts than may have clients at a time."""
    for role in OTHERS:
        async with accounts.of(role) as account:
            await call(account)


def count(kind: type) -> int:
    gc.collect()
    return sum(type(one) is kind for one in gc.get_objects())


async def test_accounts_of_many_roles_are_forgotten_with_their_clients(accounts: Accounts) -> None:
    before = {kind: count(kind) for kind in (AioSession, Account)}
    await use_others(accounts)
    assert {kind: count(kind) - number for kind, number in before.items()} == {AioSession: 1, Account: 1}


async def test_forgotten_account_can_be_used_again(accounts: Accounts) -> None:
    async with accounts.of(FIRST) as account:
        await call(account)
        await use_others(accounts)
        # Its clients are in use.
        await call(account)
    await use_others(accounts)
    async with accounts.of(FIRST) as account:
        await call(account)


async def know(_api: Api, points: AccessPoints) -> None:
    await points.create(request(), [FS])


async def begin(api: Api, points: AccessPoints) -> None:
    api.faults["create"] = AwsUnavailable("was not answered in time", field="CreateAccessPoint")
    with pytest.raises(KubeEfsError):
        await points.create(request(), [FS])


async def retire(_api: Api, points: AccessPoints) -> None:
    points.known.retire(await points.create(request(), [FS]))


@pytest.mark.parametrize("learn", [know, begin, retire])
async def test_account_with_known_access_points_stays_without_clients(
    accounts: Accounts, api: Api, learn: Callable[[Api, AccessPoints], Awaitable[None]]
) -> None:
    async with accounts.of(FIRST) as account:
        await call(account)
        points = account.access_points[EFS]
        await learn(api, points)
    before = count(AioSession)
    await use_others(accounts)
    # That of the other account that was used last, instead of the first one's.
    assert count(AioSession) == before
    async with accounts.of(FIRST) as account:
        assert account.access_points[EFS] is points
        await call(account)


async def test_clients_stay_while_a_list_of_a_cancelled_caller_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    began, may_end = asyncio.Event(), asyncio.Event()
    closed: list[AwsGateway] = []

    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        began.set()
        await may_end.wait()
        writer.close()

    def access_points_of(gateway: AwsGateway) -> Mapping[FileSystemKind, AccessPoints]:
        return {EFS: AccessPoints(gateway.access_points, VolumeIndex(), quota=10)}

    close = AwsGateway.close

    async def note_close(gateway: AwsGateway) -> None:
        closed.append(gateway)
        await close(gateway)

    async def use_others_without_calls(made: Accounts) -> None:
        for role in OTHERS:
            async with made.of(role):
                pass

    monkeypatch.setattr(AwsGateway, "close", note_close)
    metrics = AwsMetrics(CollectorRegistry())
    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    options = replace(OPTIONS, endpoint_url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with (
        server,
        AwsGateway(options, metrics) as own,
        Accounts(own, options, metrics, access_points_of, most_open=1) as made,
    ):
        async with made.of(FIRST) as account:
            known = account.access_points[EFS].known
            caller = asyncio.create_task(known.loaded(FS))
            await began.wait()
            caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
        await use_others_without_calls(made)
        assert account.gateway not in closed
        may_end.set()
        async with made.of(FIRST) as again:
            assert again is account
            with pytest.raises(AwsUnavailable):
                await known.refresh(FS)
        await use_others_without_calls(made)
        assert account.gateway in closed


async def test_refresh_continues_after_a_file_system_that_cannot_be_listed(
    accounts: Accounts, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    for role in (None, FIRST):
        async with accounts.of(role) as account:
            for number, file_system_id in enumerate([FS, OTHER]):
                wanted = request(f"{role and role.external_id}-{number}")
                await account.access_points[EFS].create(wanted, [file_system_id])
    list_now = api.list

    async def list_some(file_system_id: FileSystemId) -> tuple[AccessPoint, ...]:
        if file_system_id == FS:
            raise AwsNotPermitted("denies the call", field="DescribeAccessPoints", value=FS)
        return await list_now(file_system_id)

    monkeypatch.setattr(api, "list", list_some)
    of_others = replace(next(iter(api.points.values())), file_system_id=OTHER)
    api.points = {(one := AccessPointId("fsap-00000000000000099")): replace(of_others, access_point_id=one)}
    with capture_logs() as logs:
        await accounts.refresh()
    for role in (None, FIRST):
        async with accounts.of(role) as account:
            assert one in account.access_points[EFS].known.on(OTHER)
    assert [(line["event"], line["file_system"]) for line in logs] == [("access-points-not-read", FS)] * 2


async def test_account_in_use_stays(accounts: Accounts) -> None:
    async with accounts.of(FIRST) as account:
        await use_others(accounts)
        async with accounts.of(FIRST) as again:
            assert again is account
