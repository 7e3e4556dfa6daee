"""The gRPC server for drivers up to version 0.2.0.

The metadata of a failed call has a Failure. The code is for other clients.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import quote

import grpc.aio
from google.protobuf.message import Message

from kube_efs.model.errors import (
    AwsAlreadyExists,
    AwsError,
    AwsNotFound,
    InvalidValue,
    KubeEfsError,
    NoTunnelPort,
    PortTaken,
    TunnelNotReady,
)
from kube_efs.telemetry.traces import TRACE_PARENT
from kube_efs.tunnels.api.calls import CALLS, CallFailed, TunnelCalls
from kube_efs.tunnels.api.messages import FAILURE_KEY, SERVICE

# Errors after which a repeated call may succeed, and those of them after which it does not.
_TEMPORARY: Final = (AwsError, NoTunnelPort, PortTaken, TunnelNotReady)
_PERMANENT: Final = (AwsAlreadyExists, AwsNotFound)

_Context = grpc.aio.ServicerContext[Message, Message]


@asynccontextmanager
async def serving_grpc(calls: TunnelCalls, *, grace_seconds: float) -> AsyncIterator[Path]:
    """Answers on a socket of its own while the context is open; raises OSError or RuntimeError without it.

    No other user can enter its directory. It is not beside the agent's socket, whose path may be as long as
    one can be.
    """
    server = grpc.aio.server()
    respond = _responder(calls)
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            respond, request_deserializer=kind.FromString, response_serializer=_serialize
        )
        for name, kind in CALLS.items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    with TemporaryDirectory(prefix="kube-efs-") as folder:
        socket = Path(folder) / "grpc.sock"
        try:
            server.add_insecure_port(f"unix:{quote(str(socket))}")
            await server.start()
            yield socket
        finally:
            await server.stop(grace_seconds)


def _responder(calls: TunnelCalls) -> Callable[[Message, _Context], Awaitable[Message]]:
    async def respond(request: Message, context: _Context) -> Message:
        try:
            return await calls.answer(request, _trace_parent_of(context))
        except CallFailed as failed:
            metadata = ((FAILURE_KEY, failed.failure),) if failed.failure else ()
            await context.abort(_code_of(failed.kind), str(failed), metadata)

    return respond


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def _trace_parent_of(context: _Context) -> str:
    """The span of the caller; empty if it records none."""
    found = dict(context.invocation_metadata() or ()).get(TRACE_PARENT, "")
    return found if isinstance(found, str) else ""


def _code_of(kind: type[KubeEfsError] | None) -> grpc.StatusCode:
    if kind is None:
        return grpc.StatusCode.INTERNAL
    if issubclass(kind, InvalidValue):
        return grpc.StatusCode.INVALID_ARGUMENT
    if issubclass(kind, _TEMPORARY) and not issubclass(kind, _PERMANENT):
        return grpc.StatusCode.UNAVAILABLE
    return grpc.StatusCode.FAILED_PRECONDITION
