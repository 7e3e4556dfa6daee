"""An HTTP server on an address of this host, while a context is open."""

import socket
import ssl
from types import TracebackType
from typing import Final, Self

from aiohttp import web

from kube_efs.model.errors import InvalidSetting

# A request that hangs must not delay the end of the process; SIGTERM leaves 5 s for everything.
_SHUTDOWN_SECONDS: Final = 1.0
_ALL_OF_IPV4: Final = "0.0.0.0"  # noqa: S104 - settings choose it
_ALL_OF_IPV6: Final = "::"


class HttpServer:
    """Serves an application while its context is open; use as ``async with``.

    ``0.0.0.0`` is every address, also of IPv6: the kubelet probes the pods of a cluster with IPv6 there.
    Port 0 selects a free port, which ``port`` then contains. If the address cannot be bound, opening raises
    InvalidSetting about ``field``, the setting with the address.
    """

    def __init__(
        self, app: web.Application, host: str, port: int, *, field: str, tls: ssl.SSLContext | None = None
    ) -> None:
        self._host = host
        self._port = port
        self._field = field
        self._tls = tls
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS)

    @property
    def port(self) -> int:
        """The port of the server; the requested one until the context is open."""
        return int(self._runner.addresses[0][1]) if self._runner.addresses else self._port

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        try:
            await self._listen(self._host)
            if self._host == _ALL_OF_IPV4 and _has_ipv6():
                await self._listen(_ALL_OF_IPV6)
        except OSError as error:
            await self._runner.cleanup()
            raise InvalidSetting(
                f"cannot be bound ({error.strerror or error})",
                field=self._field,
                value=f"{self._host}:{self._port}",
                remedy="choose another port, or 0 for a free one",
            ) from error
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        await self._runner.cleanup()

    async def _listen(self, host: str) -> None:
        await web.TCPSite(self._runner, host, self.port, ssl_context=self._tls).start()


def _has_ipv6() -> bool:
    """Whether this kernel has IPv6, and it is not off."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as tried:
            tried.bind((_ALL_OF_IPV6, 0))
    except OSError:
        return False
    return True
