"""Calls through a real server: answers, logs and metrics."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from functools import partial

import grpc.aio
import pytest
from prometheus_client import CollectorRegistry
from structlog.contextvars import get_contextvars
from structlog.testing import capture_logs
from structlog.typing import EventDict
from tests.collector import collecting
from tests.unit.csi.served import Connect
from tests.unit.logged import logged

from kube_efs.csi.interceptors import mark_as_routine
from kube_efs.csi.protocol import csi_pb2 as csi
from kube_efs.csi.protocol.csi_pb2_grpc import (
    ControllerServicer,
    ControllerStub,
    IdentityServicer,
    IdentityStub,
    NodeServicer,
    NodeStub,
    add_ControllerServicer_to_server,
    add_IdentityServicer_to_server,
    add_NodeServicer_to_server,
)
from kube_efs.csi.server import Service
from kube_efs.model.csi.errors import ExistingVolumeDiffers
from kube_efs.model.errors import AwsDenied, AwsLimitReached, InvalidValue
from kube_efs.telemetry.traces import span, trace, tracing

SECRET = "gh31-xk-external"
PUBLISH = "/csi.v1.Node/NodePublishVolume"
REQUEST = csi.NodePublishVolumeRequest(volume_id="efs:fs-1", secrets={"externalId": SECRET}, readonly=True)


class Node(NodeServicer):
    """A Node service that implements only NodePublishVolume, with a given function."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work

    async def NodePublishVolume(
        self, request: csi.NodePublishVolumeRequest, context: object
    ) -> csi.NodePublishVolumeResponse:
        await self._work()
        return csi.NodePublishVolumeResponse()


def node_service(work: Callable[[], Awaitable[None]]) -> Service:
    # What Node leaves out is answered by the generated base class.
    return partial(add_NodeServicer_to_server, Node(work))  # type: ignore[abstract]


async def nothing() -> None:
    pass


def failing(error: Exception) -> Service:
    async def fail() -> None:
        raise error

    return node_service(fail)


async def refused(connect: Connect, service: Service) -> tuple[grpc.aio.AioRpcError, list[EventDict]]:
    """The error of a failed publish, and the log lines."""
    async with connect(service) as channel:
        with capture_logs() as logs, pytest.raises(grpc.aio.AioRpcError) as caught:
            await NodeStub(channel).NodePublishVolume(REQUEST, timeout=30)
    return caught.value, logs


async def test_answered_call_is_logged_with_its_request_but_no_secrets(connect: Connect) -> None:
    async with connect(node_service(nothing)) as channel:
        with capture_logs() as logs:
            await NodeStub(channel).NodePublishVolume(REQUEST)

    (line,) = logs
    assert (line["event"], line["log_level"], line["code"]) == ("call-answered", "info", "OK")
    assert line["request"] == {"volume_id": "efs:fs-1", "readonly": True}
    assert 0 <= line["seconds"] < 5


async def test_call_that_changed_nothing_is_logged_at_level_debug(connect: Connect) -> None:
    is_first = True

    async def mount_once() -> None:
        nonlocal is_first
        if not is_first:
            mark_as_routine()
        is_first = False

    async with connect(node_service(mount_once)) as channel:
        with capture_logs() as logs:
            for _ in range(2):
                await NodeStub(channel).NodePublishVolume(REQUEST)
    assert [line["log_level"] for line in logs] == ["info", "debug"]


async def test_log_lines_of_a_call_contain_its_method_and_volume(connect: Connect) -> None:
    seen: dict[str, object] = {}

    async def look() -> None:
        seen.update(get_contextvars())

    async with connect(node_service(look)) as channel:
        await NodeStub(channel).NodePublishVolume(REQUEST)

    assert seen == {"method": PUBLISH, "volume": "efs:fs-1"}


class Identity(IdentityServicer):
    """An Identity service that answers probes only."""

    async def Probe(self, request: csi.ProbeRequest, context: object) -> csi.ProbeResponse:
        return csi.ProbeResponse()


async def test_frequent_calls_are_logged_at_level_debug(connect: Connect) -> None:
    service = partial(add_IdentityServicer_to_server, Identity())  # type: ignore[abstract]
    async with connect(service) as channel:
        with capture_logs() as logs:
            await IdentityStub(channel).Probe(csi.ProbeRequest())

    assert [(line["event"], line["log_level"]) for line in logs] == [("call-answered", "debug")]


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        pytest.param(
            InvalidValue("is not an access point", field="accesspoint", value="x", remedy="use fsap-…"),
            grpc.StatusCode.INVALID_ARGUMENT,
            "accesspoint: 'x' is not an access point; use fsap-…",
            id="invalid value with field, value and remedy",
        ),
        pytest.param(
            ExistingVolumeDiffers("has another size"),
            grpc.StatusCode.ALREADY_EXISTS,
            "has another size",
            id="refusal with its own code",
        ),
        pytest.param(
            AwsLimitReached("has 10000 access points"),
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "has 10000 access points",
            id="quota",
        ),
        pytest.param(
            AwsDenied("was not allowed", field="AssumeRole", value=SECRET),
            grpc.StatusCode.PERMISSION_DENIED,
            "AssumeRole: '[removed]' was not allowed",
            id="secret in the text of an error",
        ),
        pytest.param(
            TimeoutError(SECRET),
            grpc.StatusCode.DEADLINE_EXCEEDED,
            "the deadline was exceeded",
            id="text of a library",
        ),
        pytest.param(InvalidValue(""), grpc.StatusCode.INVALID_ARGUMENT, "InvalidValue", id="no text"),
    ],
)
async def test_error_becomes_a_status_with_its_text(
    connect: Connect, error: Exception, code: grpc.StatusCode, message: str
) -> None:
    failure, logs = await refused(connect, failing(error))

    assert (failure.code(), failure.details()) == (code, message)
    (line,) = logs
    assert (line["event"], line["log_level"]) == ("call-refused", "warning")
    assert (line["code"], line["reason"]) == (code.name, message)


async def test_text_of_an_unexpected_error_is_only_logged(connect: Connect) -> None:
    error = KeyError(f"no {SECRET} in the cache of 10.0.0.1")
    async with connect(failing(error)) as channel:
        with logged("INFO") as stream, pytest.raises(grpc.aio.AioRpcError) as caught:
            await NodeStub(channel).NodePublishVolume(REQUEST, timeout=30)
    failure, (line,) = caught.value, map(json.loads, stream.getvalue().splitlines())

    assert failure.code() is grpc.StatusCode.INTERNAL
    assert failure.details() == "internal error (KeyError); the log has the details"
    assert (line["event"], line["level"]) == ("call-failed", "error")
    assert "KeyError: 'no [removed] in the cache of 10.0.0.1'" in line["exception"]
    assert "in fail" in line["exception"]
    assert SECRET not in stream.getvalue()


async def test_long_message_is_truncated(connect: Connect) -> None:
    failure, _ = await refused(connect, failing(InvalidValue("é" * 100_000)))

    assert failure.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert re.fullmatch(r"é{400,1024}\.\.\. \(100000 characters\)", failure.details() or "")


async def test_method_without_an_implementation_is_unimplemented(connect: Connect) -> None:
    async with connect(node_service(nothing)) as channel:
        with capture_logs() as logs, pytest.raises(grpc.aio.AioRpcError) as caught:
            await NodeStub(channel).NodeGetInfo(csi.NodeGetInfoRequest())

    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert [line["event"] for line in logs] == ["call-refused"]


@pytest.mark.parametrize(
    "method", ["/csi.v1.Node/NodeStageVolume", "/csi.v1.Controller/CreateSnapshot", "/x/y"]
)
async def test_method_outside_of_our_protocol_is_unimplemented(
    connect: Connect, registry: CollectorRegistry, method: str
) -> None:
    async with connect(node_service(nothing)) as channel:
        call = channel.unary_unary(method, request_serializer=bytes, response_deserializer=bytes)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"")

    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert registry.get_sample_value("kube_efs_csi_calls_total", {"method": method, "code": "OK"}) is None


async def test_calls_are_counted_by_method_and_code_and_timed(
    connect: Connect, registry: CollectorRegistry
) -> None:
    errors = iter([None, InvalidValue("is wrong"), KeyError("x"), None])

    async def next_error() -> None:
        if error := next(errors):
            raise error

    async with connect(node_service(next_error)) as channel:
        publish = NodeStub(channel).NodePublishVolume
        await asyncio.gather(*(publish(REQUEST) for _ in range(4)), return_exceptions=True)

    counts = {
        code: registry.get_sample_value("kube_efs_csi_calls_total", {"method": PUBLISH, "code": code})
        for code in ("OK", "INVALID_ARGUMENT", "INTERNAL")
    }
    assert counts == {"OK": 2, "INVALID_ARGUMENT": 1, "INTERNAL": 1}
    assert registry.get_sample_value("kube_efs_csi_call_seconds_count", {"method": PUBLISH}) == 4
    assert registry.get_sample_value("kube_efs_csi_calls_running", {"method": PUBLISH}) == 0


async def test_call_cancelled_by_its_caller_cleans_up(connect: Connect, registry: CollectorRegistry) -> None:
    begun, cleaned_up = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned_up.set()

    running = {"method": PUBLISH}
    async with connect(node_service(hang)) as channel:
        call = NodeStub(channel).NodePublishVolume(REQUEST)
        async with asyncio.timeout(5):
            await begun.wait()
            during = registry.get_sample_value("kube_efs_csi_calls_running", running)
            with capture_logs() as logs:
                call.cancel()
                await cleaned_up.wait()

    assert during == 1
    assert registry.get_sample_value("kube_efs_csi_calls_running", running) == 0
    assert [(line["event"], line["code"]) for line in logs] == [("call-refused", "CANCELLED")]


async def test_huge_request_gives_a_short_log_line(connect: Connect) -> None:
    huge = csi.NodePublishVolumeRequest(
        volume_id="efs:" + "x" * 1_000_000,
        volume_context={f"{number}": "y" * 1000 for number in range(1000)},
        volume_capability=csi.VolumeCapability(
            mount=csi.VolumeCapability.MountVolume(mount_flags=["z" * 100_000] * 10)
        ),
    )
    async with connect(node_service(nothing)) as channel:
        with logged("INFO") as stream:
            await NodeStub(channel).NodePublishVolume(huge)

    (text,) = stream.getvalue().splitlines()
    line = json.loads(text)
    assert len(text) < 20_000
    assert "(1000004 characters)" in line["request"]["volume_id"]
    assert "more entries)" in str(line["request"])
    assert len(line["volume"]) == 200
    assert line["code"] == "OK"


_LONG = "x7" + "kQ" * 2000


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(AwsDenied("was not allowed", field="AssumeRole", value=_LONG), id="as a value"),
        pytest.param(InvalidValue(f"is {_LONG!r}", value={"externalId": f"is {_LONG}"}), id="inside a value"),
        pytest.param(AwsDenied("was not allowed", remedy=f"do not say {_LONG}"), id="in a remedy"),
        pytest.param(TimeoutError(_LONG), id="error of a library"),
        pytest.param(NotImplementedError(_LONG), id="error of the generated classes"),
        pytest.param(OSError(5, _LONG), id="error of the system"),
        pytest.param(ExceptionGroup(_LONG, [ValueError(_LONG), AwsDenied(_LONG)]), id="group of errors"),
    ],
)
async def test_caller_and_log_get_no_part_of_a_long_secret(connect: Connect, error: Exception) -> None:
    request = csi.NodePublishVolumeRequest(
        volume_id=f"efs:{_LONG}", secrets={"externalId": _LONG}, volume_context={"again": f"x {_LONG}"}
    )
    async with connect(failing(error)) as channel:
        with logged() as stream, pytest.raises(grpc.aio.AioRpcError) as caught:
            await NodeStub(channel).NodePublishVolume(request, timeout=30)

    assert "kQkQ" not in (caught.value.details() or "")
    assert "kQkQ" not in stream.getvalue()
    assert "call-" in stream.getvalue()


class Controller(ControllerServicer):
    """A Controller service that implements only CreateVolume, which fails."""

    async def CreateVolume(
        self, request: csi.CreateVolumeRequest, context: object
    ) -> csi.CreateVolumeResponse:
        with span("aws.CreateAccessPoint"):
            raise AwsDenied("was denied", field="CreateAccessPoint", remedy="allow it")


async def test_call_of_csi_provisioner_is_a_trace_with_claim_volume_and_error(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with collecting() as collector:
        for name, value in collector.environment.items():
            monkeypatch.setenv(name, value)
        with tracing("kube-efs-controller"):
            # Without the generated base class, gRPC has no method.
            service = partial(add_ControllerServicer_to_server, Controller())  # type: ignore[abstract]
            async with connect(service) as channel:
                parameters = {
                    "csi.storage.k8s.io/pvc/namespace": "team",
                    "csi.storage.k8s.io/pvc/name": "data",
                }
                request = csi.CreateVolumeRequest(
                    name="pvc-1", parameters=parameters, secrets={"key": SECRET}
                )
                with pytest.raises(grpc.aio.AioRpcError):
                    await ControllerStub(channel).CreateVolume(request, timeout=30)
        call = await collector.received("csi.CreateVolume")
    assert call.attributes == {"volume": "pvc-1", "claim": "team/data", "error.type": "AwsDenied"}
    assert call.error == "CreateAccessPoint: was denied; allow it"
    [inner] = collector.inside(call)
    assert (inner.name, inner.error) == ("aws.CreateAccessPoint", call.error)


async def test_calls_that_are_repeated_all_the_time_are_not_traced(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Identity(IdentityServicer):
        async def Probe(self, request: csi.ProbeRequest, context: object) -> csi.ProbeResponse:
            return csi.ProbeResponse()

    async with collecting() as collector:
        for name, value in collector.environment.items():
            monkeypatch.setenv(name, value)
        with tracing("kube-efs-node"):
            identity = partial(add_IdentityServicer_to_server, Identity())  # type: ignore[abstract]
            async with connect(identity) as channel:
                await IdentityStub(channel).Probe(csi.ProbeRequest(), timeout=30)
            with trace("last"):
                pass
        await collector.received("last")
    assert [one.name for one in collector.spans] == ["last"]
