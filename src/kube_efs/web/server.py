"""Serves the page, read-only and without authentication."""

import asyncio
import base64
import hashlib
import ipaddress
import json
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Final

import structlog
from aiohttp import web

from kube_efs.model.errors import KubeEfsError
from kube_efs.report.values import ClusterReport
from kube_efs.telemetry.health import Health
from kube_efs.telemetry.serving import HttpServer
from kube_efs.web.page import PageContent, render_failure, render_page, style

log = structlog.get_logger(__name__)

# The API server is queried at most this often, for any number of viewers.
_FRESH_SECONDS: Final = 10.0
_PATIENCE_SECONDS: Final = 15.0
_LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The sources of the page: the cluster, and this process."""

    read: Callable[[], Awaitable[ClusterReport]]
    health: Callable[[], Health] = Health
    leading: Callable[[], bool] = lambda: False


class StatusPage(HttpServer):
    """Serves / and /status.json while its context is open; use as ``async with``.

    On a loopback address it answers only requests for the names of this machine, so a page of another site
    cannot read this one through the browser.
    """

    def __init__(
        self, host: str, port: int, sources: Sources, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sources = sources
        self._clock = clock
        self._reading = asyncio.Lock()
        self._last: tuple[ClusterReport, str] | None = None
        self._read_at = float("-inf")
        self._failure = ""
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/", self._page)
        app.router.add_get("/status.json", self._json)
        app.on_response_prepare.append(_harden)
        super().__init__(app, host, port, field="address of the status page")

    async def _page(self, _request: web.Request) -> web.Response:
        seen = await self._snapshot()
        text = render_page(seen) if seen else render_failure(self._failure)
        return web.Response(text=text, content_type="text/html", status=200 if seen else 503)

    async def _json(self, _request: web.Request) -> web.Response:
        seen = await self._snapshot()
        if seen is None:
            return web.json_response({"problems": [self._failure]}, status=503)
        return web.Response(text=json.dumps(asdict(seen.report), indent=2), content_type="application/json")

    async def _snapshot(self) -> PageContent | None:
        """The last report, read again if it is not recent; None before the first one."""
        async with self._reading:
            if self._clock() - self._read_at >= _FRESH_SECONDS:
                await self._read()
                self._read_at = self._clock()
        if self._last is None:
            return None
        report, read_at = self._last
        stale = f"the data is outdated: {self._failure}" if self._failure else ""
        sources = self._sources
        return PageContent(
            report=report, time=read_at, health=sources.health(), leading=sources.leading(), stale=stale
        )

    async def _read(self) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                self._last = await self._sources.read(), now
        except TimeoutError:
            self._failure = f"the cluster did not answer within {_PATIENCE_SECONDS:g} s"
        except KubeEfsError as error:
            self._failure = str(error)
        else:
            self._failure = ""
            return
        log.warning("status-page-not-read", reason=self._failure)

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if _is_loopback(self._host) and _without_port(request.host) not in {*_LOCAL_NAMES, self._host}:
            raise web.HTTPForbidden(text="use the host name localhost")
        return await handler(request)


def _without_port(host: str) -> str:
    return re.sub(r":[0-9]*$", "", host) if not host.endswith("]") else host


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def content_security_policy() -> str:
    """The page loads nothing, runs no scripts, and has only its own style sheet."""
    digest = base64.b64encode(hashlib.sha256(style().encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


async def _harden(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Content-Security-Policy"] = content_security_policy()
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
    response.headers["Cache-Control"] = "no-store"
