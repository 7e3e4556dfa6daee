"""A gRPC server on an endpoint, for as long as a context is open.

Endpoints have the forms that CSI drivers and their sidecars use.
"""

import posixpath
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

import grpc.aio

from kube_efs.csi.interceptors import RequestDecoder
from kube_efs.model.errors import InvalidSetting

__all__ = ["Endpoint", "Service", "TcpEndpoint", "UnixEndpoint", "parse_endpoint", "serving", "show_again"]

Service = Callable[[grpc.aio.Server], None]
"""Adds one service to a server, as the generated ``add_..._to_server`` do with their first argument bound."""

# A socket's path has room for 107 bytes (unix(7)); it is first bound under a name that is one byte longer.
_MAX_PATH_BYTES: Final = 106
_FORMS: Final = "use unix:/path/to/csi.sock, unix:///path/to/csi.sock or tcp://127.0.0.1:10000"
# The time for running calls when the context closes; after SIGTERM, there are 5 s for everything.
_GRACE_SECONDS: Final = 3.0
# Without this, a second process on the same port would silently receive a part of the calls.
_OPTIONS: Final = (("grpc.so_reuseport", 0),)
# Sidecars need not be root, but share a group with the driver (the pod's fsGroup).
_SOCKET_MODE: Final = 0o660


@dataclass(frozen=True, slots=True, kw_only=True)
class UnixEndpoint:
    """A socket in the file system; the path is absolute."""

    path: Path

    def __str__(self) -> str:
        return f"unix://{self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpEndpoint:
    """A TCP port; zero takes a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp://{self.authority}"

    @property
    def authority(self) -> str:
        """Host and port as URLs have them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


Endpoint = UnixEndpoint | TcpEndpoint


def parse_endpoint(text: str) -> Endpoint:
    """The endpoint of a text such as ``unix:///csi/csi.sock`` or ``tcp://127.0.0.1:10000``.

    As in the AWS driver, ``unix://tmp/csi.sock`` is ``/tmp/csi.sock``. A TCP endpoint is without encryption
    and without identity, so it must be on loopback. Raises InvalidSetting.
    """
    scheme, _, rest = text.partition(":")
    try:
        if scheme.lower() == "unix":
            return _unix(rest)
        if scheme.lower() == "tcp" and rest.startswith("//"):
            return _tcp(rest)
        raise ValueError("is not a valid endpoint")
    except ValueError as error:
        raise InvalidSetting(str(error), field="CSI_ENDPOINT", value=text, remedy=_FORMS) from None


def _unix(rest: str) -> UnixEndpoint:
    if not rest.startswith("/") or rest.endswith("/") or "\0" in rest:
        raise ValueError("has no absolute path to a socket")
    path = posixpath.normpath("/" + rest.lstrip("/"))
    if path == "/":
        raise ValueError("has no absolute path to a socket")
    if len(path.encode()) > _MAX_PATH_BYTES:
        raise ValueError(f"has a path of more than {_MAX_PATH_BYTES} bytes, which is too long for a socket")
    return UnixEndpoint(path=Path(path))


def _tcp(rest: str) -> TcpEndpoint:
    url = urlsplit(rest)
    port = url.port
    if not url.hostname or port is None or url.path or url.query or url.fragment or url.username is not None:
        raise ValueError("needs only a host and a port")
    if not _is_loopback(url.hostname):
        raise ValueError("is reachable from other machines, which could use it without authentication")
    return TcpEndpoint(host=url.hostname, port=port)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@asynccontextmanager
async def serving(
    endpoint: Endpoint, *services: Service, interceptors: Sequence[grpc.aio.ServerInterceptor] = ()
) -> AsyncIterator[str]:
    """Serves while the context is open; gives the address in the form of gRPC clients.

    It replaces the socket of an earlier process. When the context closes, new calls are refused at once;
    running ones are cancelled after some seconds. Raises InvalidSetting when the endpoint cannot be bound.
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
            with _published(hidden, endpoint.path):
                yield _target(endpoint.path)
    finally:
        await server.stop(_GRACE_SECONDS)


def _bind(server: grpc.aio.Server, address: str, endpoint: Endpoint) -> int:
    try:
        return server.add_insecure_port(address)
    except RuntimeError as error:  # without a reason, which only gRPC's own log contains
        raise InvalidSetting(
            "cannot be bound",
            field="endpoint",
            value=str(endpoint),
            remedy="check that the directory exists and is writable, or that the port is free",
        ) from error


def _target(path: Path) -> str:
    return f"unix:{quote(str(path))}"


def _hidden_name(endpoint: UnixEndpoint) -> Path:
    path = endpoint.path
    if path.exists() and not path.is_socket():
        raise InvalidSetting(
            "exists and is not a socket", field="endpoint", value=str(endpoint), remedy="remove it"
        )
    return path.with_name(f".{path.name}")  # the kubelet ignores such names


@contextmanager
def _published(hidden: Path, path: Path) -> Iterator[None]:
    """Give a served socket its public name; at the end, remove that unless another process owns it then.

    gRPC binds and removes by name. When a new process replaces an old one, there would be a moment without a
    socket or with a dead one, and the old process would remove the socket of the new one.

    The socket keeps its hidden name, which gRPC removes at the end: the kubelet looks at each new name a
    moment later, and logs an error if it is gone. Only the socket of another process is replaced in one step.
    """
    hidden.chmod(_SOCKET_MODE)
    ours = hidden.stat().st_ino
    try:
        path.hardlink_to(hidden)
    except FileExistsError:
        hidden.replace(path)
    try:
        yield
    finally:
        if path.exists() and path.stat().st_ino == ours:
            path.unlink()


def show_again(path: Path) -> None:
    """Take the public name from a served socket and give it again, for those who watch its directory.

    Raises OSError.
    """
    spare = path.with_name(f".{path.name}.again")
    spare.unlink(missing_ok=True)
    spare.hardlink_to(path)
    try:
        path.unlink()
        with suppress(FileExistsError):  # A new process has published its own.
            path.hardlink_to(spare)
    finally:
        spare.unlink()
