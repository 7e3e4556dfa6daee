"""Media types: in which form a client wants its answer, and which format its body has."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tinykube.objects.statuses import ApiError

JSON = "application/json"
YAML = "application/yaml"
_ANY = frozenset({JSON, "application/*", "*/*"})


class Representation(StrEnum):
    """How objects are shown."""

    OBJECT = "object"
    TABLE = "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaRange:
    """One entry of an Accept header; ``parameters`` without ``q``."""

    media_type: str
    parameters: Mapping[str, str]

    @property
    def conversion(self) -> tuple[str, str, str]:
        """Group, version and kind that the answer is to be converted to; empty for as it is."""
        return tuple(self.parameters.get(key, "") for key in ("g", "v", "as"))  # type: ignore[return-value]


_CONVERSIONS = {
    ("meta.k8s.io", "v1", "Table"): Representation.TABLE,
    ("", "", ""): Representation.OBJECT,
}


def parse_accept(header: str) -> list[MediaRange]:
    """The entries of an Accept header, most wanted first."""
    ranges = [_media_range(entry) for entry in header.split(",") if entry.strip()]
    return [one for one, _ in sorted(ranges, key=lambda pair: -pair[1])]


def representation(accept: str) -> Representation:
    """How to show objects. Raises 406 when neither JSON nor a table in JSON is acceptable."""
    for one in parse_accept(accept or "*/*"):
        found = _CONVERSIONS.get(one.conversion)
        if one.media_type in _ANY and found is not None:
            return found
    raise ApiError(406, "NotAcceptable", f"objects are shown as {JSON} only")


def _media_range(entry: str) -> tuple[MediaRange, float]:
    media_type, *parts = (part.strip() for part in entry.split(";"))
    parameters = dict(part.split("=", 1) for part in parts if "=" in part)
    try:
        quality = float(parameters.pop("q", "1"))
    except ValueError:
        quality = 0.0
    return MediaRange(media_type=media_type.lower(), parameters=parameters), quality
