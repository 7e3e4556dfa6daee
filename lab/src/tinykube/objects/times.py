"""Times as Kubernetes keeps them: RFC 3339 in UTC, to the second or (MicroTime) to the microsecond."""

import re
from datetime import UTC, datetime

from tinykube.objects.statuses import Undecodable

_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?P<fraction>\.\d+)?(?P<zone>[Zz]|[+-]\d\d:\d\d)")
_MICROSECOND_DIGITS = len(".000000")


def canonical_time(text: str) -> str:
    """The time to the second; raises Undecodable."""
    return _moment(text, "2006-01-02T15:04:05Z07:00").strftime("%Y-%m-%dT%H:%M:%SZ")


def canonical_micro_time(text: str) -> str:
    """The time to the microsecond, which must be given so; raises Undecodable."""
    layout = "2006-01-02T15:04:05.000000Z07:00"
    moment = _moment(text, layout)
    found = _TIME.fullmatch(text)
    if found and len(found["fraction"] or "") != _MICROSECOND_DIGITS:
        rest = (found["fraction"] or "") + found["zone"]
        raise Undecodable(_unparsable(text, layout, rest, ".000000"))
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _moment(text: str, layout: str) -> datetime:
    try:
        if _TIME.fullmatch(text):
            return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        pass  # such as the 30th of February
    raise Undecodable(_unparsable(text, layout, text, "2006"))


def _unparsable(text: str, layout: str, rest: str, wanted: str) -> str:
    return f'parsing time "{text}" as "{layout}": cannot parse "{rest}" as "{wanted}"'
