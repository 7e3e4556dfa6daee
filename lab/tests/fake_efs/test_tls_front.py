"""A mount target's listener, with real TLS clients and an echo server in place of NFS."""

import asyncio
import contextlib
import gc
import hashlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from fake_efs.client_certificate import ClientCertificate
from fake_efs.errors import InvalidValue
from fake_efs.service import LoopbackRange
from fake_efs.tls_front import NFS_PORT, Condition, TlsFront, server_context
from tiny_ca.authority import Authority, trusting

NAME = "fs-01234567.efs.us-east-1.amazonaws.com"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(slots=True)
class Laboratory:
    """A front with its authority; ``backend`` serves what it lets through."""

    front: TlsFront
    authority: Authority
    backend: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
    seen: list[ClientCertificate]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.backend(reader, writer)

    def context(self, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
        context = trusting(self.authority.pem)
        context.minimum_version = context.maximum_version = version
        return context

    async def connect(self, context: ssl.SSLContext | None = None, name: str = NAME) -> Streams:
        return await asyncio.open_connection(
            self.front.address, NFS_PORT, ssl=context or self.context(), server_hostname=name
        )

    async def echo(self, text: bytes) -> bytes:
        reader, writer = await self.connect()
        writer.write(text)
        answer = await reader.readexactly(len(text))
        await close(writer)
        return answer


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        await close(writer)


@pytest.fixture(autouse=True)
async def time_limit() -> AsyncIterator[None]:
    def cancel_everything() -> None:
        for task in asyncio.all_tasks():
            task.cancel("the test took too long")

    timer = asyncio.get_running_loop().call_later(120, cancel_everything)
    yield
    timer.cancel()


@pytest.fixture
async def laboratory() -> AsyncIterator[Laboratory]:
    addresses = LoopbackRange.acquire()
    authority = Authority.create()
    context = server_context(authority.issue([NAME]))
    seen: list[ClientCertificate] = []

    @asynccontextmanager
    async def admit(client: ClientCertificate) -> AsyncIterator[int]:
        seen.append(client)
        if client.file_system_id not in {None, "fs-01234567"}:
            raise InvalidValue("is not fs-01234567", field="file system", value=client.file_system_id)
        port: int = server.sockets[0].getsockname()[1]
        yield port

    front = TlsFront(str(addresses.network[1000]), context=lambda: context, admit=admit)
    laboratory = Laboratory(front=front, authority=authority, backend=echo, seen=seen)
    server = await asyncio.start_server(laboratory.serve, "127.0.0.1", 0)
    await front.start()
    try:
        yield laboratory
    finally:
        await front.stop()
        server.close()
        addresses.release()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_bytes_pass_both_ways_unchanged(laboratory: Laboratory, version: ssl.TLSVersion) -> None:
    reader, writer = await laboratory.connect(laboratory.context(version))
    sent, received = hashlib.sha256(), hashlib.sha256()
    size = 0

    async def send() -> None:
        for _ in range(20):
            block = os.urandom(999_983)
            sent.update(block)
            writer.write(block)
            await writer.drain()

    async def receive() -> None:
        nonlocal size
        while size < 20 * 999_983:
            block = await reader.read(1 << 20)
            received.update(block)
            size += len(block)

    await asyncio.gather(send(), receive())
    await close(writer)
    assert sent.digest() == received.digest()
    traffic = laboratory.front.traffic
    assert traffic.bytes_received == traffic.bytes_sent == size
    assert (traffic.connections, traffic.handshakes, traffic.refused) == (1, 1, 0)


async def test_the_end_of_the_servers_stream_reaches_the_client(laboratory: Laboratory) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"that is all")
        await close(writer)

    laboratory.backend = greet
    reader, writer = await laboratory.connect()
    assert await reader.read() == b"that is all"
    await close(writer)


async def test_the_end_of_the_clients_stream_reaches_the_server(laboratory: Laboratory) -> None:
    ended = asyncio.Event()

    async def wait_for_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read() == b"bye"
        ended.set()
        await close(writer)

    laboratory.backend = wait_for_end
    _, writer = await laboratory.connect()
    writer.write(b"bye")
    await writer.drain()
    await close(writer)
    await ended.wait()


async def test_a_slow_client_stops_the_server_and_fills_no_memory(laboratory: Laboratory) -> None:
    block = bytes(1 << 20)
    written = 0

    async def flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        with contextlib.suppress(OSError):
            while written < 512:
                writer.write(block)
                await writer.drain()
                written += 1
        await close(writer)

    laboratory.backend = flood
    reader, writer = await laboratory.connect()
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    before = -1
    while laboratory.front.traffic.bytes_sent != before:
        before = laboratory.front.traffic.bytes_sent
        await asyncio.sleep(0.2)
    assert written < 32
    writer.transport.abort()


async def test_the_clients_certificate_decides(
    laboratory: Laboratory, tmp_path: Path, make_client_certificate: Callable[..., Any]
) -> None:
    for file_system in ("fs-01234567", "fs-99999999"):
        certificate, key = make_client_certificate(file_system=b"\x0c\x0b" + file_system.encode())
        chain = tmp_path / file_system
        chain.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
    own, other = laboratory.context(), laboratory.context()
    own.load_cert_chain(tmp_path / "fs-01234567")
    other.load_cert_chain(tmp_path / "fs-99999999")

    reader, writer = await laboratory.connect(own)
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    await close(writer)

    reader, writer = await laboratory.connect(other)
    writer.write(b"hello")
    with contextlib.suppress(OSError):
        assert await reader.read() == b""
    await close(writer)
    assert [client.file_system_id for client in laboratory.seen] == ["fs-01234567", "fs-99999999"]
    traffic = laboratory.front.traffic
    assert (traffic.handshakes, traffic.refused, traffic.bytes_received) == (2, 1, 5)


async def test_a_client_that_does_not_trust_the_server_sends_nothing(laboratory: Laboratory) -> None:
    for context, name in (
        (laboratory.context(), "fs-99999999.efs.us-east-1.amazonaws.com"),
        (trusting(Authority.create().pem), NAME),
    ):
        with pytest.raises(ssl.SSLCertVerificationError):
            await laboratory.connect(context, name)
    assert await laboratory.echo(b"still there") == b"still there"
    traffic = laboratory.front.traffic
    assert (traffic.connections, traffic.handshakes) == (3, 1)
    assert traffic.bytes_received == len(b"still there")


async def test_what_is_not_tls_is_answered_with_an_alert_only(laboratory: Laboratory) -> None:
    reader, writer = await asyncio.open_connection(laboratory.front.address, NFS_PORT)
    writer.write(b"GET / HTTP/1.1\r\n\r\n" * 100)
    answer = b""
    with contextlib.suppress(OSError):
        answer = await reader.read()
    await close(writer)
    assert answer[:1] in {b"", b"\x15"}  # content type alert
    assert (laboratory.front.traffic.handshakes, laboratory.seen) == (0, [])


async def test_a_refusing_mount_target_cuts_connections_and_comes_back(laboratory: Laboratory) -> None:
    reader, writer = await laboratory.connect()
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    await laboratory.front.become(Condition.REFUSING)
    with contextlib.suppress(OSError):
        assert await reader.read() == b""
    await close(writer)
    assert laboratory.front.traffic.open == 0
    with pytest.raises(ConnectionRefusedError):
        await laboratory.connect()
    await laboratory.front.become(Condition.SERVING)
    assert await laboratory.echo(b"back") == b"back"


async def test_a_silent_mount_target_holds_everything_until_it_serves_again(laboratory: Laboratory) -> None:
    reader, writer = await laboratory.connect()
    writer.write(b"before")
    assert await reader.readexactly(6) == b"before"
    await laboratory.front.become(Condition.SILENT)
    writer.write(b"during")
    answer = asyncio.create_task(reader.readexactly(6))
    connection = asyncio.create_task(laboratory.connect())
    async with asyncio.timeout(30):
        while laboratory.front.traffic.connections < 2:  # noqa: ASYNC110 - the front sends no event
            await asyncio.sleep(0.01)
    done, _ = await asyncio.wait({answer, connection}, timeout=0.3)
    assert not done
    assert laboratory.front.traffic.connections == 2
    assert laboratory.front.traffic.handshakes == 1
    await laboratory.front.become(Condition.SERVING)
    assert await answer == b"during"
    _, second = await connection
    await close(second)
    await close(writer)


async def test_stopping_ends_every_connection(laboratory: Laboratory) -> None:
    streams = [await laboratory.connect() for _ in range(10)]
    await laboratory.front.stop()
    assert laboratory.front.traffic.open == 0
    for reader, writer in streams:
        with contextlib.suppress(OSError):
            assert await reader.read() == b""
        await close(writer)


async def test_stopping_ends_a_connection_that_came_in_the_same_moment(laboratory: Laboratory) -> None:
    loop = asyncio.get_running_loop()
    others = asyncio.all_tasks()
    with socket.create_connection((laboratory.front.address, NFS_PORT), timeout=20) as client:
        client.setblocking(False)
        # Each step of the loop is looked at, so that the connection's task is seen before its first.
        while not any("_serve" in str(task.get_coro()) for task in asyncio.all_tasks() - others):  # noqa: ASYNC110
            await asyncio.sleep(0)
        await laboratory.front.stop()
        with contextlib.suppress(ConnectionResetError):
            assert await loop.sock_recv(client, 1) == b""


@pytest.mark.parametrize("turns", range(6))
async def test_stopping_closes_a_connection_at_any_step_of_its_acceptance(
    laboratory: Laboratory, turns: int
) -> None:
    # The kernel has made it when the loop first sees the listener.
    with socket.create_connection((laboratory.front.address, NFS_PORT)) as client:
        for _ in range(turns):
            await asyncio.sleep(0)
        await laboratory.front.stop()
        for _ in range(6):
            await asyncio.sleep(0)
        gc.collect()  # warns about what was not closed
        client.settimeout(60)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.to_thread(client.recv, 1) == b""
