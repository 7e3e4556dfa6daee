"""Defaults as data: what is filled in where a client left something out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from lightkube.utils.quantity import parse_quantity

from tinykube.objects.values import Json, JsonValue, Undecodable

_NOTHING: Mapping[str, JsonValue] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """The defaults of one object.

    ``values`` are set where a key is missing, null or empty text. ``inside`` are the defaults of nested
    objects that are there (after ``values``), or of every object of a list. ``then`` completes what depends
    on other fields. ``quantities`` names maps of quantities, which are written as text.
    """

    values: Mapping[str, JsonValue] = field(default_factory=lambda: _NOTHING)
    inside: Mapping[str, "Defaults"] = field(default_factory=lambda: MappingProxyType({}))
    then: Callable[[Json], Json] | None = None
    quantities: tuple[str, ...] = ()

    def __call__(self, target: Json) -> Json:
        """The object with its defaults; raises Undecodable for malformed quantities."""
        missing = {key: value for key, value in self.values.items() if target.get(key) in (None, "")}
        result = {**target, **missing}
        for key, defaults in self.inside.items():
            value = result.get(key)
            if isinstance(value, dict):
                result[key] = defaults(value)
            elif isinstance(value, list):
                result[key] = [defaults(one) if isinstance(one, dict) else one for one in value]
        for key in self.quantities:
            if isinstance(result.get(key), dict):
                result[key] = _texts(result[key])
        return self.then(result) if self.then else result


def _texts(quantities: Json) -> Json:
    """Quantities as text, as whole numbers may come without quotes; raises Undecodable."""
    texts = {name: str(value) for name, value in quantities.items()}
    try:
        for text in texts.values():
            parse_quantity(text)
    except ValueError as error:
        raise Undecodable(f"{quantities} are not quantities such as 1Gi") from error
    return texts
