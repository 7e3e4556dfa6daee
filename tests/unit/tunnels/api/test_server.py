"""The agent's socket: errors through a real server and client."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import grpc.aio
import pytest
from grpc import StatusCode
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

    text = "tunnel agent: failed (INTERNAL: internal error (ValueError); the log has the details)"
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


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.InvalidValue, StatusCode.INVALID_ARGUMENT),
        (errors.InvalidSetting, StatusCode.INVALID_ARGUMENT),
        (errors.AwsThrottled, StatusCode.UNAVAILABLE),
        (errors.AwsDenied, StatusCode.UNAVAILABLE),
        (errors.AwsLimitReached, StatusCode.UNAVAILABLE),
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
async def test_each_error_has_its_code(socket: Path, kind: type[KubeEfsError], code: StatusCode) -> None:
    for end in await failures(socket, kind("is wrong")):
        assert type(end) is kind
        assert isinstance(end.__cause__, grpc.aio.AioRpcError)
        assert end.__cause__.code() is code


async def test_token_of_a_pod_is_in_no_error(socket: Path) -> None:
    token = "a token without the shape of one"
    failing = cast("OnDemandTunnels", Failing(TunnelNotReady(f"refused {token}", field="tunnel")))
    with logged() as stream:
        async with serving(socket, failing, TunnelsStatus), connect_tunnels(socket) as client:
            with pytest.raises(TunnelNotReady) as caught:
                await client.ensure_for_pod(_SPEC, Holder("pod"), token)
    assert str(caught.value) == "tunnel: refused [removed]"
    assert token not in stream.getvalue()


async def test_agent_of_an_older_version_is_named_in_the_error(socket: Path) -> None:
    server = grpc.aio.server()
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        async with connect_tunnels(socket) as client:
            with pytest.raises(TunnelAgentUnavailable) as caught:
                await client.ensure_for_pod(_SPEC, Holder("pod"), "token")
    finally:
        await server.stop(None)
    assert caught.value.problem == "is of an older version, which does not have this call"
    assert caught.value.remedy == "update the DaemonSet of the tunnels"
