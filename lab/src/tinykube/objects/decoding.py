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
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple, Union, get_args, get_origin

import msgspec

from tinykube.objects.resources import ResourceType
from tinykube.objects.statuses import bad_request
from tinykube.objects.values import (
    Json,
    JsonValue,
    Undecodable,
    canonical_micro_time,
    canonical_time,
    without,
)

_CORE = "core"


class _Kind(StrEnum):
    """What JSON a field takes."""

    ANY = "any"
    BOOL = "boolean"
    INT = "integer"
    INT_OR_TEXT = "integer or string"
    MAP = "map"
    MICRO_TIME = "time to the microsecond"
    NUMBER = "number"
    OBJECT = "object"
    TEXT = "string"
    TEXT_MAP = "map of strings"
    TIME = "time"


_JSON_TYPES: Mapping[_Kind, tuple[type, ...]] = types.MappingProxyType(
    {
        _Kind.ANY: (object,),
        _Kind.BOOL: (bool,),
        _Kind.INT: (int,),
        _Kind.INT_OR_TEXT: (int, str),
        _Kind.MAP: (dict,),
        _Kind.MICRO_TIME: (str,),
        _Kind.NUMBER: (int, float),
        _Kind.OBJECT: (dict,),
        _Kind.TEXT: (str,),
        _Kind.TIME: (str,),
    }
)
_KINDS: Mapping[object, _Kind] = types.MappingProxyType(
    {
        bool: _Kind.BOOL,
        datetime: _Kind.TIME,
        dict: _Kind.MAP,
        float: _Kind.NUMBER,
        int: _Kind.INT,
        str: _Kind.TEXT,
    }
)


# The models say of maps only that they are maps; these are maps of texts.
_TEXT_MAPS = frozenset(
    {
        "annotations",
        "binaryData",
        "data",
        "labels",
        "matchLabels",
        "nodeSelector",
        "parameters",
        "selector",
        "stringData",
        "volumeAttributes",
    }
)


# Nor do they tell times to the second from those to the microsecond.
_MICRO_TIMES = frozenset({"acquireTime", "eventTime", "lastObservedTime", "renewTime"})


class _Field(NamedTuple):
    kind: _Kind
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
        elif inner is not None and not (field.may_be_left_out and inner in ([], {})):
            result[key] = _decode_field(inner, field, here, unknown)
    return result


def _decode_field(value: JsonValue, field: _Field, path: str, unknown: list[str]) -> JsonValue:
    if not field.is_list:
        return _decode_one(value, field, path, unknown)
    if not isinstance(value, list):
        raise Undecodable(f"{path} must be a list")
    return [
        _decode_one(one, field, f"{path}[{index}]", unknown)
        for index, one in enumerate(value)
        if one is not None
    ]


def _decode_one(value: JsonValue, field: _Field, path: str, unknown: list[str]) -> JsonValue:
    if not _fits(value, field.kind):
        raise Undecodable(f"{path} must be of type {field.kind}")
    match field.kind:
        case _Kind.TIME:
            return canonical_time(value)
        case _Kind.MICRO_TIME:
            return canonical_micro_time(value)
    return value if field.model is None else _decode(value, field.model, path, unknown)


def _fits(value: JsonValue, kind: _Kind) -> bool:
    # A bool is an int in Python, but never in JSON.
    if isinstance(value, bool) and kind not in {_Kind.BOOL, _Kind.ANY}:
        return False
    if kind is _Kind.TEXT_MAP:
        return isinstance(value, dict) and all(isinstance(inner, str) for inner in value.values())
    return isinstance(value, _JSON_TYPES[kind])


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
    """The field of this type; its source tells maps from the empty objects that the models alias to dict."""
    alternatives = get_args(annotation) if get_origin(annotation) is Union else (annotation,)
    given = [one for one in alternatives if one is not type(None)]
    leave = len(given) < len(alternatives) and ("List[" in source or "dict" in source)
    if set(given) == {int, str}:
        return _Field(_Kind.INT_OR_TEXT, None, is_list=False, may_be_left_out=leave)
    is_list = get_origin(given[0]) is list
    element = get_args(given[0])[0] if is_list else given[0]
    element = get_origin(element) or element
    if isinstance(element, type) and issubclass(element, msgspec.Struct):
        return _Field(_Kind.OBJECT, element, is_list=is_list, may_be_left_out=leave)
    kind = _KINDS.get(element, _Kind.ANY)
    if kind is _Kind.MAP and leave and name in _TEXT_MAPS:
        kind = _Kind.TEXT_MAP
    if kind is _Kind.TIME and name in _MICRO_TIMES:
        kind = _Kind.MICRO_TIME
    return _Field(kind, None, is_list=is_list, may_be_left_out=leave)


def in_stored_form(resource: ResourceType, body: JsonValue) -> tuple[Json, list[str]]:
    """What a client sent, decoded as an object of this type, with the type first.

    Also the paths of the fields that the type does not know; they have been dropped.

    Raises:
        Undecodable: a value has a wrong type.
        ApiError: 400 when it is an object of another type, or none.
    """
    if not isinstance(body, dict):
        raise bad_request(f"the body must be an object of kind {resource.kind}")
    _check_type(resource, body)
    decoded, unknown = resource.decode(without(body, "metadata"))
    metadata, unknown_metadata = _decode_metadata(body.get("metadata"))
    if not resource.namespaced:
        metadata = without(metadata, "namespace")
    head = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
    new = {**head, **without(decoded, "kind", "apiVersion")}
    return resource.form.to_stored(new) if resource.form else new, sorted([*unknown_metadata, *unknown])


def in_wire_form(resource: ResourceType, stored: Json) -> Json:
    """A stored object as this version of its resource shows it."""
    return resource.form.from_stored(stored) if resource.form else stored


@contextmanager
def decoding(resource: ResourceType) -> Iterator[None]:
    """What cannot be decoded inside is answered with 400."""
    try:
        yield
    except Undecodable as error:
        raise bad_request(f"{resource.kind} in version {resource.version} cannot be read: {error}") from error


def _check_type(resource: ResourceType, body: Json) -> None:
    wanted = {"kind": resource.kind, "apiVersion": resource.api_version}
    for field, value in wanted.items():
        given = body.get(field)
        if given != value and (given or (resource.custom and field == "kind")):
            raise bad_request(f"{field} must be {value}, not {given or 'missing'}")


def _decode_metadata(metadata: JsonValue) -> tuple[Json, list[str]]:
    """The metadata without unknown and empty fields, and the paths of the unknown ones."""
    if metadata is None:
        return {}, []
    if not isinstance(metadata, dict):
        raise Undecodable("metadata must be an object")
    decoded, unknown = shape_of("meta", "v1", "ObjectMeta").decode(metadata, at="metadata")
    return {key: value for key, value in decoded.items() if value not in ("", {}, [])}, unknown
