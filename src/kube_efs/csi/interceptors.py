"""What every call gets, whatever its service: a line in the log, figures, a status code for each error."""

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

import grpc
import grpc.aio
import structlog
from google.protobuf.message import Message
from structlog.contextvars import bound_contextvars

from kube_efs.csi.codes import code_of
from kube_efs.csi.requests import shown_request, without_secrets_of
from kube_efs.telemetry.metrics import CsiMetrics

__all__ = ["CallInterceptor"]

log = structlog.get_logger()

# In quotes: these classes take parameters in the type stubs only.
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"
_Serve: TypeAlias = Callable[[Message, _Context], Awaitable[Message]]

# Kubelet and sidecars ask these over and over.
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
# Status messages travel in headers, of which gRPC takes 8 KiB in all, three bytes for one that is not ASCII.
_MAX_MESSAGE_BYTES: Final = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """How a call ended; ``stack`` is of an error that nobody has foreseen."""

    code: grpc.StatusCode = grpc.StatusCode.OK
    message: str = ""
    stack: str = ""


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Logs, counts and times each call; turns errors into status codes. Secrets of requests stay here."""

    def __init__(self, metrics: CsiMetrics, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler:
        """The service's own handler with ours around it. Methods that nobody serves are gRPC's to refuse."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        method, serve = handler_call_details.method, cast("_Serve", handler.unary_unary)

        async def serve_watched(request: Message, context: _Context) -> Message:
            volume = getattr(request, "volume_id", "") or getattr(request, "name", "")
            with bound_contextvars(method=method, **({"volume": volume} if volume else {})):
                return await self._watched(method, serve, request, context)

        return grpc.unary_unary_rpc_method_handler(
            serve_watched,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    async def _watched(self, method: str, serve: _Serve, request: Message, context: _Context) -> Message:
        began, outcome = self._clock(), _Outcome()
        try:
            with self._metrics.running.labels(method).track_inprogress():
                return await serve(request, context)
        except asyncio.CancelledError:
            outcome = _Outcome(
                code=grpc.StatusCode.CANCELLED, message="the caller waits no longer, or we stop"
            )
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets a code
            outcome = _failure(error, request)
        finally:
            self._note(method, request, outcome, self._clock() - began)
        return await context.abort(outcome.code, outcome.message)

    def _note(self, method: str, request: Message, outcome: _Outcome, seconds: float) -> None:
        self._metrics.calls.labels(method, outcome.code.name).inc()
        self._metrics.call_seconds.labels(method).observe(seconds)
        fields = {"request": shown_request(request), "seconds": round(seconds, 3), "code": outcome.code.name}
        if outcome.stack:
            log.error("call-failed", **fields, exception=outcome.stack)
        elif outcome.message:
            log.warning("call-refused", **fields, reason=outcome.message)
        elif method.rpartition("/")[2] in _ROUTINE:
            log.debug("call-answered", **fields)
        else:
            log.info("call-answered", **fields)


def _failure(error: Exception, request: Message) -> _Outcome:
    code = code_of(error)
    if code is not None:
        text = without_secrets_of(request, str(error)) or type(error).__name__
        message = text.encode()[:_MAX_MESSAGE_BYTES].decode(errors="ignore")
        return _Outcome(code=code, message=message)
    return _Outcome(
        code=grpc.StatusCode.INTERNAL,
        # Nobody has judged this error's words; they are for the log only.
        message=f"an error that should not happen ({type(error).__name__}); the log of the driver says more",
        stack=without_secrets_of(request, "".join(traceback.format_exception(error))),
    )
