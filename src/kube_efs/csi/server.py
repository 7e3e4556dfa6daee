"""A gRPC server on an endpoint, for as long as a context is open."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

import grpc.aio

from kube_efs.csi.decoding import RequestDecoder
from kube_efs.csi.endpoints import Endpoint, TcpEndpoint, UnixEndpoint
from kube_efs.model.errors import InvalidSetting

__all__ = ["Service", "serving"]

Service = Callable[[grpc.aio.Server], None]
"""Adds one service to a server, as the generated ``add_..._to_server`` do with their first argument bound."""

# Calls that run when the context closes have this long to end; SIGTERM leaves 5 s for everything.
_GRACE_SECONDS: Final = 3.0
# Without this, a second process on the same port would silently get every other call.
_OPTIONS: Final = (("grpc.so_reuseport", 0),)
# Sidecars need not be root, but share a group with the driver (the pod's fsGroup).
_SOCKET_MODE: Final = 0o660


@asynccontextmanager
async def serving(
    endpoint: Endpoint, *services: Service, interceptors: Sequence[grpc.aio.ServerInterceptor] = ()
) -> AsyncIterator[str]:
    """Serves while the context is open; gives the address as gRPC clients are told it.

    What is left of an earlier process's socket is replaced. When the context closes, new calls are refused
    at once, running ones get some seconds and are then cancelled. Raises InvalidSetting when the endpoint
    cannot be had.
    """
    server = grpc.aio.server(interceptors=[RequestDecoder(), *interceptors], options=_OPTIONS)
    for add_to in services:
        add_to(server)
    try:
        if isinstance(endpoint, TcpEndpoint):
            port = _bind(server, endpoint.authority, endpoint)
            await server.start()
            yield TcpEndpoint(host=endpoint.host, port=port).authority
        else:
            hidden = _hidden_name(endpoint)
            _bind(server, _target(hidden), endpoint)
            await server.start()
            with _shown(hidden, endpoint.path):
                yield _target(endpoint.path)
    finally:
        await server.stop(_GRACE_SECONDS)


def _bind(server: grpc.aio.Server, address: str, endpoint: Endpoint) -> int:
    try:
        return server.add_insecure_port(address)
    except RuntimeError as error:  # all that gRPC says; the reason is in the library's own log
        raise InvalidSetting(
            "cannot be listened on",
            field="endpoint",
            value=str(endpoint),
            remedy="check that the folder exists and can be written, or that the port is free",
        ) from error


def _target(path: Path) -> str:
    return f"unix:{quote(str(path))}"


def _hidden_name(endpoint: UnixEndpoint) -> Path:
    path = endpoint.path
    if path.exists() and not path.is_socket():
        raise InvalidSetting(
            "exists and is no socket", field="endpoint", value=str(endpoint), remedy="remove it"
        )
    return path.with_name(f".{path.name}")  # the kubelet passes over such names


@contextmanager
def _shown(hidden: Path, path: Path) -> Iterator[None]:
    """Gives a served socket its name, in one step; takes the name away unless another process has it by then.

    gRPC binds in place: the name would be gone or dead for a moment when a process is replaced, and the
    process that ends would remove the socket of the one that has begun.
    """
    hidden.chmod(_SOCKET_MODE)
    ours = hidden.stat().st_ino
    hidden.replace(path)
    try:
        yield
    finally:
        if path.exists() and path.stat().st_ino == ours:
            path.unlink()
