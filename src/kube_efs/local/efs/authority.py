"""A certificate authority of the laptop's own, and the server certificates it issues.

It stands where Amazon's authorities stand: the tunnel trusts its certificate through the same CAfile and
checks the same names.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kube_efs.model.file_systems import dns_name
from kube_efs.model.ids import FileSystemId, Region

# A laptop's clock may be off, and an embedded cluster may be left running for long.
_VALID_BEFORE = timedelta(days=2)
_VALID_AFTER = timedelta(days=3650)
_COMMON_NAME_MAX = 64  # RFC 5280, ub-common-name


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCertificate:
    """A certificate with its key."""

    certificate: x509.Certificate
    private_key: ec.EllipticCurvePrivateKey = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """A root certificate that issues server certificates."""

    certificate: x509.Certificate
    private_key: ec.EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def create(cls, name: str = "kube-efs embedded EFS") -> Self:
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

    def issue(self, names: Sequence[str]) -> ServerCertificate:
        """A server certificate for these DNS names; the first is its common name too, if it fits."""
        key = ec.generate_private_key(ec.SECP256R1())
        issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.private_key.public_key())
        builder = (
            _builder(_subject(names[0]), self.certificate.subject, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(
                x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False
            )
            .add_extension(issuer_key, critical=False)
        )
        return ServerCertificate(certificate=builder.sign(self.private_key, hashes.SHA256()), private_key=key)


def server_names(file_system_id: FileSystemId, region: Region) -> tuple[str, str]:
    """The names of a file system's certificate: its DNS name, and that of its mount target in any zone."""
    name = dns_name(file_system_id, region)
    return name, f"*.{name}"


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
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
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
