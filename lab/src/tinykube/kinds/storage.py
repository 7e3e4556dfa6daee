"""The kinds of storage.k8s.io."""

from collections.abc import Iterator

from tinykube.kinds.defaulting import Defaults
from tinykube.objects.json_types import Json, json_equal
from tinykube.objects.label_syntax import label_key_problem
from tinykube.objects.metadata import IMMUTABLE, with_metadata
from tinykube.objects.statuses import Cause, invalid, not_supported, required
from tinykube.objects.strategies import Strategy

_GROUP = "storage.k8s.io"
_LIFECYCLE_MODES = ("Persistent", "Ephemeral")
_CLASS_DEFAULTS = Defaults(values={"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"})
_DRIVER_DEFAULTS = Defaults(
    values={"spec": {}},
    inside={
        "spec": Defaults(
            values={
                "attachRequired": True,
                "podInfoOnMount": False,
                "storageCapacity": False,
                "fsGroupPolicy": "ReadWriteOnceWithFSType",
                "volumeLifecycleModes": ["Persistent"],
                "requiresRepublish": False,
                "seLinuxMount": False,
            }
        )
    },
)


def _class_problems(new: Json, old: Json | None) -> Iterator[Cause]:
    yield from _qualified_name_problems("provisioner", new.get("provisioner") or "")
    for key in new.get("parameters") or {}:
        if not key:
            yield invalid("parameters", key, "field can not be empty.")
    if new["reclaimPolicy"] not in {"Delete", "Retain"}:
        yield not_supported("reclaimPolicy", new["reclaimPolicy"], ["Delete", "Retain"])
    if new["volumeBindingMode"] not in {"Immediate", "WaitForFirstConsumer"}:
        modes = ["Immediate", "WaitForFirstConsumer"]
        yield not_supported("volumeBindingMode", new["volumeBindingMode"], modes)
    if old is None:
        return
    for field in ("parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"):
        if not json_equal(new.get(field) or {}, old.get(field) or {}):
            yield invalid(field, new.get(field), IMMUTABLE)


def _qualified_name_problems(field: str, name: str) -> Iterator[Cause]:
    if not name:
        yield required(field)
    elif problem := label_key_problem(name.lower()):
        yield invalid(field, name, problem)


def _with_generation(new: Json, old: Json) -> Json:
    """The driver with its changes counted, which begins with the first one."""
    if json_equal(new["spec"], old["spec"]):
        return new
    return with_metadata(new, generation=(old["metadata"].get("generation") or 0) + 1)


def _driver_problems(new: Json, old: Json | None) -> Iterator[Cause]:
    policies = ["File", "None", "ReadWriteOnceWithFSType"]
    spec = new["spec"]
    if spec["fsGroupPolicy"] not in policies:
        yield not_supported("spec.fsGroupPolicy", spec["fsGroupPolicy"], policies)
    for mode in spec["volumeLifecycleModes"]:
        if mode not in _LIFECYCLE_MODES:
            yield not_supported("spec.volumeLifecycleModes", mode, _LIFECYCLE_MODES)
    if old is None:
        return
    # The path's spelling is Kubernetes' own.
    for field, shown in (("attachRequired", "attachedRequired"), ("volumeLifecycleModes",) * 2):
        if not json_equal(spec.get(field), old["spec"].get(field)):
            yield invalid(f"spec.{shown}", spec.get(field), IMMUTABLE)


STRATEGIES = {
    (_GROUP, "StorageClass"): Strategy(default=_CLASS_DEFAULTS, problems=_class_problems),
    (_GROUP, "CSIDriver"): Strategy(
        default=_DRIVER_DEFAULTS, prepare_update=_with_generation, problems=_driver_problems
    ),
}
