"""Where a gRPC server listens, in the forms in which CSI drivers and their sidecars are told it."""

import posixpath
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from kube_efs.model.errors import InvalidSetting

# A socket's path has room for 107 bytes (unix(7)); it is first bound under a name that is one byte longer.
_MAX_PATH_BYTES: Final = 106
_FORMS: Final = "use unix:/path/to/csi.sock, unix:///path/to/csi.sock or tcp://127.0.0.1:10000"


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


def parse_endpoint(text: str, *, field: str = "CSI_ENDPOINT", beyond_loopback: bool = False) -> Endpoint:
    """The endpoint of a text such as ``unix:///csi/csi.sock``, ``unix:/csi/csi.sock`` or ``tcp://127.0.0.1:10000``.

    As in the AWS driver, ``unix://tmp/csi.sock`` is ``/tmp/csi.sock``. A TCP endpoint is without encryption
    and without identity, so it must be on loopback unless ``beyond_loopback``. Raises InvalidSetting.
    """
    scheme, _, rest = text.partition(":")
    try:
        if scheme.lower() == "unix":
            return _unix(rest)
        if scheme.lower() == "tcp" and rest.startswith("//"):
            return _tcp(rest, beyond_loopback=beyond_loopback)
        raise ValueError("is no endpoint")
    except ValueError as error:
        raise InvalidSetting(str(error), field=field, value=text, remedy=_FORMS) from None


def _unix(rest: str) -> UnixEndpoint:
    if not rest.startswith("/") or rest.endswith("/") or "\0" in rest:
        raise ValueError("has no absolute path of a socket")
    path = posixpath.normpath("/" + rest.lstrip("/"))
    if path == "/":
        raise ValueError("has no absolute path of a socket")
    if len(path.encode()) > _MAX_PATH_BYTES:
        raise ValueError(f"has a path of more than {_MAX_PATH_BYTES} bytes, which is too long for a socket")
    return UnixEndpoint(path=Path(path))


def _tcp(rest: str, *, beyond_loopback: bool) -> TcpEndpoint:
    url = urlsplit(rest)
    port = url.port
    if not url.hostname or port is None or url.path or url.query or url.fragment or url.username is not None:
        raise ValueError("needs a host and a port, and nothing else")
    if not beyond_loopback and not _is_loopback(url.hostname):
        raise ValueError("can be reached from other machines, and anybody who reaches it can use it")
    return TcpEndpoint(host=url.hostname, port=port)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
