"""How much is in volumes, which nothing in EFS limits, and when that is more than was asked for."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from typing import Final

from kube_efs.model.efs.directories import Directory
from kube_efs.model.errors import InvalidValue

# A volume that swings around its request is reported once.
_BACK_WITHIN: Final = Fraction(95, 100)

# Reasons of events on claims.
OVER_REQUEST: Final = "VolumeOverRequest"
WITHIN_REQUEST: Final = "VolumeWithinRequest"

USAGE_CONFIG_MAP: Final = "efs-usage"
USAGE_KEY: Final = "usage.json"
# A ConfigMap has room for 1 MiB.
_DOCUMENT_MAX_CHARACTERS: Final = 900_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSize:
    """What a directory and all in it take up: bytes as du(1) counts them, and files and directories.

    It is at least so much where ``complete`` is false: there were more files than could be measured.
    """

    used_bytes: int
    entries: int
    complete: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredDirectory:
    """What was found out about a directory: its size, or else the problem."""

    directory: Directory
    size: TreeSize | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeUsage:
    """The size of a volume at some time, and whether that counted as more than was asked for."""

    size: TreeSize
    measured_at: datetime
    over: bool = False


def is_over(size: TreeSize, requested_bytes: int, *, was_over: bool) -> bool:
    """Whether there is more in the volume than was asked for, 0 for any size.

    Once there is, it stays so until clearly less is in it, and as long as that is not known for certain.
    """
    if size.used_bytes > requested_bytes:
        return requested_bytes > 0
    if not was_over:
        return False
    return not size.complete or size.used_bytes > requested_bytes * _BACK_WITHIN


def render_usage(usages: Mapping[str, VolumeUsage]) -> str:
    """The JSON document of these volumes by name, the fullest as far as there is room for them."""
    ordered = sorted(usages.items(), key=lambda one: (-one[1].size.used_bytes, one[0]))
    body = {name: _written(usage) for name, usage in ordered}
    while len(text := json.dumps({"volumes": body})) > _DOCUMENT_MAX_CHARACTERS:
        kept = len(body) * _DOCUMENT_MAX_CHARACTERS // len(text)
        body = dict(list(body.items())[: min(kept, len(body) - 1)])
    return text


def _written(usage: VolumeUsage) -> list[int]:
    size = usage.size
    return [size.used_bytes, size.entries, int(usage.measured_at.timestamp()), size.complete, usage.over]


def parse_usage(text: str) -> Mapping[str, VolumeUsage]:
    """The volumes of such a document, by name; raises InvalidValue when it is none."""
    try:
        return {str(name): _read(fields) for name, fields in json.loads(text)["volumes"].items()}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise InvalidValue("is not a usage document", field=USAGE_KEY, value=text[:80]) from error


def _read(fields: list[int]) -> VolumeUsage:
    used, entries, time, complete, over = fields
    size = TreeSize(used_bytes=int(used), entries=int(entries), complete=bool(complete))
    return VolumeUsage(size=size, measured_at=datetime.fromtimestamp(int(time), UTC), over=bool(over))
