"""Objects as clients send and receive them, and as they are stored."""

from kube_efs.local.apiserver.builtin_shapes import shape_of
from kube_efs.local.apiserver.json_types import Json, JsonValue, without
from kube_efs.local.apiserver.resources import ResourceType
from kube_efs.local.apiserver.statuses import bad_request

_TEXT_MAPS = ("labels", "annotations")


def in_stored_form(resource: ResourceType, body: JsonValue, *, strict: bool = False) -> Json:
    """What a client sent, decoded as an object of this type, with the type first.

    Raises ApiError: 400 when it is of another type, has a value of a wrong type, or, if ``strict``, has
    fields that the type does not know; otherwise those are dropped.
    """
    if not isinstance(body, dict):
        raise bad_request("the object provided is unrecognized (must be of type Object)")
    _check_type(resource, body)
    decoded, unknown = resource.decode(without(body, "metadata"))
    metadata, unknown_metadata = _decode_metadata(body.get("metadata"))
    if strict and (unknown or unknown_metadata):
        named = ", ".join(f'unknown field "{path}"' for path in [*unknown_metadata, *unknown])
        raise bad_request(f"{_cannot_be_handled(resource, resource.kind)}: strict decoding error: {named}")
    if not resource.namespaced:
        metadata = without(metadata, "namespace")
    head = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
    new = {**head, **without(decoded, "kind", "apiVersion")}
    return resource.form.to_stored(new) if resource.form else new


def in_wire_form(resource: ResourceType, stored: Json) -> Json:
    """A stored object as this version of its resource shows it."""
    return resource.form.from_stored(stored) if resource.form else stored


def _check_type(resource: ResourceType, body: Json) -> None:
    kind, api_version = body.get("kind"), body.get("apiVersion")
    if resource.custom and not kind:
        raise bad_request("Object 'Kind' is missing in the object")
    if api_version and api_version != resource.api_version:
        raise bad_request(
            f"the API version in the data ({api_version}) does not match the expected API version "
            f"({resource.api_version})"
        )
    if kind and kind != resource.kind:
        raise bad_request(f"{_cannot_be_handled(resource, kind)}: the object is of another kind")


def _cannot_be_handled(resource: ResourceType, kind: str) -> str:
    return f'{kind} in version "{resource.version}" cannot be handled as a {resource.kind}'


def _decode_metadata(metadata: JsonValue) -> tuple[Json, list[str]]:
    """The metadata without unknown and empty fields, and the paths of the unknown ones."""
    if metadata is None:
        return {}, []
    if not isinstance(metadata, dict):
        raise bad_request("json: cannot unmarshal metadata into Go struct field metadata of type object")
    decoded, unknown = shape_of("meta", "v1", "ObjectMeta").decode(metadata)
    for field in _TEXT_MAPS:
        if not all(isinstance(value, str) for value in (decoded.get(field) or {}).values()):
            raise bad_request(
                f"json: cannot unmarshal a value into Go struct field metadata.{field} of type string"
            )
    kept = {key: value for key, value in decoded.items() if value not in ("", {}, [])}
    return kept, [f"metadata.{path}" for path in unknown]
