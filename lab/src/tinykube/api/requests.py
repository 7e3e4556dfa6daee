"""What a request says: its path and parameters, the form of the answer that it wants, and its body."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote

import yaml

from tinykube.api.protobuf_bodies import PROTOBUF, parse_protobuf
from tinykube.objects.deletion import DeleteOptions
from tinykube.objects.service import FieldValidation
from tinykube.objects.statuses import ApiError, bad_request, invalid_option, unsupported_media_type
from tinykube.objects.values import Json, JsonValue, lookup

# Below a namespace's name these are parts of the namespace object itself, not resources in it.
_NAMESPACE_SUBRESOURCES = frozenset({"status", "finalize"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcePath:
    """A path such as ``/apis/GROUP/VERSION/namespaces/NAMESPACE/RESOURCE/NAME/SUBRESOURCE``."""

    group: str
    version: str
    resource: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def parse_resource_path(raw_path: str) -> ResourcePath | None:
    """What a percent-encoded path names; None when it is not the path of a resource."""
    parts = [unquote(part) for part in raw_path.strip("/").split("/")]
    if parts[0] == "api" and len(parts) >= 3:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) >= 4:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 1:
        namespace = rest[1]
        if len(rest) > 2 and rest[2] not in _NAMESPACE_SUBRESOURCES:
            rest = rest[2:]
        else:
            namespace = ""
    resource, name, subresource = (*rest, "", "")[:3]
    if len(rest) > 3 or not resource:
        return None
    return ResourcePath(
        group=group,
        version=version,
        resource=resource,
        namespace=namespace,
        name=name,
        subresource=subresource,
    )


_FALSE = frozenset({"0", "false"})


class Parameters:
    """Query parameters by name; one that is missing is empty, as for kube-apiserver."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str) -> str:
        """The parameter as it is."""
        return self._values.get(name, "")

    def flag(self, name: str) -> bool:
        """The parameter as a truth value: whatever is there is true, but for 0 and false."""
        return name in self._values and self.text(name).lower() not in _FALSE

    def number(self, name: str) -> int | None:
        """The parameter as a whole number; None when empty. Raises 400."""
        text = self.text(name)
        if not text:
            return None
        try:
            return int(text)
        except ValueError as error:
            raise bad_request(f"{name}={text} is not a number") from error

    def resource_version(self) -> int | None:
        """``resourceVersion``: None when unset, 0 for any version. Raises 400."""
        text = self.text("resourceVersion")
        if not text:
            return None
        if not text.isascii() or not text.isdigit():
            raise bad_request(f"resourceVersion={text} is not a version")
        return int(text)


JSON = "application/json"
YAML = "application/yaml"
_ANY = frozenset({JSON, "application/*", "*/*"})


class Representation(StrEnum):
    """How objects are shown."""

    OBJECT = "object"
    TABLE = "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaRange:
    """One entry of an Accept header; ``parameters`` without ``q``."""

    media_type: str
    parameters: Mapping[str, str]

    @property
    def conversion(self) -> tuple[str, str, str]:
        """Group, version and kind that the answer is to be converted to; empty for as it is."""
        return tuple(self.parameters.get(key, "") for key in ("g", "v", "as"))  # type: ignore[return-value]


_CONVERSIONS = {
    ("meta.k8s.io", "v1", "Table"): Representation.TABLE,
    ("", "", ""): Representation.OBJECT,
}


def parse_accept(header: str) -> list[MediaRange]:
    """The entries of an Accept header, most wanted first."""
    ranges = [_media_range(entry) for entry in header.split(",") if entry.strip()]
    return [one for one, _ in sorted(ranges, key=lambda pair: -pair[1])]


def representation(accept: str) -> Representation:
    """How to show objects. Raises 406 when neither JSON nor a table in JSON is acceptable."""
    for one in parse_accept(accept or "*/*"):
        found = _CONVERSIONS.get(one.conversion)
        if one.media_type in _ANY and found is not None:
            return found
    raise ApiError(406, "NotAcceptable", f"objects are shown as {JSON} only")


def _media_range(entry: str) -> tuple[MediaRange, float]:
    media_type, *parts = (part.strip() for part in entry.split(";"))
    parameters = dict(part.split("=", 1) for part in parts if "=" in part)
    try:
        quality = float(parameters.pop("q", "1"))
    except ValueError:
        quality = 0.0
    return MediaRange(media_type=media_type.lower(), parameters=parameters), quality


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
