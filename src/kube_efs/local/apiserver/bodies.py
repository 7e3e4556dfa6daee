"""Objects as clients send and receive them, and as they are stored."""

from kube_efs.local.apiserver.json_types import Json, JsonValue, without
from kube_efs.local.apiserver.resources import ResourceType
from kube_efs.local.apiserver.statuses import bad_request

_TEXT_FIELDS = ("name", "generateName", "namespace", "uid", "resourceVersion")
_TEXT_MAPS = ("labels", "annotations")


def in_stored_form(resource: ResourceType, body: JsonValue) -> Json:
    """What a client sent, checked to be an object of this type, with the type first; raises 400."""
    if not isinstance(body, dict):
        raise bad_request("the object provided is unrecognized (must be of type Object)")
    _check_type(resource, body)
    metadata = _checked_metadata(body.get("metadata"))
    if not resource.namespaced:
        metadata = without(metadata, "namespace")
    rest = without(body, "kind", "apiVersion", "metadata")
    new = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata, **rest}
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
        raise bad_request(
            f'{kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '
            f"the object is of another kind"
        )


def _checked_metadata(metadata: JsonValue) -> Json:
    """The metadata without empty fields, if every field that the server reads has its type."""
    if metadata is None:
        return {}
    if not isinstance(metadata, dict):
        raise bad_request("metadata is not an object")
    for field in _TEXT_FIELDS:
        if not isinstance(metadata.get(field) or "", str):
            raise bad_request(f"cannot unmarshal a value into metadata.{field} of type string")
    for field in _TEXT_MAPS:
        entries = metadata.get(field) or {}
        if not isinstance(entries, dict) or not all(isinstance(value, str) for value in entries.values()):
            raise bad_request(f"cannot unmarshal a value into metadata.{field} of type string")
    if not all(isinstance(name, str) for name in metadata.get("finalizers") or ()):
        raise bad_request("cannot unmarshal a value into metadata.finalizers of type string")
    return {key: value for key, value in metadata.items() if value not in (None, "", {}, [])}
