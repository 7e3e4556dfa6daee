"""How long a client certificate is valid, and when it is renewed."""

from datetime import datetime, timedelta
from typing import Final

# If this clock is slightly ahead of that of EFS, the certificate must be valid nevertheless.
VALID_BEFORE: Final = timedelta(minutes=15)
VALID_AFTER: Final = timedelta(hours=3)
_RENEWED_AFTER: Final = timedelta(hours=1)
_RENEWED_NOT_BEFORE: Final = timedelta(seconds=30)


def first_renewal(created_at: datetime, credentials_expire_at: datetime | None) -> datetime:
    """After a third of the certificate's lifetime, or half of the remaining lifetime of the credentials.

    There is a lower limit, because instance metadata return the same credentials until shortly before they
    expire.
    """
    if credentials_expire_at is None:
        return created_at + _RENEWED_AFTER
    half_life = (credentials_expire_at - created_at) / 2
    return created_at + min(_RENEWED_AFTER, max(half_life, _RENEWED_NOT_BEFORE))


def is_valid(not_after: datetime, *, now: datetime) -> bool:
    """Whether EFS accepts a certificate that ends then; not yet, if the clock was ahead when it was made."""
    return not_after - VALID_AFTER - VALID_BEFORE <= now < not_after


def renewal_time(not_after: datetime, *, now: datetime) -> datetime:
    """When to renew a certificate without credentials, which ends then: in an hour at most.

    At once when it is not valid.
    """
    return min(not_after - VALID_AFTER, now) + _RENEWED_AFTER if is_valid(not_after, now=now) else now
