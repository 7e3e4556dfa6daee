"""The NFS NULL call: its bytes, and valid answers."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.tunnels.probe import ProbeResult, null_call, probe

XID = 7
ACCEPTED = struct.pack(">6I", XID, 1, 0, 0, 0, 0)
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def record(body: bytes, *, last: bool = True) -> bytes:
    return struct.pack(">I", (0x8000_0000 if last else 0) | len(body)) + body


@asynccontextmanager
async def server(handler: Handler) -> AsyncIterator[int]:
    listener = await asyncio.start_server(handler, "127.0.0.1", 0)
    try:
        yield int(listener.sockets[0].getsockname()[1])
    finally:
        listener.close()
        await listener.wait_closed()


def answering(answer: bytes) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(44)
        writer.write(answer)
        writer.close()

    return handle


async def probe_against(handler: Handler, *, timeout_seconds: float = 5) -> ProbeResult:
    async with server(handler) as port:
        return await probe(port, timeout_seconds=timeout_seconds, xid=XID)


def test_call_has_the_bytes_of_the_rfc() -> None:
    assert null_call(7).hex(" ", 4) == (
        "80000028 00000007 00000000 00000002 000186a3 00000004 00000000 00000000 00000000 00000000 00000000"
    )


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(record(ACCEPTED), id="in one record"),
        pytest.param(record(ACCEPTED[:10], last=False) + record(ACCEPTED[10:]), id="in two fragments"),
        pytest.param(
            record(struct.pack(">5I8sI", XID, 1, 0, 1, 6, b"verifier", 0)), id="with a padded verifier"
        ),
    ],
)
async def test_accepted_call_is_a_success(answer: bytes) -> None:
    result = await probe_against(answering(answer))
    assert (result.ok, result.reason) == (True, "")
    assert 0 < result.seconds < 5


def answering_root(answer: bytes) -> Handler:
    """A server that accepts NULL, and gives this answer to the request for the root."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(44)
        writer.write(record(ACCEPTED))
        (mark,) = struct.unpack(">I", await reader.readexactly(4))
        call = await reader.readexactly(mark & 0x7FFF_FFFF)
        # The procedure, and at the end no tag, minor version 0, PUTROOTFH and GETFH.
        assert struct.unpack_from(">I", call, 20) == (1,)
        assert struct.unpack(">5I", call[-20:]) == (0, 0, 2, 24, 10)
        writer.write(answer)
        writer.close()

    return handle


def compound(status: int) -> bytes:
    return record(ACCEPTED + struct.pack(">5I", status, 0, 1, 24, status))


@pytest.mark.parametrize(
    ("answer", "is_denied"),
    [
        pytest.param(compound(13), True, id="NFS4ERR_ACCESS"),
        pytest.param(compound(1), True, id="NFS4ERR_PERM"),
        pytest.param(record(struct.pack(">5I", XID, 1, 1, 1, 5)), True, id="AUTH_ERROR"),
        pytest.param(compound(0), False, id="the root"),
        pytest.param(compound(10021), False, id="NFS4ERR_MINOR_VERS_MISMATCH"),
        pytest.param(record(struct.pack(">6I", XID, 1, 0, 0, 0, 3)), False, id="no such procedure"),
        pytest.param(record(ACCEPTED), False, id="no status"),
        pytest.param(b"", False, id="closed"),
    ],
)
async def test_only_a_clear_denial_of_the_root_counts(answer: bytes, is_denied: bool) -> None:
    result = await probe_against(answering_root(answer))
    assert (result.ok, result.is_denied) == (not is_denied, is_denied)
    assert result.is_allowed is (answer == compound(0))
    assert result.reason == ("the server denies access" if is_denied else "")


async def test_missing_answer_about_the_root_says_nothing() -> None:
    ended = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(44)
        writer.write(record(ACCEPTED))
        await reader.read()
        writer.close()
        await writer.wait_closed()
        ended.set()

    # It has a timeout of its own, so that it costs other tunnels no time.
    async with asyncio.timeout(60), server(handle) as port:
        result = await probe(port, timeout_seconds=600, xid=XID)
        await ended.wait()
    assert (result.ok, result.is_denied, result.is_allowed) == (True, False, False)


async def test_server_that_denies_every_call_denies_access() -> None:
    result = await probe_against(answering(record(struct.pack(">5I", XID, 1, 1, 1, 5))))
    assert (result.ok, result.is_denied) == (False, True)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param(b"", "the tunnel closed the connection", id="nothing"),
        pytest.param(record(ACCEPTED)[:9], "the tunnel closed the connection", id="half a record"),
        pytest.param(
            record(struct.pack(">6I", 8, 1, 0, 0, 0, 0)),
            "the answer belongs to another call",
            id="another xid",
        ),
        pytest.param(
            record(struct.pack(">6I", XID, 0, 0, 0, 0, 0)), "the answer belongs to another call", id="call"
        ),
        pytest.param(record(struct.pack(">5I", XID, 1, 1, 0, 2)), "the server denied the call", id="denied"),
        pytest.param(
            record(struct.pack(">8I", XID, 1, 0, 0, 0, 2, 2, 3)),
            "the server does not serve NFS 4 (no such version)",
            id="NFS 3 only",
        ),
        pytest.param(
            record(struct.pack(">6I", XID, 1, 0, 0, 0, 9)),
            "the server does not serve NFS 4 (accept state 9)",
            id="unknown state",
        ),
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", "the answer is not an RPC reply", id="web server"),
        pytest.param(record(b"\0\0\0\7"), "the answer is not an RPC reply", id="record that is too short"),
        pytest.param(
            record(struct.pack(">5I", XID, 1, 0, 0, 2**32 - 1)),
            "the answer is not an RPC reply",
            id="wrong length",
        ),
    ],
)
async def test_any_other_answer_is_a_failure_with_a_reason(answer: bytes, reason: str) -> None:
    result = await probe_against(answering(answer))
    assert (result.ok, result.reason) == (False, reason)


async def test_probe_without_an_answer_ends_after_the_timeout() -> None:
    done = asyncio.Event()

    async def silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await done.wait()
        writer.close()

    async with server(silent) as port:
        result = await probe(port, timeout_seconds=0.05, xid=XID)
        done.set()
    assert (result.ok, result.reason) == (False, "no answer within 0.05 s")


async def test_port_without_a_listener_is_a_failure() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        result = await probe(unused.getsockname()[1], timeout_seconds=5, xid=XID)
    assert (result.ok, result.reason) == (False, "nothing listens on the tunnel's port")


@given(answer=st.binary(max_size=200))
def test_any_bytes_are_read_without_an_error(answer: bytes) -> None:
    result = asyncio.run(probe_against(answering(answer), timeout_seconds=1))
    assert result.ok == (result.reason == "")
