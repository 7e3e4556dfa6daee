"""Structural schemas of custom resources: pruning, defaulting and validation.

An OpenAPI v3 schema is JSON Schema draft 4 except ``nullable``, which is translated. Limits: rules in CEL
(``x-kubernetes-validations``) are not evaluated; that a schema is structural is not checked, nor that the
elements of sets and keyed lists differ; embedded resources and ``x-kubernetes-int-or-string`` are not known.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import jsonschema
from jsonschema.protocols import Validator

from tinykube.objects.statuses import Cause
from tinykube.objects.values import Json, JsonValue, parse_time, without

_TYPE_AND_METADATA = frozenset({"apiVersion", "kind", "metadata"})
_PRESERVE = "x-kubernetes-preserve-unknown-fields"
_FORMATS = jsonschema.FormatChecker(formats=())
_FORMATS.checks("date-time")(lambda value: not isinstance(value, str) or parse_time(value) is not None)
# As in Go, 1.0 is an integer. The stubs have no types for ``extend``.
_Draft4: type[jsonschema.Draft4Validator] = jsonschema.validators.extend(  # type: ignore[no-untyped-call]
    jsonschema.Draft4Validator, type_checker=jsonschema.Draft7Validator.TYPE_CHECKER
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuralSchema:
    """The schema of one version of a custom resource.

    A write goes through ``decode``, ``default`` and ``validate``, in this order; so does a read of what was
    stored under an older schema, without the last.
    """

    schema: Json
    validator: Validator

    def decode(self, body: Json) -> tuple[Json, list[str]]:
        """The object without fields that the schema does not know, and their paths."""
        unknown: list[str] = []
        head = {key: body[key] for key in _TYPE_AND_METADATA & body.keys()}
        return {**head, **_prune(without(body, *head), self.schema, "", unknown)}, unknown

    def default(self, custom_object: Json) -> Json:
        """The object with the schema's defaults; nulls that it does not allow are as good as absent."""
        defaulted: Json = _default(custom_object, self.schema)
        return defaulted

    def validate(self, custom_object: Json) -> list[Cause]:
        """Everything that is wrong with the object; empty when nothing is."""
        return list(_causes(self.validator, custom_object))


def compile_schema(schema: Json) -> StructuralSchema:
    """The schema of an ``openAPIV3Schema``; an empty one allows everything and keeps nothing."""
    return StructuralSchema(schema=schema, validator=_Draft4(_translated(schema), format_checker=_FORMATS))


def _part(schema: Json, key: str) -> Json | None:
    """The schema of the value under this key; None where there is none."""
    named = schema.get("properties", {}).get(key)
    rest = schema.get("additionalProperties")
    return named if named is not None else ({} if rest is True else rest or None)


def _prune(value: JsonValue, schema: Json, path: str, unknown: list[str]) -> JsonValue:
    if isinstance(value, list):
        items = schema.get("items") or {}
        return [_prune(one, items, f"{path}[{index}]", unknown) for index, one in enumerate(value)]
    if not isinstance(value, dict):
        return value
    result: Json = {}
    for key, inner in value.items():
        here = f"{path}.{key}" if path else key
        part = _part(schema, key)
        if part is not None:
            result[key] = _prune(inner, part, here, unknown)
        elif schema.get(_PRESERVE):
            result[key] = inner
        else:
            unknown.append(here)
    return result


def _default(value: JsonValue, schema: Json) -> JsonValue:
    if isinstance(value, list):
        items = schema.get("items") or {}
        return [_default(_replaced_null(element, items), items) for element in value]
    if not isinstance(value, dict):
        return value
    given = {key: _replaced_null(inner, _part(schema, key)) for key, inner in value.items()}
    missing = {
        key: part["default"]
        for key, part in schema.get("properties", {}).items()
        if part.get("default") is not None and key not in given
    }
    return {
        key: _default(inner, _part(schema, key) or {})
        for key, inner in {**given, **missing}.items()
        if inner is not None or _may_be_null(_part(schema, key))
    }


def _replaced_null(value: JsonValue, schema: Json | None) -> JsonValue:
    return value if value is not None or _may_be_null(schema) else (schema or {}).get("default")


def _may_be_null(schema: Json | None) -> bool:
    return schema is None or bool(schema.get("nullable"))


def _translated(schema: JsonValue) -> JsonValue:
    """The schema as draft 4 has it."""
    if not isinstance(schema, dict):
        return schema
    result: Json = dict(schema)
    if schema.get("nullable") and "type" in schema:
        result["type"] = [schema["type"], "null"]
    if "properties" in schema:
        result["properties"] = {key: _translated(inner) for key, inner in schema["properties"].items()}
    for key in {"items", "additionalProperties"} & schema.keys():
        result[key] = _translated(schema[key])
    return result


def _causes(validator: Validator, json_object: Json) -> Iterator[Cause]:
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
