"""Requests that are not valid messages of the protocol."""

from typing import Any

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs
from tests.unit.csi.served import Connect

from kube_efs.csi.identity import identity_service
from kube_efs.csi.protocol import csi_pb2 as csi

PROBE = "/csi.v1.Identity/Probe"


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(b"\xff\xff", id="no message"),
        pytest.param(b"\x0a\x05fs-1", id="truncated field"),
    ],
)
async def test_malformed_request_is_an_invalid_argument(connect: Connect, request_: bytes) -> None:
    async with connect(identity_service()) as channel:
        call: Any = channel.unary_unary(PROBE)
        with capture_logs() as logs, pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(request_)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (caught.value.details() or "").startswith("request: is malformed (")
    [line] = logs
    assert (line["event"], line["method"]) == ("request-not-decoded", PROBE)


async def test_other_requests_and_unknown_methods_are_not_changed(connect: Connect) -> None:
    async with connect(identity_service()) as channel:
        probe: Any = channel.unary_unary(PROBE)
        assert csi.ProbeResponse.FromString(await probe(b"")).ready.value
        unknown: Any = channel.unary_unary("/csi.v1.Node/Unknown")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unknown(b"\xff\xff")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
