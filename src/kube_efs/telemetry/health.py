"""Whether a process is alive and ready, reported over HTTP together with its metrics."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Self

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from kube_efs.telemetry.serving import HttpServer


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a part of the process is healthy, and the reasons if it is not."""

    ok: bool = True
    reasons: tuple[str, ...] = ()

    @classmethod
    def failing(cls, *reasons: str) -> Self:
        """Not healthy for these reasons; healthy without reasons."""
        return cls(ok=not reasons, reasons=reasons)


def combine(*parts: Health) -> Health:
    """Healthy if all parts are, else with the reasons of all; healthy without parts."""
    return Health(
        ok=all(part.ok for part in parts), reasons=tuple(reason for part in parts for reason in part.reasons)
    )


class Heartbeat:
    """Reports whether a loop makes progress: the loop calls ``beat`` in each round, others call ``health``.

    A loop that hangs raises no error, so only its missing heartbeat shows it.
    """

    def __init__(
        self, name: str, *, max_age_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._max_age_seconds = max_age_seconds
        self._clock = clock
        self._last = clock()

    def beat(self) -> None:
        """Record that the loop makes progress."""
        self._last = self._clock()

    @property
    def age_seconds(self) -> float:
        """Time since the last beat, or since the creation."""
        return self._clock() - self._last

    def health(self) -> Health:
        """Not healthy if the last beat is older than the maximum age."""
        age = self.age_seconds
        if age <= self._max_age_seconds:
            return Health()
        return Health.failing(
            f"{self._name} made no progress for {age:.0f} s (expected at most {self._max_age_seconds:.0f} s)"
        )


class HealthServer(HttpServer):
    """Serves /healthz, /readyz, /metrics and further JSON pages while its context is open.

    /healthz and /readyz answer 200, or 503, with ``{"ok": bool, "reasons": [...]}``.
    """

    def __init__(
        self,
        host: str,
        port: int,
        registry: CollectorRegistry,
        *,
        liveness: Callable[[], Health] = Health,
        readiness: Callable[[], Health] = Health,
        pages: Mapping[str, Callable[[], object]] | None = None,
    ) -> None:
        app = web.Application()
        app.router.add_get("/healthz", _health_page(liveness))
        app.router.add_get("/readyz", _health_page(readiness))
        app.router.add_get("/metrics", metrics_page(registry))
        for path, content in (pages or {}).items():
            app.router.add_get(path, _json_page(content))
        super().__init__(app, host, port, field="health address")


_Handler = Callable[[web.Request], Awaitable[web.Response]]


def _health_page(judge: Callable[[], Health]) -> _Handler:
    async def answer(_request: web.Request) -> web.Response:
        health = judge()
        body = {"ok": health.ok, "reasons": list(health.reasons)}
        return web.json_response(body, status=200 if health.ok else 503)

    return answer


def _json_page(content: Callable[[], object]) -> _Handler:
    async def answer(_request: web.Request) -> web.Response:
        return web.json_response(content())

    return answer


def metrics_page(registry: CollectorRegistry) -> _Handler:
    """Answers with all metrics, in the format that Prometheus requests."""

    async def answer(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})

    return answer
