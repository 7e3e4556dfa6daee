"""The client of the tunnel agent's socket."""

import asyncio
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import aiohttp
from google.protobuf.message import Message

from kube_efs.model.errors import InvalidValue, TunnelError
from kube_efs.telemetry.traces import span, trace_parent
from kube_efs.tunnels.api.agent_errors import outdated, unavailable
from kube_efs.tunnels.api.messages import parse_failure, parse_spec, render_spec
from kube_efs.tunnels.api.older_agents import call_older_agent
from kube_efs.tunnels.protocol import tunnels_pb2 as pb
from kube_efs.tunnels.reservations import Holder, TunnelSpec
from kube_efs.tunnels.status import TunnelState

# An agent restarts in one second.
_CONNECT_SECONDS: Final = 3.0
_RETRY_SECONDS: Final = 0.05

_Answer = TypeVar("_Answer", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelOnDemand:
    """A tunnel as the agent reports it; ``reason`` says why it is not up.

    ``certificate_ends`` is in UTC, such as 2026-11-21T14:00:00Z, and empty before there is one. ``spec`` is
    None if this version does not know such tunnels: the agent is newer.
    """

    name: str
    spec: TunnelSpec | None
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

    def __init__(self, socket: Path, session: aiohttp.ClientSession, *, timeout_seconds: float) -> None:
        self._socket = socket
        self._session = session
        self._timeout_seconds = timeout_seconds

    async def ensure(self, spec: TunnelSpec, holder: Holder) -> int:
        """The loopback port of a tunnel for this spec, which the holder holds until it releases it."""
        request = pb.EnsureRequest(spec=render_spec(spec), holder=holder)
        with span("tunnel.request", file_system=spec.file_system_id):
            return (await self._call("Ensure", request, pb.EnsureResponse)).port

    async def ensure_for_pod(self, spec: TunnelSpec, holder: Holder, token: str) -> int:
        """The same for a spec with the service account of a pod, of which ``token`` is a token.

        A call for an existing tunnel gives the agent the token for the next renewal of its certificate.
        """
        request = pb.EnsureForPodRequest(spec=render_spec(spec), holder=holder, token=token)
        with span("tunnel.request", file_system=spec.file_system_id):
            return (await self._call("EnsureForPod", request, pb.EnsureResponse)).port

    async def release(self, holder: Holder) -> None:
        """Release all tunnels of the holder; having none is not an error."""
        await self._call("Release", pb.ReleaseRequest(holder=holder), pb.ReleaseResponse)

    async def tunnels(self) -> tuple[TunnelOnDemand, ...]:
        """Every tunnel on demand, by name."""
        answer = await self._call("List", pb.ListRequest(), pb.ListResponse)
        return tuple(_parse(one) for one in answer.tunnels)

    async def reconcile(self, holders: Collection[Holder]) -> frozenset[Holder]:
        """Send the full list of holders, also of those that are mounting; returns the removed holders.

        The agent removes a missing holder only if a second list, a minute later, does not contain it either.
        """
        request = pb.ReconcileRequest(holders=sorted(holders))
        answer = await self._call("Reconcile", request, pb.ReconcileResponse)
        return frozenset(map(Holder, answer.released))

    async def _call(self, name: str, request: Message, answer: type[_Answer]) -> _Answer:
        """Wait a short time for an agent that restarts, so that no mount fails."""
        last = time.monotonic() + _CONNECT_SECONDS
        while True:
            try:
                return await self._call_once(name, request, answer)
            except aiohttp.ClientConnectorError as error:
                if time.monotonic() >= last:
                    problem = f"did not appear within {_CONNECT_SECONDS:g} s"
                    raise unavailable(self._socket, problem) from error
            await asyncio.sleep(_RETRY_SECONDS)

    async def _call_once(self, name: str, request: Message, answer: type[_Answer]) -> _Answer:
        self._check_open()
        try:
            status, body = await self._post(name, request)
        except TimeoutError as error:
            problem = f"did not answer within {self._timeout_seconds:g} s"
            raise unavailable(self._socket, problem) from error
        except aiohttp.ClientConnectorError:
            raise
        # An older agent has not read the request: it begins with its settings for HTTP/2, and closes.
        except aiohttp.ClientResponseError:
            return await call_older_agent(
                self._socket, name, request, answer, timeout_seconds=self._timeout_seconds
            )
        except aiohttp.ClientError as error:
            self._check_open()
            raise unavailable(self._socket, f"cannot be reached ({error})") from error
        match status:
            case 200:
                return answer.FromString(body)
            case 422:
                raise parse_failure(body)
            case 404:
                raise outdated(self._socket)
            case _:
                raise TunnelError(f"failed ({status}: {body.decode(errors='replace')})", field="tunnel agent")

    async def _post(self, name: str, request: Message) -> tuple[int, bytes]:
        async with (
            asyncio.timeout(self._timeout_seconds),
            self._session.post(
                f"http://agent/v1/{name}", data=request.SerializeToString(), headers=trace_parent()
            ) as response,
        ):
            return response.status, await response.read()

    def _check_open(self) -> None:
        if self._session.closed:
            raise unavailable(self._socket, "is not called any more, because this process ends")


@asynccontextmanager
async def connect_tunnels(socket: Path, *, timeout_seconds: float = 30.0) -> AsyncIterator[TunnelClient]:
    """A client while the context is open; the agent may start later, and may restart.

    ``timeout_seconds`` limits each call. It must be longer than the agent's own limit, because only the
    agent's error contains the reason.
    """
    # Each call has its own connection, so none is lost because an earlier agent has closed it.
    connector = aiohttp.UnixConnector(str(socket), force_close=True, limit=0)
    no_timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=no_timeout) as session:
        yield TunnelClient(socket, session, timeout_seconds=timeout_seconds)


def _parse(message: pb.Tunnel) -> TunnelOnDemand:
    # One tunnel of a newer agent must not make all others unusable for the mounts of this node.
    try:
        spec = parse_spec(message.spec)
    except InvalidValue:
        spec = None
    return TunnelOnDemand(
        name=message.name,
        spec=spec,
        port=message.port,
        state=TunnelState(message.state) if message.state in set(TunnelState) else TunnelState.DOWN,
        reason=message.reason,
        certificate_ends=message.certificate_ends,
        holders=frozenset(map(Holder, message.holders)),
        connections=message.connections,
    )
