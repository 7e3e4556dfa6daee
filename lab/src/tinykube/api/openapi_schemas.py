"""What fields the served kinds have, as OpenAPI schemas, for ``kubectl explain``.

Those of built-in kinds come from lightkube's models, with their descriptions; custom kinds bring their own.
"""

import inspect
import re
from collections.abc import Iterable
from typing import Any

import msgspec
from lightkube.models.meta_v1 import ObjectMeta

from tinykube.kinds.builtin_shapes import JSON_SCHEMAS, fields_of, shape_of
from tinykube.objects.json_types import Json
from tinykube.objects.resources import ResourceType

Model = type[msgspec.Struct]

_PARAMETERS = "**parameters**"
_PARAMETER = re.compile(r"\* \*\*(\w+)\*\* ``.*?`` - (.*?)(?=\n\* \*\*|\Z)", re.DOTALL)


def schemas_of(types: Iterable[ResourceType], *, built_in: bool = True) -> Json:
    """The schemas of these types, and of everything inside them, by their names."""
    found: Json = {}
    for resource in types:
        kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
        if resource.schema is not None:
            _add(ObjectMeta, found)
            name = f"{resource.group}.{resource.version}.{resource.kind}"
            found[name] = {**_custom(resource.schema), "x-kubernetes-group-version-kind": [kind]}
        elif built_in and (model := _model(resource)):
            _add(model, found)
            found[_name(model)]["x-kubernetes-group-version-kind"] = [kind]
    return found


def _model(resource: ResourceType) -> Model | None:
    try:
        return shape_of(resource.group, resource.version, resource.kind).model
    except (AttributeError, ImportError):
        return None  # of old versions, which have the fields of the present ones


def _custom(schema: Json) -> Json:
    texts = {name: {"type": "string"} for name in ("apiVersion", "kind")}
    own = {name: inner for name, inner in (schema.get("properties") or {}).items() if name != "metadata"}
    return {"type": "object", **schema, "properties": {**texts, "metadata": _reference(ObjectMeta), **own}}


def _add(model: Model, found: Json) -> None:
    """Add the schema of a model, and those of all models that it has fields of."""
    if _name(model) in found:
        return
    description, descriptions = _describe(model)
    schema: Json = {"type": "object", "description": description, "properties": {}}
    found[_name(model)] = schema
    for name, field in fields_of(model).items():
        inner = dict(JSON_SCHEMAS[field.kind])
        if field.model is not None:
            _add(field.model, found)
            inner = _reference(field.model)
        typed = {"type": "array", "items": inner} if field.is_list else inner
        schema["properties"][name] = {**typed, "description": descriptions.get(name, "")}
    required = [one.encode_name for one in msgspec.structs.fields(model) if one.required]
    if required:
        schema["required"] = required


def _describe(model: Model) -> tuple[str, dict[str, str]]:
    """What lightkube says of a model, and of each of its fields."""
    about, _, parameters = inspect.cleandoc(model.__doc__ or "").partition(_PARAMETERS)
    found = _PARAMETER.findall(inspect.cleandoc(parameters))
    return _joined(about), {name: _joined(text) for name, text in found}


def _joined(text: str) -> str:
    return " ".join(text.split())


def _reference(model: Model) -> Json:
    return {"allOf": [{"$ref": f"#/components/schemas/{_name(model)}"}]}


def _name(model: Any) -> str:  # noqa: ANN401 - of any model
    module, _, version = model.__module__.rpartition(".")[2].rpartition("_")
    return f"io.k8s.api.{module}.{version}.{model.__name__}"
