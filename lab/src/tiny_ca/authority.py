"""Certificate authorities, created at every start, and what they issue.

The certificates have no key identifiers, like those of many clusters. Contexts that Python 3.13 creates by
default require them, so what uses such a context here does not work there either.
"""

import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# A laptop's clock may be off, and an embedded cluster may be left running for long.
_VALID_BEFORE = timedelta(days=2)
_VALID_AFTER = timedelta(days=3650)
_COMMON_NAME_MAX = 64  # RFC 5280, ub-common-name


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCertificate:
    """A certificate with its key."""

    certificate: x509.Certificate
    private_key: ec.EllipticCurvePrivateKey = field(repr=False)

    def secret_pem(self) -> bytes:
        """Certificate and key in one text; for its owner's eyes only."""
        key = self.private_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return key + self.certificate.public_bytes(serialization.Encoding.PEM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """A root certificate that issues certificates of servers and clients."""

    certificate: x509.Certificate
    private_key: ec.EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def create(cls, name: str = "tiny-ca") -> Self:
        """A new authority of this common name, with a key of its own."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject(name)
        builder = (
            _builder(subject, subject, key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
        )
        return cls(certificate=builder.sign(key, hashes.SHA256()), private_key=key)

    @property
    def pem(self) -> str:
        """The root certificate, for a CAfile."""
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    def issue(self, names: Sequence[str], *, of_client: bool = False) -> ServerCertificate:
        """A certificate for these names and addresses; its common name is the first, if it fits."""
        usage = ExtendedKeyUsageOID.CLIENT_AUTH if of_client else ExtendedKeyUsageOID.SERVER_AUTH
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(_subject(names[0]), self.certificate.subject, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(
                x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False
            )
        )
        return ServerCertificate(certificate=builder.sign(self.private_key, hashes.SHA256()), private_key=key)


def trusting(pem: str) -> ssl.SSLContext:
    """The context of a client that trusts this authority only, or these ones."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=pem)
    return context


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:_COMMON_NAME_MAX])])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _VALID_BEFORE)
        .not_valid_after(now + _VALID_AFTER)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
