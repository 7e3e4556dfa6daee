"""The embedded API server as a thing that is started and stopped."""

import secrets
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog
from aiohttp import web

from tinykube.api.credentials import make_identity, render_kubeconfig, write_kubeconfig
from tinykube.api.discovery import Discovery
from tinykube.api.handlers import USER, ResourceHandlers
from tinykube.api.pods import PodCommands, PodLogs
from tinykube.api.requests import JSON, parse_resource_path
from tinykube.custom.custom_types import CustomTypes
from tinykube.kinds.builtin_types import builtin_types
from tinykube.objects.admission import NAMESPACES, Admission
from tinykube.objects.resources import GroupResource, Registry
from tinykube.objects.service import ObjectService, WriteOptions
from tinykube.objects.statuses import ApiError, internal_error
from tinykube.objects.storage import Change, ObjectKey, Store, encode
from tinykube.objects.users import Users
from tinykube.objects.values import Json
from tinykube.ports import free_port

log = structlog.get_logger()

_HEALTH = frozenset({"/healthz", "/livez", "/readyz"})
_BODY_LIMIT_BYTES = 3 * 1024 * 1024  # as kube-apiserver's
_SHUTDOWN_SECONDS = 1.0
_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_OPTIONS = WriteOptions(manager="kube-apiserver")


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
    ) -> None:
        self.host = host
        self.port = port
        self.token = token or secrets.token_urlsafe(32)
        self._identity = make_identity(host)
        self._store = Store()
        registry = Registry(builtin_types())
        service = ObjectService(self._store, Admission(self._store), _now)
        users = Users(self._store, self.token)
        CustomTypes(self._store, registry, service)
        self._bootstrap = Bootstrap(self._store, registry, service)
        handlers = ResourceHandlers(
            store=self._store,
            registry=registry,
            service=service,
            clock=_now,
            users=users,
            pod_logs=pod_logs,
            pod_commands=pod_commands,
        )
        self._application = make_application(users, Discovery(registry), handlers)
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
        # Nobody else gets it while the server pauses.
        self.port = self.port or free_port(self.host)
        site = web.TCPSite(self._runner, self.host, self.port, ssl_context=self._identity.ssl_context())
        await site.start()

    async def stop(self) -> None:
        """End all watches and stop serving; takes about a second at most."""
        self._store.close()
        await self.pause()

    async def pause(self) -> None:
        """Stop serving, and cut longer requests after a second; ``start`` continues with all objects."""
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


def make_application(users: Users, discovery: Discovery, resources: ResourceHandlers) -> web.Application:
    """The web application; everything but health and version wants a token."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path in _HEALTH:
            return web.Response(text="ok")
        if request.path != "/version":
            scheme, _, token = request.headers.get("Authorization", "").partition(" ")
            user = users.find(token.strip()) if scheme.lower() == "bearer" else None
            if user is None:
                raise ApiError(401, "Unauthorized", "Unauthorized")
            request[USER] = user
        path = parse_resource_path(request.rel_url.raw_path)
        if path is not None:
            return await resources.handle(request, path)
        return discovery.answer(request)

    application = web.Application(client_max_size=_BODY_LIMIT_BYTES, middlewares=[_refusals])
    application.router.add_route("*", "/{path:.*}", answer)
    return application


@web.middleware
async def _refusals(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Turn refusals into their Status; a fault of this server is logged and answered with 500."""
    try:
        return await handler(request)
    except ApiError as error:
        return _refusal(error)
    except web.HTTPRequestEntityTooLarge:
        return _refusal(ApiError(413, "RequestEntityTooLarge", f"limit is {_BODY_LIMIT_BYTES} bytes"))
    except ConnectionError:
        # The client went away in the middle of its answer; nobody is left to tell.
        raise
    except Exception as error:
        log.exception("api_request_failed", method=request.method, path=request.path)
        return _refusal(internal_error(f"{type(error).__name__}: {error}"))


def _refusal(error: ApiError) -> web.Response:
    body = encode(error.status) + b"\n"
    return web.Response(status=error.code, body=body, headers={"Content-Type": JSON})


class Bootstrap:
    """Creates what nobody asks for: the first namespaces, and in each namespace the service account."""

    def __init__(self, store: Store, registry: Registry, service: ObjectService) -> None:
        self._store = store
        self._registry = registry
        self._service = service
        store.subscribe(self._on_change)

    def create_namespaces(self) -> None:
        """Create the namespaces that are not there yet."""
        for name in _NAMESPACES:
            self._ensure("namespaces", ObjectKey("", name))

    def _on_change(self, resource: GroupResource, change: Change) -> None:
        if resource == NAMESPACES and change.old is None:
            self._ensure("serviceaccounts", ObjectKey(change.new.key.name, "default"))

    def _ensure(self, plural: str, key: ObjectKey) -> None:
        resource = self._registry.get("", "v1", plural)
        if self._store.get(resource.group_resource, key) is None:
            body: Json = {"metadata": {"name": key.name}}
            self._service.create(resource, key.namespace, body, _OPTIONS)
