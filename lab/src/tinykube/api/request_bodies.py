"""The bodies of requests: objects, patches and options of deletion."""

import json
from dataclasses import dataclass
from enum import StrEnum

import yaml

from tinykube.api.negotiation import JSON, YAML
from tinykube.api.parameters import Parameters
from tinykube.api.protobuf_bodies import PROTOBUF, parse_protobuf
from tinykube.objects.deletion import DeleteOptions
from tinykube.objects.json_types import Json, JsonValue, lookup
from tinykube.objects.service import FieldValidation
from tinykube.objects.statuses import bad_request, invalid_option, unsupported_media_type

_PROPAGATION = frozenset({None, "Orphan", "Background", "Foreground"})


class PatchType(StrEnum):
    """The ways to patch, by their media types."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """A patch as the client sent it."""

    type: PatchType
    content: JsonValue


def parse_object(content: bytes, content_type: str) -> Json:
    """The object in a body: JSON, YAML or, for some kinds, protocol buffers; raises 400 or 415."""
    media_type = _media_type(content_type)
    if media_type == PROTOBUF:
        return parse_protobuf(content)
    if media_type not in {"", JSON, YAML}:
        raise unsupported_media_type([JSON, YAML, PROTOBUF])
    value = _yaml(content) if media_type == YAML else _json(content)
    if not isinstance(value, dict):
        raise bad_request("the body must be an object")
    return value


def parse_patch(content: bytes, content_type: str, *, custom: bool) -> Patch:
    """The patch in a body; raises 400 or 415. Custom resources take no strategic merge patches."""
    accepted = [kind for kind in PatchType if not (custom and kind is PatchType.STRATEGIC)]
    media_type = _media_type(content_type)
    if media_type not in accepted:
        raise unsupported_media_type(accepted)
    patch_type = PatchType(media_type)
    value = _yaml(content) if patch_type is PatchType.APPLY else _json(content)
    return Patch(type=patch_type, content=value)


def check_patch_options(patch: Patch, parameters: Parameters) -> None:
    """Raises 422 where the query does not fit the kind of patch."""
    applies = patch.type is PatchType.APPLY
    if applies and not parameters.text("fieldManager"):
        raise invalid_option("fieldManager", "is required for an apply patch")
    if not applies and parameters.flag("force"):
        raise invalid_option("force", "is for apply patches only")


def parse_delete_options(content: bytes, content_type: str, parameters: Parameters) -> DeleteOptions:
    """The options of a delete request, from its body or else its query; raises 400 or 422."""
    given = parse_object(content, content_type) if content.strip() else None
    return _read_delete_options(_options_in_query(parameters) if given is None else given, parameters)


def parse_eviction(eviction: Json, name: str, parameters: Parameters) -> DeleteOptions:
    """How the pod of this name is to be deleted; raises 400 for an Eviction of another one."""
    if lookup(eviction, "metadata", "name") != name:
        raise bad_request("an Eviction names the pod of the URL")
    return _read_delete_options(eviction.get("deleteOptions") or {}, parameters)


def _read_delete_options(options: Json, parameters: Parameters) -> DeleteOptions:
    """DeleteOptions as a value; raises 422. ``dryRun`` may be in the query."""
    propagation = options.get("propagationPolicy")
    if propagation not in _PROPAGATION:
        raise invalid_option("propagationPolicy", "must be Foreground, Background or Orphan")
    return DeleteOptions(
        grace_period_seconds=options.get("gracePeriodSeconds"),
        propagation=propagation,
        uid=lookup(options, "preconditions", "uid"),
        resource_version=lookup(options, "preconditions", "resourceVersion"),
        dry_run=bool(options.get("dryRun")) or parse_dry_run(parameters),
    )


def _options_in_query(parameters: Parameters) -> Json:
    return {
        "gracePeriodSeconds": parameters.number("gracePeriodSeconds"),
        "propagationPolicy": parameters.text("propagationPolicy") or None,
    }


def parse_dry_run(parameters: Parameters) -> bool:
    """Whether nothing is to be stored; raises 422 for anything but ``All``."""
    text = parameters.text("dryRun")
    if text not in {"", "All"}:
        raise invalid_option("dryRun", "must be All")
    return text == "All"


def parse_field_validation(parameters: Parameters) -> FieldValidation:
    """What to do about unknown fields; raises 422 for an unknown ``fieldValidation``."""
    try:
        return FieldValidation(parameters.text("fieldValidation") or FieldValidation.WARN)
    except ValueError:
        raise invalid_option("fieldValidation", f"must be one of {', '.join(FieldValidation)}") from None


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _json(content: bytes) -> JsonValue:
    try:
        return json.loads(content)
    except ValueError as error:
        raise bad_request(f"error decoding the body: {error}") from error


def _yaml(content: bytes) -> JsonValue:
    try:
        return yaml.load(content, Loader=_JsonLoader)  # noqa: S506 - a safe loader without dates
    except (yaml.YAMLError, ValueError) as error:
        raise bad_request(f"error decoding YAML: {error}") from error


class _JsonLoader(yaml.SafeLoader):
    """YAML's values that JSON has too: a time stamp stays the text it is."""


_JsonLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
