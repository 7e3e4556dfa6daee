"""CustomResourceDefinitions: their defaults, status and rules, after apiextensions-apiserver."""

from collections.abc import Iterator

from tinykube.kinds.defaulting import Defaults
from tinykube.objects.deletion import DeletionRules
from tinykube.objects.metadata import with_metadata
from tinykube.objects.resources import Strategy
from tinykube.objects.statuses import Cause
from tinykube.objects.values import Json, lookup

CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
"""Held until every object of the type is gone."""


def _name_defaults(names: Json) -> Json:
    kind = names.get("kind", "")
    return {
        **names,
        "singular": names.get("singular") or kind.lower(),
        "listKind": names.get("listKind") or f"{kind}List",
    }


def _condition(kind: str, reason: str, message: str, now: str) -> Json:
    return {"lastTransitionTime": now, "message": message, "reason": reason, "status": "True", "type": kind}


def _established(definition: Json) -> Json:
    """A new definition: unlike in Kubernetes, its names are accepted at once."""
    now = definition["metadata"]["creationTimestamp"]
    conditions = [
        _condition("NamesAccepted", "NoConflicts", "no conflicts found", now),
        _condition("Established", "InitialNamesAccepted", "the initial names have been accepted", now),
    ]
    versions = [version["name"] for version in lookup(definition, "spec", "versions") or ()]
    names = lookup(definition, "spec", "names")
    return {
        **definition,
        "status": {"acceptedNames": names, "conditions": conditions, "storedVersions": versions},
    }


def _with_cleanup(definition: Json) -> Json:
    """A definition that is being deleted, held until its objects are gone."""
    finalizers = definition["metadata"].get("finalizers") or []
    if CLEANUP_FINALIZER not in finalizers:
        finalizers = [*finalizers, CLEANUP_FINALIZER]
    return with_metadata(definition, finalizers=finalizers, deletionGracePeriodSeconds=None)


def _problems(new: Json, _old: Json | None) -> Iterator[Cause]:
    if len(lookup(new, "spec", "versions") or ()) != 1:
        yield Cause("spec.versions", "must have one version, since objects are not converted here")


STRATEGIES = {
    ("apiextensions.k8s.io", "CustomResourceDefinition"): Strategy(
        default=Defaults(
            values={"spec": {}},
            inside={
                "spec": Defaults(
                    values={"conversion": {"strategy": "None"}},
                    inside={"names": Defaults(then=_name_defaults)},
                )
            },
        ),
        prepare_create=_established,
        required=("spec.group", "spec.names.plural", "spec.names.kind"),
        immutable=("spec.group", "spec.names.plural", "spec.names.kind", "spec.scope"),
        other_problems=_problems,
        deletion=DeletionRules(
            held=lambda definition: "deletionTimestamp" not in definition["metadata"],
            mark=_with_cleanup,
            moves_generation=False,
        ),
    ),
}
