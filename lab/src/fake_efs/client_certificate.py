"""What a client's certificate says to EFS: file system, access point and identity of a connection.

The extensions are those that efs-utils writes (``mount_efs``, OIDs 1.3.6.1.4.1.4843.7.x). EFS does not ask
who signed the certificate; it is the client's own.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

from cryptography import x509
from cryptography.hazmat import asn1
from cryptography.hazmat.primitives import serialization

from fake_efs.errors import InvalidValue
from fake_efs.file_systems import parse_access_point_id, parse_file_system_id

ACCESS_POINT_OID = x509.ObjectIdentifier("1.3.6.1.4.1.4843.7.1")
IAM_OID = x509.ObjectIdentifier("1.3.6.1.4.1.4843.7.2")
FILE_SYSTEM_OID = x509.ObjectIdentifier("1.3.6.1.4.1.4843.7.3")

_SIGNATURE = re.compile(rb"[0-9a-f]{64}")


@asn1.sequence
class _IamExtension:
    """The contents of IAM_OID."""

    access_key_id: str
    signature: bytes
    signed_at: asn1.UTCTime
    session_token: Annotated[str | None, asn1.Explicit(0)]


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

    file_system_id: str | None = None
    access_point_id: str | None = None
    iam: IamSignature | None = None


ANONYMOUS = ClientCertificate()


def read_client_certificate(certificate: x509.Certificate | None) -> ClientCertificate:
    """The identity in a certificate, ANONYMOUS for none; raises InvalidValue for a malformed extension."""
    if certificate is None:
        return ANONYMOUS
    iam = _extension(certificate, IAM_OID)
    return ClientCertificate(
        file_system_id=_id(certificate, FILE_SYSTEM_OID, "file system extension", parse_file_system_id),
        access_point_id=_id(certificate, ACCESS_POINT_OID, "access point extension", parse_access_point_id),
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


def _id(
    certificate: x509.Certificate, oid: x509.ObjectIdentifier, field: str, parse: Callable[..., str]
) -> str | None:
    value = _extension(certificate, oid)
    if value is None:
        return None
    try:
        text = asn1.decode_der(str, value)
    except ValueError as error:
        raise InvalidValue("is not a UTF8String", field=field, value=value.hex()) from error
    return parse(text, field=field)


def _iam_signature(value: bytes, certificate: x509.Certificate) -> IamSignature:
    # The value itself is for no message: it may hold a session token.
    try:
        claimed = asn1.decode_der(_IamExtension, value)
        if not _SIGNATURE.fullmatch(claimed.signature):
            raise ValueError("has a signature that is not 64 hexadecimal digits")
        return IamSignature(
            access_key_id=claimed.access_key_id,
            signature=claimed.signature.decode(),
            signed_at=claimed.signed_at.as_datetime(),
            session_token=claimed.session_token,
            public_key_hash=_public_key_hash(certificate),
        )
    except ValueError as error:
        raise InvalidValue(f"cannot be understood ({error})", field="IAM extension") from None


def _public_key_hash(certificate: x509.Certificate) -> str:
    """The SHA-1 of the RSAPublicKey's DER, as efs-utils takes it; raises ValueError for other keys."""
    try:
        key = certificate.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.PKCS1
        )
    except ValueError:
        raise ValueError("is of a key that is not RSA") from None
    return hashlib.sha1(key, usedforsecurity=False).hexdigest()
