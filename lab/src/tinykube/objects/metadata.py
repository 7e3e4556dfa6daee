"""Object metadata: what the server fills in, and the rules that hold for objects of every kind.

After ``k8s.io/apimachinery/pkg/api/validation/objectmeta.go`` and ``apiserver/pkg/registry/rest``.
"""

import secrets
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from uuid import uuid4

from tinykube.objects.json_types import Json, JsonValue, without
from tinykube.objects.label_syntax import label_key_problem, label_value_problem
from tinykube.objects.names import path_segment_problem
from tinykube.objects.statuses import Cause, CauseReason, forbidden_field, invalid, required

NameRule = Callable[[str], str]
ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"
IMMUTABLE = "field is immutable"
_STANDARD_FINALIZERS = frozenset({"kubernetes", ORPHAN, FOREGROUND})
_ANNOTATIONS_LIMIT_BYTES = 256 * 1024
_GENERATED_LENGTH = 5
_GENERATED_NAME_LIMIT = 63
# Without vowels and look-alikes, so that no words come out (apimachinery/pkg/util/rand).
_GENERATED_CHARACTERS = "bcdfghjklmnpqrstvwxz2456789"
_SET_BY_SERVER = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "resourceVersion",
    "selfLink",
)
_KEPT_IN_UPDATES = ("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")


def timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC to the second, as all timestamps of metadata are."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def with_metadata(json_object: Json, **changes: JsonValue) -> Json:
    """The object with some fields of its metadata set; None takes a field away."""
    metadata = {**json_object["metadata"], **changes}
    return {**json_object, "metadata": {key: value for key, value in metadata.items() if value is not None}}


def for_creation(json_object: Json, namespace: str, now: datetime, *, generation: bool) -> Json:
    """The object with everything that the server sets when it is created, but for the resource version."""
    metadata = without(json_object["metadata"], *_SET_BY_SERVER)
    if not metadata.get("name") and metadata.get("generateName"):
        metadata["name"] = generated_name(metadata["generateName"])
    if namespace:
        metadata["namespace"] = namespace
    metadata["uid"] = str(uuid4())
    metadata["creationTimestamp"] = timestamp(now)
    if generation:
        metadata["generation"] = 1
    return {**json_object, "metadata": metadata}


def generated_name(prefix: str) -> str:
    """The prefix, shortened where needed, and what is random."""
    random = "".join(secrets.choice(_GENERATED_CHARACTERS) for _ in range(_GENERATED_LENGTH))
    return prefix[: _GENERATED_NAME_LIMIT - _GENERATED_LENGTH] + random


def for_update(json_object: Json, old: Json) -> Json:
    """The object with those fields of its metadata that no update can change as they were."""
    metadata, before = json_object["metadata"], old["metadata"]
    kept = {key: before[key] for key in _KEPT_IN_UPDATES if key in before}
    kept |= {"uid": metadata.get("uid") or before["uid"], "resourceVersion": before["resourceVersion"]}
    if "namespace" in before:
        kept["namespace"] = metadata.get("namespace") or before["namespace"]
    return {**json_object, "metadata": {**without(metadata, *_KEPT_IN_UPDATES), **kept}}


def metadata_problems(json_object: Json, name_rule: NameRule) -> Iterator[Cause]:
    """What breaks the rules that new objects of every kind follow."""
    metadata = json_object["metadata"]
    name, prefix = metadata.get("name", ""), metadata.get("generateName", "")
    if prefix and (problem := name_rule(prefix.rstrip("-") or prefix)):
        yield invalid("metadata.generateName", prefix, problem)
    if not name:
        yield required("metadata.name", "name or generateName is required")
    elif problem := name_rule(name) or path_segment_problem(name):
        yield invalid("metadata.name", name, problem)
    yield from _common_problems(metadata)


def finalizer_problems(json_object: Json) -> Iterator[Cause]:
    """Finalizers of new built-in objects that are neither Kubernetes' own nor qualified by a domain."""
    for index, finalizer in enumerate(json_object["metadata"].get("finalizers") or ()):
        if "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS:
            yield invalid(
                f"metadata.finalizers[{index}]",
                finalizer,
                "name is neither a standard finalizer name nor is it fully qualified",
            )


def finalizer_warnings(json_object: Json) -> Iterator[str]:
    """What Kubernetes says of such finalizers of custom objects, where it does not refuse them."""
    for finalizer in json_object["metadata"].get("finalizers") or ():
        if "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS:
            yield (
                f'metadata.finalizers: "{finalizer}": prefer a domain-qualified finalizer name to avoid '
                "accidental conflicts with other finalizer writers"
            )


def metadata_update_problems(json_object: Json, old: Json) -> Iterator[Cause]:
    """What breaks the rules that updates of every kind follow."""
    metadata, before = json_object["metadata"], old["metadata"]
    if before.get("deletionTimestamp"):
        added = sorted(set(metadata.get("finalizers") or ()) - set(before.get("finalizers") or ()))
        if added:
            listed = ", ".join(f'"{name}"' for name in added)
            yield forbidden_field(
                "metadata.finalizers",
                "no new finalizers can be added if the object is being deleted, "
                f"found new finalizers []string{{{listed}}}",
            )
    for field in ("name", "namespace", "uid"):
        if metadata.get(field) != before.get(field):
            yield invalid(f"metadata.{field}", metadata.get(field, ""), IMMUTABLE)
    yield from _common_problems(metadata)


def _common_problems(metadata: Json) -> Iterator[Cause]:
    yield from label_problems(metadata.get("labels") or {}, "metadata.labels")
    yield from _annotation_problems(metadata.get("annotations") or {})
    for reference in metadata.get("ownerReferences") or ():
        yield from _owner_problems(reference)
    finalizers = metadata.get("finalizers") or ()
    for finalizer in finalizers:
        if problem := label_key_problem(finalizer):
            yield invalid("metadata.finalizers", finalizer, problem)
    if ORPHAN in finalizers and FOREGROUND in finalizers:
        problem = f"finalizer {ORPHAN} and {FOREGROUND} cannot be both set"
        yield invalid("metadata.finalizers", finalizers, problem)


def label_problems(labels: Json, field: str) -> Iterator[Cause]:
    """What is wrong with these labels."""
    for key, value in labels.items():
        if problem := label_key_problem(key):
            yield invalid(field, key, problem)
        if problem := label_value_problem(value):
            yield invalid(field, value, problem)


def _annotation_problems(annotations: Json) -> Iterator[Cause]:
    for key in annotations:
        if problem := label_key_problem(key.lower()):
            yield invalid("metadata.annotations", key, problem)
    if sum(len(key) + len(value) for key, value in annotations.items()) > _ANNOTATIONS_LIMIT_BYTES:
        message = f"Too long: may not be more than {_ANNOTATIONS_LIMIT_BYTES} bytes"
        yield Cause(reason=CauseReason.TOO_LONG, field="metadata.annotations", message=message)


def _owner_problems(reference: Json) -> Iterator[Cause]:
    rules = {"apiVersion": "version must not be empty", "kind": "must not be empty"}
    for key in ("apiVersion", "kind", "name", "uid"):
        if not reference.get(key):
            yield invalid(f"metadata.ownerReferences.{key}", "", rules.get(key, "must not be empty"))
