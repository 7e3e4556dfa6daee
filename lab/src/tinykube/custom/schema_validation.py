"""Validation of custom resources by jsonschema.

An OpenAPI v3 schema is JSON Schema draft 4 but for ``nullable`` and the ``x-kubernetes-*`` extensions, which
are translated.
"""

from collections.abc import Iterable, Iterator

import jsonschema
from jsonschema.protocols import Validator

from tinykube.objects.json_types import Json, JsonValue
from tinykube.objects.statuses import Cause
from tinykube.objects.times import parse_time

_KEPT = frozenset(
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
_FORMATS = jsonschema.FormatChecker(formats=())
_FORMATS.checks("date-time")(lambda value: not isinstance(value, str) or parse_time(value) is not None)
# As in Go, 1.0 is an integer. The stubs have no types for ``extend``.
_Draft4: type[jsonschema.Draft4Validator] = jsonschema.validators.extend(  # type: ignore[no-untyped-call]
    jsonschema.Draft4Validator, type_checker=jsonschema.Draft7Validator.TYPE_CHECKER
)


def validator_for(schema: Json) -> Validator:
    """A validator for an ``openAPIV3Schema``; raises jsonschema.SchemaError when it is no schema."""
    translated = _translated(schema)
    _Draft4.check_schema(translated)
    return _Draft4(translated, format_checker=_FORMATS)


def _translated(schema: JsonValue) -> JsonValue:
    """The schema as draft 4 has it."""
    if not isinstance(schema, dict):
        return schema
    result: Json = {key: value for key, value in schema.items() if key in _KEPT}
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


def causes_of(validator: Validator, json_object: Json) -> Iterator[Cause]:
    """What the validator finds wrong."""
    for error in validator.iter_errors(json_object):
        if error.validator == "required":
            wanted: JsonValue = error.validator_value
            given: JsonValue = error.instance
            missing = (key for key in wanted if key not in given)
            yield from (Cause(_field([*error.absolute_path, key]), "is required") for key in missing)
        else:
            yield Cause(_field(error.absolute_path), error.message)


def _field(path: Iterable[str | int]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")
