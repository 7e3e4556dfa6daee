"""The client certificate of a tunnel: it shows a mount target what the connection is for.

EFS does not check who signed the certificate. Its extensions name the file system and the access point, and
contain a signature of the IAM identity. Subject, validity and extensions are those of efs-utils, byte for
byte. Only the serial number is random, because RFC 5280 (4.1.2.2) forbids the zero of efs-utils.

The cryptography library needs 9 MB of memory. The agent imports this module with its first certificate.
"""

import asyncio
import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from kube_efs.model.efs.ids import FileSystemId, Region
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.tunnels.data_plane import CertificateFile
from kube_efs.tunnels.on_demand.signature import ConnectRequest, sign
from kube_efs.tunnels.on_demand.validity import VALID_AFTER, VALID_BEFORE, first_renewal
from kube_efs.tunnels.options import ClientInfo

if TYPE_CHECKING:  # code that makes certificates without credentials needs no client of AWS
    from kube_efs.aws.connection import AwsCredentials

ACCESS_POINT_OID: Final = x509.ObjectIdentifier("1.3.6.1.4.1.4843.7.1")
IAM_OID: Final = x509.ObjectIdentifier("1.3.6.1.4.1.4843.7.2")
FILE_SYSTEM_OID: Final = x509.ObjectIdentifier("1.3.6.1.4.1.4843.7.3")
CLIENT_INFO_OID: Final = x509.ObjectIdentifier("1.3.6.1.4.1.4843.7.4")

# As in efs-utils.
_KEY_BITS: Final = 3072
_COMMON_NAME_MAX: Final = 64  # RFC 5280, ub-common-name

# Tags of ASN.1's distinguished encoding (X.690).
_OCTET_STRING: Final = 0x04
_UTF8_STRING: Final = 0x0C
_UTC_TIME: Final = 0x17
_SEQUENCE: Final = 0x30
_SESSION_TOKEN: Final = 0xA0  # [0] EXPLICIT


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateSubject:
    """What a certificate is for; ``node`` is the host name, of which 64 characters are used."""

    node: str
    file_system_id: FileSystemId
    kind: FileSystemKind = FileSystemKind.EFS
    region: Region
    access_point_id: str | None = None
    client_info: ClientInfo | None = None


@dataclass(frozen=True, slots=True)
class ClientKey:
    """The private key of a node's certificates; one serves all of them."""

    private_key: rsa.RSAPrivateKey = field(repr=False)

    @classmethod
    async def generate(cls) -> Self:
        """A new key, which takes some tenths of a second in another thread."""
        return cls(await asyncio.to_thread(rsa.generate_private_key, 65537, _KEY_BITS))

    @property
    def public_key_hash(self) -> str:
        """The SHA-1 of the RSAPublicKey's DER; the subject key identifier is the same."""
        der = self.private_key.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.PKCS1
        )
        return hashlib.sha1(der, usedforsecurity=False).hexdigest()

    def secret_pem(self) -> bytes:
        """The key as stunnel reads it."""
        return self.private_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCertificate:
    """A certificate with its key; both are secret, since the certificate holds the session token.

    ``secret_pem`` is the key and the certificate in one text, so that a file with it changes as a whole and
    the key can be a new one at any renewal. ``renew_at`` is when to make the next one.
    """

    secret_pem: bytes = field(repr=False)
    not_after: datetime
    renew_at: datetime


def make_certificate(
    subject: CertificateSubject,
    key: ClientKey,
    *,
    now: datetime,
    credentials: "AwsCredentials | None" = None,
    credentials_expire_at: datetime | None = None,
) -> ClientCertificate:
    """The certificate of this moment, valid for 3 hours; with ``credentials`` it names their IAM identity."""
    created_at = now.astimezone(UTC).replace(microsecond=0)
    certificate = _sign_certificate(
        subject.node, key, created_at, _extensions(subject, key, created_at, credentials)
    )
    return ClientCertificate(
        secret_pem=key.secret_pem() + certificate.public_bytes(serialization.Encoding.PEM),
        not_after=created_at + VALID_AFTER,
        renew_at=first_renewal(created_at, credentials_expire_at),
    )


def describe_certificate(path: Path, pem: bytes) -> CertificateFile:
    """The certificate in a file with this text; raises ValueError if there is none."""
    certificate = x509.load_pem_x509_certificate(pem)
    return CertificateFile(
        path=path, serial=certificate.serial_number, not_after=certificate.not_valid_after_utc
    )


def _sign_certificate(
    node: str, key: ClientKey, created_at: datetime, extensions: dict[x509.ObjectIdentifier, bytes]
) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node[:_COMMON_NAME_MAX])])
    public_key = key.private_key.public_key()
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(created_at - VALID_BEFORE)
        .not_valid_after(created_at + VALID_AFTER)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )
    for oid, value in extensions.items():
        builder = builder.add_extension(x509.UnrecognizedExtension(oid, value), critical=False)
    return builder.sign(key.private_key, hashes.SHA256())


def _extensions(
    subject: CertificateSubject, key: ClientKey, created_at: datetime, credentials: "AwsCredentials | None"
) -> dict[x509.ObjectIdentifier, bytes]:
    """The values of EFS's extensions, in efs-utils' order."""
    extensions = {}
    if subject.access_point_id:
        extensions[ACCESS_POINT_OID] = _text(subject.access_point_id)
    if credentials:
        extensions[IAM_OID] = _iam(subject, key, created_at, credentials)
    extensions[FILE_SYSTEM_OID] = _text(subject.file_system_id)
    if subject.client_info:
        info = subject.client_info
        extensions[CLIENT_INFO_OID] = _der(_SEQUENCE, _text(info.source) + _text(info.version))
    return extensions


def _iam(
    subject: CertificateSubject, key: ClientKey, signed_at: datetime, credentials: "AwsCredentials"
) -> bytes:
    request = ConnectRequest(
        file_system_id=subject.file_system_id,
        kind=subject.kind,
        region=subject.region,
        public_key_hash=key.public_key_hash,
        access_key_id=credentials.access_key_id,
        session_token=credentials.session_token,
        signed_at=signed_at,
    )
    # The extension contains the 64 hexadecimal digits of the signature, not its 32 bytes.
    signature = sign(request, credentials.secret_access_key).encode()
    token = credentials.session_token
    return _der(
        _SEQUENCE,
        _text(credentials.access_key_id)
        + _der(_OCTET_STRING, signature)
        + _der(_UTC_TIME, f"{signed_at:%y%m%d%H%M%SZ}".encode())
        + (_der(_SESSION_TOKEN, _text(token)) if token else b""),
    )


def _text(text: str) -> bytes:
    return _der(_UTF8_STRING, text.encode())


def _der(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    octets = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(octets)]) + octets + content
