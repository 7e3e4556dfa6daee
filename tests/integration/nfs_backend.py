"""A simulated EFS mount target: TLS with our own certificate, and the NULL call of NFS."""

import asyncio
import datetime
import functools
import itertools
import random
import socket
import ssl
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_NETWORKS = range(16, 251)
_OCTETS = 250
_hosts = itertools.count()


def free_address() -> str:
    """A loopback address that no other test has, also of other processes."""
    third, fourth = divmod(next(_hosts), _OCTETS)
    return f"127.{_own_network()[0]}.{1 + third}.{1 + fourth}"


@functools.cache
def _own_network() -> tuple[int, socket.socket]:
    """The second octet of addresses that this process has until its end, and the mark of that.

    The mark is that of embedded clusters: a socket is bound to port 2049 of the first address.
    """
    for octet in random.sample(_NETWORKS, len(_NETWORKS)):
        mark = socket.socket()
        try:
            mark.bind((f"127.{octet}.0.1", 2049))
        except OSError:
            mark.close()
            continue
        return octet, mark
    raise RuntimeError("no loopback addresses are left for another process of tests")


class Authority:
    """A certificate authority for one test."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.file = folder / f"{name}.pem"
        certificate = self._sign(self._subject, self._key.public_key(), authority=True)
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def server_context(self, host: str) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        certificate = self._sign(subject, key.public_key(), host=host)
        pem = self._folder / f"{self.file.stem}-{host}.pem"
        pem.write_bytes(
            certificate.public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        return context

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        *,
        authority: bool = False,
        host: str | None = None,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if host:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        return builder.sign(self._key, hashes.SHA256())


@dataclass(slots=True)
class Backend:
    """A mount target at its own address and port 2049."""

    authority: Authority
    host: str
    address: str = field(default_factory=free_address)
    bytes_received: int = 0
    connections: int = 0
    denies: bool = False
    _listener: socket.socket | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _accepted: set[socket.socket] = field(default_factory=set)

    async def __aenter__(self) -> Self:
        self._listener = socket.create_server((self.address, 2049), backlog=100)
        self._listener.setblocking(False)
        # A server of asyncio with TLS does not show connections before the end of their handshake, so it
        # could not close them. And a task that waits for one can be cancelled when it has just got it.
        asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Stop listening, and close every connection."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            # A task that is cancelled before its first step closes nothing.
            for connection in (self._listener, *self._accepted):
                connection.close()
            self._listener = None

    def _accept(self, listener: socket.socket) -> None:
        with suppress(BlockingIOError, ConnectionError):  # the client has already given up
            connection, _ = listener.accept()
            self._accepted.add(connection)
            task = asyncio.get_running_loop().create_task(self._serve(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: socket.socket) -> None:
        self._accepted.discard(connection)
        context, loop = self.authority.server_context(self.host), asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, ssl=context)
        except (ConnectionError, ssl.SSLError):
            return
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        self.connections += 1
        try:
            while True:
                call = await read_record(reader)
                self.bytes_received += len(call)
                is_null = call[20:24] == bytes(4)
                writer.write(null_reply(call[:4]) if is_null else _root_reply(call[:4], denied=self.denies))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        finally:
            transport.abort()


async def read_record(reader: asyncio.StreamReader) -> bytes:
    (mark,) = struct.unpack(">I", await reader.readexactly(4))
    return await reader.readexactly(mark & 0x7FFF_FFFF)


def null_reply(xid: bytes) -> bytes:
    return _record(xid + struct.pack(">5I", 1, 0, 0, 0, 0))


def _root_reply(xid: bytes, *, denied: bool) -> bytes:
    """NFS4ERR_ACCESS for PUTROOTFH, or the root: a file handle of four bytes."""
    results = (13, 0, 1, 24, 13) if denied else (0, 0, 2, 24, 0, 10, 0, 4, 1)
    return _record(xid + struct.pack(">5I", 1, 0, 0, 0, 0) + struct.pack(f">{len(results)}I", *results))


def _record(reply: bytes) -> bytes:
    return struct.pack(">I", 0x8000_0000 | len(reply)) + reply
