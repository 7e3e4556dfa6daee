"""What a request says: its path and parameters, the form of the answer that it wants, and its body."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote

from tinykube.api.protobuf_bodies import PROTOBUF, parse_protobuf
from tinykube.objects.deletion import DeleteOptions
from tinykube.objects.statuses import ApiError, bad_request, invalid_option, unsupported_media_type
from tinykube.objects.values import Json, JsonValue, lookup

# Below a namespace's name these are parts of the namespace object itself, not resources in it.
_NAMESPACE_SUBRESOURCES = frozenset({"status", "finalize"})
_FALSE = frozenset({"0", "false"})
JSON = "application/json"
_ANY = frozenset({JSON, "application/*", "*/*"})
# Group, version and kind that an answer must be converted to.
_FORMS = {("meta.k8s.io", "v1", "Table"): True, ("", "", ""): False}
_PROPAGATION = frozenset({None, "Orphan", "Background", "Foreground"})


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
        """The parameter as a truth value: whatever is there is true, except 0 and false."""
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


def wants_table(accept: str) -> bool:
    """Whether objects must be shown as a table; raises 406 when neither this nor JSON is acceptable.

    The first form that is served counts: clients of Kubernetes name them in order.
    """
    for entry in (accept or JSON).split(","):
        media_type, *parts = (part.strip() for part in entry.split(";"))
        given = dict(part.split("=", 1) for part in parts if "=" in part)
        found = _FORMS.get((given.get("g", ""), given.get("v", ""), given.get("as", "")))
        if media_type.lower() in _ANY and found is not None:
            return found
    raise ApiError(406, "NotAcceptable", f"objects are shown as {JSON} only")


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
    """The object in a body: JSON or, for some kinds, protocol buffers; raises 400 or 415."""
    media_type = _media_type(content_type)
    if media_type == PROTOBUF:
        return parse_protobuf(content)
    if media_type not in {"", JSON}:
        raise unsupported_media_type([JSON, PROTOBUF])
    value = _json(content)
    if not isinstance(value, dict):
        raise bad_request("the body must be an object")
    return value


def parse_patch(content: bytes, content_type: str, *, custom: bool) -> Patch:
    """The patch in a body, in JSON; raises 400 or 415. Custom resources take no strategic merge patches."""
    accepted = [kind for kind in PatchType if not (custom and kind is PatchType.STRATEGIC)]
    media_type = _media_type(content_type)
    if media_type not in accepted:
        raise unsupported_media_type(accepted)
    return Patch(type=PatchType(media_type), content=_json(content))


def check_patch_options(patch: Patch, parameters: Parameters) -> None:
    """Raises 422 where the query does not fit the kind of patch."""
    applies = patch.type is PatchType.APPLY
    if applies and not parameters.text("fieldManager"):
        raise invalid_option("fieldManager", "is required for an apply patch")
    if not applies and parameters.flag("force"):
        raise invalid_option("force", "is for apply patches only")


def parse_delete_options(content: bytes, content_type: str, parameters: Parameters) -> DeleteOptions:
    """The options of a delete request, from its body or else its query; raises 400 or 422."""
    if content.strip():
        return read_delete_options(parse_object(content, content_type), parameters)
    in_query = {
        "gracePeriodSeconds": parameters.number("gracePeriodSeconds"),
        "propagationPolicy": parameters.text("propagationPolicy") or None,
    }
    return read_delete_options(in_query, parameters)


def read_delete_options(options: Json, parameters: Parameters) -> DeleteOptions:
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


def parse_dry_run(parameters: Parameters) -> bool:
    """Whether nothing must be stored; raises 422 for anything but ``All``."""
    text = parameters.text("dryRun")
    if text not in {"", "All"}:
        raise invalid_option("dryRun", "must be All")
    return text == "All"


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _json(content: bytes) -> JsonValue:
    try:
        return json.loads(content)
    except ValueError as error:
        raise bad_request(f"error decoding the body: {error}") from error
