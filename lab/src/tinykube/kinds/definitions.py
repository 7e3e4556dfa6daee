"""CustomResourceDefinitions: their defaults, status and rules, after apiextensions-apiserver."""

from collections.abc import Iterator

from tinykube.custom.crd_schemas import compile_schema
from tinykube.custom.custom_columns import printer_for_definition
from tinykube.errors import InvalidValue
from tinykube.kinds.defaulting import Defaults
from tinykube.objects.deletion import DeletionRules
from tinykube.objects.json_types import Json, lookup
from tinykube.objects.metadata import IMMUTABLE, with_metadata
from tinykube.objects.names import label_problem, subdomain_problem
from tinykube.objects.statuses import Cause, invalid, not_supported, required
from tinykube.objects.strategies import Strategy

CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
"""Held until every object of the type is gone."""
_NO_STATUS: Json = {"conditions": None, "acceptedNames": {"plural": "", "kind": ""}}


def _name_defaults(names: Json) -> Json:
    kind = names.get("kind", "")
    return {
        **names,
        "singular": names.get("singular") or kind.lower(),
        "listKind": names.get("listKind") or f"{kind}List",
    }


def _condition(kind: str, reason: str, message: str, now: str) -> Json:
    return {"lastTransitionTime": now, "message": message, "reason": reason, "status": "True", "type": kind}


def established(definition: Json) -> Json:
    """The definition with its names accepted and established, as Kubernetes' own controllers write it."""
    now = definition["metadata"]["creationTimestamp"]
    conditions = [
        _condition("NamesAccepted", "NoConflicts", "no conflicts found", now),
        _condition("Established", "InitialNamesAccepted", "the initial names have been accepted", now),
    ]
    status = {**definition["status"], "acceptedNames": definition["spec"]["names"], "conditions": conditions}
    return {**definition, "status": status}


def _unestablished(definition: Json) -> Json:
    return _with_stored_version({**definition, "status": _NO_STATUS})


def _with_stored_version(definition: Json, old: Json | None = None) -> Json:
    """The definition with a status that knows the version it is stored in, and its names once accepted."""
    status, stored = definition.get("status") or {}, storage_version(definition)
    versions = status.get("storedVersions") or []
    added = [stored] if stored and stored not in versions else []
    accepted = lookup(definition, "spec", "names") if old else status.get("acceptedNames")
    return {
        **definition,
        "status": {**status, "acceptedNames": accepted, "storedVersions": [*versions, *added]},
    }


def storage_version(definition: Json) -> str:
    """The name of the version that objects are stored in."""
    versions = lookup(definition, "spec", "versions") or []
    return next((str(version.get("name", "")) for version in versions if version.get("storage")), "")


def _with_cleanup(definition: Json) -> Json:
    """A definition that is being deleted, held until its objects are gone."""
    finalizers = definition["metadata"].get("finalizers") or []
    if CLEANUP_FINALIZER not in finalizers:
        finalizers = [*finalizers, CLEANUP_FINALIZER]
    now = definition["metadata"]["deletionTimestamp"]
    message = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon"
    terminating = _condition("Terminating", "InstanceDeletionPending", message, now)
    status = definition.get("status") or {}
    others = [one for one in status.get("conditions") or () if one.get("type") != "Terminating"]
    marked = {**definition, "status": {**status, "conditions": [*others, terminating]}}
    return with_metadata(marked, finalizers=finalizers, deletionGracePeriodSeconds=None)


def _problems(new: Json, old: Json | None) -> Iterator[Cause]:
    spec, names = new.get("spec") or {}, lookup(new, "spec", "names") or {}
    wanted = f"{names.get('plural', '')}.{spec.get('group', '')}"
    if new["metadata"].get("name") != wanted:
        name = new["metadata"].get("name", "")
        yield invalid("metadata.name", name, 'must be spec.names.plural+"."+spec.group')
    yield from _group_problems(spec.get("group") or "")
    yield from _name_problems(names)
    scope = spec.get("scope") or ""
    if scope not in {"Cluster", "Namespaced"}:
        yield not_supported("spec.scope", scope, ["Cluster", "Namespaced"])
    yield from _version_problems(spec.get("versions") or [])
    if old is not None:
        yield from _update_problems(spec, old["spec"])


def _group_problems(group: str) -> Iterator[Cause]:
    if not group:
        yield required("spec.group")
    elif problem := subdomain_problem(group):
        yield invalid("spec.group", group, problem)
    elif "." not in group:
        yield invalid("spec.group", group, "should be a domain with at least one dot")


def _name_problems(names: Json) -> Iterator[Cause]:
    for field in ("plural", "singular", "kind", "listKind"):
        value = names.get(field) or ""
        if not value:
            yield required(f"spec.names.{field}")
        elif problem := label_problem(value.lower()):
            yield invalid(f"spec.names.{field}", value, problem)
    if names.get("kind") and names.get("kind") == names.get("listKind"):
        yield invalid("spec.names.listKind", names["kind"], "kind and listKind may not be the same")


def _version_problems(versions: list[Json]) -> Iterator[Cause]:
    for index, version in enumerate(versions):
        field = f"spec.versions[{index}]"
        if problem := label_problem(version.get("name") or ""):
            yield invalid(f"{field}.name", version.get("name") or "", problem)
        if lookup(version, "schema", "openAPIV3Schema") is None:
            yield required(f"{field}.schema.openAPIV3Schema")
        yield from _content_problems(field, version)
    if sum(1 for version in versions if version.get("storage")) != 1:
        yield invalid("spec.versions", versions, "must have exactly one version marked as storage version")
    if not any(version.get("storage") for version in versions):
        yield invalid("status.storedVersions", None, "must have at least one stored version")


def _content_problems(field: str, version: Json) -> Iterator[Cause]:
    """What is wrong with the schema and the columns of a version."""
    schema, columns = (
        lookup(version, "schema", "openAPIV3Schema"),
        version.get("additionalPrinterColumns") or (),
    )
    try:
        compile_schema(schema or {})
    except InvalidValue as error:
        yield invalid(f"{field}.schema.openAPIV3Schema", error.field, error.problem)
    for index, column in enumerate(columns):
        for name in ("name", "type", "jsonPath"):
            if not column.get(name):
                yield required(f"{field}.additionalPrinterColumns[{index}].{name}")
                return
    try:
        printer_for_definition(columns)
    except InvalidValue as error:
        yield invalid(f"{field}.additionalPrinterColumns", error.value, error.problem)


def _update_problems(spec: Json, before: Json) -> Iterator[Cause]:
    pairs = (("group",), ("names", "plural"), ("names", "kind"), ("scope",))
    for path in pairs:
        if lookup(spec, *path) != lookup(before, *path):
            yield invalid(".".join(("spec", *path)), lookup(spec, *path), IMMUTABLE)


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
        prepare_create=_unestablished,
        prepare_update=_with_stored_version,
        problems=_problems,
        deletion=DeletionRules(
            held=lambda definition: "deletionTimestamp" not in definition["metadata"],
            mark=_with_cleanup,
            moves_generation=False,
        ),
    ),
}
