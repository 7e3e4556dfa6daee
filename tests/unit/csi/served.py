"""A service on a real socket with the interceptor, and a channel to it."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import grpc.aio
from prometheus_client import CollectorRegistry

from kube_efs.csi.interceptors import CallInterceptor
from kube_efs.csi.server import Service, UnixEndpoint, serving
from kube_efs.telemetry.metrics import CsiMetrics

Connect = Callable[[Service], AbstractAsyncContextManager[grpc.aio.Channel]]


@asynccontextmanager
async def served(
    service: Service, *, folder: Path, registry: CollectorRegistry
) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to the service, which runs while the context is open."""
    endpoint = UnixEndpoint(path=folder / "csi.sock")
    interceptors = [CallInterceptor(CsiMetrics(registry))]
    async with (
        serving(endpoint, service, interceptors=interceptors) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        yield channel
