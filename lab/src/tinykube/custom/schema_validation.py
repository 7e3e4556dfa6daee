"""Validation of custom resources by jsonschema, its findings put into Kubernetes' words.

An OpenAPI v3 schema is JSON Schema draft 4 but for ``nullable`` and the ``x-kubernetes-*`` extensions, which
are translated. The sentences are those of ``k8s.io/kube-openapi`` and ``k8s.io/apiextensions-apiserver``.
"""

import base64
import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date
from types import MappingProxyType
from typing import Final
from uuid import UUID

import jsonschema
from jsonschema.protocols import Validator

from tinykube.objects.json_types import Json, JsonValue
from tinykube.objects.statuses import Cause, CauseReason, duplicate, required, shown
from tinykube.printers.tables import parse_time

_SCALAR_KEYWORDS = frozenset(
    {
        "enum",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "format",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "multipleOf",
        "pattern",
        "required",
        "type",
    }
)
_TEXT_RULES = ("maxLength", "minLength", "pattern")
_TYPE_NAMES: Final[Mapping[type, str]] = MappingProxyType(
    {
        type(None): "null",
        bool: "boolean",
        int: "integer",
        float: "number",
        str: "string",
        list: "array",
        dict: "object",
    }
)
_FORMATS = jsonschema.FormatChecker(formats=())


def _checked(name: str, parse: Callable[[str], object]) -> None:
    """Check values of this format by a function that raises ValueError for wrong ones."""
    _FORMATS.checks(name, raises=ValueError)(
        lambda value: not isinstance(value, str) or parse(value) is not None
    )


_checked("byte", lambda text: base64.b64decode(text, validate=True))
_checked("cidr", lambda text: ipaddress.ip_network(text, strict=False))
_checked("date", date.fromisoformat)
_checked("date-time", parse_time)
_checked("ipv4", ipaddress.IPv4Address)
_checked("ipv6", ipaddress.IPv6Address)
_checked("uuid", UUID)


# As in Go, 1.0 is an integer. The stubs have no types for ``extend``.
_Draft4: type[jsonschema.Draft4Validator] = jsonschema.validators.extend(  # type: ignore[no-untyped-call]
    jsonschema.Draft4Validator, type_checker=jsonschema.Draft7Validator.TYPE_CHECKER
)


def validator_for(schema: Json) -> Validator:
    """A validator for an ``openAPIV3Schema``.

    Raises:
        jsonschema.SchemaError: it is no schema.
    """
    translated = _translated(schema)
    _Draft4.check_schema(translated)
    return _Draft4(translated, format_checker=_FORMATS)


def _translated(schema: JsonValue) -> JsonValue:
    """The schema as draft 4 has it."""
    if not isinstance(schema, dict):
        return schema
    result: Json = {key: value for key, value in schema.items() if key in _SCALAR_KEYWORDS}
    if schema.get("x-kubernetes-int-or-string"):
        result["type"] = ["integer", "string"]
    if schema.get("nullable") and "type" in result:
        types = result["type"]
        result["type"] = [*(types if isinstance(types, list) else [types]), "null"]
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        return schema
    if properties:
        result["properties"] = {key: _translated(inner) for key, inner in properties.items()}
    for key in {"items", "additionalProperties", "not"} & schema.keys():
        result[key] = _translated(schema[key])
    for key in {"allOf", "anyOf", "oneOf"} & schema.keys():
        result[key] = [_translated(inner) for inner in schema[key]]
    return result


def causes_of(validator: Validator, json_object: Json) -> list[Cause]:
    """What the validator finds wrong, each thing once."""
    found = (
        cause for error in _first_of_texts(validator.iter_errors(json_object)) for cause in _causes(error)
    )
    return list(dict.fromkeys(found))


def _first_of_texts(errors: Iterable[jsonschema.ValidationError]) -> list[jsonschema.ValidationError]:
    """The errors, but of each text only the first in the order in which Kubernetes looks at it."""
    listed = list(errors)
    first: dict[str, int] = {}
    for error in listed:
        if error.validator in _TEXT_RULES:
            field, rank = _field(error.absolute_path), _TEXT_RULES.index(error.validator)
            first[field] = min(rank, first.get(field, rank))
    return [
        error
        for error in listed
        if error.validator not in _TEXT_RULES
        or first[_field(error.absolute_path)] == _TEXT_RULES.index(error.validator)
    ]


def _causes(error: jsonschema.ValidationError) -> Iterator[Cause]:
    name = _field(error.absolute_path)
    limit: JsonValue = error.validator_value
    value: JsonValue = error.instance
    match error.validator:
        case "required":
            yield from (required(_field([*error.absolute_path, key])) for key in limit if key not in value)
        case "type":
            wanted = ",".join(kind for kind in _as_list(limit) if kind != "null")
            actual = shown(_TYPE_NAMES[type(value)])
            yield _invalid_type(name, actual, f"{wanted}: {actual}")
        case "format":
            yield _invalid_type(name, shown(value), f"{limit}: {shown(value)}")
        case "enum":
            choices = ", ".join(shown(one if isinstance(one, str) else shown(one)) for one in limit)
            message = f"Unsupported value: {shown(value)}: supported values: {choices}"
            yield Cause(reason=CauseReason.NOT_SUPPORTED, field=name, message=message)
        case "maxLength":
            message = f"Too long: may not be more than {limit} bytes"
            yield Cause(reason=CauseReason.TOO_LONG, field=name, message=message)
        case "maxItems" | "maxProperties":
            items = "item" if limit == 1 else "items"
            message = f"Too many: {len(value)}: must have at most {limit} {items}"
            yield Cause(reason=CauseReason.TOO_MANY, field=name, message=message)
        case "anyOf" | "oneOf" | "not":
            yield from _composed(error, name)
        case _:
            yield _invalid(name, f"Invalid value: {_counted(error)}: {name} in body {_rule(error)}")


def _composed(error: jsonschema.ValidationError, name: str) -> Iterator[Cause]:
    """The causes of a combination of schemas: what was asked for, and what the closest one lacks."""
    alternatives: dict[int, list[jsonschema.ValidationError]] = {}
    for inner in error.context or ():
        alternatives.setdefault(int(inner.schema_path[0]), []).append(inner)
    rules = {
        "anyOf": "must validate at least one schema (anyOf)",
        "oneOf": "must validate one and only one schema (oneOf). "
        + ("Found none valid" if alternatives else "Found more than one valid alternative"),
        "not": "must not validate the schema (not)",
    }
    yield _invalid("<nil>", f'Invalid value: "": "{name}" {rules[str(error.validator)]}')
    for inner in min(alternatives.values(), key=len, default=[]):
        yield from _causes(inner)


def _rule(error: jsonschema.ValidationError) -> str:
    """What a value must fulfil, for the keywords that compare it with one limit."""
    limit = shown(error.validator_value)
    schema = error.schema if isinstance(error.schema, Mapping) else {}
    above = "greater than" if schema.get("exclusiveMinimum") else "greater than or equal to"
    below = "less than" if schema.get("exclusiveMaximum") else "less than or equal to"
    rules = {
        "maximum": f"should be {below} {limit}",
        "minItems": f"should have at least {limit} items",
        "minLength": f"should be at least {limit} chars long",
        "minProperties": f"should have at least {limit} properties",
        "minimum": f"should be {above} {limit}",
        "multipleOf": f"should be a multiple of {limit}",
        "pattern": f"should match '{error.validator_value}'",
    }
    return rules.get(str(error.validator), error.message)


def _counted(error: jsonschema.ValidationError) -> str:
    """The value, or the number of its parts where that is what is wrong."""
    value: JsonValue = error.instance
    return shown(len(value) if error.validator in {"minItems", "minProperties"} else value)


def _invalid(field: str, message: str) -> Cause:
    return Cause(reason=CauseReason.INVALID, field=field, message=message)


def _invalid_type(field: str, value: str, wanted: str) -> Cause:
    message = f"Invalid value: {value}: {field} in body must be of type {wanted}"
    return Cause(reason=CauseReason.TYPE_INVALID, field=field, message=message)


def duplicates_in(value: JsonValue, schema: Json, field: str = "") -> Iterator[Cause]:
    """Elements that occur twice in a set, or keys that do in a keyed list."""
    if isinstance(value, dict):
        rest = schema.get("additionalProperties")
        for key, inner in value.items():
            part = schema.get("properties", {}).get(key) or (rest if isinstance(rest, dict) else {})
            yield from duplicates_in(inner, part, f"{field}.{key}".lstrip("."))
    elif isinstance(value, list):
        yield from _repeated(value, schema, field)
        for index, element in enumerate(value):
            yield from duplicates_in(element, schema.get("items") or {}, f"{field}[{index}]")


def _repeated(elements: list[JsonValue], schema: Json, field: str) -> Iterator[Cause]:
    list_type, keys = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys", ())
    seen: set[str] = set()
    for index, element in enumerate(elements if list_type in {"set", "map"} else ()):
        told_apart_by = element
        if list_type == "map" and isinstance(element, dict):
            told_apart_by = {key: element[key] for key in keys if key in element}
        if shown(told_apart_by) in seen:
            yield duplicate(f"{field}[{index}]", told_apart_by)
        seen.add(shown(told_apart_by))


def _field(path: Iterable[str | int]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return re.sub(r"^\.", "", text)


def _as_list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else [value]
