"""A collector for OpenTelemetry: receives spans over OTLP and keeps them."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.proto.trace.v1.trace_pb2 import Status

_DEADLINE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedSpan:
    """A span; ``parent_id`` is empty for the first one of a trace, ``error`` unless it failed."""

    name: str
    process: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    error: str
    resource: dict[str, Any]
    seconds: float


@dataclass(slots=True)
class Collector:
    """What has arrived; ``raw`` has the requests as they were sent."""

    url: str = ""
    spans: list[ReceivedSpan] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make a process send its spans here at once."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}

    def named(self, name: str, **attributes: object) -> list[ReceivedSpan]:
        """The spans with this name and these attributes."""
        return [
            one for one in self.spans if one.name == name and attributes.items() <= one.attributes.items()
        ]

    async def received(self, name: str, **attributes: object) -> ReceivedSpan:
        """The first span with this name and these attributes, when it has arrived."""
        try:
            async with asyncio.timeout(_DEADLINE_SECONDS):
                while not (found := self.named(name, **attributes)):
                    self.arrived.clear()
                    await self.arrived.wait()
        except TimeoutError:
            known = [(one.name, one.attributes) for one in self.spans]
            raise AssertionError(f"no span {name} with {attributes}; received: {known}") from None
        return found[0]

    def inside(self, outer: ReceivedSpan) -> list[ReceivedSpan]:
        """The spans directly inside of that one."""
        return [one for one in self.spans if (one.trace_id, one.parent_id) == (outer.trace_id, outer.span_id)]

    async def receive(self, request: web.Request) -> web.Response:
        """Answer as a collector."""
        body = await request.read()
        if request.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.raw.append(body)
        self.headers.append(dict(request.headers))
        self.spans.extend(_read(ExportTraceServiceRequest.FromString(body)))
        self.arrived.set()
        return web.Response(
            body=ExportTraceServiceResponse().SerializeToString(), content_type="application/x-protobuf"
        )


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    """A collector on a free port of loopback while the context is open."""
    collector, app = Collector(), web.Application()
    app.router.add_post("/v1/traces", collector.receive)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        collector.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield collector
    finally:
        await runner.cleanup()


def _read(request: ExportTraceServiceRequest) -> Iterator[ReceivedSpan]:
    for of_process in request.resource_spans:
        resource = _attributes(of_process.resource.attributes)
        for scope in of_process.scope_spans:
            for one in scope.spans:
                yield _received(one, resource)


def _received(one: SpanMessage, resource: dict[str, Any]) -> ReceivedSpan:
    has_failed = one.status.code == Status.STATUS_CODE_ERROR
    return ReceivedSpan(
        name=one.name,
        process=resource["service.name"],
        trace_id=one.trace_id.hex(),
        span_id=one.span_id.hex(),
        parent_id=one.parent_span_id.hex(),
        attributes=_attributes(one.attributes),
        error=one.status.message if has_failed else "",
        resource=resource,
        seconds=(one.end_time_unix_nano - one.start_time_unix_nano) / 1e9,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {one.key: _value(one) for one in pairs}


def _value(pair: KeyValue) -> Any:
    kind = pair.value.WhichOneof("value")
    return getattr(pair.value, kind) if kind else None
