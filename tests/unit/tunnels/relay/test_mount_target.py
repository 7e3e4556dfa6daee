"""Handshakes with a real TLS server on loopback."""

import select
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from kube_efs.tunnels.relay import mount_target
from kube_efs.tunnels.relay.mount_target import (
    ConnectFailed,
    Destination,
    client_context,
    connect,
    handshake,
    load_context,
)
from kube_efs.tunnels.relay.splicing import RESET
from tiny_ca.authority import Authority

HOST = "fs-0123456789abcdef0.efs.us-east-1.amazonaws.com"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.create()


@contextmanager
def server(context: ssl.SSLContext) -> Iterator[socket.socket]:
    """A client's connection to a server that makes one handshake."""

    def serve() -> None:
        accepted, _ = listener.accept()
        with accepted, suppress(OSError), context.wrap_socket(accepted, server_side=True) as tls:
            tls.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        with socket.create_connection(listener.getsockname()) as connection:
            yield connection
        thread.join(60)


@pytest.fixture
def server_context(authority: Authority, tmp_path: Path) -> ssl.SSLContext:
    file = tmp_path / "server.pem"
    file.write_bytes(authority.issue([HOST]).secret_pem())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


def trusting(authority: Authority) -> ssl.SSLContext:
    context = client_context()
    context.load_verify_locations(cadata=authority.pem)
    return context


def refusal(connection: socket.socket, context: ssl.SSLContext, check_host: str = HOST) -> str:
    with pytest.raises(ConnectFailed) as failed:
        handshake(connection, context, check_host=check_host, address="127.0.0.1")
    assert connection.fileno() == -1
    return str(failed.value)


def test_stream_without_keys_in_the_kernel_is_refused(
    server_context: ssl.SSLContext, authority: Authority
) -> None:
    context = trusting(authority)
    context.options &= ~ssl.Options(mount_target._OP_ENABLE_KTLS)
    with server(server_context) as connection:
        assert refusal(connection, context).startswith("the kernel does not encrypt TLS: ")


def test_certificate_for_another_name_is_refused(
    server_context: ssl.SSLContext, authority: Authority
) -> None:
    with server(server_context) as connection:
        found = refusal(connection, trusting(authority), check_host=HOST.replace("fs-0", "fs-1"))

    assert found == "the server's certificate is for another name"


def test_certificate_of_another_authority_is_refused(server_context: ssl.SSLContext) -> None:
    with server(server_context) as connection:
        found = refusal(connection, trusting(Authority.create("another")))

    assert found == "the server's certificate is not trusted: unable to get local issuer certificate"


def test_server_without_the_ciphers_of_the_kernel_is_refused(
    server_context: ssl.SSLContext, authority: Authority
) -> None:
    server_context.maximum_version = ssl.TLSVersion.TLSv1_2
    server_context.set_ciphers("ECDHE+CHACHA20")
    with server(server_context) as connection:
        assert refusal(connection, trusting(authority)).startswith("TLS failed: ")


def test_server_that_does_not_speak_tls_is_refused(authority: Authority) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        with accepted:
            accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            assert refusal(connection, trusting(authority)) == "TLS failed: wrong version number"


def test_silent_server_is_refused_after_the_time(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mount_target, "_HANDSHAKE_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = socket.create_connection(listener.getsockname())
        found = refusal(connection, trusting(authority))

    assert found == "the server does not answer the TLS handshake"


def test_reason_names_each_address_that_was_tried(authority: Authority, tmp_path: Path) -> None:
    # Nobody listens at port 2049 of these.
    with pytest.raises(ConnectFailed) as failed:
        connect(destination(authority, tmp_path, "127.98.7.1", "127.98.7.2"))

    assert str(failed.value) == "127.98.7.1: connection refused; 127.98.7.2: connection refused"


def test_mount_target_that_resets_the_connection_at_once_is_the_reason(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        accepted.close()
    select.select([connection], [], [], 60)
    monkeypatch.setattr(mount_target, "_connect_first", lambda _: connection)
    with pytest.raises(ConnectFailed, match="the server has reset the connection"):
        connect(destination(authority, tmp_path))


def test_vanished_mount_target_is_noticed_after_half_a_minute(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # another run of these tests has another port
        monkeypatch.setattr(mount_target, "_NFS_PORT", listener.getsockname()[1])
        connection = mount_target._connect_first(destination(authority, tmp_path, "127.0.0.1"))
        with connection:
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            probed_after = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
            ended_after = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) / 1000

    assert probed_after < ended_after == 30


def destination(
    authority: Authority, folder: Path, *addresses: str, certificate: Path | None = None
) -> Destination:
    ca_file = folder / "ca.pem"
    ca_file.write_text(authority.pem)
    return Destination(
        addresses=addresses,
        check_host=HOST,
        ca_file=str(ca_file),
        certificate=str(certificate) if certificate else None,
        connect_timeout_seconds=2.0,
    )


def test_files_are_read_anew_for_each_connection(authority: Authority, tmp_path: Path) -> None:
    certificate = tmp_path / "client.pem"
    wanted = destination(authority, tmp_path, "127.98.7.1", certificate=certificate)
    with pytest.raises(ConnectFailed, match=r"client\.pem: no such file or directory"):
        load_context(wanted)

    certificate.write_bytes(authority.issue(["client"], of_client=True).secret_pem())

    load_context(wanted)


def test_encrypted_key_is_refused_and_asks_nobody_for_a_password(
    authority: Authority, tmp_path: Path
) -> None:
    certificate = tmp_path / "client.pem"
    issued = authority.issue(["client"], of_client=True)
    certificate.write_bytes(
        issued.private_key.private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"a password")
        )
        + issued.certificate.public_bytes(Encoding.PEM)
    )

    with pytest.raises(ConnectFailed, match=r"client\.pem: "):
        load_context(destination(authority, tmp_path, "127.98.7.1", certificate=certificate))


def test_file_of_authorities_without_a_certificate_is_refused(authority: Authority, tmp_path: Path) -> None:
    wanted = destination(authority, tmp_path, "127.98.7.1")
    (tmp_path / "ca.pem").write_text("")

    with pytest.raises(ConnectFailed, match=r"ca\.pem: no certificate or crl found"):
        load_context(wanted)
