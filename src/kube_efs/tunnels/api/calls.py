"""What the agent answers to each call on its socket, however the call arrives."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import structlog
from google.protobuf.message import Message

from kube_efs.model.errors import KubeEfsError, public_text
from kube_efs.model.secrets import hidden_here, shortened
from kube_efs.telemetry.traces import continued_trace
from kube_efs.tunnels.api.messages import parse_spec, render_failure, render_spec
from kube_efs.tunnels.on_demand.tunnels import OnDemandTunnels
from kube_efs.tunnels.protocol import tunnels_pb2 as pb
from kube_efs.tunnels.reservations import Reservation, parse_holder
from kube_efs.tunnels.status import TunnelsStatus, TunnelState, TunnelStatus

log = structlog.get_logger()

CALLS: Final[Mapping[str, type[Message]]] = {
    "Ensure": pb.EnsureRequest,
    "EnsureForPod": pb.EnsureForPodRequest,
    "Release": pb.ReleaseRequest,
    "List": pb.ListRequest,
    "Reconcile": pb.ReconcileRequest,
}
"""The names of the calls, with the messages of their requests."""

# gRPC accepts 8 KiB for status message and metadata together.
_MAX_MESSAGE: Final = 500


class CallFailed(Exception):
    """The error of a call: its public text, its class, and the bytes of a Failure.

    ``failure`` is empty, and ``kind`` None, for an error that nobody expected.
    """

    def __init__(self, text: str, kind: type[KubeEfsError] | None = None, failure: bytes = b"") -> None:
        super().__init__(text)
        self.kind = kind
        self.failure = failure


class TunnelCalls:
    """Answers the calls; ``get_status`` gives the state of the tunnels."""

    def __init__(self, tunnels: OnDemandTunnels, get_status: Callable[[], TunnelsStatus]) -> None:
        self._tunnels = tunnels
        self._get_status = get_status

    async def answer(self, request: Message, trace_parent: str) -> Message:
        """The answer, in the trace of the caller if it has one; raises only CallFailed."""
        with hidden_here([request.token] if isinstance(request, pb.EnsureForPodRequest) else []):
            try:
                return await self._answer(request, trace_parent)
            except KubeEfsError as error:
                text = shortened(str(error), _MAX_MESSAGE)
                raise CallFailed(text, type(error), render_failure(error)) from error
            except Exception as error:
                # Its text may contain secrets, so the caller gets only its class.
                log.exception("call-failed")
                raise CallFailed(public_text(error)) from error

    def _answer(self, request: Message, trace_parent: str) -> Awaitable[Message]:
        match request:
            case pb.EnsureRequest():
                return self._ensure(request, "", trace_parent)
            case pb.EnsureForPodRequest():
                return self._ensure(request, request.token, trace_parent)
            case pb.ReleaseRequest():
                return self._release(request)
            case pb.ReconcileRequest():
                return self._reconcile(request)
            case _:
                return self._list()

    async def _ensure(
        self, request: pb.EnsureRequest | pb.EnsureForPodRequest, token: str, trace_parent: str
    ) -> pb.EnsureResponse:
        spec, holder = parse_spec(request.spec), parse_holder(request.holder)
        with continued_trace("tunnel.open", trace_parent, file_system=spec.file_system_id):
            return pb.EnsureResponse(port=await self._tunnels.ensure(spec, holder, token))

    async def _release(self, request: pb.ReleaseRequest) -> pb.ReleaseResponse:
        await self._tunnels.release(parse_holder(request.holder))
        return pb.ReleaseResponse()

    async def _list(self) -> pb.ListResponse:
        status = {one.name: one for one in self._get_status().tunnels if one.on_demand}
        tunnels = self._tunnels.reservations.tunnels
        return pb.ListResponse(
            tunnels=[_render(one, status.get(name)) for name, one in sorted(tunnels.items())]
        )

    async def _reconcile(self, request: pb.ReconcileRequest) -> pb.ReconcileResponse:
        released = await self._tunnels.reconcile([parse_holder(one) for one in request.holders])
        return pb.ReconcileResponse(released=sorted(released))


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
