"""Traces: what is recorded and sent, also without a collector and with one that does not answer."""

import ast
import asyncio
import importlib
import ipaddress
import json
import logging
import os
import re
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from structlog.testing import capture_logs
from tests.collector import Collector, collecting
from tests.unit.plain_certificates import make_strict, plain_certificates

from kube_efs.model.errors import InvalidValue
from kube_efs.model.secrets import hidden_here, text_without_secrets
from kube_efs.telemetry import traces
from kube_efs.telemetry.collector_connections import collector_session
from kube_efs.telemetry.traces import continued_trace, span, trace, trace_parent, tracing

# Accepts connections of nobody.
NOBODY = "http://127.0.0.1:9"
OFF = """
import json, sys
from kube_efs.telemetry.traces import continued_trace, span, trace, trace_parent, tracing
with tracing("kube-efs-node", node="one"), trace("outer"), span("inner") as inner:
    with continued_trace("other", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"):
        inner.note(volume="one")
        inner.fail(ValueError())
        assert trace_parent() == ()
print(json.dumps(sorted(sys.modules)))
"""


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    async with collecting() as collector:
        yield collector


@pytest.fixture
def sending(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> Collector:
    """The collector, to which this process sends."""
    for name, value in collector.environment.items():
        monkeypatch.setenv(name, value)
    return collector


def loaded_without_a_collector(**environment: str) -> set[str]:
    ended = subprocess.run(
        [sys.executable, "-c", OFF],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return set(json.loads(ended.stdout))


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({}, id="no endpoint"),
        pytest.param({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, id="empty endpoint"),
        pytest.param({"OTEL_EXPORTER_OTLP_ENDPOINT": NOBODY, "OTEL_SDK_DISABLED": "true"}, id="disabled"),
        pytest.param({"OTEL_SERVICE_NAME": "one"}, id="only other variables"),
    ],
)
async def test_without_a_collector_no_module_of_opentelemetry_is_loaded(environment: dict[str, str]) -> None:
    loaded = await asyncio.to_thread(loaded_without_a_collector, **environment)
    assert [name for name in loaded if name.startswith(("opentelemetry", "requests", "google"))] == []


async def test_spans_arrive_with_their_parents_attributes_and_process(sending: Collector) -> None:
    with (
        tracing("kube-efs-node", node="one"),
        trace("outer", volume="fs-1", empty=""),
        span("inner", tries=2) as inner,
    ):
        inner.note(file_system="fs-1")
    outer, inside = await sending.received("outer"), await sending.received("inner")
    assert outer.parent_id == ""
    assert outer.attributes == {"volume": "fs-1"}
    assert sending.inside(outer) == [inside]
    assert inside.attributes == {"tries": 2, "file_system": "fs-1"}
    assert outer.resource["service.name"] == "kube-efs-node"
    assert outer.resource["service.namespace"] == "kube-efs"
    assert outer.resource["k8s.node.name"] == "one"
    assert "k8s.pod.name" not in outer.resource


async def test_endpoint_for_traces_alone_switches_them_on(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{collector.url}/v1/traces")
    with tracing("kube-efs-node"), trace("outer"):
        pass
    await collector.received("outer")


async def test_environment_takes_precedence_over_name_and_attributes_of_a_process(
    sending: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.cluster.name=blue,k8s.node.name=two")
    with tracing("kube-efs-node", node="one"), trace("outer"):
        pass
    resource = (await sending.received("outer")).resource
    assert resource["service.name"] == "mine"
    assert resource["k8s.cluster.name"] == "blue"
    assert resource["k8s.node.name"] == "two"


async def test_errors_are_recorded_with_their_public_text(sending: Collector) -> None:
    with tracing("kube-efs-node"):
        with pytest.raises(InvalidValue), trace("refused"):
            raise InvalidValue("is not valid", field="size", value="x", remedy="give a number")
        with pytest.raises(KeyError), trace("unexpected"):
            raise KeyError("hunter2")
        with pytest.raises(asyncio.CancelledError), trace("cancelled"):
            raise asyncio.CancelledError
        with trace("handled") as handled:
            handled.fail(InvalidValue("is not valid", field="size"))
    refused = await sending.received("refused")
    assert refused.error == str(InvalidValue("is not valid", field="size", value="x", remedy="give a number"))
    assert refused.attributes == {"error.type": "InvalidValue"}
    unexpected = await sending.received("unexpected")
    assert unexpected.error == "internal error (KeyError); the log has the details"
    assert (await sending.received("cancelled")).error == "was cancelled"
    assert (await sending.received("handled")).error == "size: is not valid"


async def test_nothing_is_recorded_outside_of_a_trace_or_after_its_end(sending: Collector) -> None:
    began, goes_on = asyncio.Event(), asyncio.Event()

    async def later() -> None:
        began.set()
        await goes_on.wait()
        with span("late"):
            pass

    with tracing("kube-efs-node"):
        with span("alone"):
            assert trace_parent() == ()
        with trace("outer"):
            task = asyncio.create_task(later())
            await began.wait()
        goes_on.set()
        await task
        with trace("dropped") as dropped:
            dropped.drop()
        with trace("kept for its inner one") as kept:
            with span("inner"):
                pass
            kept.drop()
        with continued_trace("without a caller", ""):
            pass
        with trace("last"):
            pass
    await sending.received("last")
    assert {one.name for one in sending.spans} == {"outer", "kept for its inner one", "inner", "last"}


async def test_trace_continues_in_another_process(sending: Collector) -> None:
    with tracing("kube-efs-node"), trace("caller"):
        [(name, parent)] = trace_parent()
        assert name == "traceparent"
        with continued_trace("callee", parent), span("step"):
            pass
    caller, callee = await sending.received("caller"), await sending.received("callee")
    assert sending.inside(caller) == [callee]
    assert [one.name for one in sending.inside(callee)] == ["step"]


async def test_sampler_of_the_environment_decides_on_whole_traces(
    sending: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    with tracing("kube-efs-node"), trace("outer") as outer, span("inner"):
        outer.note(volume="one")
        assert trace_parent() == ()
    assert sending.spans == []


async def test_secrets_are_neither_in_attributes_nor_in_errors(sending: Collector) -> None:
    shaped = "aB3dE5gH7j" * 7
    with (
        tracing("kube-efs-node"),
        hidden_here(["plant3d"]),
        pytest.raises(InvalidValue),
        trace("outer", target="/pods/plant3d", options=f"password={shaped}"),
    ):
        raise InvalidValue(f"got plant3d and token={shaped}", field="volume", value=shaped)
    outer = await sending.received("outer")
    assert outer.attributes["target"] == "/pods/[removed]"
    for secret in (b"plant3d", shaped.encode()):
        assert not any(secret in body for body in sending.raw)


async def test_credentials_for_the_collector_are_sent_to_it_and_appear_in_no_text(
    sending: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = "Authorization=Basic%20c0llect0r,x-team=blue,x-honeycomb=abcdefghij0123456789"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", headers)
    with tracing("kube-efs-node"), trace("outer"):
        pass
    await sending.received("outer")
    assert sending.headers[0]["Authorization"] == "Basic c0llect0r"
    text = text_without_secrets("c0llect0r abcdefghij0123456789 blue")
    assert text == "[removed] [removed] blue"


def test_authority_of_the_collector_needs_no_extensions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates = plain_certificates(tmp_path, x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificates.server)
    make_strict(monkeypatch, importlib.import_module("urllib3.connection"), "create_urllib3_context")
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server, collector_session() as session:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        session.trust_env = False
        url = f"https://127.0.0.1:{server.server_port}"
        assert session.get(url, verify=str(certificates.authority), timeout=60).status_code == 501
        session.close()
        thread.join()


async def test_long_values_are_shortened(sending: Collector) -> None:
    with tracing("kube-efs-node"), trace("outer", volume="v" * 100_000):
        pass
    assert len((await sending.received("outer")).attributes["volume"]) <= 500


async def test_unreachable_collector_delays_nothing_and_is_logged_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", NOBODY)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "600")
    with capture_logs() as logs:
        with tracing("kube-efs-node"):
            began = time.monotonic()
            # More than the queue has room for.
            for _ in range(3000):
                with trace("outer"):
                    pass
            took = time.monotonic() - began
            await asyncio.sleep(1.5)  # several attempts to send
            for _ in range(3000):
                with trace("outer"):
                    pass
            ending = time.monotonic()
        ended = time.monotonic() - ending
    warnings = [one for one in logs if one["log_level"] == "warning"]
    assert [one["event"] for one in warnings] == ["traces-not-sent"]
    assert took < 20.0
    assert ended < 20.0


async def test_collector_that_never_answers_delays_the_end_by_a_second_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = await asyncio.start_server(lambda _reader, _writer: asyncio.sleep(60), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    with tracing("kube-efs-node"):
        with trace("outer"):
            pass
        ending = time.monotonic()
    assert 1.0 <= time.monotonic() - ending < 20.0
    server.close()


async def test_process_works_without_traces_if_a_variable_is_invalid(
    sending: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")
    with capture_logs() as logs, tracing("kube-efs-node"), trace("outer"):
        pass
    # The thread of an earlier test may still report its collector.
    events = [(one["log_level"], one["event"]) for one in logs if one["event"] != "traces-not-sent"]
    assert events == [("warning", "traces-not-started")]
    assert sending.spans == []


def test_warning_is_repeated_after_an_hour() -> None:
    now = 0.0
    handler = traces._Warnings(lambda: now)
    record = logging.LogRecord("opentelemetry", logging.WARNING, __file__, 1, "no answer", (), None)
    with capture_logs() as logs:
        for now in (0.0, 10.0, 3599.0, 3600.0, 3601.0):  # noqa: B007 - the clock reads it
            handler.emit(record)
    assert [one["reason"] for one in logs] == ["no answer", "no answer"]


PAGE = Path(__file__).parents[3] / "docs" / "traces.md"
SOURCES = Path(traces.__file__).parents[1]


def recorded_in_code() -> dict[str, set[str]]:
    """The attributes of each span in the code, by its name, in which ``*`` is a part of a call."""
    found: dict[str, set[str]] = {}
    for path in SOURCES.rglob("*.py"):
        if path == Path(traces.__file__) or "telemetry.traces" not in (text := path.read_text()):
            continue
        for node in ast.walk(ast.parse(text)):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args):
                continue
            if node.func.id in {"trace", "span", "continued_trace"}:
                name = ast.unparse(node.args[0])
                name = re.sub(r"\{.*\}", "*", name.removeprefix("f").strip("'\""))
                attributes = {one.arg for one in node.keywords if one.arg}
                found[name] = found.get(name, set()) | attributes
    return found


def test_page_lists_every_span_with_its_attributes() -> None:
    rows = re.findall(r"^\| `([a-zA-Z.*]+)` \|.*\| ([^|]*) \|$", PAGE.read_text(), flags=re.MULTILINE)
    listed = {name: set(re.findall(r"`(\w+)`", attributes)) for name, attributes in rows}
    # A claim gets two more when its outcome is known.
    listed["claim.provision"] -= {"volume", "outcome"}
    assert listed == recorded_in_code()
