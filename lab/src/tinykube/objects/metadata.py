"""Object metadata: what the server fills in, and the rules that hold for objects of every kind.

After ``k8s.io/apimachinery/pkg/api/validation/objectmeta.go`` and ``apiserver/pkg/registry/rest``.
"""

import re
import secrets
from collections.abc import Callable, Iterator
from datetime import datetime
from uuid import uuid4

from tinykube.objects.statuses import Cause
from tinykube.objects.values import Json, JsonValue, timestamp, without

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_LABEL_NAME = re.compile(_LABEL)
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_NAME_LIMIT = 253
_LABEL_LIMIT = 63
NameRule = Callable[[str], str]
ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"
IMMUTABLE = "field is immutable"
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


def subdomain_problem(name: str) -> str:
    """An RFC 1123 subdomain, as most names are."""
    fits = len(name) <= _NAME_LIMIT and _SUBDOMAIN.fullmatch(name)
    return "" if fits else f"must be a lowercase RFC 1123 subdomain of at most {_NAME_LIMIT} characters"


def label_problem(name: str) -> str:
    """An RFC 1123 label, as names of namespaces are."""
    fits = len(name) <= _LABEL_LIMIT and _LABEL_NAME.fullmatch(name)
    return "" if fits else f"must be a lowercase RFC 1123 label of at most {_LABEL_LIMIT} characters"


def path_segment_problem(name: str) -> str:
    """Anything that can stand in a path, as names of RBAC objects are."""
    fits = name not in {".", ".."} and "/" not in name and "%" not in name
    return "" if fits else "must not be '.' or '..', nor contain '/' or '%'"


def label_key_problem(key: str) -> str:
    """The key of a label, or a finalizer: a name, after an optional domain and a slash."""
    prefix, slash, name = key.rpartition("/")
    problem = label_value_problem(name) if name else "must not be empty"
    return problem or (subdomain_problem(prefix) if slash else "")


def label_value_problem(value: str) -> str:
    """The value of a label."""
    fits = not value or (len(value) <= _LABEL_LIMIT and _QUALIFIED.fullmatch(value))
    return (
        ""
        if fits
        else f"must be at most {_LABEL_LIMIT} letters, digits, '-', '_' and '.' between two of them"
    )


def with_metadata(json_object: Json, **changes: JsonValue) -> Json:
    """The object with some fields of its metadata set; None takes a field away."""
    metadata = {**json_object["metadata"], **changes}
    return {**json_object, "metadata": {key: value for key, value in metadata.items() if value is not None}}


def for_creation(json_object: Json, namespace: str, now: datetime, *, generation: bool) -> Json:
    """The object with everything that the server sets when it is created, except the resource version."""
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
    for key, value in (metadata.get("labels") or {}).items():
        if problem := label_key_problem(key) or label_value_problem(value):
            yield Cause("metadata.labels", f"{key}={value}: {problem}")
    for reference in metadata.get("ownerReferences") or ():
        for key in ("apiVersion", "kind", "name", "uid"):
            if not reference.get(key):
                yield Cause(f"metadata.ownerReferences.{key}", "must not be empty")
    for finalizer in metadata.get("finalizers") or ():
        if problem := label_key_problem(finalizer):
            yield Cause("metadata.finalizers", f"{finalizer!r} {problem}")
