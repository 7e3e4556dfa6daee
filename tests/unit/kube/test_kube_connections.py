"""Requests and answers on connections to the API server."""

import asyncio
import ctypes
import errno
import gzip
import os
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx2
import pytest
from lightkube import KubeConfig
from lightkube.config.models import User
from lightkube.resources.core_v1 import Namespace

from kube_efs.kube import connections as module
from kube_efs.kube.client import connect
from kube_efs.kube.connections import Connections

SECONDS = 10
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
REFUSED = b"HTTP/1.1 409 Conflicting\r\nContent-Length: 0\r\n\r\n"


class Server:
    """Gives these answers in turn and repeats the last one; None closes the connection."""

    def __init__(self, *answers: bytes | None) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self.closed = asyncio.Event()
        self._answers = answers

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await _head(reader):
                self.requests.append(head)
                answer = self._answers[min(len(self.requests), len(self._answers)) - 1]
                if answer is None:
                    break
                writer.write(answer)
        finally:
            self.closed.set()
            writer.close()


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


@asynccontextmanager
async def listening(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, asyncio.timeout(SECONDS):
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def client_of(server: Server, *, read_seconds: float = SECONDS) -> AsyncIterator[httpx2.AsyncClient]:
    transport = Connections(ssl.create_default_context())
    timeout = httpx2.Timeout(SECONDS, read=read_seconds)
    async with (
        listening(server.serve) as address,
        httpx2.AsyncClient(base_url=f"http://{address}", transport=transport, timeout=timeout) as client,
    ):
        yield client


@pytest.fixture
def quick_keepalive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KEEPALIVE_IDLE_SECONDS", 1)
    monkeypatch.setattr(module, "_KEEPALIVE_INTERVAL_SECONDS", 1)


@asynccontextmanager
async def client_of_lost_server(answer: bytes) -> AsyncIterator[httpx2.AsyncClient]:
    """The client of a server that loses its power after that answer; the client itself has no timeout."""
    is_over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _head(reader)
        writer.write(answer)
        await writer.drain()
        drop_all_packets(writer.get_extra_info("socket"))
        await is_over.wait()
        writer.close()

    transport = Connections(ssl.create_default_context())
    async with (
        listening(serve) as address,
        httpx2.AsyncClient(base_url=f"http://{address}", transport=transport, timeout=None) as client,
    ):
        yield client
        is_over.set()


@pytest.mark.usefixtures("quick_keepalive")
async def test_watch_notices_that_its_server_has_lost_its_power() -> None:
    """Otherwise, it would wait for its end, which is minutes away."""
    begun = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n"
    async with client_of_lost_server(begun) as client, client.stream("GET", "/") as answer:
        chunks = answer.aiter_bytes()
        assert await anext(chunks) == b"ok"
        with pytest.raises(httpx2.RemoteProtocolError, match="Connection timed out"):
            await anext(chunks)


@pytest.mark.usefixtures("quick_keepalive")
async def test_request_on_a_connection_of_a_lost_server_fails() -> None:
    async with client_of_lost_server(OK) as client:
        await client.get("/")
        with pytest.raises(httpx2.TransportError, match="Connection timed out"):
            await client.get("/")


def drop_all_packets(connection: socket.socket) -> None:
    """Let the kernel answer nothing that arrives for this socket: its filter has one instruction, "drop"."""
    instruction = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
    program = struct.pack("HL", 1, ctypes.addressof(instruction))
    connection.setsockopt(socket.SOL_SOCKET, 26, program)  # SO_ATTACH_FILTER


async def test_kernel_without_keepalive_has_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOPROTOOPT, os.strerror(errno.ENOPROTOOPT))

    monkeypatch.setattr(socket, "socket", type("Socket", (socket.socket,), {"setsockopt": refuse}))
    made = module._socket_with_keepalive((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1)))
    with made:
        assert made.fileno() >= 0


async def test_sequential_requests_share_a_connection() -> None:
    server = Server(OK, REFUSED, OK)
    async with client_of(server) as client:
        answers = [await client.get("/") for _ in range(3)]
    assert [(one.status_code, one.reason_phrase, one.text) for one in answers] == [
        (200, "OK", "ok"),
        (409, "Conflicting", ""),
        (200, "OK", "ok"),
    ]
    assert server.connections == 1


async def test_request_is_sent_as_the_client_built_it() -> None:
    server = Server(OK)
    async with client_of(server) as client:
        await client.get("/api/v1/pods?labelSelector=app%3Defs%2Cb%20in%20(c%2Bd)", headers={"X-Own": "1"})
        request = client.build_request("PATCH", "/api/v1/pods/web", content=b"{}")
        for name in ("User-Agent", "Accept"):
            del request.headers[name]
        await client.send(request)
    first, second = (one.decode().splitlines() for one in server.requests)
    assert first[0] == "GET /api/v1/pods?labelSelector=app%3Defs%2Cb%20in%20(c%2Bd) HTTP/1.1"
    assert "X-Own: 1" in first or "x-own: 1" in first
    assert second[0] == "PATCH /api/v1/pods/web HTTP/1.1"
    names = sorted(line.partition(":")[0].lower() for line in second[1:] if line)
    assert names == ["accept-encoding", "connection", "content-length", "host"]


async def test_compressed_answer_is_decompressed() -> None:
    body = gzip.compress(b"a list of pods")
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"
    async with client_of(Server(head.encode() + body)) as client:
        assert (await client.get("/")).text == "a list of pods"


async def test_redirect_is_not_followed() -> None:
    server = Server(b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n")
    async with client_of(server) as client:
        assert (await client.get("/")).status_code == 302
    assert len(server.requests) == 1


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "POST"])
async def test_request_on_a_broken_connection_is_sent_once(method: str) -> None:
    server = Server(OK, None, OK)
    async with client_of(server) as client:
        await client.get("/")
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.request(method, "/")
    assert len(server.requests) == 2


async def test_truncated_answer_is_an_error() -> None:
    class Breaking(Server):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await _head(reader)
            writer.write(OK[:-1])
            writer.close()

    async with client_of(Breaking()) as client:
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.get("/")


async def test_missing_answer_times_out() -> None:
    server = Server(b"")
    async with client_of(server, read_seconds=0.1) as client:
        with pytest.raises(httpx2.ReadTimeout):
            await client.get("/")
        await server.closed.wait()


async def test_closed_port_is_a_connection_error() -> None:
    async with await asyncio.start_server(Server(OK).serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
    async with httpx2.AsyncClient(transport=Connections(ssl.create_default_context())) as client:
        with pytest.raises(httpx2.ConnectError, match=str(port)):
            await client.get(f"http://127.0.0.1:{port}/")


async def test_partly_read_answer_closes_its_connection() -> None:
    server = Server(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
    async with client_of(server) as client:
        async with client.stream("GET", "/?watch=true") as answer:
            assert await anext(answer.aiter_bytes()) == b"abc"
            assert not server.closed.is_set()
        await server.closed.wait()


async def test_request_goes_through_the_proxy() -> None:
    server = Server(OK)
    async with listening(server.serve) as address:
        transport = Connections(ssl.create_default_context(), f"http://name:word@{address}")
        async with httpx2.AsyncClient(transport=transport) as client:
            assert (await client.get("http://cluster.example/version")).text == "ok"
    head = server.requests[0].decode()
    assert head.startswith("GET http://cluster.example/version HTTP/1.1\r\n")
    assert "Proxy-Authorization: Basic bmFtZTp3b3Jk\r\n" in head


async def test_refusal_of_the_proxy_names_the_proxy() -> None:
    server = Server(b"HTTP/1.1 407 Who are you\r\nContent-Length: 0\r\n\r\n")
    async with listening(server.serve) as address:
        transport = Connections(ssl.create_default_context(), f"http://{address}")
        async with httpx2.AsyncClient(transport=transport) as client:
            with pytest.raises(httpx2.ProxyError, match="407"):
                await client.get("https://cluster.example/version")


@pytest.mark.parametrize(
    "cancel", [pytest.param(True, id="cancelled"), pytest.param(False, id="interrupted")]
)
async def test_interrupted_handshake_closes_its_connection(cancel: bool) -> None:
    begun, closed = asyncio.Event(), asyncio.Event()

    async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        begun.set()
        if not cancel:
            writer.write(b"no TLS")
        await reader.read()
        closed.set()
        writer.close()

    async with listening(never_answer) as address:
        config = KubeConfig.from_server(f"https://{address}").get()
        assert config
        async with connect(config._replace(user=User()), patience_seconds=0) as client:
            asking = asyncio.create_task(client.get(Namespace, "default"))
            await begun.wait()
            if cancel:
                asking.cancel()
            await asyncio.wait([asking])
            await closed.wait()
