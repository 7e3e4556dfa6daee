"""Structural schemas of custom resources: pruning, defaulting and validation.

Limits: rules in CEL (``x-kubernetes-validations``) are not evaluated; that a schema is structural is not
checked, nor that the elements of sets and keyed lists differ; of an embedded resource only the fields that
its schema names are validated.
"""

from dataclasses import dataclass

import jsonschema
from jsonschema.protocols import Validator

from tinykube.custom.schema_validation import causes_of, validator_for
from tinykube.errors import InvalidValue
from tinykube.objects.json_types import Json, JsonValue
from tinykube.objects.statuses import Cause

_TYPE_AND_METADATA = frozenset({"apiVersion", "kind", "metadata"})
_EMBEDDED = "x-kubernetes-embedded-resource"
_PRESERVE = "x-kubernetes-preserve-unknown-fields"


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuralSchema:
    """The schema of one version of a custom resource.

    A write goes through ``prune``, ``default`` and ``validate``, in this order; so does a read of what was
    stored under an older schema, without the last.
    """

    schema: Json
    validator: Validator

    def prune(self, custom_object: Json) -> Json:
        """The object without fields that the schema does not know; type and metadata always stay."""
        pruned: Json = _prune(custom_object, {**self.schema, _EMBEDDED: True})
        return pruned

    def default(self, custom_object: Json) -> Json:
        """The object with the schema's defaults; nulls that it does not allow are as good as absent."""
        defaulted: Json = _default(custom_object, self.schema)
        return defaulted

    def validate(self, custom_object: Json) -> list[Cause]:
        """Everything that is wrong with the object; empty when nothing is."""
        return list(causes_of(self.validator, custom_object))


def compile_schema(schema: Json) -> StructuralSchema:
    """The schema of an ``openAPIV3Schema``; an empty one allows everything and keeps nothing.

    Raises:
        InvalidValue: it is no schema.
    """
    try:
        return StructuralSchema(schema=schema, validator=validator_for(schema))
    except jsonschema.SchemaError as error:
        path = ".".join(["openAPIV3Schema", *map(str, error.path)])
        raise InvalidValue(error.message, field=path) from error


def _part(schema: Json, key: str) -> Json | None:
    """The schema of the value under this key; None where there is none."""
    named = schema.get("properties", {}).get(key)
    rest = schema.get("additionalProperties")
    return named if named is not None else ({} if rest is True else rest or None)


def _prune(value: JsonValue, schema: Json, *, keep: bool = False) -> JsonValue:
    """The pruned value; ``keep`` is set inside lists whose unknown fields are preserved."""
    keep = keep or bool(schema.get(_PRESERVE))
    if isinstance(value, list):
        return [_prune(element, schema.get("items") or {}, keep=keep) for element in value]
    if not isinstance(value, dict):
        return value
    result: Json = {}
    for key, inner in value.items():
        part = _part(schema, key)
        if schema.get(_EMBEDDED) and key in _TYPE_AND_METADATA:
            result[key] = inner
        elif part is not None:
            result[key] = _prune(inner, part)
        elif keep:
            result[key] = inner
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
