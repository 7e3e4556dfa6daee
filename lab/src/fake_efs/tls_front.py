"""A mount target: a TLS listener that passes NFS between its clients and the file system's server.

asyncio's own TLS (the ``ssl`` module) cannot ask for a client certificate without verifying who signed it,
and EFS clients sign theirs themselves; pyOpenSSL can. OpenSSL is called on the event loop, with at most
``CHUNK_BYTES`` at a time, so neither locks nor unbounded buffers are needed.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

import structlog
from cryptography import x509
from OpenSSL import SSL

from fake_efs.client_certificate import (
    ClientCertificate,
    check_validity,
    read_client_certificate,
)
from fake_efs.errors import EfsError, InvalidValue, MountDenied
from fake_efs.nfs_denial import DenyingServer
from tiny_ca.authority import ServerCertificate

CHUNK_BYTES = 256 * 1024
_RECORD_BYTES = 16 * 1024  # the largest TLS record; SSL_read gives one at a time
NFS_PORT = 2049
_HANDSHAKE_SECONDS = 10.0
_CONNECT_SECONDS = 5.0
_CLOSE_SECONDS = 1.0
log = structlog.get_logger()


class TlsFailed(ConnectionError):
    """The peer does not speak TLS as asked, or ended the connection with an alert."""


def server_context(served: ServerCertificate) -> SSL.Context:
    """TLS 1.2 and 1.3 with this certificate; a client certificate is asked for and taken from anybody."""
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.set_min_proto_version(SSL.TLS1_2_VERSION)
    context.use_certificate(served.certificate)
    context.use_privatekey(served.private_key)
    context.set_verify(SSL.VERIFY_PEER, lambda *_: True)
    # A resumed session would bring no certificate of its own.
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_options(SSL.OP_NO_TICKET | SSL.OP_NO_RENEGOTIATION)
    return context


class TlsStream:
    """Reads and writes plain bytes over a connection that carries TLS."""

    def __init__(
        self, context: SSL.Context, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._tls = SSL.Connection(context, None)
        self._tls.set_accept_state()

    async def handshake(self) -> None:
        """Negotiate; raises TlsFailed, or ConnectionError when the client goes away."""
        while True:
            try:
                self._tls.do_handshake()
            except SSL.WantReadError:
                await self._feed()
            except SSL.Error as error:
                raise self._failed(error) from error
            else:
                return await self._flush()

    def client_certificate(self) -> x509.Certificate | None:
        """The certificate that the client has sent, None without; raises InvalidValue for an invalid one."""
        try:
            return self._tls.get_peer_certificate(as_cryptography=True)
        except ValueError as error:
            raise InvalidValue(f"cannot be read ({error})", field="client certificate") from error

    async def read(self) -> bytes:
        """The next plain bytes, empty at the end of the client's stream; raises ConnectionError."""
        while True:
            plain, ended = self._decrypt()
            if plain or ended:
                return plain
            await self._feed()

    async def write(self, plain: bytes) -> None:
        """Send bytes, and wait while the client is slow to take them; raises ConnectionError."""
        try:
            self._tls.sendall(plain)
        except SSL.Error as error:
            raise self._failed(error) from error
        await self._flush()

    async def write_eof(self) -> None:
        """Tell the client that nothing more will come; reading continues."""
        try:
            self._tls.shutdown()
        except SSL.Error as error:
            raise self._failed(error) from error
        await self._flush()

    def _decrypt(self) -> tuple[bytes, bool]:
        """All plain bytes that are there, and whether the client has said that no more will come."""
        records = []
        try:
            while True:
                records.append(self._tls.recv(_RECORD_BYTES))
        except SSL.WantReadError:
            return b"".join(records), False
        except SSL.ZeroReturnError:
            return b"".join(records), True
        except SSL.Error as error:
            raise self._failed(error) from error

    async def _feed(self) -> None:
        """Give TLS what comes next, after sending what it wants to say itself."""
        await self._flush()
        chunk = await self._reader.read(CHUNK_BYTES)
        if not chunk:
            # Without the closing alert of TLS nobody knows whether the stream is whole.
            raise TlsFailed("connection closed without a closing alert")
        self._tls.bio_write(chunk)

    async def _flush(self) -> None:
        self._write_pending()
        await self._writer.drain()

    def _write_pending(self) -> None:
        try:
            while True:
                self._writer.write(self._tls.bio_read(CHUNK_BYTES))
        except SSL.WantReadError:
            return

    def _failed(self, error: SSL.Error) -> TlsFailed:
        self._write_pending()  # the alert that says why to the client
        return TlsFailed(f"TLS failed: {error!r}")


class Condition(StrEnum):
    """How a mount target behaves; all but ``serving`` are failures that tests can bring about."""

    SERVING = "serving"
    REFUSING = "refusing"
    """Nobody listens, and open connections are cut."""
    SILENT = "silent"
    """Connections are accepted and nothing is ever answered; open ones stand still until it serves again."""


@dataclass(slots=True, kw_only=True)
class Traffic:
    """What a listener has seen; bytes are those of NFS, without TLS. ``open`` is at this moment."""

    connections: int = 0
    open: int = 0
    handshakes: int = 0
    refused: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0


class TlsFront:
    """Listens on an address, port 2049.

    ``admit`` gives the loopback port of the NFS server for what a client's certificate says, which must
    answer for as long as the context is open, or raises an error of the tree to refuse it. The connection is
    then closed; only MountDenied is answered in NFS. Nothing of what a client has sent is read before.
    ``context`` gives the TLS settings of the next connection.
    """

    def __init__(
        self,
        address: str,
        *,
        context: Callable[[], SSL.Context],
        admit: Callable[[ClientCertificate], AbstractAsyncContextManager[int]],
    ) -> None:
        self.address = address
        self.traffic = Traffic()
        self._context = context
        self._admit = admit
        self._server: asyncio.Server | None = None
        self._serving = asyncio.Event()
        self._serving.set()
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen; raises OSError when the address or port is not available."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, self.address, NFS_PORT, limit=CHUNK_BYTES)

    async def stop(self) -> None:
        """Stop listening and cut every connection."""
        server, self._server = self._server, None
        if server is not None:
            # asyncio gives an accepted connection its transport one step later. On a closed server, that
            # fails and leaves the connection open. So it accepts no more first.
            for listener in server.sockets:
                asyncio.get_running_loop().remove_reader(listener.fileno())
            await asyncio.sleep(0)
            server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def become(self, condition: Condition) -> None:
        """Behave like this from now on; raises OSError as ``start`` does."""
        if condition is Condition.SERVING:
            self._serving.set()
        else:
            self._serving.clear()
        if condition is Condition.REFUSING:
            await self.stop()
        else:
            await self.start()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:  # was accepted while the listener was being closed
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(task)

        # A task that is cancelled before its first step never comes to its own clean-up.
        def ended(_: asyncio.Task[None]) -> None:
            self._connections.discard(task)
            writer.transport.abort()

        task.add_done_callback(ended)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.traffic.connections += 1
        self.traffic.open += 1
        try:
            await self._serving.wait()
            await self._pass(TlsStream(self._context(), reader, writer))
        except EfsError as error:
            self._note_refusal(error)
        except OSError as error:
            self._log_failure(error)
        finally:
            self.traffic.open -= 1
        await _close(writer)

    async def _pass(self, client: TlsStream) -> None:
        async with asyncio.timeout(_HANDSHAKE_SECONDS):
            await client.handshake()
        self.traffic.handshakes += 1
        certificate = client.client_certificate()
        check_validity(certificate, datetime.now(UTC))
        try:
            async with self._admit(read_client_certificate(certificate)) as port:
                await self._pass_nfs(client, port)
        except MountDenied as error:
            self._note_refusal(error)
            await _deny(client)

    async def _pass_nfs(self, client: TlsStream, port: int) -> None:
        async with asyncio.timeout(_CONNECT_SECONDS):
            from_nfs, to_nfs = await asyncio.open_connection("127.0.0.1", port, limit=CHUNK_BYTES)
        try:
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._upstream(client, to_nfs))
                ways.create_task(self._downstream(from_nfs, client))
        except* OSError as errors:
            self._log_failure(errors.exceptions[0])
        finally:
            to_nfs.transport.abort()

    async def _upstream(self, client: TlsStream, to_nfs: asyncio.StreamWriter) -> None:
        while data := await client.read():
            await self._serving.wait()
            self.traffic.bytes_received += len(data)
            to_nfs.write(data)
            await to_nfs.drain()
        to_nfs.write_eof()

    async def _downstream(self, from_nfs: asyncio.StreamReader, client: TlsStream) -> None:
        while data := await from_nfs.read(CHUNK_BYTES):
            await self._serving.wait()
            self.traffic.bytes_sent += len(data)
            await client.write(data)
        await client.write_eof()

    def _note_refusal(self, error: EfsError) -> None:
        self.traffic.refused += 1
        log.warning("mount_target_refused_client", address=self.address, reason=str(error))

    def _log_failure(self, error: BaseException) -> None:
        log.debug("mount_target_connection_failed", address=self.address, reason=str(error))


async def _deny(client: TlsStream) -> None:
    """Deny every call, until the client closes the connection or sends something else."""
    server = DenyingServer()
    with suppress(ValueError):
        while data := await client.read():
            await client.write(server.answer(data))


async def _close(writer: asyncio.StreamWriter) -> None:
    """Close, with a moment for the peer to take what is still to be sent."""
    writer.close()
    with suppress(OSError):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await writer.wait_closed()
