"""A TLS connection to a mount target whose records the kernel encrypts and decrypts.

OpenSSL makes an ordinary handshake in user space, with all checks of the certificate. It then gives the keys
to the kernel (``SSL_OP_ENABLE_KTLS``), and what is written to the socket is encrypted on its way.

The danger: OpenSSL does not report that the kernel refused the keys, and continues in user space. The socket
would then carry whatever is written to it without encryption, and deliver ciphertext as data. ``handshake``
therefore asks the kernel about both directions, and returns no stream unless both are there.

From 3.2 on, OpenSSL also gives the kernel the key for receiving TLS 1.3. With an older one, the version is
1.2. The ciphers of 1.2 are those that every kernel with TLS has. Those of 1.3 cannot be set (before Python
3.15); OpenSSL prefers AES-GCM.
"""

import errno
import socket
import ssl
from typing import Any, NamedTuple

SOL_TLS = 282  # linux/socket.h; the numbers of the two options are from linux/tls.h
_KEYS = ((1, "encrypt"), (2, "decrypt"))
_KEY_VERSION_BYTES = 4
_NO_KEY = {
    errno.EOPNOTSUPP: "its module tls is not loaded",
    errno.EBUSY: "it has no key; its support of the cipher or that of OpenSSL is missing",
}
_OP_ENABLE_KTLS = 1 << 3  # the ssl module names it from Python 3.12 on
_CIPHERS = "ECDHE+AESGCM"
VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)[: 1 + (ssl.OPENSSL_VERSION_INFO >= (3, 2))]
_HOST_NAME_MISMATCH = 62  # X509_V_ERR_HOSTNAME_MISMATCH
_NFS_PORT = 2049
# As long as stunnel waits (TIMEOUTbusy).
_HANDSHAKE_SECONDS = 20.0
_TCP_OPTIONS = (
    # A mount target that vanished sends nothing at all. On an idle connection, probes find that.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    # While data is on its way there are no probes, and TCP would try for a quarter of an hour. The kernel
    # also ends probing after this time, instead of after a number of probes (TCP_KEEPCNT). It ends the
    # connection to a mount target that exists and reads nothing for so long, too. That costs a handshake and
    # repeated calls. With a longer time, each failover would cost more.
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)
_SHORT_NAMES = {"commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU"}


class ConnectFailed(Exception):
    """There is no stream; the text is the reason for administrators."""


class Destination(NamedTuple):
    """The addresses in the order to try them, and who must answer there.

    An address may be a name, which is looked up for each connection. ``certificate`` is a file with the
    certificate and the key of this client; None sends none.
    """

    addresses: tuple[str, ...]
    check_host: str
    ca_file: str
    certificate: str | None
    connect_timeout_seconds: float


class Negotiated(NamedTuple):
    """What a handshake has resulted in, for administrators."""

    address: str = ""
    tls_version: str = ""
    cipher: str = ""
    peer: str = ""


def connect(destination: Destination) -> tuple[socket.socket, Negotiated]:
    """A stream whose bytes the kernel encrypts and decrypts, to the first address that accepts.

    Blocks until its timeouts, and raises ConnectFailed.

    Only an address that does not accept leads to the next one. One that presents a wrong certificate, or
    none, ends the attempt: it must be seen.
    """
    context = load_context(destination)
    connection = _connect_first(destination)
    try:
        address = connection.getpeername()[0]
        return handshake(connection, context, check_host=destination.check_host, address=address)
    except ConnectFailed as error:
        raise ConnectFailed(f"{address}: {error}") from error
    except OSError as error:
        connection.close()
        raise ConnectFailed("the server has reset the connection") from error


def load_context(destination: Destination) -> ssl.SSLContext:
    """The settings of one connection, from the files as they are now; raises ConnectFailed."""
    context = client_context()
    path = destination.ca_file
    try:
        context.load_verify_locations(path)
        if destination.certificate is not None:
            path = destination.certificate
            # With a password, OpenSSL does not ask the terminal for that of an encrypted key.
            context.load_cert_chain(path, password="")
    except OSError as error:
        raise ConnectFailed(f"{path}: {_text(error)}") from error
    return context


def client_context() -> ssl.SSLContext:
    """Settings that check chain and name, give the keys to the kernel, and trust no authority yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version, context.maximum_version = VERSIONS[0], VERSIONS[-1]
    context.set_ciphers(_CIPHERS)
    context.options |= ssl.Options(_OP_ENABLE_KTLS) | ssl.OP_NO_RENEGOTIATION
    return context


def handshake(
    connection: socket.socket, context: ssl.SSLContext, *, check_host: str, address: str
) -> tuple[socket.socket, Negotiated]:
    """Negotiate; the connection becomes the stream. Raises ConnectFailed, and closes it then."""
    connection.settimeout(_HANDSHAKE_SECONDS)  # for the whole handshake
    try:
        tls = context.wrap_socket(connection, server_hostname=check_host)
    except ssl.SSLCertVerificationError as error:
        is_mismatch = error.verify_code == _HOST_NAME_MISMATCH
        problem = "for another name" if is_mismatch else f"not trusted: {error.verify_message}"
        raise ConnectFailed(f"the server's certificate is {problem}") from error
    except TimeoutError as error:
        raise ConnectFailed("the server does not answer the TLS handshake") from error
    except OSError as error:
        raise ConnectFailed(f"TLS failed: {_text(error)}") from error
    with tls:
        cipher, *_ = tls.cipher() or ("",)
        _require_kernel_keys(tls, cipher)
        negotiated = Negotiated(address, tls.version() or "", cipher, _subject(tls))
        # A plain socket instead: OpenSSL must never read or write this stream again.
        stream = socket.socket(fileno=tls.detach())
    stream.settimeout(None)
    return stream, negotiated


def _connect_first(destination: Destination) -> socket.socket:
    problems = []
    for address in destination.addresses:
        try:
            connection = socket.create_connection((address, _NFS_PORT), destination.connect_timeout_seconds)
        except TimeoutError:
            problems.append(f"{address}: no connection in time")
        except OSError as error:
            problems.append(f"{address}: {_text(error)}")
        else:
            for level, option, value in _TCP_OPTIONS:
                connection.setsockopt(level, option, value)
            return connection
    raise ConnectFailed("; ".join(problems))


def _require_kernel_keys(tls: ssl.SSLSocket, cipher: str) -> None:
    for option, what in _KEYS:
        try:
            tls.getsockopt(SOL_TLS, option, _KEY_VERSION_BYTES)
        except OSError as error:
            reason = _NO_KEY.get(error.errno or 0) or _text(error)
            raise ConnectFailed(f"the kernel does not {what} TLS: {reason} ({cipher})") from error


def _subject(tls: ssl.SSLSocket) -> str:
    certificate: Any = tls.getpeercert() or {}
    names = (name for several in certificate.get("subject", ()) for name in several)
    return ", ".join(f"{_SHORT_NAMES.get(kind, kind)}={value}" for kind, value in names)


def _text(error: OSError) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    return (error.strerror or str(error)).lower()
