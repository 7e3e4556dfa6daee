"""Times in objects and documents."""

from datetime import UTC, datetime


def time_of(value: object) -> datetime | None:
    """The time in a field; None without one, or if it is not valid."""
    if not isinstance(value, datetime):
        try:
            value = datetime.fromisoformat(str(value)) if value else None
        except ValueError:
            return None
    return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


def shown(time: datetime) -> str:
    """The time for users, in UTC."""
    return f"{time.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
