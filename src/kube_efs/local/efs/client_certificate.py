"""What a client's certificate tells EFS: which file system and access point the connection is for.

The extensions are those that efs-utils writes (``mount_efs``, OIDs 1.3.6.1.4.1.4843.7.x). EFS does not ask
who signed the certificate; it is the client's own.
"""

import re
from dataclasses import dataclass
from typing import NewType

from cryptography import x509

from kube_efs.model.errors import InvalidValue
from kube_efs.model.ids import FileSystemId, parse_file_system_id

AccessPointId = NewType("AccessPointId", str)

ACCESS_POINT_OID = x509.ObjectIdentifier("1.3.6.1.4.1.4843.7.1")
FILE_SYSTEM_OID = x509.ObjectIdentifier("1.3.6.1.4.1.4843.7.3")

_ACCESS_POINT_ID = re.compile(r"fsap-[0-9a-z]{1,40}")
_UTF8_STRING_TAG = 0x0C
_SHORT_LENGTHS = 0x80


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCertificate:
    """The identity that a connection presents; None where the certificate has no such extension."""

    file_system_id: FileSystemId | None = None
    access_point_id: AccessPointId | None = None


ANONYMOUS = ClientCertificate()


def read_client_certificate(certificate: x509.Certificate | None) -> ClientCertificate:
    """The identity in a certificate, ANONYMOUS for none; raises InvalidValue for a malformed extension."""
    if certificate is None:
        return ANONYMOUS
    file_system = _text(certificate, FILE_SYSTEM_OID, "file system extension")
    access_point = _text(certificate, ACCESS_POINT_OID, "access point extension")
    return ClientCertificate(
        file_system_id=None if file_system is None else parse_file_system_id(file_system),
        access_point_id=None if access_point is None else _parse_access_point_id(access_point),
    )


def _parse_access_point_id(text: str) -> AccessPointId:
    if not _ACCESS_POINT_ID.fullmatch(text):
        raise InvalidValue("is no access point id", field="access point extension", value=text)
    return AccessPointId(text)


def _text(certificate: x509.Certificate, oid: x509.ObjectIdentifier, field: str) -> str | None:
    """The UTF8String of an extension, None without it; ids are short, so the length is one octet."""
    try:
        extension = certificate.extensions.get_extension_for_oid(oid).value
    except x509.ExtensionNotFound:
        return None
    except ValueError as error:
        raise InvalidValue(f"cannot be read ({error})", field="client certificate") from error
    der = extension.public_bytes()
    if len(der) < 2 or der[0] != _UTF8_STRING_TAG or der[1] >= _SHORT_LENGTHS or der[1] != len(der) - 2:
        raise InvalidValue("is no UTF8String", field=field, value=der.hex())
    try:
        return der[2:].decode()
    except UnicodeDecodeError as error:
        raise InvalidValue("is not UTF-8", field=field, value=der.hex()) from error
