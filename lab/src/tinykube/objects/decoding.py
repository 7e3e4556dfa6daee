"""Objects as clients send and receive them, and as they are stored.

The fields of the built-in kinds and their types are those of lightkube's generated models. A body is decoded
as Go's decoder does it: unknown fields are dropped (and reported), nulls are as good as absent, so are empty
lists and maps of optional fields, and a value of another type is refused. Empty objects stay, since they mean
something (``emptyDir: {}``).
"""

import importlib
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple, Union, get_args, get_origin

import msgspec

from tinykube.objects.resources import ResourceType
from tinykube.objects.statuses import bad_request
from tinykube.objects.values import (
    Json,
    JsonValue,
    Undecodable,
    canonical_time,
    without,
)

_CORE = "core"
_TEXT_MAP = "map of strings"
_KINDS: Mapping[object, tuple[str, tuple[type, ...]]] = types.MappingProxyType(
    {
        bool: ("boolean", (bool,)),
        datetime: ("time", (str,)),
        dict: ("map", (dict,)),
        float: ("number", (int, float)),
        int: ("integer", (int,)),
        str: ("string", (str,)),
    }
)
"""The word for a type of the models, and what JSON it takes."""
# The models say of maps only that they are maps; these are maps of texts.
_TEXT_MAPS = frozenset(
    {
        *("annotations", "binaryData", "data", "labels", "matchLabels", "nodeSelector", "parameters"),
        *("selector", "stringData", "volumeAttributes"),
    }
)


class _Field(NamedTuple):
    kind: str
    types: tuple[type, ...]
    model: type[msgspec.Struct] | None
    is_list: bool
    may_be_left_out: bool
    """Whether Go's encoder leaves it out when it is an empty list or map."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The fields of a kind."""

    model: type[msgspec.Struct]

    def decode(self, body: Json, *, at: str = "") -> tuple[Json, list[str]]:
        """The body, which is at this path, with known fields only, and the paths of those left out.

        Raises Undecodable.
        """
        unknown: list[str] = []
        return _decode(body, self.model, at, unknown), unknown


@cache
def shape_of(group: str, version: str, kind: str) -> Shape:
    """The shape of a built-in kind; raises AttributeError when the models do not have it."""
    models = importlib.import_module(f"lightkube.models.{group.partition('.')[0] or _CORE}_{version}")
    return Shape(getattr(models, kind))


def _decode(value: JsonValue, model: type[msgspec.Struct], path: str, unknown: list[str]) -> Json:
    fields = _fields_of(model)
    result: Json = {}
    for key, inner in value.items():
        here = f"{path}.{key}" if path else key
        field = fields.get(key)
        if field is None:
            unknown.append(here)
        elif inner is None or (field.may_be_left_out and inner in ([], {})):
            continue
        elif not field.is_list:
            result[key] = _decode_one(inner, field, here, unknown)
        elif isinstance(inner, list):
            given = ((index, one) for index, one in enumerate(inner) if one is not None)
            result[key] = [_decode_one(one, field, f"{here}[{index}]", unknown) for index, one in given]
        else:
            raise Undecodable(f"{here} must be a list")
    return result


def _decode_one(value: JsonValue, field: _Field, path: str, unknown: list[str]) -> JsonValue:
    # A bool is an int in Python, but never in JSON.
    fits = isinstance(value, field.types) and (not isinstance(value, bool) or int not in field.types)
    if not fits or (field.kind == _TEXT_MAP and not all(isinstance(one, str) for one in value.values())):
        raise Undecodable(f"{path} must be of type {field.kind}")
    if field.kind == "time":
        return canonical_time(value)
    return value if field.model is None else _decode(value, field.model, path, unknown)


@cache
def _fields_of(model: type[msgspec.Struct]) -> Mapping[str, _Field]:
    """The fields of a model by their names in JSON."""
    return types.MappingProxyType(
        {
            field.encode_name: _field(
                field.encode_name, field.type, str(model.__annotations__.get(field.name))
            )
            for field in msgspec.structs.fields(model)
        }
    )


def _field(name: str, annotation: Any, source: str) -> _Field:  # noqa: ANN401 - a type expression
    """The field of this type; its source separates maps from empty objects, which models alias to dict."""
    alternatives = get_args(annotation) if get_origin(annotation) is Union else (annotation,)
    given = [one for one in alternatives if one is not type(None)]
    leave = len(given) < len(alternatives) and ("List[" in source or "dict" in source)
    if set(given) == {int, str}:
        return _Field("integer or string", (int, str), None, is_list=False, may_be_left_out=leave)
    is_list = get_origin(given[0]) is list
    element = get_args(given[0])[0] if is_list else given[0]
    element = get_origin(element) or element
    if isinstance(element, type) and issubclass(element, msgspec.Struct):
        return _Field("object", (dict,), element, is_list=is_list, may_be_left_out=leave)
    kind, accepted = _KINDS.get(element, ("any", (object,)))
    if kind == "map" and leave and name in _TEXT_MAPS:
        kind = _TEXT_MAP
    return _Field(kind, accepted, None, is_list=is_list, may_be_left_out=leave)


def in_stored_form(resource: ResourceType, body: JsonValue) -> tuple[Json, list[str]]:
    """What a client sent, decoded as an object of this type, with the type first.

    Also the paths of the fields that the type does not know; they have been dropped.

    Raises:
        Undecodable: a value has a wrong type.
        ApiError: 400 when it is an object of another type, or none.
    """
    if not isinstance(body, dict):
        raise bad_request(f"the body must be an object of kind {resource.kind}")
    for field, wanted in {"kind": resource.kind, "apiVersion": resource.api_version}.items():
        named = body.get(field)
        if named != wanted and (named or (resource.custom and field == "kind")):
            raise bad_request(f"{field} must be {wanted}, not {named or 'missing'}")
    decoded, unknown = resource.decode(without(body, "metadata"))
    metadata, unknown_metadata = _decode_metadata(body.get("metadata"))
    if not resource.namespaced:
        metadata = without(metadata, "namespace")
    head = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
    new = {**head, **without(decoded, "kind", "apiVersion")}
    return new, sorted([*unknown_metadata, *unknown])


@contextmanager
def decoding(resource: ResourceType) -> Iterator[None]:
    """What cannot be decoded inside is answered with 400."""
    try:
        yield
    except Undecodable as error:
        raise bad_request(f"{resource.kind} in version {resource.version} cannot be read: {error}") from error


def _decode_metadata(metadata: JsonValue) -> tuple[Json, list[str]]:
    """The metadata without unknown and empty fields, and the paths of the unknown ones."""
    if metadata is None:
        return {}, []
    if not isinstance(metadata, dict):
        raise Undecodable("metadata must be an object")
    decoded, unknown = shape_of("meta", "v1", "ObjectMeta").decode(metadata, at="metadata")
    return {key: value for key, value in decoded.items() if value not in ("", {}, [])}, unknown
