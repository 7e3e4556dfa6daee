"""Times as Kubernetes keeps them: RFC 3339 in UTC, to the second or (MicroTime) to the microsecond."""

from datetime import UTC, datetime

from tinykube.objects.statuses import Undecodable


def timestamp(moment: datetime) -> str:
    """The moment to the second, as all times of metadata are."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: object) -> datetime | None:
    """The moment that an RFC 3339 text means; None for anything else."""
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return moment if moment and moment.tzinfo else None


def canonical_time(text: str) -> str:
    """The time to the second; raises Undecodable."""
    return timestamp(_moment(text))


def canonical_micro_time(text: str) -> str:
    """The time to the microsecond; raises Undecodable."""
    return _moment(text).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _moment(text: str) -> datetime:
    moment = parse_time(text)
    if moment is None:
        raise Undecodable(f"{text!r} is not a time in RFC 3339")
    return moment.astimezone(UTC)
