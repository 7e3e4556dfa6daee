"""The agent's socket: errors through a real server and client."""

import asyncio
import io
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from tests.unit.logged import logged

from kube_efs.model import errors
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import KubeEfsError, TunnelAgentUnavailable, TunnelError, TunnelNotReady
from kube_efs.tunnels.api.client import connect_tunnels
from kube_efs.tunnels.api.server import serving
from kube_efs.tunnels.on_demand.tunnels import OnDemandTunnels
from kube_efs.tunnels.reservations import Holder, TunnelSpec
from kube_efs.tunnels.status import TunnelsStatus

_SECRET = "FwoGZXIvYXdzE" + "aB3dE5gH7j" * 500
SECONDS = 60
_SPEC = TunnelSpec(file_system_id=FileSystemId("fs-1"))


class Failing:
    """Tunnels that always fail."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def ensure(self, *_given: object) -> int:
        raise self._error

    async def release(self, *_given: object) -> None:
        raise self._error

    async def reconcile(self, *_given: object) -> list[str]:
        raise self._error

    @property
    def reservations(self) -> Any:
        raise self._error


@pytest.fixture
def socket() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:  # with a short path
        yield Path(folder) / "t.sock"


async def failures(socket: Path, error: Exception) -> list[KubeEfsError]:
    """The error of each call."""
    tunnels, ends = cast("OnDemandTunnels", Failing(error)), []

    def look() -> TunnelsStatus:
        raise error

    async with serving(socket, tunnels, look), connect_tunnels(socket, timeout_seconds=10) as client:
        for call in (
            client.ensure(_SPEC, Holder("pod")),
            client.ensure_for_pod(_SPEC, Holder("pod"), "token"),
            client.release(Holder("pod")),
            client.reconcile([Holder("pod")]),
            client.tunnels(),
        ):
            with pytest.raises(KubeEfsError) as caught:
                await call
            ends.append(caught.value)
    return ends


async def test_callers_get_only_the_class_of_an_unexpected_error(socket: Path) -> None:
    with logged() as stream:
        ends = await failures(socket, ValueError(f"DB_PASS={_SECRET}"))

    text = "tunnel agent: failed (500: internal error (ValueError); the log has the details)"
    assert [(type(end), str(end)) for end in ends] == [(TunnelError, text)] * 5
    assert stream.getvalue().count("ValueError: DB_PASS=[removed]") == 5
    assert "aB3dE5gH" not in stream.getvalue()


async def test_errors_contain_no_part_of_a_secret(socket: Path) -> None:
    error = TunnelNotReady(
        f"is not ready (<SessionToken>{_SECRET}</SessionToken>)",
        field=f"token={_SECRET}",
        value={"a": f"x {_SECRET}"},
        remedy=f"do not use {_SECRET}" * 10,
    )
    ends = await failures(socket, error)

    assert [type(end) for end in ends] == [TunnelNotReady] * 5
    for end in ends:
        assert "aB3dE5gH" not in f"{end} {end.args}"
        assert "is not ready (<SessionToken>[removed]</SessionToken>)" in str(end)


async def test_error_arrives_with_its_class(socket: Path) -> None:
    for kind in (errors.InvalidSetting, errors.AwsDenied, errors.PortTaken):
        assert [type(end) for end in await failures(socket, kind("is wrong"))] == [kind] * 5


async def test_token_of_a_pod_is_in_no_error(socket: Path) -> None:
    token = "a token without the shape of one"
    failing = cast("OnDemandTunnels", Failing(TunnelNotReady(f"refused {token}", field="tunnel")))
    with logged() as stream:
        async with serving(socket, failing, TunnelsStatus), connect_tunnels(socket) as client:
            with pytest.raises(TunnelNotReady) as caught:
                await client.ensure_for_pod(_SPEC, Holder("pod"), token)
    assert str(caught.value) == "tunnel: refused [removed]"
    assert token not in stream.getvalue()


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        pytest.param("POST", "/v1/Release", b"\xff", 400, id="no message"),
        pytest.param("POST", "/v1/Release", io.BytesIO(bytes(5 << 20)), 413, id="a message of 5 MiB"),
        pytest.param("POST", "/v1/Remove", b"", 404, id="no such call"),
        pytest.param("GET", "/v1/List", b"", 405, id="a GET request"),
    ],
)
async def test_other_requests_are_refused(
    socket: Path, method: str, path: str, body: Any, status: int
) -> None:
    async with (
        serving(socket, cast("OnDemandTunnels", Failing(AssertionError())), TunnelsStatus),
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket))) as session,
        session.request(method, f"http://agent{path}", data=body) as answer,
    ):
        assert answer.status == status


class Waiting(Failing):
    """Calls of it end when the test says so; it records those that are cancelled."""

    def __init__(self) -> None:
        super().__init__(AssertionError())
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def release(self, *_given: object) -> None:
        self.begun.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


async def test_call_of_a_caller_that_has_given_up_is_cancelled(socket: Path) -> None:
    waiting = Waiting()
    async with (
        serving(socket, cast("OnDemandTunnels", waiting), TunnelsStatus),
        connect_tunnels(socket, timeout_seconds=0.2) as client,
    ):
        async with asyncio.timeout(SECONDS):
            while not waiting.begun.is_set():  # On a busy machine, it can take longer until a call arrives.
                with pytest.raises(TunnelAgentUnavailable, match=r"did not answer within 0\.2 s"):
                    await client.release(Holder("pod"))
            await waiting.cancelled.wait()


async def test_running_call_may_end_when_the_agent_stops(socket: Path) -> None:
    waiting = Waiting()
    async with connect_tunnels(socket, timeout_seconds=SECONDS) as client:
        async with serving(socket, cast("OnDemandTunnels", waiting), TunnelsStatus):
            call = asyncio.create_task(client.release(Holder("pod")))
            await waiting.begun.wait()
            asyncio.get_running_loop().call_later(0.2, waiting.may_end.set)
        await call
    assert not waiting.cancelled.is_set()


async def test_hanging_call_ends_with_the_agent(socket: Path) -> None:
    waiting = Waiting()
    async with connect_tunnels(socket, timeout_seconds=SECONDS) as client:
        async with serving(socket, cast("OnDemandTunnels", waiting), TunnelsStatus):
            call = asyncio.create_task(client.release(Holder("pod")))
            await waiting.begun.wait()
        with pytest.raises(TunnelAgentUnavailable, match="cannot be reached"):
            await call
    assert waiting.cancelled.is_set()


async def test_calls_of_all_pods_of_a_node_are_accepted_at_once(socket: Path) -> None:
    waiting = Waiting()
    waiting.may_end.set()
    async with (
        serving(socket, cast("OnDemandTunnels", waiting), TunnelsStatus),
        connect_tunnels(socket, timeout_seconds=SECONDS) as client,
    ):
        await asyncio.gather(*(client.release(Holder(f"pod {number}")) for number in range(500)))
