"""Field selectors (``metadata.name=web,status.phase!=Running``) and the fields each kind lets one select by.

The grammar and the wording of refusals are those of Kubernetes (``k8s.io/apimachinery/pkg/fields`` and the
field label conversions of each kind).
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

from tinykube.objects.json_types import Json, JsonValue, lookup
from tinykube.objects.selectors import SelectorInvalid

_METADATA = frozenset({"metadata.name", "metadata.namespace"})
_REFERENCE = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_SUPPORTED = {
    ("", "Pod"): _METADATA
    | {
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.podIPs",
        "status.nominatedNodeName",
    },
    ("", "Node"): {"metadata.name", "spec.unschedulable"},
    ("", "Namespace"): {"metadata.name", "status.phase"},
    ("", "Secret"): _METADATA | {"type"},
    ("", "Service"): _METADATA | {"spec.clusterIP", "spec.type"},
    ("", "Event"): _METADATA
    | {f"involvedObject.{part}" for part in _REFERENCE}
    | {"reason", "reportingComponent", "source", "type"},
    ("apps", "ReplicaSet"): _METADATA | {"status.replicas"},
}
# Where the value of a selectable field is not at the path of the same name.
_ELSEWHERE = {
    "source": (("source", "component"), ("reportingComponent",)),
}
# Their zero values are left out of the JSON but can be selected by.
_ZERO = {
    "spec.hostNetwork": "false",
    "spec.unschedulable": "false",
    "status.replicas": "0",
}
_TERM = re.compile(r"(?P<label>.*?)(?P<operator>!=|==|=)(?P<value>.*)", re.DOTALL)
_PART_OF_TERMS = re.compile(r"((?:[^\\,]|\\.|\\$)*)(?:,|$)", re.DOTALL)
_PART_OF_VALUE = re.compile(r"\\(?P<escaped>.?)|(?P<plain>.)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRequirement:
    """A field has this value, or with ``equal`` false any other one."""

    field: str
    value: str
    equal: bool

    def matches(self, json_object: Json) -> bool:
        """Whether the object fulfils it; a field that is not there has the empty value."""
        return (field_text(json_object, self.field) == self.value) == self.equal


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSelector:
    """Requirements that must all hold; none at all selects everything."""

    requirements: tuple[FieldRequirement, ...] = ()

    def matches(self, json_object: Json) -> bool:
        """Whether this object is selected."""
        return all(requirement.matches(json_object) for requirement in self.requirements)


def parse_field_selector(
    text: str, *, group: str = "", kind: str = "", selectable_fields: Collection[str] | None = None
) -> FieldSelector:
    """The selector that a ``fieldSelector`` query parameter means for objects of this kind.

    ``selectable_fields`` (None for built-in kinds) are those that a CustomResourceDefinition adds, as
    dotted paths, with or without the leading dot.

    Raises:
        SelectorInvalid: the text does not follow the grammar, or the kind cannot be selected by that field.
    """
    custom = selectable_fields is not None
    extra = {path.removeprefix(".") for path in selectable_fields or ()}
    requirements = []
    for part in filter(None, _PART_OF_TERMS.findall(text)):
        term = _TERM.fullmatch(part)
        if term is None:
            raise SelectorInvalid(f"invalid selector: '{text}'; can't understand '{part}'")
        field = "spec.nodeName" if kind == "Pod" and term["label"] == "spec.host" else term["label"]
        _check_supported(field, group, kind, extra if custom else None)
        requirements.append(
            FieldRequirement(field=field, value=_unescaped(term["value"]), equal=term["operator"] != "!=")
        )
    return FieldSelector(requirements=tuple(requirements))


def field_text(json_object: Json, field: str) -> str:
    """The text that a selectable field of this object is compared by; empty where there is none."""
    for path in _ELSEWHERE.get(field, (field.split("."),)):
        value: JsonValue = lookup(json_object, *path)
        if value is not None:
            return str(value).lower() if isinstance(value, bool) else str(value)
    return _ZERO.get(field, "")


def _check_supported(field: str, group: str, kind: str, extra: Collection[str] | None) -> None:
    supported = _SUPPORTED.get((group, kind))
    if supported is None and extra is None:
        if field not in _METADATA:
            raise SelectorInvalid(
                f'"{field}" is not a known field selector: only "metadata.name", "metadata.namespace"'
            )
    elif field not in (supported or _METADATA) and field not in (extra or ()):
        raise SelectorInvalid(f"field label not supported: {field}")


def _unescaped(value: str) -> str:
    r"""The value without its escapes, which are ``\\``, ``\,`` and ``\=``."""
    text = ""
    for part in _PART_OF_VALUE.finditer(value):
        if part["plain"] == "=":
            raise SelectorInvalid(f"invalid field selector: unescaped character in value: {ord('=')}")
        if part["plain"] is None and part["escaped"] not in {"\\", ",", "="}:
            raise SelectorInvalid(f"invalid field selector: invalid escape sequence: {part[0]}")
        text += part["plain"] or part["escaped"]
    return text
