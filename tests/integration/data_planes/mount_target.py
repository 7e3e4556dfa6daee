"""Mount targets that behave as a test wants, each on its own address and port 2049."""

import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from OpenSSL import SSL
from tests.integration.nfs_backend import free_address

from tiny_ca.authority import Authority, ServerCertificate

TIMEOUT_SECONDS = 60.0
# An answer of three TLS records, as long as fits into the buffers of a client.
REPETITIONS = 4_000
Behaviour = Callable[[ssl.SSLSocket], None]


class MountTarget:
    """Serves while its context is open; a thread for each connection.

    ``client_certificates`` are those of all connections, None for one without. ``ended`` are the connections
    that ended, ``failures`` the errors of those that did not end as TLS should.
    """

    def __init__(self, context: ssl.SSLContext, behaviour: Behaviour) -> None:
        self.address = free_address()
        self.client_certificates: list[x509.Certificate | None] = []
        self.failures: list[str] = []
        self.ended = 0
        self._context = context
        self._behaviour = behaviour
        self._listener = socket.create_server((self.address, 2049))
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._sockets:
            with suppress(OSError):
                # Not that of ssl, which takes TLS from the thread that uses it.
                socket.socket.shutdown(one, socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(TIMEOUT_SECONDS)
        tls = self._context.wrap_socket(
            connection, server_side=True, suppress_ragged_eofs=False, do_handshake_on_connect=False
        )
        self._sockets.append(tls)
        try:
            tls.do_handshake()
        except OSError as error:
            self.failures.append(str(error))
            _close_after_alert(tls)
            return
        presented = tls.getpeercert(binary_form=True)
        self.client_certificates.append(x509.load_der_x509_certificate(presented) if presented else None)
        try:
            self._behaviour(tls)
        except OSError as error:
            self.failures.append(str(error))
        finally:
            tls.close()
            self.ended += 1


def echo(tls: ssl.SSLSocket) -> None:
    """Send back everything at once, and end as a TLS server should."""
    while data := tls.recv(1 << 16):
        tls.sendall(data)
    _close(tls)


def answer_at_the_end(tls: ssl.SSLSocket) -> None:
    """Send back everything after the client has ended its side."""
    received = b""
    while data := tls.recv(1 << 16):
        received += data
    tls.sendall(received)
    _close(tls)


def answer_and_close(tls: ssl.SSLSocket) -> None:
    """Answer one request, and end the connection."""
    tls.sendall(tls.recv(1 << 16))
    _close(tls)


def answer_and_truncate(tls: ssl.SSLSocket) -> None:
    """Repeat a request many times, and end TCP without an end of TLS."""
    tls.sendall(tls.recv(1 << 16) * REPETITIONS)
    _raw(tls).close()


def answer_and_tamper(tls: ssl.SSLSocket) -> None:
    """Repeat a request many times, and send a record that another key has encrypted."""
    tls.sendall(tls.recv(1 << 16) * REPETITIONS)
    with _raw(tls) as raw:
        raw.sendall(b"\x17\x03\x03\x00\x40" + b"forged data".ljust(64))
        raw.recv(1)


def answer_and_send_plain_text(tls: ssl.SSLSocket) -> None:
    """Repeat a request many times, and continue without TLS."""
    tls.sendall(tls.recv(1 << 16) * REPETITIONS)
    with _raw(tls) as raw:
        raw.sendall(b"forged data" * 100)
        raw.recv(1)


def _close(tls: ssl.SSLSocket) -> None:
    tls.unwrap().close()


def _close_after_alert(tls: ssl.SSLSocket) -> None:
    """Let the client read why its handshake failed: TCP would reset a connection with unread data."""
    with _raw(tls) as raw, suppress(OSError):
        raw.shutdown(socket.SHUT_WR)
        while raw.recv(1 << 16):
            pass


def _raw(tls: ssl.SSLSocket) -> socket.socket:
    raw = socket.socket(fileno=tls.detach())
    raw.settimeout(TIMEOUT_SECONDS)
    return raw


class RenegotiatingMountTarget:
    """Answers one request, asks for a new handshake, and then waits, or ends TCP at once."""

    def __init__(self, served: ServerCertificate, *, waits: bool) -> None:
        self._waits = waits
        self.address = free_address()
        self._context = SSL.Context(SSL.TLS_SERVER_METHOD)
        self._context.set_max_proto_version(SSL.TLS1_2_VERSION)
        self._context.use_certificate(served.certificate)
        self._context.use_privatekey(served.private_key)
        self._listener = socket.create_server((self.address, 2049))

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        with suppress(SSL.Error, OSError):
            connection, _ = self._listener.accept()
            with connection:
                tls = SSL.Connection(self._context, connection)
                tls.set_accept_state()
                tls.do_handshake()
                tls.sendall(tls.recv(1 << 16))
                tls.renegotiate()
                tls.do_handshake()  # only sends the request
                if self._waits:
                    tls.recv(1)


def server_context(
    served: ServerCertificate, folder: Path, *, clients: Authority | None = None
) -> ssl.SSLContext:
    """TLS with this certificate; client certificates of ``clients`` are accepted, but not required."""
    file = folder / f"server-{served.certificate.serial_number:x}.pem"
    file.write_bytes(served.secret_pem())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    if clients:
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(cadata=clients.pem)
    return context


def expired(authority: Authority, name: str) -> ServerCertificate:
    """A certificate that was valid until yesterday."""
    issued = authority.issue([name])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(issued.certificate.subject)
        .issuer_name(issued.certificate.issuer)
        .public_key(issued.certificate.public_key())
        .serial_number(issued.certificate.serial_number)
        .not_valid_before(now - timedelta(days=2))
        .not_valid_after(now - timedelta(days=1))
    )
    for extension in issued.certificate.extensions:
        builder = builder.add_extension(extension.value, critical=extension.critical)
    certificate = builder.sign(authority.private_key, hashes.SHA256())
    return ServerCertificate(certificate=certificate, private_key=issued.private_key)
