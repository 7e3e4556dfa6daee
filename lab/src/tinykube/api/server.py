"""The embedded API server as a thing that is started and stopped."""

import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from aiohttp import web

from tinykube.api.certificates import make_identity
from tinykube.api.discovery import Discovery
from tinykube.api.front import make_application
from tinykube.api.handlers import Backend, ResourceHandlers
from tinykube.api.kubeconfig import render_kubeconfig, write_kubeconfig
from tinykube.api.pod_commands import NoPodCommands, PodCommands
from tinykube.api.pod_logs import NoPodLogs, PodLogs
from tinykube.custom.custom_types import CustomTypes
from tinykube.kinds.builtin_types import builtin_types
from tinykube.objects.admission import Admission
from tinykube.objects.bootstrap import Bootstrap
from tinykube.objects.resources import Registry
from tinykube.objects.service import ObjectService
from tinykube.objects.storage import Store
from tinykube.objects.users import Users

_SHUTDOWN_SECONDS = 1.0


def _now() -> datetime:
    return datetime.now(UTC)


class ApiServer:
    """A Kubernetes API server on a loopback address, with its own authority and an administrator's token.

    ``port`` 0 takes a free one. ``pod_logs`` answers ``kubectl logs``, ``pod_commands`` ``kubectl exec``.
    Use it as an asynchronous context manager, or call ``start`` and ``stop``.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        pod_logs: PodLogs | None = None,
        pod_commands: PodCommands | None = None,
        clock: Callable[[], datetime] = _now,
    ) -> None:
        self.host = host
        self.port = port
        self.token = token or secrets.token_urlsafe(32)
        self._identity = make_identity(host)
        self._store = Store()
        registry = Registry(builtin_types())
        service = ObjectService(self._store, Admission(self._store), clock)
        users = Users(self._store, self.token)
        self.backend = Backend(
            store=self._store,
            registry=registry,
            service=service,
            clock=clock,
            users=users,
            pod_logs=pod_logs or NoPodLogs(),
            pod_commands=pod_commands or NoPodCommands(),
        )
        CustomTypes(self._store, registry, service)
        self._bootstrap = Bootstrap(self._store, registry, service)
        self._application = make_application(
            users, clock, Discovery(registry), ResourceHandlers(self.backend)
        )
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """Where the server listens."""
        return f"https://{self.host}:{self.port}"

    @property
    def ca_pem(self) -> bytes:
        """The certificate that clients check the server by."""
        return self._identity.ca_pem

    def kubeconfig(self) -> str:
        """The text of a kubeconfig for this server."""
        return render_kubeconfig(url=self.url, ca_pem=self.ca_pem, token=self.token)

    def write_kubeconfig(self, path: Path) -> None:
        """Write that kubeconfig, readable by its owner only."""
        write_kubeconfig(path, self.kubeconfig())

    def compact(self) -> None:
        """Forget all history, so that watches and lists from earlier versions are answered with 410."""
        self._store.compact()

    async def start(self) -> None:
        """Begin to serve; ``url`` is final afterwards. Raises OSError when the port is taken."""
        self._bootstrap.create_namespaces()
        self._runner = web.AppRunner(
            self._application,
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=_SHUTDOWN_SECONDS,
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, self.port, ssl_context=self._identity.ssl_context())
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """End all watches and stop serving; takes about a second at most."""
        self._store.close()
        await self.pause()

    async def pause(self) -> None:
        """Stop serving, and cut what is not answered within a second; ``start`` goes on with all objects."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
