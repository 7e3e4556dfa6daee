"""Persistent volumes, after ``pkg/registry/core/persistentvolume`` and its validation."""

from collections.abc import Iterator

from tinykube.kinds.claims import VOLUME_MODES, access_mode_problems, class_name_problems
from tinykube.kinds.defaulting import Defaults
from tinykube.objects.json_types import Json, json_equal, lookup
from tinykube.objects.label_syntax import label_key_problem
from tinykube.objects.metadata import IMMUTABLE
from tinykube.objects.quantities import parse_quantity
from tinykube.objects.statuses import Cause, forbidden_field, invalid, not_supported, required
from tinykube.objects.strategies import Strategy

_SOURCES = (
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cephfs",
    "cinder",
    "csi",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "glusterfs",
    "hostPath",
    "iscsi",
    "local",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
)
_RECLAIM_POLICIES = ("Delete", "Recycle", "Retain")

_DEFAULTS = Defaults(
    values={"spec": {}},
    inside={
        "spec": Defaults(
            values={"persistentVolumeReclaimPolicy": "Retain", "volumeMode": "Filesystem"},
            inside={"hostPath": Defaults(values={"type": ""})},
            quantities=("capacity",),
        )
    },
)


def _pending(volume: Json) -> Json:
    now = volume["metadata"]["creationTimestamp"]
    return {**volume, "status": {"phase": "Pending", "lastPhaseTransitionTime": now}}


def _problems(new: Json, old: Json | None) -> Iterator[Cause]:
    spec = new["spec"]
    yield from access_mode_problems(spec)
    yield from _capacity_problems(spec.get("capacity"))
    policy = spec["persistentVolumeReclaimPolicy"]
    if policy not in _RECLAIM_POLICIES:
        yield not_supported("spec.persistentVolumeReclaimPolicy", policy, _RECLAIM_POLICIES)
    yield from _source_problems(spec)
    yield from class_name_problems(spec)
    if spec["volumeMode"] not in VOLUME_MODES:
        yield not_supported("spec.volumeMode", spec["volumeMode"], VOLUME_MODES)
    if old is not None:
        yield from _update_problems(spec, old["spec"])


def _capacity_problems(capacity: Json | None) -> Iterator[Cause]:
    if not capacity:
        yield required("spec.capacity")
    if set(capacity or ()) != {"storage"}:
        yield not_supported("spec.capacity", capacity, ["storage"])
    for name, quantity in (capacity or {}).items():
        if (parse_quantity(quantity) or 0) <= 0:
            yield invalid(f"spec.capacity[{name}]", quantity, "must be greater than zero")


def _source_problems(spec: Json) -> Iterator[Cause]:
    given = [name for name in _SOURCES if spec.get(name) is not None]
    if not given:
        yield required("spec", "must specify a volume type")
    for name in given[1:]:
        yield forbidden_field(f"spec.{name}", "may not specify more than 1 volume type")
    match given[:1]:
        case ["nfs"]:
            yield from _nfs_problems(spec["nfs"])
        case ["csi"]:
            yield from _csi_problems(spec["csi"])
        case ["hostPath" | "local" as name]:
            yield from _path_problems(f"spec.{name}.path", spec[name].get("path", ""))
    if given[:1] == ["local"] and not lookup(spec, "nodeAffinity", "required"):
        yield required("spec.nodeAffinity", "Local volume requires node affinity")


def _nfs_problems(nfs: Json) -> Iterator[Cause]:
    for field in ("server", "path"):
        if not nfs.get(field):
            yield required(f"spec.nfs.{field}")
    if not nfs.get("path", "").startswith("/"):
        yield invalid("spec.nfs.path", nfs.get("path", ""), "must be an absolute path")


def _csi_problems(csi: Json) -> Iterator[Cause]:
    driver = csi.get("driver", "")
    if not driver:
        yield required("spec.csi.driver")
    elif problem := label_key_problem(driver.lower()):
        yield invalid("spec.csi.driver", driver, problem)
    if not csi.get("volumeHandle"):
        yield required("spec.csi.volumeHandle")


def _path_problems(field: str, path: str) -> Iterator[Cause]:
    if not path:
        yield required(field)
    elif ".." in path.split("/"):
        yield invalid(field, path, "must not contain '..'")


def _update_problems(spec: Json, before: Json) -> Iterator[Cause]:
    if any(not json_equal(spec.get(name), before.get(name)) for name in _SOURCES):
        yield forbidden_field(
            "spec.persistentvolumesource", "spec.persistentvolumesource is immutable after creation"
        )
    if spec["volumeMode"] != before.get("volumeMode"):
        yield invalid("volumeMode", spec["volumeMode"], IMMUTABLE)
    affinity = before.get("nodeAffinity")
    if affinity is not None and not json_equal(spec.get("nodeAffinity"), affinity):
        yield invalid("nodeAffinity", spec.get("nodeAffinity"), IMMUTABLE)


STRATEGIES = {
    ("", "PersistentVolume"): Strategy(default=_DEFAULTS, prepare_create=_pending, problems=_problems),
}
