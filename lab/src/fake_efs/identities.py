"""The IAM identities of the embedded account: its own access key, the role of its instance, roles of pods.

What they sign to connect is Signature Version 4 of the action ``Connect``, as efs-utils makes it
(``create_canonical_request`` of its ``mount_efs``): the value of the header ``host`` is the file system's id,
and no empty line stands between the headers and the list of signed ones.
"""

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import urlencode

from botocore.auth import EMPTY_SHA256_HASH, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as SigningCredentials

from fake_efs.aws_api import ACCOUNT_ID, CREDENTIALS, DRIVER, Credentials
from fake_efs.client_certificate import IamSignature
from fake_efs.errors import InvalidValue
from fake_efs.file_systems import Kind

INSTANCE_ROLE: Final = "kube-efs-node"
_INSTANCE_ARN: Final = f"arn:aws:iam::{ACCOUNT_ID}:role/{INSTANCE_ROLE}"
DRIVER_ARN: Final = f"arn:aws:iam::{ACCOUNT_ID}:user/driver"

_SIGNATURE_LIFE: Final = timedelta(days=1)  # X-Amz-Expires of what is signed
_CLOCK_SKEW: Final = timedelta(minutes=5)
_SESSION_LIFE: Final = timedelta(hours=6)
# EC2 has new ones at least five minutes before the old ones expire.
_RENEWED_BEFORE_END: Final = timedelta(minutes=15)
# Not "signature", whose value no message shows: the value is the id of the key.
_FIELD: Final = "IAM signature by key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Credentials and whose they are; ``expires_at`` None means never."""

    arn: str
    credentials: Credentials
    expires_at: datetime | None = None


class Identities:
    """Everybody who can sign in this account and region."""

    def __init__(self, region: str, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._region = region
        self._clock = clock
        self._users = (
            Identity(arn=f"arn:aws:iam::{ACCOUNT_ID}:user/embedded", credentials=CREDENTIALS),
            Identity(arn=DRIVER_ARN, credentials=DRIVER),
        )
        self._sessions: tuple[Identity, ...] = ()
        self._assumed: tuple[Identity, ...] = ()

    def instance_credentials(self) -> tuple[Credentials, datetime]:
        """Credentials of the instance's role with their end; the same ones until shortly before it."""
        now = self._clock()
        self._sessions = tuple(s for s in self._sessions if s.expires_at is None or s.expires_at > now)
        if not self._sessions or _ends_before(self._sessions[-1], now + _RENEWED_BEFORE_END):
            self._sessions = (*self._sessions, _new_session(_INSTANCE_ARN, now + _SESSION_LIFE))
        latest = self._sessions[-1]
        return latest.credentials, latest.expires_at or now

    def assume(self, role_arn: str, life: timedelta) -> Identity:
        """A new session of the role, good for that long."""
        now = self._clock()
        session = _new_session(role_arn, now + life)
        self._assumed = (*(one for one in self._assumed if not _ends_before(one, now)), session)
        return session

    def verify(self, signature: IamSignature, file_system_id: str, kind: Kind = Kind.EFS) -> str:
        """The ARN of who has signed to connect to this file system; raises InvalidValue."""
        now = self._clock()
        identity = self._identity_of(signature)
        if _ends_before(identity, now):
            raise _refused(signature, "is of credentials that have expired")
        if signature.signed_at > now + _CLOCK_SKEW:
            raise _refused(signature, f"is of the future, {signature.signed_at}")
        if signature.signed_at <= now - _SIGNATURE_LIFE:
            raise _refused(signature, f"has expired, it is of {signature.signed_at}")
        expected = _sign(signature, identity.credentials, file_system_id, self._region, kind)
        if not hmac.compare_digest(expected, signature.signature):
            told = f"does not match: another secret, public key, region than {self._region}, service, or form"
            raise _refused(signature, told)
        return identity.arn

    def _identity_of(self, signature: IamSignature) -> Identity:
        for identity in (*self._users, *self._sessions, *self._assumed):
            known = identity.credentials
            if (known.access_key_id, known.session_token) == (
                signature.access_key_id,
                signature.session_token,
            ):
                return identity
        raise _refused(signature, "is of no known access key and session token")


def _sign(
    claimed: IamSignature, credentials: Credentials, file_system_id: str, region: str, kind: Kind
) -> str:
    """What the signature must be, by the library of AWS: only the request has another form."""
    key = SigningCredentials(credentials.access_key_id, credentials.secret_access_key)
    signer = SigV4Auth(key, kind.value, region)
    request = AWSRequest(method="GET", url="/")
    request.context["timestamp"] = moment = f"{claimed.signed_at:%Y%m%dT%H%M%SZ}"
    query = {
        "Action": "Connect",
        "PublicKeyHash": claimed.public_key_hash,
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": signer.scope(request),
        "X-Amz-Date": moment,
        "X-Amz-Expires": int(_SIGNATURE_LIFE.total_seconds()),
        "X-Amz-SignedHeaders": "host",
    }
    if credentials.session_token:
        query["X-Amz-Security-Token"] = credentials.session_token
    lines = (
        "GET",
        "/",
        urlencode(sorted(query.items())),
        f"host:{file_system_id}",
        "host",
        EMPTY_SHA256_HASH,
    )
    return str(signer.signature(signer.string_to_sign(request, "\n".join(lines)), request))


def _ends_before(identity: Identity, moment: datetime) -> bool:
    return identity.expires_at is not None and identity.expires_at <= moment


def _new_session(role_arn: str, expires_at: datetime) -> Identity:
    return Identity(
        arn=role_arn,
        credentials=Credentials(
            access_key_id=f"ASIA{secrets.token_hex(8).upper()}",
            secret_access_key=secrets.token_urlsafe(30),
            session_token=secrets.token_urlsafe(300),
        ),
        expires_at=expires_at.replace(microsecond=0),
    )


def _refused(signature: IamSignature, problem: str) -> InvalidValue:
    return InvalidValue(problem, field=_FIELD, value=signature.access_key_id)
