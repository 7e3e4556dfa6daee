"""The client of the tunnel agent's socket."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import grpc
import grpc.aio

from kube_efs.model.errors import TunnelAgentUnavailable, TunnelError
from kube_efs.telemetry.traces import span, trace_parent
from kube_efs.tunnels.api.messages import FAILURE_KEY, parse_failure, parse_spec, render_spec
from kube_efs.tunnels.protocol import tunnels_pb2 as pb
from kube_efs.tunnels.protocol.tunnels_pb2_grpc import TunnelsStub
from kube_efs.tunnels.reservations import Holder, TunnelSpec
from kube_efs.tunnels.status import TunnelState

if TYPE_CHECKING:  # the generated module has this name for type checkers only
    from kube_efs.tunnels.protocol.tunnels_pb2_grpc import TunnelsAsyncStub

# The default pauses between attempts to connect grow to two minutes; an agent restarts in one second.
_OPTIONS: Final = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
)
_NOT_REACHED: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})
_CONNECT_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelOnDemand:
    """A tunnel as the agent reports it; ``reason`` says why it is not up.

    ``certificate_ends`` is in UTC, such as 2026-11-21T14:00:00Z, and empty before there is one.
    """

    name: str
    spec: TunnelSpec
    port: int
    state: TunnelState
    reason: str
    certificate_ends: str
    holders: frozenset[Holder]
    connections: int


class TunnelClient:
    """Calls to the agent at this socket.

    Every method raises the error that the agent has raised (of TunnelError, AwsError or InvalidValue), and
    TunnelAgentUnavailable when the agent does not exist or does not answer in time.
    """

    def __init__(self, socket: Path, channel: grpc.aio.Channel, *, timeout_seconds: float) -> None:
        self._socket = socket
        self._channel = channel
        self._stub: TunnelsAsyncStub = TunnelsStub(channel)
        self._timeout_seconds = timeout_seconds

    async def ensure(self, spec: TunnelSpec, holder: Holder) -> int:
        """The loopback port of a tunnel for this spec, which the holder holds until it releases it."""
        request = pb.EnsureRequest(spec=render_spec(spec), holder=holder)
        with span("tunnel.request", file_system=spec.file_system_id):
            async with self._connected():
                answer = await self._stub.Ensure(
                    request, timeout=self._timeout_seconds, metadata=trace_parent()
                )
        return answer.port

    async def ensure_for_pod(self, spec: TunnelSpec, holder: Holder, token: str) -> int:
        """The same for a spec with the service account of a pod, of which ``token`` is a token.

        A call for an existing tunnel gives the agent the token for the next renewal of its certificate.
        """
        request = pb.EnsureForPodRequest(spec=render_spec(spec), holder=holder, token=token)
        with span("tunnel.request", file_system=spec.file_system_id):
            async with self._connected():
                answer = await self._stub.EnsureForPod(
                    request, timeout=self._timeout_seconds, metadata=trace_parent()
                )
        return answer.port

    async def release(self, holder: Holder) -> None:
        """Release all tunnels of the holder; having none is not an error."""
        async with self._connected():
            await self._stub.Release(pb.ReleaseRequest(holder=holder), timeout=self._timeout_seconds)

    async def tunnels(self) -> tuple[TunnelOnDemand, ...]:
        """Every tunnel on demand, by name."""
        async with self._connected():
            answer = await self._stub.List(pb.ListRequest(), timeout=self._timeout_seconds)
        return tuple(_parse(one) for one in answer.tunnels)

    async def reconcile(self, holders: Collection[Holder]) -> frozenset[Holder]:
        """Send the full list of holders, also of those that are mounting; returns the removed holders.

        The agent removes a missing holder only if a second list, a minute later, does not contain it either.
        """
        request = pb.ReconcileRequest(holders=sorted(holders))
        async with self._connected():
            answer = await self._stub.Reconcile(request, timeout=self._timeout_seconds)
        return frozenset(map(Holder, answer.released))

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[None]:
        """Wait a short time for an agent that restarts, so that no mount fails; translate errors."""
        try:
            try:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    await self._channel.channel_ready()
            except TimeoutError as error:
                raise self._unavailable(f"did not appear within {_CONNECT_SECONDS:g} s") from error
            yield
        except grpc.aio.AioRpcError as error:
            for key, value in error.trailing_metadata() or ():
                if key == FAILURE_KEY and isinstance(value, bytes):
                    raise parse_failure(value) from error
            raise self._failure(error) from error
        # The channel was closed, because this process ends.
        except grpc.aio.UsageError as error:
            raise self._unavailable("is not called any more, because this process ends") from error

    def _failure(self, error: grpc.aio.AioRpcError) -> TunnelError:
        if error.code() in _NOT_REACHED:
            return self._unavailable(f"cannot be reached ({error.details()})")
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return TunnelAgentUnavailable(
                "is of an older version, which does not have this call",
                field="tunnel agent",
                value=str(self._socket),
                remedy="update the DaemonSet of the tunnels",
            )
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return self._unavailable(f"did not answer within {self._timeout_seconds:g} s")
        return TunnelError(f"failed ({error.code().name}: {error.details()})", field="tunnel agent")

    def _unavailable(self, problem: str) -> TunnelAgentUnavailable:
        return TunnelAgentUnavailable(
            problem,
            field="tunnel agent",
            value=str(self._socket),
            remedy="check that kube-efs tunnel runs on this node and serves this socket",
        )


@asynccontextmanager
async def connect_tunnels(socket: Path, *, timeout_seconds: float = 30.0) -> AsyncIterator[TunnelClient]:
    """A client while the context is open; the agent may start later, and may restart.

    ``timeout_seconds`` limits each call. It must be longer than the agent's own limit, because only the
    agent's error contains the reason.
    """
    async with grpc.aio.insecure_channel(f"unix:{quote(str(socket))}", options=_OPTIONS) as channel:
        yield TunnelClient(socket, channel, timeout_seconds=timeout_seconds)


def _parse(message: pb.Tunnel) -> TunnelOnDemand:
    return TunnelOnDemand(
        name=message.name,
        spec=parse_spec(message.spec),
        port=message.port,
        state=TunnelState(message.state),
        reason=message.reason,
        certificate_ends=message.certificate_ends,
        holders=frozenset(map(Holder, message.holders)),
        connections=message.connections,
    )
