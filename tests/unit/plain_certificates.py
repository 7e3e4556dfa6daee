"""Certificates without the extensions that strict checks require, such as those of many EKS clusters."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainCertificates:
    """The file of an authority, and the file of a server's certificate with its key."""

    authority: Path
    server: Path


def plain_certificates(folder: Path, name: x509.GeneralName) -> PlainCertificates:
    """An authority with basic constraints only, and its certificate for that name."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    constraints = x509.BasicConstraints(ca=True, path_length=None)
    authority = _builder("kubernetes", authority_key).add_extension(constraints, critical=True)
    server = _builder("server", key).add_extension(x509.SubjectAlternativeName([name]), critical=False)
    found = PlainCertificates(authority=folder / "authority.pem", server=folder / "server.pem")
    found.authority.write_bytes(_signed(authority, authority_key))
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    found.server.write_bytes(_signed(server, authority_key) + secret)
    return found


def _builder(subject: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name("kubernetes"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _signed(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> bytes:
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def make_strict(monkeypatch: pytest.MonkeyPatch, module: Any, function: str) -> None:
    """Let the function of the module create contexts as with Python 3.13, whatever the version here."""
    create: Callable[..., ssl.SSLContext] = getattr(module, function)

    def strict(*arguments: Any, **options: Any) -> ssl.SSLContext:
        context = create(*arguments, **options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
        return context

    monkeypatch.setattr(module, function, strict)
