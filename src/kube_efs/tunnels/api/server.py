"""The agent's socket: tunnels on demand for the other processes of the node, over gRPC."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

import grpc.aio
import structlog

from kube_efs.model.errors import (
    AwsAlreadyExists,
    AwsError,
    AwsNotFound,
    InvalidSetting,
    InvalidValue,
    KubeEfsError,
    NoTunnelPort,
    PortTaken,
    TunnelNotReady,
    public_text,
)
from kube_efs.model.secrets import hidden_here, shortened
from kube_efs.telemetry.traces import TRACE_PARENT, continued_trace
from kube_efs.tunnels.api.messages import FAILURE_KEY, parse_spec, render_failure, render_spec
from kube_efs.tunnels.on_demand.tunnels import OnDemandTunnels
from kube_efs.tunnels.protocol import tunnels_pb2 as pb
from kube_efs.tunnels.protocol.tunnels_pb2_grpc import TunnelsServicer, add_TunnelsServicer_to_server
from kube_efs.tunnels.reservations import Reservation, parse_holder
from kube_efs.tunnels.status import TunnelsStatus, TunnelState, TunnelStatus

log = structlog.get_logger()

# SIGTERM leaves the agent 5 s for everything.
_GRACE_SECONDS: Final = 1.0
_DIRECTORY_MODE: Final = 0o750
_SOCKET_MODE: Final = 0o600
# gRPC accepts 8 KiB for status message and metadata together.
_MAX_MESSAGE: Final = 500
# Errors after which a repeated call may succeed, and those of them after which it does not. kube-efs node
# gets the error itself, from the metadata; the code is for other clients.
_TEMPORARY: Final = (AwsError, NoTunnelPort, PortTaken, TunnelNotReady)
_PERMANENT: Final = (AwsAlreadyExists, AwsNotFound)

_Answer = TypeVar("_Answer")
_Context = grpc.aio.ServicerContext[object, object]


@asynccontextmanager
async def serving(
    socket: Path, tunnels: OnDemandTunnels, get_status: Callable[[], TunnelsStatus]
) -> AsyncIterator[None]:
    """Answers on the socket while the context is open; ``get_status`` gives the state of the tunnels.

    Only the user of this process and root may connect. Raises InvalidSetting when the socket cannot be bound.
    """
    server = grpc.aio.server()
    add_TunnelsServicer_to_server(_Tunnels(tunnels, get_status), server)
    try:
        with _bound(server, socket):
            await server.start()
            log.info("tunnels-on-demand-served", socket=str(socket))
            yield
    finally:
        await server.stop(_GRACE_SECONDS)


@contextmanager
def _bound(server: grpc.aio.Server, socket: Path) -> Iterator[None]:
    """Bind the server to a socket that no other user can open; it replaces the socket of an earlier agent.

    The socket is bound with a hidden name and renamed after its mode is set, so no other user can connect at
    any moment, and clients never find a dead socket. At the end, the name is removed unless a successor has
    taken it.
    """
    hidden = socket.with_name(f".{socket.name}")
    try:
        socket.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        server.add_insecure_port(f"unix:{quote(str(hidden))}")
        hidden.chmod(_SOCKET_MODE)
        ours = hidden.stat().st_ino
        hidden.replace(socket)
    except (OSError, RuntimeError) as error:  # gRPC raises only RuntimeError
        raise InvalidSetting(
            f"cannot be bound ({error})",
            field="KUBE_EFS_TUNNEL_SOCKET",
            value=str(socket),
            remedy="choose a short path in a writable directory",
        ) from error
    try:
        yield
    finally:
        if socket.exists() and socket.stat().st_ino == ours:
            socket.unlink()


class _Tunnels(TunnelsServicer):
    def __init__(self, tunnels: OnDemandTunnels, get_status: Callable[[], TunnelsStatus]) -> None:
        self._tunnels = tunnels
        self._get_status = get_status

    async def Ensure(self, request: pb.EnsureRequest, context: _Context) -> pb.EnsureResponse:  # noqa: N802
        async def answer() -> pb.EnsureResponse:
            spec, holder = parse_spec(request.spec), parse_holder(request.holder)
            with continued_trace("tunnel.open", _trace_parent_of(context), file_system=spec.file_system_id):
                return pb.EnsureResponse(port=await self._tunnels.ensure(spec, holder))

        return await _respond(context, answer)

    async def EnsureForPod(  # noqa: N802
        self, request: pb.EnsureForPodRequest, context: _Context
    ) -> pb.EnsureResponse:
        async def answer() -> pb.EnsureResponse:
            spec, holder = parse_spec(request.spec), parse_holder(request.holder)
            with continued_trace("tunnel.open", _trace_parent_of(context), file_system=spec.file_system_id):
                return pb.EnsureResponse(port=await self._tunnels.ensure(spec, holder, request.token))

        with hidden_here([request.token]):
            return await _respond(context, answer)

    async def Release(self, request: pb.ReleaseRequest, context: _Context) -> pb.ReleaseResponse:  # noqa: N802
        async def answer() -> pb.ReleaseResponse:
            await self._tunnels.release(parse_holder(request.holder))
            return pb.ReleaseResponse()

        return await _respond(context, answer)

    async def List(self, request: pb.ListRequest, context: _Context) -> pb.ListResponse:  # noqa: N802
        async def answer() -> pb.ListResponse:
            status = {one.name: one for one in self._get_status().tunnels if one.on_demand}
            tunnels = self._tunnels.reservations.tunnels
            return pb.ListResponse(
                tunnels=[_render(one, status.get(name)) for name, one in sorted(tunnels.items())]
            )

        return await _respond(context, answer)

    async def Reconcile(  # noqa: N802
        self, request: pb.ReconcileRequest, context: _Context
    ) -> pb.ReconcileResponse:
        async def answer() -> pb.ReconcileResponse:
            released = await self._tunnels.reconcile([parse_holder(one) for one in request.holders])
            return pb.ReconcileResponse(released=sorted(released))

        return await _respond(context, answer)


def _trace_parent_of(context: _Context) -> str:
    """The span of the caller; empty if it records none."""
    found = dict(context.invocation_metadata() or ()).get(TRACE_PARENT, "")
    return found if isinstance(found, str) else ""


async def _respond(context: _Context, answer: Callable[[], Awaitable[_Answer]]) -> _Answer:
    """Answer the call, or end it with the code and the parts of the error."""
    try:
        return await answer()
    except KubeEfsError as error:
        text = shortened(str(error), _MAX_MESSAGE)
        await context.abort(_code_of(error), text, ((FAILURE_KEY, render_failure(error)),))
    except Exception as error:
        # Without this, gRPC would send its text, which may contain secrets, to the caller.
        log.exception("call-failed")
        await context.abort(grpc.StatusCode.INTERNAL, public_text(error))


def _code_of(error: KubeEfsError) -> grpc.StatusCode:
    if isinstance(error, InvalidValue):
        return grpc.StatusCode.INVALID_ARGUMENT
    if isinstance(error, _TEMPORARY) and not isinstance(error, _PERMANENT):
        return grpc.StatusCode.UNAVAILABLE
    return grpc.StatusCode.FAILED_PRECONDITION


def _render(tunnel: Reservation, status: TunnelStatus | None) -> pb.Tunnel:
    return pb.Tunnel(
        name=tunnel.name,
        spec=render_spec(tunnel.spec),
        port=tunnel.port,
        state=status.state if status else TunnelState.STARTING,
        reason=status.reason if status else "",
        certificate_ends=status.certificate_ends if status else "",
        holders=sorted(tunnel.holders),
        connections=status.connections if status else 0,
    )
