"""An HTTP server on an address of this host, while a context is open."""

import ssl
from types import TracebackType
from typing import Final, Self

from aiohttp import web

from kube_efs.model.errors import InvalidSetting

# A request that hangs must not delay the end of the process; SIGTERM leaves 5 s for everything.
_SHUTDOWN_SECONDS: Final = 1.0


class HttpServer:
    """Serves an application while its context is open; use as ``async with``.

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
            await web.TCPSite(self._runner, self._host, self._port, ssl_context=self._tls).start()
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
