"""Agents up to version 0.2.0, which are called with gRPC."""

from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

import grpc
import grpc.aio
from google.protobuf.message import Message

from kube_efs.model.errors import KubeEfsError, TunnelError
from kube_efs.telemetry.traces import trace_parent
from kube_efs.tunnels.api.agent_errors import outdated, unavailable
from kube_efs.tunnels.api.messages import FAILURE_KEY, SERVICE, parse_failure

_NOT_REACHED: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})

_Answer = TypeVar("_Answer", bound=Message)


async def call_older_agent(
    socket: Path, name: str, request: Message, answer: type[_Answer], *, timeout_seconds: float
) -> _Answer:
    """The answer to a call, or the error of the agent, as those of TunnelClient."""
    # A new channel for each call, because the next agent may be of this version.
    async with grpc.aio.insecure_channel(f"unix:{quote(str(socket))}") as channel:
        call = channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        try:
            return await call(request, timeout=timeout_seconds, metadata=trace_parent())
        except grpc.aio.AioRpcError as error:
            raise _error_of(error, socket, timeout_seconds) from error


def _error_of(error: grpc.aio.AioRpcError, socket: Path, timeout_seconds: float) -> KubeEfsError:
    for key, value in error.trailing_metadata() or ():
        if key == FAILURE_KEY and isinstance(value, bytes):
            return parse_failure(value)
    if error.code() in _NOT_REACHED:
        return unavailable(socket, f"cannot be reached ({error.details()})")
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return outdated(socket)
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return unavailable(socket, f"did not answer within {timeout_seconds:g} s")
    return TunnelError(f"failed ({error.code().name}: {error.details()})", field="tunnel agent")
