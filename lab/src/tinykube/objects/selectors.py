"""Label selectors and field selectors, as they stand in a query.

The grammars are those of ``k8s.io/apimachinery``, packages ``labels`` and ``fields``, without comparisons of
numbers and without escapes.
"""

import re
from dataclasses import dataclass

from tinykube.errors import InvalidValue
from tinykube.objects.metadata import label_key_problem, label_value_problem

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
        """Whether this value, or that there is none, fulfils it; a missing label is in no set."""
        fits = value is not None if self.values is None else value in self.values
        return fits != self.negated


def parse_label_selector(text: str) -> tuple[Requirement, ...]:
    """What a ``labelSelector`` query parameter requires; raises SelectorInvalid."""
    terms = _BETWEEN_TERMS.split(text) if text.strip() else []
    return tuple(map(_label_requirement, terms))


def parse_field_selector(text: str, group: str, kind: str) -> tuple[Requirement, ...]:
    """What a ``fieldSelector`` query parameter requires of objects of this kind.

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
    return tuple(requirements)


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
