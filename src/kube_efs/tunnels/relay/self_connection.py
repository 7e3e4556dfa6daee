"""Whether this machine can run the relay: a connection of a process to itself, with keys in the kernel.

Only a real handshake shows it. The kernel, its module ``tls``, its ciphers, OpenSSL and how it was built must
all fit, and none of them can be asked. The test is a process of its own: it can neither block the agent nor
load modules into it.
"""

import asyncio
import os
import socket
import ssl
import sys
import threading
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

from kube_efs.tunnels.relay.mount_target import VERSIONS, ConnectFailed, client_context, handshake
from kube_efs.tunnels.relay.splicing import Splicing

_HOST = "localhost"
_LIMIT_SECONDS = 30.0
_STEP_SECONDS = 10.0
# Several TLS records, and less than the buffers of a connection.
_DATA = bytes(range(256)) * 256


async def kernel_tls_obstacle(*, timeout_seconds: float = _LIMIT_SECONDS) -> str:
    """Why the relay cannot work on this machine, in words; empty if it can."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-m",
        __name__,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(timeout_seconds):
            output, errors = await process.communicate()
    except TimeoutError:
        return f"the test of the kernel's TLS did not end in {timeout_seconds:g} s"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        *_, last = errors.decode(errors="replace").strip().splitlines() or [""]
        return f"the test of the kernel's TLS failed ({last or f'status {process.returncode}'})"
    return output.decode().strip()


def find_obstacle() -> str:
    """The same in this process; blocks for some seconds at most. Raises OSError if the test itself fails."""
    certificate, pem = _issue_certificate()
    # Each version that a mount target can choose.
    return next(filter(None, (_obstacle_with(version, certificate, pem) for version in VERSIONS)), "")


def _obstacle_with(version: ssl.TLSVersion, certificate: str, pem: bytes) -> str:
    context = client_context()
    context.load_verify_locations(cadata=certificate)
    with ExitStack() as stack:
        mount_target = stack.enter_context(_loopback_listener())
        server = threading.Thread(target=_echo, args=(mount_target, pem, version), daemon=True)
        server.start()
        connection = socket.create_connection(mount_target.getsockname(), timeout=_STEP_SECONDS)
        try:
            stream, _ = handshake(connection, context, check_host=_HOST, address=_HOST)
        except ConnectFailed as error:
            return str(error)
        relay_side, client = _loopback_pair()
        stack.enter_context(client)
        splicing = Splicing(relay_side, stream)
        copying = threading.Thread(target=splicing.run, daemon=True)
        copying.start()
        client.sendall(_DATA)
        client.shutdown(socket.SHUT_WR)
        received = b"".join(iter(lambda: client.recv(len(_DATA)), b""))
        copying.join(_STEP_SECONDS)
    if received != _DATA or splicing.problem:
        return f"data through the kernel's TLS does not arrive ({splicing.problem or 'it is not the same'})"
    return ""


def _echo(listener: socket.socket, pem: bytes, version: ssl.TLSVersion) -> None:
    """Serve one connection: send back everything, and end as a mount target does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = version
    # OpenSSL reads keys from files only. This one has no name that others could open.
    file = os.memfd_create("certificate")
    try:
        os.write(file, pem)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
    listener.settimeout(_STEP_SECONDS)
    connection, _ = listener.accept()
    connection.settimeout(_STEP_SECONDS)
    try:
        with context.wrap_socket(connection, server_side=True) as tls:
            received = b""
            while part := tls.recv(len(_DATA)):
                received += part
            tls.sendall(received)
            tls.unwrap()
    except OSError:
        connection.close()  # the other side says what is wrong


def _loopback_listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def _loopback_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection, as the relay has one with a client."""
    with _loopback_listener() as listener:
        client = socket.create_connection(listener.getsockname(), timeout=_STEP_SECONDS)
        accepted, _ = listener.accept()
    return accepted, client


def _issue_certificate() -> tuple[str, bytes]:
    """A certificate of this moment that signs itself, and the same with its key."""
    # In the process of the test alone, because the library would take 9 MB of the agent, which imports this.
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _HOST)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(_HOST)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pem.decode(), pem + secret


def main() -> None:
    """Print the obstacle."""
    sys.stdout.write(find_obstacle() + "\n")


if __name__ == "__main__":
    main()
