"""Traces for an OpenTelemetry collector: what a claim or a call of the CSI driver waited for.

Traces are off unless the environment names a collector. Then this module alone imports the OpenTelemetry SDK,
which needs memory on every node. Without a collector, every function here only returns.

A span is recorded only inside of a trace, so regular work such as the polling of AWS records nothing. It is
also not recorded after the end of the span around it: tasks that a call has started may run much longer than
the call.

The SDK sends ended spans in a thread of its own. Its queue has a maximum, beyond which spans are dropped. A
collector that does not answer therefore delays only the end of the process, by at most a second.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import version
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import unquote

import structlog

from kube_efs.model.errors import public_text
from kube_efs.model.secrets import hide_always, is_secret_name, shortened

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span as RecordedSpan
    from opentelemetry.trace import Tracer

__all__ = ["TRACE_PARENT", "Span", "continued_trace", "span", "trace", "trace_parent", "tracing"]

log = structlog.get_logger(__name__)

Attribute: TypeAlias = str | int | float | bool

_LIBRARY: Final = "opentelemetry"
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
# They contain the credentials for the collector.
_HEADERS: Final = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
TRACE_PARENT: Final = "traceparent"  # https://www.w3.org/TR/trace-context/#traceparent-header
# SIGTERM leaves a process 5 s for everything.
_END_SECONDS: Final = 1.0
_WARNING_PAUSE_SECONDS: Final = 3600.0
_MAX_TEXT: Final = 500
_REMEDY: Final = "check the collector and the variables OTEL_*; volumes are served without traces"
# The characters of a secret with a name that says so, and of an API key with another name.
_LEAST_SECRET: Final = 6
_LEAST_KEY: Final = 16

_tracer: "Tracer | None" = None


class Span:
    """One step of a trace. This class records nothing."""

    def note(self, **attributes: Attribute) -> None:
        """Add attributes, except empty ones."""

    def fail(self, error: BaseException) -> None:
        """Record that the step failed, although its error is handled inside of it."""

    def drop(self) -> None:
        """Do not send the span, unless it has inner ones."""


class _Recorded(Span):
    """A span that is sent at its end."""

    def __init__(self, recorded: "RecordedSpan") -> None:
        self.recorded = recorded
        self.has_inner = False
        self._is_dropped = False

    def note(self, **attributes: Attribute) -> None:
        for name, value in attributes.items():
            if value != "":
                self.recorded.set_attribute(name, _clean(value))

    def fail(self, error: BaseException) -> None:
        from opentelemetry.trace import StatusCode

        text = public_text(error) if isinstance(error, Exception) else "was cancelled"
        self.recorded.set_status(StatusCode.ERROR, shortened(text, _MAX_TEXT))
        self.recorded.set_attribute("error.type", type(error).__name__)

    def drop(self) -> None:
        self._is_dropped = True

    def end(self) -> None:
        # A span without an end is never sent.
        if self.has_inner or not self._is_dropped:
            self.recorded.end()


_NOT_RECORDED: Final = Span()
_current: ContextVar[_Recorded | None] = ContextVar("current_span", default=None)


@contextmanager
def tracing(process: str, *, node: str = "", pod: str = "") -> Iterator[None]:
    """Record and send traces while the context is open, if the environment names a collector.

    Its end sends the remaining spans, but takes at most a second.
    """
    global _tracer  # noqa: PLW0603 - a process has one environment
    if not _is_wanted(os.environ):
        yield
        return
    try:
        provider, exporter = _new_provider(process, node, pod)
    except Exception as error:  # noqa: BLE001 - whatever a variable causes, volumes are served without traces
        log.warning("traces-not-started", reason=shortened(str(error), _MAX_TEXT), remedy=_REMEDY)
        yield
        return
    _tracer = provider.get_tracer("kube_efs", version("kube-efs"))
    try:
        yield
    finally:
        _tracer = None
        # A daemon, because the process must end even if the collector does not answer.
        ending = threading.Thread(target=provider.shutdown, daemon=True)
        ending.start()
        ending.join(_END_SECONDS)
        if ending.is_alive():
            logging.getLogger(_LIBRARY).handlers = [logging.NullHandler()]  # the rest of it is expected
            exporter.shutdown()  # ends the pause before its next attempt


@contextmanager
def trace(name: str, **attributes: Attribute) -> Iterator[Span]:
    """Begin a trace, with this span as its first one; an error that leaves the context is recorded."""
    if _tracer is None:
        yield _NOT_RECORDED
        return
    with _recorded(_tracer.start_span(name), attributes) as recorded:
        yield recorded


@contextmanager
def continued_trace(name: str, parent: str, **attributes: Attribute) -> Iterator[Span]:
    """A span in the trace of another process, whose ``trace_parent`` is given; nothing if that is empty."""
    if _tracer is None or not parent:
        yield _NOT_RECORDED
        return
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    context = TraceContextTextMapPropagator().extract({TRACE_PARENT: parent})
    with _recorded(_tracer.start_span(name, context=context), attributes) as recorded:
        yield recorded


@contextmanager
def span(name: str, **attributes: Attribute) -> Iterator[Span]:
    """A step of the trace that this call belongs to; nothing outside of a trace."""
    parent = _current.get()
    if _tracer is None or parent is None or not parent.recorded.is_recording():
        yield _NOT_RECORDED
        return
    from opentelemetry.trace import set_span_in_context

    parent.has_inner = True
    context = set_span_in_context(parent.recorded)
    with _recorded(_tracer.start_span(name, context=context), attributes) as recorded:
        yield recorded


def trace_parent() -> tuple[tuple[str, str], ...]:
    """The current span as metadata of a call to another process; empty outside of a trace."""
    current = _current.get()
    if current is None or not current.recorded.is_recording():
        return ()
    current.has_inner = True
    context = current.recorded.get_span_context()
    return ((TRACE_PARENT, f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"),)


@contextmanager
def _recorded(started: "RecordedSpan", attributes: Mapping[str, Attribute]) -> Iterator[_Recorded]:
    recorded = _Recorded(started)
    recorded.note(**attributes)
    token = _current.set(recorded)
    try:
        yield recorded
    except BaseException as error:
        recorded.fail(error)
        raise
    finally:
        _current.reset(token)
        recorded.end()


def _clean(value: Attribute) -> Attribute:
    return shortened(value, _MAX_TEXT) if isinstance(value, str) else value


def _is_wanted(environment: Mapping[str, str]) -> bool:
    is_disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return not is_disabled and any(environment.get(name) for name in _ENDPOINTS)


def _new_provider(process: str, node: str, pod: str) -> "tuple[TracerProvider, SpanExporter]":
    """Records and sends spans as the environment specifies; the library itself reads its variables."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from kube_efs.telemetry.collector_connections import collector_session

    _hide_headers(os.environ)
    library = logging.getLogger(_LIBRARY)
    library.handlers, library.propagate = [_Warnings()], False
    own = {
        "service.name": process,
        "service.namespace": "kube-efs",
        "service.version": version("kube-efs"),
        "k8s.node.name": node,
        "k8s.pod.name": pod,
    }
    resource = Resource.create(
        {
            **{name: value for name, value in own.items() if value},
            **OTELResourceDetector().detect().attributes,
        }
    )
    # Its own handler at the end of the process would wait for the collector for 30 s.
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(session=collector_session())
    provider.add_span_processor(BatchSpanProcessor(exporter))
    log.info("traces-started", service=str(resource.attributes["service.name"]))
    return provider, exporter


def _hide_headers(environment: Mapping[str, str]) -> None:
    for variable in _HEADERS:
        for pair in environment.get(variable, "").split(","):
            name, _, value = pair.partition("=")
            # Without the scheme, such as Bearer. Other short values are ordinary words.
            secret = unquote(value).strip().rpartition(" ")[2]
            if len(secret) >= (_LEAST_SECRET if is_secret_name(name.strip()) else _LEAST_KEY):
                hide_always([secret])


class _Warnings(logging.Handler):
    """Logs the first problem of the library, and then at most one in an hour."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.WARNING)
        self._clock = clock
        self._quiet_until = clock()

    def emit(self, record: logging.LogRecord) -> None:
        now = self._clock()
        if now < self._quiet_until:
            return
        self._quiet_until = now + _WARNING_PAUSE_SECONDS
        log.warning(
            "traces-not-sent",
            reason=shortened(record.getMessage(), _MAX_TEXT),
            remedy=_REMEDY,
        )
