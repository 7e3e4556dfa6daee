"""The gateway and the catalog with moto's server, behind a proxy that can fail calls."""

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs
from tests.serving import answering, serving

from fake_efs.aws_api import create_subnets
from kube_efs.aws import connection
from kube_efs.aws.catalogue import Catalogue
from kube_efs.aws.connection import AwsCredentials, AwsOptions
from kube_efs.aws.gateway import AwsGateway
from kube_efs.model.csi.access_points import AccessPointRequest, PosixUser
from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.model.efs.directories import Directory
from kube_efs.model.efs.file_systems import LifeCycleState
from kube_efs.model.efs.ids import FileSystemId, Region, SubnetId, ZoneName
from kube_efs.model.errors import (
    AwsDenied,
    AwsError,
    AwsInvalidAnswer,
    AwsNoCredentialsYet,
    AwsNotFound,
    AwsNotPermitted,
    AwsThrottled,
    AwsUnavailable,
)
from kube_efs.telemetry.metrics import AwsDriverMetrics, AwsMetrics
from tinykube.ports import free_port

REGION = Region("us-east-1")
CREDENTIALS = AwsCredentials(access_key_id="test", secret_access_key="test")
START_SECONDS = 30


@pytest.fixture(scope="module")
def moto_url() -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_listening(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=10)


def wait_until_listening(port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


class Proxy:
    """Forwards calls to moto, except those for which ``fail`` returns an answer."""

    def __init__(self, upstream: str) -> None:
        self.fail: Callable[[web.Request], web.Response | None] = lambda _request: None
        self.delay_seconds = 0.0
        self.calls: list[str] = []
        self.running = 0
        self.most_running = 0
        self._upstream = upstream

    async def handle(self, request: web.Request) -> web.Response:
        self.calls.append(f"{request.method} {request.path_qs}")
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(self.delay_seconds)
            return self.fail(request) or await self._pass_on(request)
        finally:
            self.running -= 1

    async def _pass_on(self, request: web.Request) -> web.Response:
        headers = {name: value for name, value in request.headers.items() if name.lower() != "host"}
        url, body = self._upstream + request.path_qs, await request.read()
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(request.method, url, headers=headers, data=body) as answer,
        ):
            kept = {
                name: value
                for name, value in answer.headers.items()
                if name.lower().startswith(("x-", "content-type"))
            }
            return web.Response(status=answer.status, body=await answer.read(), headers=kept)


def aws_failure(status: int, code: str) -> web.Response:
    return web.json_response(
        {"ErrorCode": code, "Message": f"{code} it is"}, status=status, headers={"x-amzn-ErrorType": code}
    )


@pytest.fixture
async def endpoint(moto_url: str) -> str:
    async with aiohttp.ClientSession() as session, session.post(f"{moto_url}/moto-api/reset") as answer:
        assert answer.status == 200
    return moto_url


@pytest.fixture
async def proxy(endpoint: str) -> AsyncIterator[tuple[Proxy, str]]:
    proxy = Proxy(endpoint)
    async with serving(answering(proxy.handle)) as url:
        yield proxy, url


def options(url: str, *, page_size: int = 100, max_attempts: int = 1) -> AwsOptions:
    return AwsOptions(
        region=REGION,
        endpoint_url=url,
        credentials=CREDENTIALS,
        page_size=page_size,
        max_attempts=max_attempts,
    )


async def three_subnets(endpoint: str) -> list[SubnetId]:
    made = await create_subnets(endpoint, REGION, IPv4Network("127.64.0.0/16"))
    return [SubnetId(one.subnet_id) for one in made]


async def test_file_systems_and_mount_targets_are_created_listed_and_deleted(endpoint: str) -> None:
    async with AwsGateway(options(endpoint)) as gateway:
        subnet_a, subnet_b, _ = await three_subnets(endpoint)
        made = await gateway.create_file_system("token", name="apps", tags={"team": "storage"})
        target_a = await gateway.create_mount_target(made.file_system_id, subnet_a, address="127.64.0.9")
        target_b = await gateway.create_mount_target(made.file_system_id, subnet_b)

        (listed,) = await gateway.file_systems()
        assert (listed.file_system_id, listed.name, listed.state) == (
            made.file_system_id,
            "apps",
            LifeCycleState.AVAILABLE,
        )
        targets = await gateway.mount_targets(made.file_system_id)
        assert {target.mount_target_id for target in targets} == {
            target_a.mount_target_id,
            target_b.mount_target_id,
        }
        assert (target_a.address, target_a.zone, target_a.subnet_id) == ("127.64.0.9", "us-east-1a", subnet_a)
        assert target_b.address.startswith("127.64.16.")
        assert target_a.state.usable

        for target in targets:
            await gateway.delete_mount_target(target.mount_target_id)
        await gateway.delete_file_system(made.file_system_id)
        assert await gateway.file_systems() == ()


async def test_same_creation_token_gives_the_same_file_system(endpoint: str) -> None:
    async with AwsGateway(options(endpoint)) as gateway:
        first = await gateway.create_file_system("token", name="apps")
        again = await gateway.create_file_system("token", name="apps")

    assert first.file_system_id == again.file_system_id


async def test_one_zone_file_system_has_its_zone(endpoint: str) -> None:
    async with AwsGateway(options(endpoint)) as gateway:
        made = await gateway.create_file_system("token", zone=ZoneName("us-east-1b"))
        (listed,) = await gateway.file_systems()

    assert made.zone == listed.zone == "us-east-1b"


async def test_subnets_have_their_zones_and_unknown_subnets_are_omitted(endpoint: str) -> None:
    async with AwsGateway(options(endpoint)) as gateway:
        subnets = await three_subnets(endpoint)
        zones = await gateway.network.subnets([*subnets, SubnetId("subnet-0")])

        assert zones == dict(zip(subnets, ("us-east-1a", "us-east-1b", "us-east-1c"), strict=True))
        assert await gateway.network.subnets([]) == {}


async def many_file_systems(gateway: AwsGateway, count: int) -> set[FileSystemId]:
    made = [await gateway.create_file_system(f"token-{number}") for number in range(count)]
    return {system.file_system_id for system in made}


async def test_listings_include_all_pages(proxy: tuple[Proxy, str]) -> None:
    registry = CollectorRegistry()
    async with AwsGateway(options(proxy[1], page_size=2), AwsMetrics(registry)) as gateway:
        made = await many_file_systems(gateway, 5)
        first = min(made)
        for subnet in await three_subnets(proxy[1]):
            await gateway.create_mount_target(first, subnet)

        listed = await gateway.file_systems()
        targets = await gateway.mount_targets(first)

    assert {system.file_system_id for system in listed} == made
    assert len({target.subnet_id for target in targets}) == 3
    pages = {"operation": "DescribeFileSystems", "outcome": "succeeded"}
    assert registry.get_sample_value("kube_efs_aws_calls_total", pages) == 3
    timed = registry.get_sample_value("kube_efs_aws_call_seconds_count", {"operation": "DescribeFileSystems"})
    assert timed == 1


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (404, "FileSystemNotFound", AwsNotFound),
        (403, "AccessDeniedException", AwsNotPermitted),
        (429, "ThrottlingException", AwsThrottled),
        (500, "InternalServerError", AwsUnavailable),
    ],
)
async def test_aws_error_is_typed_and_counted_and_names_call_and_file_system(
    proxy: tuple[Proxy, str], status: int, code: str, expected: type[AwsError]
) -> None:
    registry = CollectorRegistry()
    proxy[0].fail = lambda _request: aws_failure(status, code)
    async with AwsGateway(options(proxy[1]), AwsMetrics(registry)) as gateway:
        with pytest.raises(expected, match=code) as caught:
            await gateway.mount_targets(FileSystemId("fs-1"))

    assert type(caught.value) is expected
    assert (caught.value.field, caught.value.value) == ("DescribeMountTargets", "fs-1")
    labels = {"operation": "DescribeMountTargets", "outcome": code}
    assert registry.get_sample_value("kube_efs_aws_calls_total", labels) == 1


async def test_requests_are_counted_as_the_aws_driver_counts_them(proxy: tuple[Proxy, str]) -> None:
    registry = CollectorRegistry()
    listing = {"request": "DescribeFileSystems", "service": "efs"}
    answers = iter([aws_failure(429, "ThrottlingException"), aws_failure(500, "InternalServerError"), None])
    proxy[0].fail = lambda _request: next(answers, None)
    metrics = AwsMetrics(registry, AwsDriverMetrics(registry))
    async with AwsGateway(options(proxy[1], max_attempts=5), metrics) as gateway:
        assert await gateway.file_systems() == ()
        await gateway.network.zone_ids()

    def sample(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"aws_efs_csi_api_request_{name}", {**listing, **labels})

    # Three attempts of one call, and none of another service.
    assert sample("duration_seconds_count") == 3
    assert sample("throttles_total") == 1
    assert sample("errors_total", code="InternalServerError") == 1
    assert sample("errors_total", code="ThrottlingException") is None
    assert sample("duration_seconds_count", request="CreateAccessPoint") == 0
    assert sample("duration_seconds_count", request="GetCallerIdentity") is None


async def test_unanswered_request_has_a_duration_and_no_error_code() -> None:
    registry = CollectorRegistry()
    metrics = AwsMetrics(registry, AwsDriverMetrics(registry))
    async with AwsGateway(options(f"http://127.0.0.1:{free_port()}"), metrics) as gateway:
        with pytest.raises(AwsUnavailable):
            await gateway.file_systems()

    samples = [one for family in registry.collect() for one in family.samples if one.value]
    names = {one.name for one in samples if one.name.startswith("aws_efs_csi_api_request")}
    assert names >= {"aws_efs_csi_api_request_duration_seconds_count"}
    assert not {one.name for one in samples if one.name.endswith(("errors_total", "throttles_total"))}


async def test_temporary_throttling_is_retried(proxy: tuple[Proxy, str]) -> None:
    throttled = iter([True, True])
    proxy[0].fail = lambda _request: (
        aws_failure(429, "ThrottlingException") if next(throttled, False) else None
    )
    async with AwsGateway(options(proxy[1], max_attempts=5)) as gateway:
        assert await gateway.file_systems() == ()

    assert len(proxy[0].calls) == 3


async def test_missing_endpoint_is_reported_as_unavailable() -> None:
    async with AwsGateway(options(f"http://127.0.0.1:{free_port()}")) as gateway:
        with pytest.raises(AwsUnavailable, match="DescribeFileSystems: was not answered"):
            await gateway.file_systems()


async def test_call_to_a_hanging_endpoint_times_out(proxy: tuple[Proxy, str]) -> None:
    proxy[0].delay_seconds = 5
    impatient = replace(options(proxy[1], max_attempts=5), call_timeout_seconds=0.2)
    async with AwsGateway(impatient) as gateway:
        with pytest.raises(AwsUnavailable, match="was not answered in time"):
            await gateway.file_systems()


async def test_concurrent_calls_are_limited(proxy: tuple[Proxy, str]) -> None:
    async with AwsGateway(replace(options(proxy[1]), max_concurrency=3)) as gateway:
        made = await many_file_systems(gateway, 12)
        proxy[0].delay_seconds = 0.02
        proxy[0].most_running = 0
        await asyncio.gather(*(gateway.mount_targets(file_system_id) for file_system_id in made))

    assert proxy[0].most_running == 3


async def test_deletion_does_not_wait_for_other_calls_for_longer_than_it_may_take(
    proxy: tuple[Proxy, str],
) -> None:
    async with AwsGateway(replace(options(proxy[1]), max_concurrency=1)) as gateway:
        [made] = await many_file_systems(gateway, 1)
        proxy[0].delay_seconds = 5.0
        earlier = asyncio.create_task(gateway.mount_targets(made))
        async with asyncio.timeout(START_SECONDS):
            while not proxy[0].running:  # noqa: ASYNC110 - of the server, which has no event
                await asyncio.sleep(0.01)
        calls = gateway._connection
        calls._options = replace(calls._options, call_timeout_seconds=0.1)
        with pytest.raises(AwsUnavailable, match="was not answered in time"):
            await gateway.delete_file_system(made)
        assert await earlier == ()
        assert [one for one in proxy[0].calls if one.startswith("DELETE")] == []


async def test_endpoint_and_credentials_of_the_environment_are_used(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    async with AwsGateway(AwsOptions(region=REGION, max_attempts=1)) as gateway:
        assert await gateway.file_systems() == ()
        assert await gateway.network.zone_ids()


async def test_missing_credentials_are_reported_with_a_remedy_and_used_once_they_are_there(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    now = 1000.0
    monkeypatch.setattr(connection, "monotonic", lambda: now)
    async with AwsGateway(AwsOptions(region=REGION, endpoint_url=endpoint, max_attempts=1)) as gateway:
        with pytest.raises(AwsNoCredentialsYet, match="give this process valid AWS credentials"):
            await gateway.file_systems()
        now += 60
        with pytest.raises(AwsNotPermitted) as caught:
            await gateway.file_systems()
        assert not isinstance(caught.value, AwsNoCredentialsYet)
        (tmp_path / "credentials").write_text(
            "[default]\naws_access_key_id = test\naws_secret_access_key = test\n"
        )
        # Not at each call: a look can take seconds where instance metadata does not answer.
        with pytest.raises(AwsNotPermitted):
            await gateway.file_systems()
        now += 10
        assert await gateway.file_systems() == ()


async def test_invalid_entry_does_not_hide_the_others(proxy: tuple[Proxy, str]) -> None:
    good = {"FileSystemId": "fs-1", "LifeCycleState": "available"}
    unknown = {"FileSystemId": "fs-2", "LifeCycleState": "sublimating"}
    proxy[0].fail = lambda _request: web.json_response({"FileSystems": [unknown, good]})
    async with AwsGateway(options(proxy[1])) as gateway:
        with capture_logs() as logs:
            listed = await gateway.file_systems()

    assert [system.file_system_id for system in listed] == ["fs-1"]
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [
        ("aws-entry-not-understood", "warning")
    ]
    assert (logs[0]["entry"], logs[0]["problem"]) == ("fs-2", "LifeCycleState is not valid")


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"[]", id="list"),
        pytest.param(b'"well"', id="text"),
        pytest.param(b"null", id="null"),
        pytest.param(b"\xff", id="not UTF-8"),
        pytest.param(b"<html>Sign in</html>", id="HTML page"),
        pytest.param(b"", id="nothing"),
        pytest.param(b'{"FileSystems": 3, "AccessPoints": 3}', id="missing list"),
        pytest.param(b'{"FileSystems": [3], "AccessPoints": [3]}', id="invalid entries"),
    ],
)
async def test_answer_that_is_not_from_aws_is_an_error(proxy: tuple[Proxy, str], body: bytes) -> None:
    """In particular, it does not mean an empty list."""
    proxy[0].fail = lambda _request: web.Response(body=body, content_type="application/json")
    request = AccessPointRequest(
        client_token="token",
        file_system_id=FileSystemId("fs-01234567"),
        directory=Directory(("a",)),
        permissions="700",
        user=PosixUser(uid=1, gid=1),
        tags=(),
    )
    async with AwsGateway(options(proxy[1])) as gateway:
        for call in (
            gateway.file_systems(),
            gateway.file_system(request.file_system_id),
            gateway.access_points.list(request.file_system_id),
            gateway.access_points.get(AccessPointId("fsap-01234567"), FileSystemId("fs-01234567")),
            gateway.access_points.create(request),
        ):
            with pytest.raises(AwsUnavailable, match=r"gave an invalid answer"):
                await call


async def test_answer_about_another_resource_is_an_error(proxy: tuple[Proxy, str]) -> None:
    other = {
        "FileSystemId": "fs-76543210",
        "LifeCycleState": "available",
        "CreationToken": "other",
        "AccessPointId": "fsap-76543210",
    }
    answer = {"FileSystems": [other], "AccessPoints": [other]}
    proxy[0].fail = lambda _request: web.json_response(answer, headers={"x-amzn-RequestId": "0aa9b1c4"})
    asked = FileSystemId("fs-01234567")
    async with AwsGateway(options(proxy[1])) as gateway:
        for call in (
            gateway.file_system(asked),
            gateway.made_file_systems.get(asked),
            gateway.made_file_systems.with_token("token"),
            gateway.access_points.get(AccessPointId("fsap-01234567"), asked),
        ):
            with pytest.raises(AwsInvalidAnswer, match="it has another"):
                await call


async def test_missing_list_in_an_answer_of_aws_is_empty(proxy: tuple[Proxy, str]) -> None:
    headers = {"x-amzn-RequestId": "0aa9b1c4"}
    proxy[0].fail = lambda _request: web.json_response({}, headers=headers)
    async with AwsGateway(options(proxy[1])) as gateway:
        assert await gateway.file_systems() == ()


async def test_catalog_survives_failed_calls_and_follows_changes(
    proxy: tuple[Proxy, str],
) -> None:
    async with AwsGateway(options(proxy[1], page_size=2)) as gateway:
        subnet, *_ = await three_subnets(proxy[1])
        stays, fails, goes = sorted(await many_file_systems(gateway, 3))
        for index, file_system_id in enumerate((stays, fails)):
            await gateway.create_mount_target(file_system_id, subnet, address=f"127.64.0.{10 + index}")
        catalogue = Catalogue(gateway, 300)
        first = await catalogue.refresh()
        assert set(first.usable) == {stays, fails, goes}

        proxy[0].fail = lambda request: (
            aws_failure(500, "InternalServerError") if request.query.get("FileSystemId") == fails else None
        )
        await gateway.delete_file_system(goes)
        new = (await gateway.create_file_system("new", name="new")).file_system_id
        second = await catalogue.refresh()

        assert set(second.usable) == {stays, fails, new}
        assert [t.address for t in second.file_systems[fails].mount_targets] == ["127.64.0.11"]
        assert isinstance(catalogue.last_error, AwsUnavailable)

        proxy[0].fail = lambda _request: aws_failure(403, "AccessDeniedException")
        assert await catalogue.refresh() is second
        assert isinstance(catalogue.last_error, AwsDenied)
        assert "allow elasticfilesystem:DescribeFileSystems" in str(catalogue.last_error)
