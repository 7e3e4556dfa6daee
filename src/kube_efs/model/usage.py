"""The usage of volumes, which EFS does not limit, and whether it exceeds the requests of their claims."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Final

from kube_efs.model.efs.directories import Directory
from kube_efs.model.errors import InvalidValue

# A volume whose size varies around its request is reported only once.
_BACK_WITHIN: Final = Fraction(95, 100)

# A shorter time would show the last hour, not the trend.
_EARLIER_MAX: Final = timedelta(days=1)

# Reasons of events on claims.
OVER_REQUEST: Final = "VolumeOverRequest"
WITHIN_REQUEST: Final = "VolumeWithinRequest"

USAGE_CONFIG_MAP: Final = "efs-usage"
USAGE_KEY: Final = "usage.json"
# A ConfigMap has room for 1 MiB.
_DOCUMENT_MAX_CHARACTERS: Final = 900_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSize:
    """The size of a directory with its contents: bytes as du(1) counts them, and files and directories.

    If ``complete`` is false, these are lower bounds, because there were too many files to measure.
    """

    used_bytes: int
    entries: int
    complete: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredDirectory:
    """The size of a directory, or the problem of its measurement."""

    directory: Directory
    size: TreeSize | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierSize:
    """The size of a volume at an earlier time, for its growth since then."""

    used_bytes: int
    measured_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeUsage:
    """The size of a volume at a time, whether it exceeded the request, and its size within the day before."""

    size: TreeSize
    measured_at: datetime
    over: bool = False
    earlier: EarlierSize | None = None

    @property
    def growth_bytes_a_day(self) -> int | None:
        """How much it grows, negative if it shrinks; None without an earlier size or with a lower bound."""
        if self.earlier is None or not self.size.complete or self.measured_at <= self.earlier.measured_at:
            return None
        days = (self.measured_at - self.earlier.measured_at) / timedelta(days=1)
        return round((self.size.used_bytes - self.earlier.used_bytes) / days)

    def followed_by(self, size: TreeSize, *, measured_at: datetime, over: bool) -> "VolumeUsage":
        """The next measurement. It keeps the earlier size until that is a day old."""
        earlier = self.earlier
        if earlier is None or measured_at - earlier.measured_at > _EARLIER_MAX:
            used = self.size.used_bytes
            earlier = (
                EarlierSize(used_bytes=used, measured_at=self.measured_at) if self.size.complete else None
            )
        return VolumeUsage(size=size, measured_at=measured_at, over=over, earlier=earlier)


def is_over(size: TreeSize, requested_bytes: int, *, was_over: bool) -> bool:
    """Whether the volume exceeds its request; a request of 0 is never exceeded.

    A volume that exceeded its request continues to do so until a complete measurement is clearly below it.
    """
    if size.used_bytes > requested_bytes:
        return requested_bytes > 0
    if not was_over:
        return False
    return not size.complete or size.used_bytes > requested_bytes * _BACK_WITHIN


def render_usage(usages: Mapping[str, VolumeUsage]) -> str:
    """The JSON document of these volumes by name; if it would be too long, only of the fullest."""
    ordered = sorted(usages.items(), key=lambda one: (-one[1].size.used_bytes, one[0]))
    body = {name: _written(usage) for name, usage in ordered}
    while len(text := json.dumps({"volumes": body})) > _DOCUMENT_MAX_CHARACTERS:
        kept = len(body) * _DOCUMENT_MAX_CHARACTERS // len(text)
        body = dict(list(body.items())[: min(kept, len(body) - 1)])
    return text


def _written(usage: VolumeUsage) -> list[int]:
    size, earlier = usage.size, usage.earlier
    written = [size.used_bytes, size.entries, int(usage.measured_at.timestamp()), size.complete, usage.over]
    return [*written, earlier.used_bytes, int(earlier.measured_at.timestamp())] if earlier else written


def parse_usage(text: str) -> Mapping[str, VolumeUsage]:
    """The volumes of such a document, by name; raises InvalidValue for any other text."""
    try:
        return {str(name): _read(fields) for name, fields in json.loads(text)["volumes"].items()}
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise InvalidValue("is not a usage document", field=USAGE_KEY, value=text[:80]) from error


def _read(fields: list[int]) -> VolumeUsage:
    used, entries, time, complete, over, *before = fields
    size = TreeSize(used_bytes=int(used), entries=int(entries), complete=bool(complete))
    earlier = None
    if before:
        earlier = EarlierSize(
            used_bytes=int(before[0]), measured_at=datetime.fromtimestamp(int(before[1]), UTC)
        )
    return VolumeUsage(
        size=size, measured_at=datetime.fromtimestamp(int(time), UTC), over=bool(over), earlier=earlier
    )
