"""gRPC servers on sockets that are created, removed and replaced, with real clients and processes."""

import asyncio
import socket
import stat
import sys
import tempfile
from asyncio.subprocess import PIPE, create_subprocess_exec
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import grpc.aio
import pytest

from kube_efs.csi.identity import identity_service
from kube_efs.csi.protocol import csi_pb2 as csi
from kube_efs.csi.protocol import registration_pb2
from kube_efs.csi.protocol.csi_pb2_grpc import (
    IdentityServicer,
    IdentityStub,
    add_IdentityServicer_to_server,
)
from kube_efs.csi.protocol.registration_pb2_grpc import RegistrationStub
from kube_efs.csi.registration import RegistrationService, registration_endpoint, registration_service
from kube_efs.csi.server import Endpoint, Service, TcpEndpoint, UnixEndpoint, parse_endpoint, serving
from kube_efs.model.errors import InvalidSetting

Eventually = Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory with a short name, because paths of sockets are limited."""
    with tempfile.TemporaryDirectory(prefix="csi-") as name:
        yield Path(name)


@pytest.fixture
def endpoint(folder: Path) -> UnixEndpoint:
    return UnixEndpoint(path=folder / "csi.sock")


async def driver_name_at(address: str) -> str:
    async with grpc.aio.insecure_channel(address) as channel:
        info = await IdentityStub(channel).GetPluginInfo(csi.GetPluginInfoRequest(), timeout=30)
    return info.name


def stale_socket(path: Path) -> None:
    """Create the socket that a killed process leaves behind."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.mark.parametrize("form", ["unix:{}/csi.sock", "unix://{}/csi.sock"])
async def test_both_forms_of_a_socket_address_are_served(folder: Path, form: str) -> None:
    text = form.format(folder)

    async with serving(parse_endpoint(text), identity_service()) as address:
        assert await driver_name_at(address) == await driver_name_at(text) == "efs.csi.aws.com"


async def test_directory_name_can_contain_characters_that_urls_escape(folder: Path) -> None:
    special = folder / "50% off é"
    special.mkdir()

    async with serving(UnixEndpoint(path=special / "csi.sock"), identity_service()) as address:
        assert await driver_name_at(address) == "efs.csi.aws.com"


async def test_free_loopback_port_is_served() -> None:
    async with serving(TcpEndpoint(host="127.0.0.1", port=0), identity_service()) as address:
        assert not address.endswith(":0")
        assert await driver_name_at(address) == "efs.csi.aws.com"


async def test_socket_is_only_for_owner_and_group_and_leaves_no_other_file(endpoint: UnixEndpoint) -> None:
    async with serving(endpoint, identity_service()):
        assert stat.S_IMODE(endpoint.path.stat().st_mode) == 0o660

    assert list(endpoint.path.parent.iterdir()) == []


async def test_name_that_the_kubelet_has_seen_first_stays(endpoint: UnixEndpoint) -> None:
    """It looks at the file only later, and logs an error if that is gone."""
    async with serving(endpoint, identity_service()):
        assert endpoint.path.with_name(".csi.sock").samefile(endpoint.path)


async def test_stale_socket_is_replaced(endpoint: UnixEndpoint) -> None:
    stale_socket(endpoint.path)
    stale_socket(endpoint.path.with_name(".csi.sock"))

    async with serving(endpoint, identity_service()) as address:
        assert await driver_name_at(address) == "efs.csi.aws.com"


async def test_file_that_is_not_a_socket_is_kept(endpoint: UnixEndpoint) -> None:
    endpoint.path.write_text("precious")

    with pytest.raises(InvalidSetting, match="exists and is not a socket; remove it") as caught:
        async with serving(endpoint, identity_service()):
            pass

    assert caught.value.value == f"unix://{endpoint.path}"
    assert endpoint.path.read_text() == "precious"


async def test_endpoint_that_cannot_be_bound_is_an_invalid_setting(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoints: list[Endpoint] = [
            UnixEndpoint(path=folder / "missing" / "csi.sock"),
            TcpEndpoint(host="127.0.0.1", port=taken.getsockname()[1]),
        ]
        for one in endpoints:
            with pytest.raises(InvalidSetting, match="cannot be bound") as caught:
                async with serving(one, identity_service()):
                    pass
            assert caught.value.value == str(one)


async def test_servers_never_share_a_port() -> None:
    async with serving(TcpEndpoint(host="127.0.0.1", port=0), identity_service()) as address:
        port = int(address.rpartition(":")[2])
        with pytest.raises(InvalidSetting):
            async with serving(TcpEndpoint(host="127.0.0.1", port=port), identity_service()):
                pass


async def test_next_server_takes_over_the_socket_without_a_gap(endpoint: UnixEndpoint) -> None:
    async with AsyncExitStack() as older, AsyncExitStack() as newer:
        address = await older.enter_async_context(serving(endpoint, identity_service()))
        inode = endpoint.path.stat().st_ino
        await newer.enter_async_context(serving(endpoint, identity_service()))
        assert endpoint.path.stat().st_ino != inode

        await older.aclose()
        assert await driver_name_at(address) == "efs.csi.aws.com"

    assert not endpoint.path.exists()


_PROGRAM = """
import asyncio, pathlib, sys
from kube_efs.csi.server import UnixEndpoint, serving
from kube_efs.csi.identity import identity_service

async def main():
    async with serving(UnixEndpoint(path=pathlib.Path(sys.argv[1])), identity_service()):
        print("serving", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_socket_of_a_killed_process_is_served_again(
    endpoint: UnixEndpoint,
) -> None:
    process = await create_subprocess_exec(
        sys.executable, "-c", _PROGRAM, str(endpoint.path), stdout=PIPE, stderr=PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            assert await process.stdout.readline() == b"serving\n"
        assert await driver_name_at(f"unix:{endpoint.path}") == "efs.csi.aws.com"
    finally:
        process.kill()
        await process.communicate()
    assert endpoint.path.is_socket()

    async with serving(endpoint, identity_service()) as address:
        assert await driver_name_at(address) == "efs.csi.aws.com"


class Slow(IdentityServicer):
    """Answers each probe when its work ends."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self.begun = asyncio.Event()
        self._work = work

    async def Probe(self, request: csi.ProbeRequest, context: object) -> csi.ProbeResponse:  # noqa: N802
        self.begun.set()
        await self._work()
        return csi.ProbeResponse()

    def service(self) -> Service:
        return partial(add_IdentityServicer_to_server, self)


async def gone(path: Path) -> bool:
    return not await asyncio.to_thread(path.exists)


async def test_running_call_is_answered_when_the_server_ends(
    endpoint: UnixEndpoint, eventually: Eventually
) -> None:
    may_end = asyncio.Event()
    slow = Slow(may_end.wait)  # type: ignore[abstract, arg-type]

    async with AsyncExitStack() as server:
        address = await server.enter_async_context(serving(endpoint, slow.service()))
        async with grpc.aio.insecure_channel(address) as channel:
            call = asyncio.ensure_future(IdentityStub(channel).Probe(csi.ProbeRequest(), timeout=10))
            await asyncio.wait_for(slow.begun.wait(), 30)
            ending = asyncio.create_task(server.aclose())
            await eventually(partial(gone, endpoint.path))
            may_end.set()
            assert await call == csi.ProbeResponse()
            await ending


async def test_hanging_call_delays_the_end_by_less_than_five_seconds(
    endpoint: UnixEndpoint,
) -> None:
    cancelled = asyncio.Event()

    async def for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    slow = Slow(for_ever)  # type: ignore[abstract]
    async with AsyncExitStack() as server:
        address = await server.enter_async_context(serving(endpoint, slow.service()))
        async with grpc.aio.insecure_channel(address) as channel:
            call = asyncio.ensure_future(IdentityStub(channel).Probe(csi.ProbeRequest()))
            await asyncio.wait_for(slow.begun.wait(), 30)
            async with asyncio.timeout(5):
                await server.aclose()
                await cancelled.wait()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call

    assert caught.value.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}


async def test_many_clients_are_served_concurrently(endpoint: UnixEndpoint) -> None:
    waiting = asyncio.Semaphore(0)
    together = asyncio.Barrier(100)

    async def meet() -> None:
        await together.wait()
        waiting.release()

    slow = Slow(meet)  # type: ignore[abstract]
    async with (
        serving(endpoint, slow.service()) as address,
        grpc.aio.insecure_channel(address) as channel,
        asyncio.timeout(20),
    ):
        probe = IdentityStub(channel).Probe
        answers = await asyncio.gather(*(probe(csi.ProbeRequest()) for _ in range(100)))

    assert answers == [csi.ProbeResponse()] * 100


async def test_driver_and_registration_have_separate_sockets(folder: Path) -> None:
    plugin = UnixEndpoint(path=folder / "csi.sock")
    registration = RegistrationService(plugin.path)
    async with (
        serving(plugin, identity_service()),
        serving(registration_endpoint(folder), registration_service(registration)),
        grpc.aio.insecure_channel(f"unix:{folder}/efs.csi.aws.com-reg.sock") as channel,
    ):
        info = await RegistrationStub(channel).GetInfo(registration_pb2.InfoRequest())
        assert await driver_name_at(f"unix:{info.endpoint}") == info.name
        done = registration_pb2.RegistrationStatus(plugin_registered=True)
        await RegistrationStub(channel).NotifyRegistrationStatus(done)

    assert registration.health().ok
