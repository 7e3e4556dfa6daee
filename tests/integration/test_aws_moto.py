"""The gateway and the catalogue against moto's server, with a proxy in front that can fail calls."""

import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator

import aiohttp
import pytest
from aiohttp import web

from kube_efs.aws.connection import AwsCredentials, AwsOptions
from kube_efs.aws.gateway import AwsGateway
from kube_efs.model.file_systems import LifeCycleState
from kube_efs.model.ids import Region, SubnetId, ZoneName

REGION = Region("us-east-1")
CREDENTIALS = AwsCredentials(access_key_id="test", secret_access_key="test")
START_SECONDS = 30


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
    """Passes calls on to moto, except those that ``fail`` has an answer for."""

    def __init__(self, upstream: str) -> None:
        self.fail: Callable[[web.Request], web.Response | None] = lambda _request: None
        self.calls: list[str] = []
        self._upstream = upstream

    async def handle(self, request: web.Request) -> web.Response:
        self.calls.append(f"{request.method} {request.path_qs}")
        failure = self.fail(request)
        if failure is not None:
            return failure
        headers = {name: value for name, value in request.headers.items() if name.lower() != "host"}
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(
                request.method, self._upstream + request.path_qs, headers=headers, data=await request.read()
            ) as answer,
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
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", proxy.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield proxy, f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


def options(url: str, *, page_size: int = 100, max_attempts: int = 1) -> AwsOptions:
    return AwsOptions(
        region=REGION,
        endpoint_url=url,
        credentials=CREDENTIALS,
        page_size=page_size,
        max_attempts=max_attempts,
    )


async def three_subnets(gateway: AwsGateway) -> list[SubnetId]:
    vpc_id = await gateway.network.create_vpc("127.64.0.0/16")
    return [
        await gateway.network.create_subnet(vpc_id, f"127.64.{index}.0/24", ZoneName(f"{REGION}{zone}"))
        for index, zone in enumerate("abc")
    ]


async def test_file_systems_and_mount_targets_are_made_listed_and_removed(endpoint: str) -> None:
    async with AwsGateway(options(endpoint)) as gateway:
        subnet_a, subnet_b, _ = await three_subnets(gateway)
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
        assert target_b.address.startswith("127.64.1.")
        assert target_a.state.usable

        for target in targets:
            await gateway.delete_mount_target(target.mount_target_id)
        await gateway.delete_file_system(made.file_system_id)
        assert await gateway.file_systems() == ()


async def test_the_same_creation_token_gives_the_same_file_system(endpoint: str) -> None:
    async with AwsGateway(options(endpoint)) as gateway:
        first = await gateway.create_file_system("token", name="apps")
        again = await gateway.create_file_system("token", name="apps")

    assert first.file_system_id == again.file_system_id


async def test_a_one_zone_file_system_tells_its_zone(endpoint: str) -> None:
    async with AwsGateway(options(endpoint)) as gateway:
        made = await gateway.create_file_system("token", zone=ZoneName("us-east-1b"))
        (listed,) = await gateway.file_systems()

    assert made.zone == listed.zone == "us-east-1b"


async def test_subnets_tell_their_zones_and_unknown_ones_are_left_out(endpoint: str) -> None:
    async with AwsGateway(options(endpoint)) as gateway:
        subnets = await three_subnets(gateway)
        zones = await gateway.network.subnets([*subnets, SubnetId("subnet-0")])

        assert zones == dict(zip(subnets, ("us-east-1a", "us-east-1b", "us-east-1c"), strict=True))
        assert await gateway.network.subnets([]) == {}
        assert await gateway.caller_account() == "123456789012"
