"""Persistent volume claims, after ``pkg/registry/core/persistentvolumeclaim`` and its validation."""

from collections.abc import Iterator

from tinykube.kinds.defaulting import Defaults
from tinykube.kinds.label_selectors import selector_problems
from tinykube.objects.json_types import Json, json_equal, lookup, without
from tinykube.objects.metadata import IMMUTABLE
from tinykube.objects.names import subdomain_problem
from tinykube.objects.quantities import parse_quantity
from tinykube.objects.statuses import Cause, forbidden_field, invalid, not_supported, required
from tinykube.objects.strategies import Strategy

ACCESS_MODES = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
VOLUME_MODES = ("Block", "Filesystem")
_CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
_POSITIVE = "must be greater than zero"

_DEFAULTS = Defaults(
    values={"spec": {}},
    inside={
        "spec": Defaults(
            values={"volumeMode": "Filesystem", "resources": {}},
            inside={"resources": Defaults(quantities=("requests", "limits"))},
        ),
        "status": Defaults(quantities=("capacity", "allocatedResources")),
    },
)


def _pending(claim: Json) -> Json:
    return {**claim, "status": {"phase": "Pending"}}


def _problems(new: Json, old: Json | None) -> Iterator[Cause]:
    yield from _spec_problems(new["spec"])
    if old is not None:
        yield from _update_problems(new, old)


def _spec_problems(spec: Json) -> Iterator[Cause]:
    yield from access_mode_problems(spec, "at least 1 access mode is required")
    yield from selector_problems("spec.selector", spec.get("selector") or {})
    yield from _request_problems(spec)
    yield from class_name_problems(spec)
    if spec["volumeMode"] not in VOLUME_MODES:
        yield not_supported("spec.volumeMode", spec["volumeMode"], VOLUME_MODES)


def access_mode_problems(spec: Json, missing: str = "") -> Iterator[Cause]:
    """What is wrong with the access modes of a claim or a volume."""
    modes = spec.get("accessModes") or []
    if not modes:
        yield required("spec.accessModes", missing)
    for mode in modes:
        if mode not in ACCESS_MODES:
            yield not_supported("spec.accessModes", mode, ACCESS_MODES)
    if "ReadWriteOncePod" in modes and len({*modes} & {*ACCESS_MODES}) > 1:
        yield forbidden_field("spec.accessModes", "may not use ReadWriteOncePod with other access modes")


def class_name_problems(spec: Json) -> Iterator[Cause]:
    """What is wrong with the name of the storage class of a claim or a volume."""
    name = spec.get("storageClassName")
    if name and (problem := subdomain_problem(name)):
        yield invalid("spec.storageClassName", name, problem)


def _request_problems(spec: Json) -> Iterator[Cause]:
    field, request = "spec.resources[storage]", lookup(spec, "resources", "requests", "storage")
    if request is None:
        yield required(field)
    elif (parse_quantity(request) or 0) <= 0:
        yield invalid(field, request, _POSITIVE)


def _update_problems(new: Json, old: Json) -> Iterator[Cause]:
    """A claim stays as it is, but for being bound once and, when bound, for the size it asks for."""
    spec, before = new["spec"], old["spec"]
    bound = lookup(new, "status", "phase") == "Bound"
    free = [*(() if before.get("volumeName") else ("volumeName",)), *_class_may_be_set(new, old)]
    free += ["resources", "volumeAttributesClassName"] if bound else []
    if not json_equal(without(spec, *free), without(before, *free)) or (
        bound and not json_equal(_other_resources(spec), _other_resources(before))
    ):
        yield forbidden_field(
            "spec",
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for "
            "bound claims",
        )
    asked, asked_before = (lookup(one, "resources", "requests", "storage") for one in (spec, before))
    capacity = parse_quantity(lookup(new, "status", "capacity", "storage") or 0) or 0
    if (parse_quantity(asked) or 0) < (parse_quantity(asked_before) or 0) and (
        (parse_quantity(asked) or 0) <= capacity
    ):
        yield forbidden_field("spec.resources.requests.storage", "field can not be less than status.capacity")
    if spec.get("volumeMode") != before.get("volumeMode"):
        yield invalid("volumeMode", spec.get("volumeMode"), IMMUTABLE)


def _class_may_be_set(new: Json, old: Json) -> tuple[str, ...]:
    """A class may be given later to a claim that has none (a default class that came afterwards)."""
    had_none = old["spec"].get("storageClassName") is None
    annotated = lookup(old, "metadata", "annotations", _CLASS_ANNOTATION)
    wanted = new["spec"].get("storageClassName")
    return ("storageClassName",) if had_none and wanted and annotated in (None, wanted) else ()


def _other_resources(spec: Json) -> Json:
    resources = spec.get("resources") or {}
    return {**resources, "requests": without(resources.get("requests") or {}, "storage")}


STRATEGIES = {
    ("", "PersistentVolumeClaim"): Strategy(default=_DEFAULTS, prepare_create=_pending, problems=_problems),
}
