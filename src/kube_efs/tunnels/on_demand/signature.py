"""The signature that proves the IAM identity of a connection to a file system.

Signature Version 4 for the action ``Connect`` on a file system, as efs-utils makes it, which differs from
the standard form (https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html)
in two ways: the value of the header ``host`` is the file system's id, and no empty line stands between
the headers and the list of signed ones. Libraries for the standard form therefore sign something else.
"""

import hashlib
import hmac
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from typing import Final
from urllib.parse import urlencode

from kube_efs.model.efs.ids import FileSystemId, Region
from kube_efs.model.efs.kinds import FileSystemKind

_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_TERMINATOR: Final = "aws4_request"
_SIGNED_HEADERS: Final = "host"
# EFS wants this number, whatever the life of the certificate that carries the signature.
_EXPIRES_SECONDS: Final = 86400


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectRequest:
    """What is signed: this identity may connect to this file system with the certificate of this key.

    ``public_key_hash`` is the SHA-1 of the RSAPublicKey's DER in lower-case hex, ``signed_at`` is in UTC.
    """

    file_system_id: FileSystemId
    kind: FileSystemKind
    region: Region
    public_key_hash: str
    access_key_id: str
    session_token: str | None = field(repr=False)
    signed_at: datetime


def canonical_request(request: ConnectRequest) -> str:
    """The request in the form that is hashed. It contains the session token: never log it."""
    query = {
        "Action": "Connect",
        "PublicKeyHash": request.public_key_hash,
        "X-Amz-Algorithm": _ALGORITHM,
        "X-Amz-Credential": f"{request.access_key_id}/{_scope(request)}",
        "X-Amz-Date": _date_time(request),
        "X-Amz-Expires": _EXPIRES_SECONDS,
        **({"X-Amz-Security-Token": request.session_token} if request.session_token else {}),
        "X-Amz-SignedHeaders": _SIGNED_HEADERS,
    }
    empty_body = hashlib.sha256(b"").hexdigest()
    host = f"host:{request.file_system_id}"
    return "\n".join(["GET", "/", urlencode(query), host, _SIGNED_HEADERS, empty_body])


def string_to_sign(request: ConnectRequest) -> str:
    """The text that the signature is computed of."""
    digest = hashlib.sha256(canonical_request(request).encode()).hexdigest()
    return "\n".join([_ALGORITHM, _date_time(request), _scope(request), digest])


def sign(request: ConnectRequest, secret_access_key: str) -> str:
    """The signature, 64 hexadecimal digits."""
    key = reduce(_hmac_sha256, _scope(request).split("/"), f"AWS4{secret_access_key}".encode())
    return _hmac_sha256(key, string_to_sign(request)).hex()


def _scope(request: ConnectRequest) -> str:
    return f"{request.signed_at:%Y%m%d}/{request.region}/{request.kind.signing_service}/{_TERMINATOR}"


def _date_time(request: ConnectRequest) -> str:
    return f"{request.signed_at:%Y%m%dT%H%M%SZ}"


def _hmac_sha256(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")
