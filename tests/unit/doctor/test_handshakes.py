"""Handshakes with real TLS servers, each with another fault."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.unit.plain_certificates import make_strict, plain_certificates

from kube_efs.doctor.gathering.handshakes import check_ca_files, shake_hands
from kube_efs.doctor.node_facts import CaFile, ConfiguredTunnel, Handshake, HandshakeOutcome
from kube_efs.tunnels.probe import probe

NAME = "fs-11111111.efs.us-east-1.amazonaws.com"
_NOW = datetime.now(UTC)


def _issue(folder: Path, name: str, *, until: datetime = _NOW + timedelta(days=1)) -> Path:
    """A file with a self-signed certificate and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_NOW - timedelta(days=2))
        .not_valid_after(until)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{name}-{until:%d}.pem"
    path.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return path


@asynccontextmanager
async def _server(certificate: Path | None) -> AsyncIterator[int]:
    """The port of a server with that certificate; without one, it closes connections."""

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    context = None
    if certificate:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1]


def _tunnel(ca_file: Path) -> ConfiguredTunnel:
    return ConfiguredTunnel(
        name="fs-11111111", port=20490, addresses=("127.0.0.1",), check_host=NAME, ca_file=ca_file
    )


async def _handshake(port: int, ca_file: Path) -> Handshake:
    return await shake_hands("127.0.0.1", _tunnel(ca_file), timeout_seconds=20, port=port)


async def test_handshake_with_a_healthy_mount_target_succeeds(tmp_path: Path) -> None:
    certificate = _issue(tmp_path, NAME)
    async with _server(certificate) as port:
        found = await _handshake(port, certificate)
    assert found == Handshake(address="127.0.0.1", outcome=HandshakeOutcome.DONE)


async def test_authority_needs_no_extensions_that_stunnel_does_not_require(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates = plain_certificates(tmp_path, x509.DNSName(NAME))
    async with _server(certificates.server) as port:
        make_strict(monkeypatch, ssl, "create_default_context")
        found = await _handshake(port, certificates.authority)
    assert found == Handshake(address="127.0.0.1", outcome=HandshakeOutcome.DONE)


async def test_certificate_with_another_name_is_reported_with_its_names(tmp_path: Path) -> None:
    certificate = _issue(tmp_path, "other.example.com")
    async with _server(certificate) as port:
        found = await _handshake(port, certificate)
    assert found.outcome is HandshakeOutcome.WRONG_NAME
    assert found.names == ("other.example.com",)
    assert NAME in found.reason


async def test_expired_certificate_is_reported(tmp_path: Path) -> None:
    certificate = _issue(tmp_path, NAME, until=_NOW - timedelta(days=1))
    async with _server(certificate) as port:
        found = await _handshake(port, certificate)
    assert found.outcome is HandshakeOutcome.EXPIRED
    assert found.reason == "certificate has expired"


async def test_certificate_of_an_unknown_authority_is_reported(tmp_path: Path) -> None:
    async with _server(_issue(tmp_path, NAME)) as port:
        found = await _handshake(port, _issue(tmp_path, "authority.example.com"))
    assert found.outcome is HandshakeOutcome.NOT_TRUSTED
    assert "self-signed" in found.reason


async def test_server_that_closes_the_connection_is_reported(tmp_path: Path) -> None:
    async with _server(None) as port:
        found = await _handshake(port, _issue(tmp_path, NAME))
    assert found.outcome is HandshakeOutcome.FAILED
    assert found.reason


async def test_port_without_a_listener_is_reported(tmp_path: Path) -> None:
    async with _server(None) as port:
        pass
    found = await _handshake(port, _issue(tmp_path, NAME))
    assert found.outcome is HandshakeOutcome.NOT_CONNECTED
    assert f"Connect call failed ('127.0.0.1', {port})" in found.reason
    assert not (await probe(port, timeout_seconds=20, xid=1)).ok


async def test_server_without_an_answer_is_reported_after_the_timeout(tmp_path: Path) -> None:
    released = asyncio.Event()

    async def hang(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await released.wait()
        writer.close()

    tunnel = _tunnel(_issue(tmp_path, NAME))
    async with await asyncio.start_server(hang, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        found = await shake_hands("127.0.0.1", tunnel, timeout_seconds=0.2, port=port)
        released.set()
    assert found.outcome is HandshakeOutcome.FAILED
    assert found.reason == "no handshake within 0.2 s"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(None, "No such file or directory", id="missing"),
        pytest.param("", "no certificate", id="empty"),
        pytest.param("no certificate", "no certificate", id="other text"),
    ],
)
def test_invalid_ca_file_is_reported(tmp_path: Path, content: str | None, problem: str) -> None:
    path = tmp_path / "ca.crt"
    if content is not None:
        path.write_text(content)
    (found,) = check_ca_files({path})
    assert found.path == path
    assert problem.lower() in found.problem.lower()


def test_valid_ca_file_has_no_problem(tmp_path: Path) -> None:
    path = _issue(tmp_path, NAME)
    assert check_ca_files({path}) == (CaFile(path=path),)
