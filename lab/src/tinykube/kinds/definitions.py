"""CustomResourceDefinitions: their defaults, status and rules, after apiextensions-apiserver."""

from collections.abc import Iterator

from tinykube.custom.schemas import compile_schema
from tinykube.errors import InvalidValue
from tinykube.kinds.defaulting import Defaults
from tinykube.objects.deletion import DeletionRules
from tinykube.objects.metadata import with_metadata
from tinykube.objects.resources import Strategy
from tinykube.objects.statuses import Cause
from tinykube.objects.values import Json, lookup
from tinykube.printers import printer_for_definition

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
    return _with_accepted_names({**definition, "status": {"conditions": conditions}})


def _with_accepted_names(definition: Json, _old: Json | None = None) -> Json:
    """The definition with a status that has its names, and every version it has been stored in."""
    status, stored = definition.get("status") or {}, storage_version(definition)
    versions = status.get("storedVersions") or []
    added = [stored] if stored and stored not in versions else []
    names = lookup(definition, "spec", "names")
    return {**definition, "status": {**status, "acceptedNames": names, "storedVersions": [*versions, *added]}}


def storage_version(definition: Json) -> str:
    """The name of the version that objects are stored in."""
    versions = lookup(definition, "spec", "versions") or []
    return next((str(version.get("name", "")) for version in versions if version.get("storage")), "")


def _with_cleanup(definition: Json) -> Json:
    """A definition that is being deleted, held until its objects are gone."""
    finalizers = definition["metadata"].get("finalizers") or []
    if CLEANUP_FINALIZER not in finalizers:
        finalizers = [*finalizers, CLEANUP_FINALIZER]
    return with_metadata(definition, finalizers=finalizers, deletionGracePeriodSeconds=None)


def _problems(new: Json, _old: Json | None) -> Iterator[Cause]:
    spec, names = new.get("spec") or {}, lookup(new, "spec", "names") or {}
    if new["metadata"].get("name") != f"{names.get('plural', '')}.{spec.get('group', '')}":
        yield Cause("metadata.name", 'must be spec.names.plural+"."+spec.group')
    if spec.get("scope") not in {"Cluster", "Namespaced"}:
        yield Cause("spec.scope", "must be Cluster or Namespaced")
    versions = spec.get("versions") or []
    for index, version in enumerate(versions):
        yield from _version_problems(f"spec.versions[{index}]", version)
    if sum(1 for version in versions if version.get("storage")) != 1:
        yield Cause("spec.versions", "must have exactly one version marked as storage version")


def _version_problems(field: str, version: Json) -> Iterator[Cause]:
    """What is wrong with the schema and the columns of a version."""
    schema = lookup(version, "schema", "openAPIV3Schema")
    if schema is None:
        yield Cause(f"{field}.schema.openAPIV3Schema", "is required")
    try:
        compile_schema(schema or {})
    except InvalidValue as error:
        yield Cause(f"{field}.schema.{error.field}", error.problem)
    try:
        printer_for_definition(version.get("additionalPrinterColumns") or ())
    except (InvalidValue, KeyError) as error:
        yield Cause(f"{field}.additionalPrinterColumns", str(error))


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
        prepare_update=_with_accepted_names,
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
