"""What a client's certificate tells EFS: the file system, the access point and the identity of a connection.

The extensions are those that efs-utils writes (``mount_efs``, OIDs 1.3.6.1.4.1.4843.7.x). EFS does not ask
who signed the certificate; it is the client's own.
"""

import hashlib
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from fake_efs import der
from kube_efs.model.csi.volume_handles import AccessPointId, parse_access_point_id
from kube_efs.model.efs.ids import FileSystemId, parse_file_system_id
from kube_efs.model.errors import InvalidValue

ACCESS_POINT_OID = x509.ObjectIdentifier("1.3.6.1.4.1.4843.7.1")
IAM_OID = x509.ObjectIdentifier("1.3.6.1.4.1.4843.7.2")
FILE_SYSTEM_OID = x509.ObjectIdentifier("1.3.6.1.4.1.4843.7.3")

_SIGNATURE = re.compile(rb"[0-9a-f]{64}")
_UTC_TIME = re.compile(rb"\d{12}Z")
_IAM_TAGS = (der.UTF8_STRING, der.OCTET_STRING, der.UTC_TIME, der.FIRST_EXPLICIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class IamSignature:
    """A signature by somebody's access key over the certificate's public key.

    ``public_key_hash`` is computed from the certificate, the rest is what its extension claims.
    """

    public_key_hash: str
    access_key_id: str
    signature: str = field(repr=False)
    signed_at: datetime
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCertificate:
    """The identity that a connection presents; None where the certificate has no such extension."""

    file_system_id: FileSystemId | None = None
    access_point_id: AccessPointId | None = None
    iam: IamSignature | None = None


ANONYMOUS = ClientCertificate()


def read_client_certificate(certificate: x509.Certificate | None) -> ClientCertificate:
    """The identity in a certificate, ANONYMOUS for none; raises InvalidValue for a malformed extension."""
    if certificate is None:
        return ANONYMOUS
    file_system = _extension(certificate, FILE_SYSTEM_OID)
    access_point = _extension(certificate, ACCESS_POINT_OID)
    iam = _extension(certificate, IAM_OID)
    return ClientCertificate(
        file_system_id=None if file_system is None else _file_system_id(file_system),
        access_point_id=None if access_point is None else _access_point_id(access_point),
        iam=None if iam is None else _iam_signature(iam, certificate),
    )


def check_validity(certificate: x509.Certificate | None, now: datetime) -> None:
    """Raises InvalidValue for a certificate that is not valid at this moment; none at all may be."""
    if certificate is None:
        return
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not begin <= now <= end:
        raise InvalidValue(f"is valid from {begin} to {end} only", field="client certificate")


def _extension(certificate: x509.Certificate, oid: x509.ObjectIdentifier) -> bytes | None:
    try:
        return certificate.extensions.get_extension_for_oid(oid).value.public_bytes()
    except x509.ExtensionNotFound:
        return None
    except (ValueError, x509.DuplicateExtension) as error:
        raise InvalidValue(f"cannot be read ({error})", field="client certificate") from error


def _file_system_id(value: bytes) -> FileSystemId:
    return parse_file_system_id(der.read_text(value, field="file system extension"))


def _access_point_id(value: bytes) -> AccessPointId:
    field = "access point extension"
    return parse_access_point_id(der.read_text(value, field=field), field=field)


def _iam_signature(value: bytes, certificate: x509.Certificate) -> IamSignature:
    # The value itself is for no message: it may hold a session token.
    try:
        key_id, signature, signed_at, *token = _iam_elements(value)
        return IamSignature(
            access_key_id=key_id.decode(),
            signature=_signature(signature),
            signed_at=_time(signed_at),
            session_token=_session_token(token[0]) if token else None,
            public_key_hash=_public_key_hash(certificate),
        )
    except ValueError as error:
        reason = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise InvalidValue(f"cannot be understood ({reason})", field="IAM extension") from None


def _iam_elements(value: bytes) -> list[bytes]:
    """The contents of the sequence: key id, signature, time and perhaps a session token."""
    outer = der.read_elements(value)
    if [element.tag for element in outer] != [der.SEQUENCE]:
        raise ValueError("is no sequence")
    elements = der.read_elements(outer[0].content)
    tags = tuple(element.tag for element in elements)
    if tags not in {_IAM_TAGS[:-1], _IAM_TAGS}:
        raise ValueError("has other elements")
    return [element.content for element in elements]


def _signature(text: bytes) -> str:
    if not _SIGNATURE.fullmatch(text):
        raise ValueError("has a signature that is not 64 hexadecimal digits")
    return text.decode()


def _session_token(value: bytes) -> str:
    (element,) = der.read_elements(value)
    if element.tag != der.UTF8_STRING:
        raise ValueError("has a session token that is no UTF8String")
    return element.content.decode()


def _time(text: bytes) -> datetime:
    if not _UTC_TIME.fullmatch(text):
        raise ValueError("has a time that is no UTCTime")
    return datetime.strptime(text.decode(), "%y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _public_key_hash(certificate: x509.Certificate) -> str:
    """The SHA-1 of the RSAPublicKey's DER, as efs-utils takes it; raises ValueError for other keys."""
    try:
        key = certificate.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.PKCS1
        )
    except ValueError:
        raise ValueError("is of a key that is not RSA") from None
    return hashlib.sha1(key, usedforsecurity=False).hexdigest()
