"""The server's side of TLS on an asyncio connection, through OpenSSL's memory buffers.

asyncio's own TLS (the ``ssl`` module) cannot ask for a client certificate without verifying who signed it,
and EFS clients sign theirs themselves; pyOpenSSL can. OpenSSL is called on the event loop, with at most
``CHUNK_BYTES`` at a time, so neither locks nor unbounded buffers are needed.
"""

import asyncio

from cryptography import x509
from OpenSSL import SSL

from fake_efs.errors import InvalidValue
from tiny_ca.authority import ServerCertificate

CHUNK_BYTES = 256 * 1024
_RECORD_BYTES = 16 * 1024  # the largest TLS record; SSL_read gives one at a time


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
        """The certificate that the client has sent, None without; raises InvalidValue for an odd one."""
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
        """Tell the client that nothing more will come; reading goes on."""
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
        self._write_pending()  # the alert that tells the client why
        return TlsFailed(f"TLS failed: {error!r}")
