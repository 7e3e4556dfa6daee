"""Claims, volumes, storage classes and CSI drivers, after their validation in kube-apiserver."""

from collections.abc import Iterator
from decimal import Decimal

from lightkube.utils.quantity import parse_quantity

from tinykube.kinds.defaulting import Defaults
from tinykube.objects.metadata import with_metadata
from tinykube.objects.resources import Strategy
from tinykube.objects.statuses import Cause
from tinykube.objects.values import Json, json_equal, lookup, without

_GROUP = "storage.k8s.io"
_SOURCES = ("csi", "hostPath", "local", "nfs")
_CLAIM_DEFAULTS = Defaults(
    values={"spec": {}},
    inside={
        "spec": Defaults(
            values={"volumeMode": "Filesystem", "resources": {}},
            inside={"resources": Defaults(quantities=("requests", "limits"))},
        ),
        "status": Defaults(quantities=("capacity", "allocatedResources")),
    },
)
_VOLUME_DEFAULTS = Defaults(
    values={"spec": {}},
    inside={
        "spec": Defaults(
            values={"persistentVolumeReclaimPolicy": "Retain", "volumeMode": "Filesystem"},
            inside={"hostPath": Defaults(values={"type": ""})},
            quantities=("capacity",),
        )
    },
)
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


def _pending_claim(claim: Json) -> Json:
    return {**claim, "status": {"phase": "Pending"}}


def _claim_problems(new: Json, old: Json | None) -> Iterator[Cause]:
    """A claim does not change, except that it is bound once, and then may request more."""
    spec = new["spec"]
    if (_requested(spec) or 0) <= 0:
        yield Cause("spec.resources[storage]", "must be greater than zero")
    if old is None:
        return
    before = old["spec"]
    free = [] if before.get("volumeName") else ["volumeName"]
    if lookup(old, "status", "phase") == "Bound":
        free.append("resources")
        if (_requested(spec) or 0) < (_requested(before) or 0):
            yield Cause("spec.resources.requests.storage", "can not be less than previous value")
    if not json_equal(without(spec, *free), without(before, *free)):
        yield Cause("spec", "is immutable")


def _requested(spec: Json) -> Decimal | None:
    return parse_quantity(lookup(spec, "resources", "requests", "storage"))


def _pending_volume(volume: Json) -> Json:
    now = volume["metadata"]["creationTimestamp"]
    return {**volume, "status": {"phase": "Pending", "lastPhaseTransitionTime": now}}


def _volume_problems(new: Json, old: Json | None) -> Iterator[Cause]:
    """A volume has one source, which stays."""
    given = [name for name in _SOURCES if name in new["spec"]]
    if len(given) != 1:
        yield Cause("spec", f"must have one volume type of {', '.join(_SOURCES)}")
    if old is not None and any(
        not json_equal(new["spec"].get(name), old["spec"].get(name)) for name in _SOURCES
    ):
        yield Cause("spec.persistentvolumesource", "is immutable after creation")


def _with_generation(new: Json, old: Json) -> Json:
    """The driver with its changes counted, which begins with the first one."""
    if json_equal(new["spec"], old["spec"]):
        return new
    return with_metadata(new, generation=(old["metadata"].get("generation") or 0) + 1)


STRATEGIES = {
    ("", "PersistentVolumeClaim"): Strategy(
        default=_CLAIM_DEFAULTS,
        prepare_create=_pending_claim,
        required=("spec.accessModes",),
        other_problems=_claim_problems,
    ),
    ("", "PersistentVolume"): Strategy(
        default=_VOLUME_DEFAULTS,
        prepare_create=_pending_volume,
        required=("spec.accessModes", "spec.capacity"),
        other_problems=_volume_problems,
    ),
    (_GROUP, "StorageClass"): Strategy(
        default=_CLASS_DEFAULTS,
        required=("provisioner",),
        immutable=("parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"),
    ),
    (_GROUP, "CSIDriver"): Strategy(
        default=_DRIVER_DEFAULTS,
        prepare_update=_with_generation,
        immutable=("spec.attachRequired", "spec.volumeLifecycleModes"),
    ),
}
