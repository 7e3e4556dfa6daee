"""Label selectors and field selectors, as they stand in a query.

The grammars are those of ``k8s.io/apimachinery``, packages ``labels`` and ``fields``, without comparisons of
numbers and without escapes.
"""

import re
from dataclasses import dataclass

from tinykube.errors import InvalidValue
from tinykube.objects.metadata import label_key_problem, label_value_problem
from tinykube.objects.values import Json, lookup

_BETWEEN_TERMS = re.compile(r",(?![^(]*\))")
_LABEL_TERM = re.compile(
    r"\s*(?:(?P<absent>!)\s*)?(?P<key>[^=!(),<>\s]+)\s*"
    r"(?:(?P<equals>==?|!=)\s*(?P<value>[^=!(),<>\s]*)\s*"
    r"|(?P<set>in|notin)\s*\((?P<values>[^=!()<>]*)\)\s*)?"
)
_FIELD_TERM = re.compile(r"(?P<field>[^=!]+)(?P<operator>!=|==?)(?P<value>[^=]*)")

_METADATA = frozenset({"metadata.name", "metadata.namespace"})
_INVOLVED = {
    f"involvedObject.{part}" for part in ("kind", "namespace", "name", "uid", "apiVersion", "fieldPath")
}
_FIELDS = {
    ("", "Event"): {*_METADATA, *_INVOLVED, "reason", "reportingComponent", "type"},
    ("", "Pod"): {*_METADATA, "spec.nodeName", "status.phase"},
    ("", "Secret"): {*_METADATA, "type"},
}
"""By which fields kinds can be selected besides name and namespace."""


class SelectorInvalid(InvalidValue):
    """A selector cannot be understood (answered with 400)."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """A label or field has one of these values (None: any), or with ``negated`` none of them."""

    key: str
    values: frozenset[str] | None
    negated: bool = False

    def holds(self, value: str | None) -> bool:
        """Whether this value, or that there is none, fulfils it."""
        fits = value is not None if self.values is None else value in self.values
        return fits != self.negated


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Requirements that must all hold; none at all selects everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Json) -> bool:
        """Whether an object with these labels is selected; a missing label is in no set."""
        return all(one.holds(labels.get(one.key)) for one in self.requirements)


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """Requirements that must all hold; none at all selects everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, json_object: Json) -> bool:
        """Whether this object is selected; a field that is not there has the empty value."""
        return all(one.holds(_text(json_object, one.key)) for one in self.requirements)


def parse_label_selector(text: str) -> LabelSelector:
    """The selector that a ``labelSelector`` query parameter means; raises SelectorInvalid."""
    terms = _BETWEEN_TERMS.split(text) if text.strip() else []
    return LabelSelector(tuple(map(_label_requirement, terms)))


def parse_field_selector(text: str, group: str, kind: str) -> FieldSelector:
    """The selector that a ``fieldSelector`` query parameter means for objects of this kind.

    Raises SelectorInvalid, also when the kind cannot be selected by that field.
    """
    known = _FIELDS.get((group, kind), _METADATA)
    requirements = []
    for term in filter(None, text.split(",")):
        found = _FIELD_TERM.fullmatch(term)
        if found is None or found["field"] not in known:
            raise SelectorInvalid(
                f"{kind} cannot be selected by this field", field="fieldSelector", value=term
            )
        negated = found["operator"] == "!="
        requirements.append(Requirement(found["field"], frozenset({found["value"]}), negated))
    return FieldSelector(tuple(requirements))


def _label_requirement(term: str) -> Requirement:
    found = _LABEL_TERM.fullmatch(term)
    if found is None or (found["absent"] and (found["equals"] or found["set"])):
        raise SelectorInvalid("is not a label selector", field="labelSelector", value=term)
    values: frozenset[str] | None = None
    if found["equals"]:
        values = frozenset({found["value"]})
    elif found["set"]:
        values = frozenset(one.strip() for one in found["values"].split(","))
    problems = [label_key_problem(found["key"]), *map(label_value_problem, values or ())]
    if problem := next(filter(None, problems), ""):
        raise SelectorInvalid(problem, field="labelSelector", value=term)
    negated = bool(found["absent"]) or found["equals"] == "!=" or found["set"] == "notin"
    return Requirement(found["key"], values, negated)


def _text(json_object: Json, field: str) -> str:
    value = lookup(json_object, *field.split("."))
    return "" if value is None else str(value)
