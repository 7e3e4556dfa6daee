"""Object metadata: what the server fills in, and the rules that hold for objects of every kind.

After ``k8s.io/apimachinery/pkg/api/validation/objectmeta.go`` and ``apiserver/pkg/registry/rest``.
"""

import secrets
from collections.abc import Callable, Iterator
from datetime import datetime
from uuid import uuid4

from tinykube.objects.json_types import Json, JsonValue, without
from tinykube.objects.names import label_key_problem, label_value_problem, path_segment_problem
from tinykube.objects.statuses import Cause
from tinykube.objects.times import timestamp

NameRule = Callable[[str], str]
ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"
IMMUTABLE = "field is immutable"
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
        yield Cause("metadata.generateName", problem)
    if problem := name_rule(name) or path_segment_problem(name):
        yield Cause("metadata.name", problem if name else "name or generateName is required")
    yield from _common_problems(metadata)


def metadata_update_problems(json_object: Json, old: Json) -> Iterator[Cause]:
    """What breaks the rules that updates of every kind follow."""
    metadata, before = json_object["metadata"], old["metadata"]
    added = set(metadata.get("finalizers") or ()) - set(before.get("finalizers") or ())
    if before.get("deletionTimestamp") and added:
        yield Cause("metadata.finalizers", f"{sorted(added)} cannot be added to what is being deleted")
    for field in ("name", "namespace", "uid"):
        if metadata.get(field) != before.get(field):
            yield Cause(f"metadata.{field}", IMMUTABLE)
    yield from _common_problems(metadata)


def _common_problems(metadata: Json) -> Iterator[Cause]:
    yield from label_problems(metadata.get("labels") or {}, "metadata.labels")
    annotations = metadata.get("annotations") or {}
    for key in annotations:
        if problem := label_key_problem(key.lower()):
            yield Cause("metadata.annotations", f"{key!r} {problem}")
    if sum(len(key) + len(value) for key, value in annotations.items()) > _ANNOTATIONS_LIMIT_BYTES:
        yield Cause("metadata.annotations", f"must not be longer than {_ANNOTATIONS_LIMIT_BYTES} bytes")
    for reference in metadata.get("ownerReferences") or ():
        for key in ("apiVersion", "kind", "name", "uid"):
            if not reference.get(key):
                yield Cause(f"metadata.ownerReferences.{key}", "must not be empty")
    for finalizer in metadata.get("finalizers") or ():
        if problem := label_key_problem(finalizer):
            yield Cause("metadata.finalizers", f"{finalizer!r} {problem}")


def label_problems(labels: Json, field: str) -> Iterator[Cause]:
    """What is wrong with these labels."""
    for key, value in labels.items():
        if problem := label_key_problem(key) or label_value_problem(value):
            yield Cause(field, f"{key}={value}: {problem}")
