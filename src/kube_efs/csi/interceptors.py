"""For every call of every service: decodes the request, logs and counts the call, sets its status code.

gRPC itself decodes a request before the service gets it. If it cannot, for example because a text is not
UTF-8, it answers UNKNOWN with the text of a Python exception. The caller has made the mistake, but callers
repeat a call after UNKNOWN, without end. Requests are therefore decoded here.

Requests contain the texts of users from classes and volumes, possibly megabytes. The log has only their
beginning and the number of entries left out. Secrets are not logged.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, TypeAlias, cast

import grpc
import grpc.aio
import structlog
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from structlog.contextvars import bound_contextvars

from kube_efs.csi.codes import code_of
from kube_efs.csi.pod_tokens import POD_TOKENS
from kube_efs.csi.protocol.csi_pb2 import csi_secret
from kube_efs.model.csi.sidecar_parameters import CLAIM_NAME, CLAIM_NAMESPACE
from kube_efs.model.errors import KubeEfsError, public_text
from kube_efs.model.secrets import hidden_here, shortened
from kube_efs.telemetry.metrics import CsiMetrics
from kube_efs.telemetry.traces import Span, trace

__all__ = ["CallInterceptor", "RequestDecoder", "mark_as_routine"]

log = structlog.get_logger()

# In quotes: these classes take parameters in the type stubs only.
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"
_Serve: TypeAlias = Callable[[Message, _Context], Awaitable[Message]]

# Whether the current call is one of many that change nothing.
_is_routine: ContextVar[bool] = ContextVar("is_routine", default=False)
# Kubelet and sidecars repeat these calls all the time.
_ROUTINE: Final = frozenset(
    {
        "Probe",
        "GetPluginInfo",
        "GetPluginCapabilities",
        "ControllerGetCapabilities",
        "NodeGetCapabilities",
        "NodeGetVolumeStats",
    }
)
# Status messages are in headers. gRPC accepts 8 KiB of them, and writes three bytes for each byte of other
# text.
_MAX_MESSAGE_BYTES: Final = 2048
_MAX_VOLUME: Final = 200
# For the errors of codes.py that are not our own.
_TEXTS: Final = MappingProxyType(
    {
        grpc.StatusCode.DEADLINE_EXCEEDED: "the deadline was exceeded",
        grpc.StatusCode.UNIMPLEMENTED: "the driver does not have this method",
    }
)
# The kubelet adds pods' tokens here, when the CSIDriver object asks for them and does not name the secrets.
_CONTEXT: Final = "volume_context"
_MAX_TEXT: Final = 1000
_MAX_ENTRIES: Final = 50


def mark_as_routine() -> None:
    """Log the current call at the level of calls that change nothing, unless it fails."""
    _is_routine.set(True)


class RequestDecoder(grpc.aio.ServerInterceptor):
    """Decodes requests itself, and answers INVALID_ARGUMENT when that fails."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler:
        """The handler of the service, which receives the decoded request."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.unary_unary is None or handler.request_deserializer is None:
            return handler
        method, decode = handler_call_details.method, handler.request_deserializer
        serve = cast("_Serve", handler.unary_unary)

        async def serve_decoded(request: bytes, context: _Context) -> Message:
            try:
                message = decode(request)
            except DecodeError as error:
                log.warning("request-not-decoded", method=method, reason=str(error))
                text = f"request: is malformed ({error}); send text as UTF-8"
                return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
            return await serve(message, context)

        return grpc.unary_unary_rpc_method_handler(
            serve_decoded, response_serializer=handler.response_serializer
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """How a call ended; ``unexpected`` is an error that has no code."""

    code: grpc.StatusCode = grpc.StatusCode.OK
    message: str = ""
    unexpected: Exception | None = None


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Logs, counts and times each call; turns errors into status codes. Secrets of requests stay here."""

    def __init__(self, metrics: CsiMetrics) -> None:
        self._metrics = metrics

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler:
        """The handler of the service, logged and counted. gRPC refuses unknown methods."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        method, serve = handler_call_details.method, cast("_Serve", handler.unary_unary)

        async def serve_logged(request: Message, context: _Context) -> Message:
            volume = getattr(request, "volume_id", "") or getattr(request, "name", "")
            with hidden_here(secrets_of(request)):
                volume = {"volume": shortened(volume, _MAX_VOLUME)} if volume else {}
                with bound_contextvars(method=method, **volume):
                    return await self._serve_logged(method, serve, request, context)

        return grpc.unary_unary_rpc_method_handler(
            serve_logged,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    async def _serve_logged(self, method: str, serve: _Serve, request: Message, context: _Context) -> Message:
        began, outcome = time.monotonic(), _Outcome()
        _is_routine.set(method.rpartition("/")[2] in _ROUTINE)
        try:
            with self._metrics.running.labels(method).track_inprogress(), _traced(method, request):
                return await serve(request, context)
        except asyncio.CancelledError:
            outcome = _Outcome(
                code=grpc.StatusCode.CANCELLED, message="the caller cancelled the call, or the driver stops"
            )
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets a code
            outcome = _failure(error)
        finally:
            self._record(method, request, outcome, time.monotonic() - began)
        # ``abort`` always raises. In the block above, its exception would count as one of the service.
        return await context.abort(outcome.code, outcome.message)

    def _record(self, method: str, request: Message, outcome: _Outcome, seconds: float) -> None:
        self._metrics.calls.labels(method, outcome.code.name).inc()
        self._metrics.call_seconds.labels(method).observe(seconds)
        fields = {"request": shown_request(request), "seconds": round(seconds, 3), "code": outcome.code.name}
        if outcome.unexpected:
            log.error("call-failed", **fields, exc_info=outcome.unexpected)
        elif outcome.message:
            log.warning("call-refused", **fields, reason=outcome.message)
        elif _is_routine.get():
            log.debug("call-answered", **fields)
        else:
            log.info("call-answered", **fields)


def _traced(method: str, request: Message) -> AbstractContextManager[Span | None]:
    """A trace of the call, unless it is one of those that are repeated all the time."""
    name = method.rpartition("/")[2]
    if name in _ROUTINE:
        return nullcontext()
    parameters = getattr(request, "parameters", {})
    claim = (
        f"{parameters.get(CLAIM_NAMESPACE, '')}/{parameters[CLAIM_NAME]}" if CLAIM_NAME in parameters else ""
    )
    return trace(
        f"csi.{name}",
        volume=getattr(request, "volume_id", "") or getattr(request, "name", ""),
        claim=claim,
        target=getattr(request, "target_path", ""),
    )


def _failure(error: Exception) -> _Outcome:
    code = code_of(error)
    if code is None:
        return _Outcome(code=grpc.StatusCode.INTERNAL, message=public_text(error), unexpected=error)
    # The text of any other error is a library's.
    text = str(error) if isinstance(error, KubeEfsError) else _TEXTS[code]
    # A character has at most four bytes.
    limit = _MAX_MESSAGE_BYTES if text.isascii() else _MAX_MESSAGE_BYTES // 4
    return _Outcome(code=code, message=shortened(text, limit) or type(error).__name__)


def shown_request(request: Message) -> dict[str, Any]:
    """The set fields of a request by their names in the protocol, without secret ones."""
    return {
        field.name: _shown(field, value)
        for field, value in request.ListFields()
        if not field.GetOptions().Extensions[csi_secret]
    }


def secrets_of(request: Message) -> Iterator[str]:
    """Every secret value of a request."""
    for field in request.DESCRIPTOR.fields:
        if field.GetOptions().Extensions[csi_secret]:
            yield from getattr(request, field.name).values()  # the protocol has secrets in maps only
    yield getattr(request, _CONTEXT, {}).get(POD_TOKENS, "")


def _shown(field: FieldDescriptor, value: Any) -> Any:  # noqa: ANN401 - any field of any message
    if field.message_type and isinstance(value, Mapping):
        of_values = field.message_type.fields_by_name["value"]
        shown = {
            shortened(str(key), _MAX_TEXT): _shown_one(of_values, one)
            for key, one in islice(value.items(), _MAX_ENTRIES)
            if key != POD_TOKENS
        }
        return shown if len(value) <= _MAX_ENTRIES else {**shown, "...": _more(value)}
    if field.is_repeated:
        shown_ones = [_shown_one(field, one) for one in islice(value, _MAX_ENTRIES)]
        return shown_ones if len(value) <= _MAX_ENTRIES else [*shown_ones, f"... {_more(value)}"]
    return _shown_one(field, value)


def _shown_one(field: FieldDescriptor, value: Any) -> Any:  # noqa: ANN401
    if field.message_type:
        return shown_request(value)
    if field.enum_type:
        name = field.enum_type.values_by_number.get(value)
        return name.name if name else value
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return shortened(value, _MAX_TEXT) if isinstance(value, str) else value


def _more(value: Mapping[Any, Any] | Sequence[Any]) -> str:
    return f"({len(value) - _MAX_ENTRIES} more entries)"
