"""What fields the built-in kinds have, and of which types: taken from lightkube's generated models.

A body is decoded as Go's decoder does it: unknown fields are dropped (and reported), nulls are as good as
absent, so are empty lists and maps of optional fields, and a value of another type is refused. Empty objects
stay, since they mean something (``emptyDir: {}``).
"""

import importlib
import types
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple, Union, get_args, get_origin

import msgspec

from kube_efs.local.apiserver.json_types import Json, JsonValue
from kube_efs.local.apiserver.statuses import Undecodable

_CORE = "core"


class _Kind(StrEnum):
    """What JSON a field takes, in the words of Go's messages."""

    ANY = "any"
    BOOL = "bool"
    INT = "int"
    INT_OR_TEXT = "intstr.IntOrString"
    MAP = "map"
    NUMBER = "float64"
    OBJECT = "object"
    TEXT = "string"


_JSON_TYPES: Mapping[_Kind, tuple[type, ...]] = types.MappingProxyType(
    {
        _Kind.ANY: (object,),
        _Kind.BOOL: (bool,),
        _Kind.INT: (int,),
        _Kind.INT_OR_TEXT: (int, str),
        _Kind.MAP: (dict,),
        _Kind.NUMBER: (int, float),
        _Kind.OBJECT: (dict,),
        _Kind.TEXT: (str,),
    }
)
_KINDS: Mapping[object, _Kind] = types.MappingProxyType(
    {
        bool: _Kind.BOOL,
        datetime: _Kind.TEXT,
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

    def decode(self, body: Json) -> tuple[Json, list[str]]:
        """The body with known fields only, and the paths of those left out; raises Undecodable."""
        unknown: list[str] = []
        return _decode(body, self.model, "", unknown), unknown


@cache
def shape_of(group: str, version: str, kind: str) -> Shape:
    """The shape of a built-in kind; raises AttributeError when the models do not have it."""
    models = importlib.import_module(f"lightkube.models.{group.partition('.')[0] or _CORE}_{version}")
    return Shape(getattr(models, kind))


def _decode(value: JsonValue, model: type[msgspec.Struct], path: str, unknown: list[str]) -> Json:
    fields = _fields(model)
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
        raise _wrong_type(value, path, field)
    return [
        _decode_one(one, field, f"{path}[{index}]", unknown)
        for index, one in enumerate(value)
        if one is not None
    ]


def _decode_one(value: JsonValue, field: _Field, path: str, unknown: list[str]) -> JsonValue:
    # A bool is an int in Python, but never in JSON.
    mistaken = isinstance(value, bool) and field.kind not in {_Kind.BOOL, _Kind.ANY}
    if mistaken or not isinstance(value, _JSON_TYPES[field.kind]):
        raise _wrong_type(value, path, field)
    if field.kind is _Kind.MAP and field.may_be_left_out and path.rpartition(".")[2] in _TEXT_MAPS:
        _check_texts(value, path)
    return value if field.model is None else _decode(value, field.model, path, unknown)


def _check_texts(value: JsonValue, path: str) -> None:
    wrong = next((key for key, inner in value.items() if not isinstance(inner, str)), None)
    if wrong is not None:
        text = _Field(_Kind.TEXT, None, is_list=False, may_be_left_out=True)
        raise _wrong_type(value[wrong], f"{path}.{wrong}", text)


def _wrong_type(value: JsonValue, path: str, field: _Field) -> Undecodable:
    names = {bool: "bool", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    wanted = f"v1.{field.model.__name__}" if field.model else str(field.kind)
    listed = "[]" if field.is_list else ""
    found = names.get(type(value), "null")
    return Undecodable(f"json: cannot unmarshal {found} into Go struct field {path} of type {listed}{wanted}")


@cache
def _fields(model: type[msgspec.Struct]) -> Mapping[str, _Field]:
    return types.MappingProxyType(
        {
            field.encode_name: _field(field.type, str(model.__annotations__.get(field.name)))
            for field in msgspec.structs.fields(model)
        }
    )


def _field(annotation: Any, source: str) -> _Field:  # noqa: ANN401 - a type expression
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
    return _Field(_KINDS.get(element, _Kind.ANY), None, is_list=is_list, may_be_left_out=leave)
