"""Requests that are not messages of the protocol, such as those with text that is not UTF-8.

gRPC decodes a request before any service sees it, and answers UNKNOWN with a Python exception's text when it
cannot. The fault is the caller's, and callers that repeat a call after UNKNOWN would never stop.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, cast

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError, Message

__all__ = ["RequestDecoder"]

log = structlog.get_logger()

# In quotes: these classes take parameters in the type stubs only.
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"
_Serve: TypeAlias = Callable[[Message, _Context], Awaitable[Message]]


class RequestDecoder(grpc.aio.ServerInterceptor):
    """Decodes requests itself, and answers INVALID_ARGUMENT when that fails."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler:
        """The service's own handler, given the bytes of the request."""
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
