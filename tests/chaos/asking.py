"""Calls to processes that may have been killed, repeated until they answer."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import grpc
import grpc.aio

from kube_efs.model.errors import KubeEfsError

# An orphan of a node that was killed is forgotten after two reconciliations. An access point stays for five
# minutes after a creation that was cancelled, since AWS may still carry that out.
PATIENCE_SECONDS: Final = 400.0
_PAUSE_SECONDS: Final = 0.2
# The pauses between gRPC's own attempts to connect would grow to two minutes.
CHANNEL_OPTIONS: Final = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.max_send_message_length", -1),
)

T = TypeVar("T")


async def persistently(ask: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call while nothing listens; returns the answer. Raises TimeoutError with the last error."""
    last: Exception | None = None
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    return await ask()
                except (KubeEfsError, OSError, grpc.aio.AioRpcError) as error:
                    last = error
                    await asyncio.sleep(_PAUSE_SECONDS)
    except TimeoutError:
        raise TimeoutError(f"no answer for {PATIENCE_SECONDS:g} s: {last}") from last
