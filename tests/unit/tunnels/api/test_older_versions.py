"""The agent's socket while the driver or the agent is of version 0.2.0, which calls with gRPC."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc.aio
import pytest
from grpc import ChannelConnectivity, StatusCode
from tests.unit.logged import logged

from kube_efs.model import errors
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import AwsDenied, KubeEfsError, TunnelAgentUnavailable, TunnelError
from kube_efs.settings.fields import _LONGEST_SOCKET_BYTES, read_socket
from kube_efs.tunnels.api.client import connect_tunnels
from kube_efs.tunnels.api.messages import FAILURE_KEY, parse_failure, render_failure, render_spec
from kube_efs.tunnels.api.server import serving
from kube_efs.tunnels.on_demand.tunnels import OnDemandTunnels
from kube_efs.tunnels.protocol import tunnels_pb2 as pb
from kube_efs.tunnels.protocol.tunnels_pb2_grpc import (
    TunnelsServicer,
    TunnelsStub,
    add_TunnelsServicer_to_server,
)
from kube_efs.tunnels.reservations import Holder, TunnelSpec
from kube_efs.tunnels.status import TunnelsStatus

SECONDS = 60
SPEC = TunnelSpec(file_system_id=FileSystemId("fs-1"))
REQUESTS = {
    "Ensure": pb.EnsureRequest(spec=render_spec(SPEC), holder="pod"),
    "EnsureForPod": pb.EnsureForPodRequest(spec=render_spec(SPEC), holder="pod", token="token"),
    "Release": pb.ReleaseRequest(holder="pod"),
    "List": pb.ListRequest(),
    "Reconcile": pb.ReconcileRequest(holders=["pod"]),
}
ANSWERS = {
    "Ensure": pb.EnsureResponse(port=20001),
    "EnsureForPod": pb.EnsureResponse(port=20002),
    "Release": pb.ReleaseResponse(),
    "List": pb.ListResponse(),
    "Reconcile": pb.ReconcileResponse(released=["pod"]),
}


class Tunnels:
    """Tunnels that end every call with this error, if there is one."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    async def ensure(self, spec: TunnelSpec, holder: Holder, token: str) -> int:
        self._check()
        assert (spec, holder) == (SPEC, "pod")
        return 20002 if token else 20001

    async def release(self, holder: Holder) -> None:
        self._check()
        assert holder == "pod"

    async def reconcile(self, holders: list[Holder]) -> list[Holder]:
        self._check()
        return holders

    @property
    def reservations(self) -> Any:
        self._check()
        return SimpleNamespace(tunnels={})

    def _check(self) -> None:
        if self._error:
            raise self._error


@pytest.fixture
def socket() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:  # with a short path
        yield Path(folder) / "t.sock"


def agent(socket: Path, error: Exception | None = None) -> Any:
    return serving(socket, cast("OnDemandTunnels", Tunnels(error)), TunnelsStatus)


def older_driver(socket: Path, *options: tuple[str, int]) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"unix:{socket}", options=options)


async def call(driver: grpc.aio.Channel, name: str) -> Any:
    return await getattr(TunnelsStub(driver), name)(REQUESTS[name], timeout=SECONDS)


def modes_in(folder: Path) -> list[int]:
    return [one.stat().st_mode & 0o777 for one in folder.iterdir()]


async def test_older_driver_gets_the_answer_of_each_call(
    socket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with agent(socket), older_driver(socket) as driver:
        assert {name: await call(driver, name) for name in REQUESTS} == ANSWERS
        assert modes_in(tmp_path) == [0o700]
    assert modes_in(tmp_path) == modes_in(socket.parent) == []


async def test_older_driver_is_served_at_the_longest_path(socket: Path) -> None:
    path = read_socket(str(socket).ljust(_LONGEST_SOCKET_BYTES, "t"))
    async with agent(path), older_driver(path) as driver:
        assert await call(driver, "Ensure") == ANSWERS["Ensure"]


async def test_first_calls_of_older_drivers_at_once_are_answered(socket: Path) -> None:
    # Without the option, they would share a connection.
    drivers = [older_driver(socket, ("grpc.use_local_subchannel_pool", 1)) for _ in range(20)]
    with logged() as stream:
        async with agent(socket):
            answers = await asyncio.gather(*(call(driver, "Ensure") for driver in drivers))
            await asyncio.gather(*(driver.close() for driver in drivers))
    assert stream.getvalue().count("older-driver-served") == 1
    assert answers == [ANSWERS["Ensure"]] * len(drivers)


async def test_older_driver_reconnects_to_the_next_agent(socket: Path) -> None:
    async with older_driver(socket, ("grpc.initial_reconnect_backoff_ms", 50)) as driver:
        async with agent(socket):
            await call(driver, "Ensure")
        async with asyncio.timeout(SECONDS):  # threads of gRPC notice the end of the connection
            await driver.wait_for_state_change(ChannelConnectivity.READY)
        async with agent(socket), asyncio.timeout(SECONDS):
            await driver.channel_ready()
            assert await call(driver, "Ensure") == ANSWERS["Ensure"]


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.InvalidValue, StatusCode.INVALID_ARGUMENT),
        (errors.InvalidSetting, StatusCode.INVALID_ARGUMENT),
        (errors.AwsThrottled, StatusCode.UNAVAILABLE),
        (errors.AwsDenied, StatusCode.UNAVAILABLE),
        (errors.AwsLimitReached, StatusCode.UNAVAILABLE),
        (errors.AwsRefused, StatusCode.UNAVAILABLE),
        (errors.AwsUnavailable, StatusCode.UNAVAILABLE),
        (errors.AwsInvalidAnswer, StatusCode.UNAVAILABLE),
        (errors.AwsNotFound, StatusCode.FAILED_PRECONDITION),
        (errors.AwsAlreadyExists, StatusCode.FAILED_PRECONDITION),
        (errors.NoTunnelPort, StatusCode.UNAVAILABLE),
        (errors.PortTaken, StatusCode.UNAVAILABLE),
        (errors.TunnelNotReady, StatusCode.UNAVAILABLE),
        (errors.ConfigurationRejected, StatusCode.FAILED_PRECONDITION),
        (errors.StunnelMissing, StatusCode.FAILED_PRECONDITION),
    ],
)
async def test_older_driver_gets_each_error_with_its_code(
    socket: Path, kind: type[KubeEfsError], code: StatusCode
) -> None:
    async with agent(socket, kind("is wrong")), older_driver(socket) as driver:
        for name in REQUESTS:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(driver, name)
            assert caught.value.code() is code
            [failure] = [value for key, value in caught.value.trailing_metadata() or () if key == FAILURE_KEY]
            assert type(parse_failure(cast("bytes", failure))) is kind


async def test_older_driver_gets_only_the_class_of_an_unexpected_error(socket: Path) -> None:
    with logged():
        async with agent(socket, ValueError("DB_PASS=x")), older_driver(socket) as driver:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(driver, "Ensure")
    assert caught.value.code() is StatusCode.INTERNAL
    assert caught.value.details() == "internal error (ValueError); the log has the details"
    assert dict(caught.value.trailing_metadata() or ()).get(FAILURE_KEY) is None


class OlderAgent(TunnelsServicer):
    """What an agent of version 0.2.0 answers; ``error`` is the one of its calls."""

    def __init__(self, error: KubeEfsError | None = None) -> None:
        self._error = error
        self.requests: list[object] = []

    async def answer(self, name: str, request: object, context: Any) -> Any:
        self.requests.append(request)
        if self._error:
            metadata = ((FAILURE_KEY, render_failure(self._error)),)
            await context.abort(StatusCode.UNAVAILABLE, str(self._error), metadata)
        return ANSWERS[name]

    async def Ensure(self, request: pb.EnsureRequest, context: Any) -> Any:  # noqa: N802
        return await self.answer("Ensure", request, context)

    async def EnsureForPod(self, request: pb.EnsureForPodRequest, context: Any) -> Any:  # noqa: N802
        return await self.answer("EnsureForPod", request, context)

    async def Release(self, request: pb.ReleaseRequest, context: Any) -> Any:  # noqa: N802
        return await self.answer("Release", request, context)

    async def List(self, request: pb.ListRequest, context: Any) -> Any:  # noqa: N802
        return await self.answer("List", request, context)

    async def Reconcile(self, request: pb.ReconcileRequest, context: Any) -> Any:  # noqa: N802
        return await self.answer("Reconcile", request, context)


@asynccontextmanager
async def older_agent(socket: Path, *services: OlderAgent) -> AsyncIterator[None]:
    server = grpc.aio.server()
    for service in services:
        add_TunnelsServicer_to_server(service, server)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


async def test_older_agent_answers_each_call(socket: Path) -> None:
    older = OlderAgent()
    async with older_agent(socket, older), connect_tunnels(socket) as client:
        assert await client.ensure(SPEC, Holder("pod")) == 20001
        assert await client.ensure_for_pod(SPEC, Holder("pod"), "token") == 20002
        await client.release(Holder("pod"))
        assert await client.tunnels() == ()
        assert await client.reconcile([Holder("pod")]) == {"pod"}
    assert older.requests == list(REQUESTS.values())


async def test_error_of_an_older_agent_has_its_class(socket: Path) -> None:
    error = AwsDenied("is denied", field="role", remedy="allow it")
    async with older_agent(socket, OlderAgent(error)), connect_tunnels(socket) as client:
        with pytest.raises(AwsDenied) as caught:
            await client.ensure(SPEC, Holder("pod"))
    assert str(caught.value) == str(error)


async def test_agent_is_updated_and_downgraded_between_calls(socket: Path) -> None:
    async with connect_tunnels(socket, timeout_seconds=SECONDS) as client:
        for _ in range(2):
            async with older_agent(socket, OlderAgent()):
                assert await client.ensure(SPEC, Holder("pod")) == 20001
            async with agent(socket):
                assert await client.ensure(SPEC, Holder("pod")) == 20001


async def test_agent_of_an_older_version_is_named_in_the_error(socket: Path) -> None:
    async with older_agent(socket), connect_tunnels(socket) as client:
        with pytest.raises(TunnelAgentUnavailable) as caught:
            await client.ensure_for_pod(SPEC, Holder("pod"), "token")
    assert caught.value.problem == "is of an older version, which does not have this call"
    assert caught.value.remedy == "update the DaemonSet of the tunnels"


async def test_call_that_fails_in_an_older_agent_has_its_code_in_the_error(socket: Path) -> None:
    class Broken(OlderAgent):
        async def answer(self, *_given: object) -> Any:
            raise ValueError

    async with older_agent(socket, Broken()), connect_tunnels(socket) as client:
        with pytest.raises(TunnelError, match="failed \\(UNKNOWN: "):
            await client.release(Holder("pod"))
