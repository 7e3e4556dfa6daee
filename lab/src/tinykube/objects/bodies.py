"""Objects as clients send and receive them, and as they are stored."""

from collections.abc import Iterator
from contextlib import contextmanager

from tinykube.kinds.builtin_shapes import shape_of
from tinykube.objects.json_types import Json, JsonValue, lookup, without
from tinykube.objects.resources import ResourceType
from tinykube.objects.statuses import (
    Subject,
    Undecodable,
    bad_request,
    invalid,
    invalid_object,
)


def in_stored_form(resource: ResourceType, body: JsonValue) -> tuple[Json, list[str]]:
    """What a client sent, decoded as an object of this type, with the type first.

    Also the paths of the fields that the type does not know; they have been dropped.

    Raises:
        Undecodable: a value has a wrong type.
        ApiError: 400 or 422 when it is an object of another type, or none.
    """
    if not isinstance(body, dict):
        raise bad_request(f"the object provided is unrecognized (must be of type {resource.kind})")
    _check_type(resource, body)
    decoded, unknown = resource.decode(without(body, "metadata"))
    metadata, unknown_metadata = _decode_metadata(body.get("metadata"))
    if not resource.namespaced:
        metadata = without(metadata, "namespace")
    head = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
    new = {**head, **without(decoded, "kind", "apiVersion")}
    unknown = [*unknown_metadata, *unknown]
    return resource.form.to_stored(new) if resource.form else new, sorted(
        unknown
    ) if resource.custom else unknown


def in_wire_form(resource: ResourceType, stored: Json) -> Json:
    """A stored object as this version of its resource shows it."""
    return resource.form.from_stored(stored) if resource.form else stored


@contextmanager
def decoding(resource: ResourceType) -> Iterator[None]:
    """What cannot be decoded inside is answered with 400."""
    try:
        yield
    except Undecodable as error:
        raise bad_request(
            _cannot_be_handled(resource, resource.kind, resource.version, str(error))
        ) from error


def _check_type(resource: ResourceType, body: Json) -> None:
    kind, api_version = body.get("kind"), body.get("apiVersion")
    if resource.custom and not kind:
        problem = "Object 'Kind' is missing"
        raise bad_request(f"the object provided is unrecognized (must be of type {resource.kind}): {problem}")
    if api_version and api_version != resource.api_version:
        problem = f'no kind "{kind}" is registered for version "{api_version}"'
        raise bad_request(
            f"the API version in the data ({api_version}) does not match the expected API version "
            f"({resource.api_version})"
            if resource.custom
            else _cannot_be_handled(resource, kind or resource.kind, api_version, problem)
        )
    if kind and kind != resource.kind and resource.custom:
        subject = Subject(group=resource.group, resource="", kind=kind, name=_name(body))
        raise invalid_object(subject, [invalid("kind", kind, f"must be {resource.kind}")])
    if kind and kind != resource.kind:
        package = resource.group.partition(".")[0] or "core"
        problem = f"converting ({resource.version}.{kind}) to ({package}.{resource.kind}): unknown conversion"
        raise bad_request(_cannot_be_handled(resource, kind, resource.version, problem))


def _name(body: Json) -> str:
    return str(lookup(body, "metadata", "name") or "")


def _cannot_be_handled(resource: ResourceType, kind: str, version: str, problem: str) -> str:
    return f'{kind} in version "{version}" cannot be handled as a {resource.kind}: {problem}'


def _decode_metadata(metadata: JsonValue) -> tuple[Json, list[str]]:
    """The metadata without unknown and empty fields, and the paths of the unknown ones."""
    if metadata is None:
        return {}, []
    if not isinstance(metadata, dict):
        raise Undecodable("json: cannot unmarshal into Go struct field metadata of type v1.ObjectMeta")
    decoded, unknown = shape_of("meta", "v1", "ObjectMeta").decode(metadata, at="metadata")
    return {key: value for key, value in decoded.items() if value not in ("", {}, [])}, unknown
