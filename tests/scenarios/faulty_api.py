"""A proxy in front of the API server that causes faults on request."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web
from lightkube import AsyncClient
from lightkube.config.client_adapter import verify_cluster
from multidict import CIMultiDict
from yarl import URL

from kube_efs.kube.client import load_config
from kube_efs.model.names import NEW_INSTALLATION
from kube_efs_lab.control_plane import ControlPlane
from tinykube.api.credentials import make_identity, render_kubeconfig, write_kubeconfig
from tinykube.kubelet.kubelet import Kubelet

_HOST = "127.0.0.1"
# They belong to one connection, or are created again for the next.
_HOP_BY_HOP = ("Connection", "Content-Length", "Host", "Keep-Alive", "Transfer-Encoding")
_EXPIRED = {
    "type": "ERROR",
    "object": {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": 410,
        "reason": "Expired",
        "message": "too old resource version",
    },
}
_HALF_A_LINE = b'{"type":"MODIFIED","object":{"kind":"Persist'

Fault = Callable[["Exchange"], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request to the API server; ``name`` is empty for all objects of a resource."""

    method: str
    resource: str
    name: str
    is_watch: bool


class Exchange:
    """A received request, and the possible actions on it."""

    def __init__(
        self,
        request: web.Request,
        send: Callable[[], AbstractAsyncContextManager[aiohttp.ClientResponse]],
        watches: set["Exchange"],
    ) -> None:
        self._request = request
        self._send = send
        self._watches = watches
        self._response: web.StreamResponse | None = None

    async def answer(self) -> web.StreamResponse:
        """Forward the request, and return the answer."""
        async with self._send() as answer:
            response = web.StreamResponse(status=answer.status, headers=_without_hops(answer.headers))
            await response.prepare(self._request)
            self._response = response
            self._watches.add(self)
            try:
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
            finally:
                self._watches.discard(self)
            await response.write_eof()
            return response

    async def carry_out(self) -> None:
        """Forward the request, and keep the answer."""
        async with self._send() as answer:
            await answer.read()

    def cut(self) -> web.StreamResponse:
        """Close the connection."""
        if self._request.transport:
            self._request.transport.abort()
        return web.Response()

    async def cut_in_a_line(self) -> None:
        """Close the connection after half of a watch event."""
        assert self._response
        with suppress(ConnectionError):
            await self._response.write(_HALF_A_LINE)
        if self._request.transport:
            self._request.transport.close()


def answering(code: int, *, retry_after: int | None = None) -> Fault:
    """The server refuses the request."""

    async def answer(_: Exchange) -> web.StreamResponse:
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": code,
            "message": "a bad day",
        }
        headers = {"Retry-After": str(retry_after)} if retry_after is not None else {}
        return web.json_response(status, status=code, headers=headers)

    return answer


async def dropping(exchange: Exchange) -> web.StreamResponse:
    """The connection closes before the server reads the request."""
    return exchange.cut()


async def losing_the_answer(exchange: Exchange) -> web.StreamResponse:
    """The server carries out the request, and then the connection closes."""
    await exchange.carry_out()
    return exchange.cut()


async def expiring(_: Exchange) -> web.StreamResponse:
    """The watch begins at an expired version."""
    return web.Response(body=json.dumps(_EXPIRED).encode() + b"\n", content_type="application/json")


def delaying(seconds: float) -> Fault:
    """The server answers slowly."""

    async def delay(exchange: Exchange) -> web.StreamResponse:
        await asyncio.sleep(seconds)
        return await exchange.answer()

    return delay


def no_fault(_: Call) -> Fault | None:
    """No fault."""
    return None


class FaultyApi(AbstractAsyncContextManager["FaultyApi"]):
    """Serves while its context is open, with the account of ``upstream``; clients use ``kubeconfig``.

    ``fault`` selects the fault of each call.
    """

    def __init__(self, upstream: Path, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.fault: Callable[[Call], Fault | None] = no_fault
        self._upstream = upstream
        self._watches: set[Exchange] = set()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        config = load_config(self._upstream)
        assert config.user
        self._server = URL(config.cluster.server)
        trust = verify_cluster(config.cluster, config.user, config.abs_file)
        self._session = await self._stack.enter_async_context(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=trust, limit=0),
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,
            )
        )
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=0)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        identity = make_identity(_HOST)
        await web.TCPSite(runner, _HOST, 0, ssl_context=identity.ssl_context()).start()
        url = f"https://{_HOST}:{runner.addresses[0][1]}"
        text = render_kubeconfig(url=url, ca_pem=identity.ca_pem, token=config.user.token or "")
        write_kubeconfig(self.kubeconfig, text)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def cut_watches(self) -> int:
        """Close every watch in the middle of a line; returns their number."""
        watches = list(self._watches)
        for watch in watches:
            await watch.cut_in_a_line()
        return len(watches)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        call = _call(request)
        exchange = Exchange(request, lambda: self._send(request), self._watches if call.is_watch else set())
        fault = self.fault(call)
        return await (fault(exchange) if fault else exchange.answer())

    @asynccontextmanager
    async def _send(self, request: web.Request) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        url = self._server.join(URL(request.raw_path, encoded=True))
        headers, data = _without_hops(request.headers), await request.read()
        async with self._session.request(request.method, url, headers=headers, data=data) as answer:
            yield answer


def _call(request: web.Request) -> Call:
    # /api/VERSION/[namespaces/NAMESPACE/]RESOURCE[/NAME], or /apis/GROUP/VERSION/ and so on
    parts = request.path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    if parts[:1] == ["namespaces"] and len(parts) > 2:
        parts = parts[2:]
    return Call(
        method=request.method,
        resource=parts[0] if parts else "",
        name=parts[1] if len(parts) > 1 else "",
        is_watch=request.query.get("watch") in {"1", "true"},
    )


def _without_hops(headers: Mapping[str, str]) -> CIMultiDict[str]:
    kept = CIMultiDict(headers)
    for name in _HOP_BY_HOP:
        kept.popall(name, None)
    return kept


class FaultyPlane:
    """A control plane that the controller of kube-efs can reach only through ``api``."""

    def __init__(self, inner: ControlPlane, folder: Path) -> None:
        self.inner = inner
        self._folder = folder
        self._stack = AsyncExitStack()

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of the administrator, without faults."""
        return self.inner.kubeconfig

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.inner)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def install(self, client: AsyncClient, namespace: str) -> None:
        """The same as the inner control plane."""
        await self.inner.install(client, namespace)

    async def kubeconfig_of(self, account: str) -> Path:
        """The kubeconfig of the proxy for the controller, else that of the inner control plane."""
        direct = await self.inner.kubeconfig_of(account)
        if account != NEW_INSTALLATION.names.controller_account:
            return direct
        self.api = await self._stack.enter_async_context(
            FaultyApi(direct, self._folder / "faulty.kubeconfig")
        )
        return self.api.kubeconfig

    async def run_controllers(self, client: AsyncClient, *, node: str) -> None:
        """The same as the inner control plane."""
        await self.inner.run_controllers(client, node=node)

    def take_logs_from(self, kubelet: Kubelet) -> None:
        """The same as the inner control plane."""
        self.inner.take_logs_from(kubelet)
