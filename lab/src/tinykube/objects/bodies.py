"""Objects as clients send and receive them, and as they are stored."""

from collections.abc import Iterator
from contextlib import contextmanager

from tinykube.kinds.builtin_shapes import shape_of
from tinykube.objects.json_types import Json, JsonValue, without
from tinykube.objects.resources import ResourceType
from tinykube.objects.statuses import Undecodable, bad_request


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
