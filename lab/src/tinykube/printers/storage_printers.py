"""The columns of volumes, claims, storage classes and CSI drivers."""

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Final

from tinykube.objects.json_types import Json, lookup
from tinykube.printers.tables import (
    NONE,
    UNSET,
    Cell,
    Printer,
    age_of,
    columns,
    count,
    name_of,
    named,
    text,
)

_ACCESS_MODES = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_BETA_CLASS = "volume.beta.kubernetes.io/storage-class"


def _flag(json_object: Json, *path: str, default: bool = False) -> bool:
    value = lookup(json_object, *path)
    return default if value is None else bool(value)


def _phase(json_object: Json) -> str:
    deleted = lookup(json_object, "metadata", "deletionTimestamp")
    return "Terminating" if deleted else text(json_object, "status", "phase")


def _access_modes(modes: list[str] | None) -> str:
    """The access modes in kubectl's short form, always in the same order."""
    return ",".join(short for mode, short in _ACCESS_MODES.items() if mode in (modes or ()))


def _storage_class(json_object: Json) -> str:
    annotations = lookup(json_object, "metadata", "annotations") or {}
    return str(annotations.get(_BETA_CLASS) or text(json_object, "spec", "storageClassName"))


def _volume(volume: Json, now: datetime) -> list[Cell]:
    spec = volume.get("spec", {})
    claim = spec.get("claimRef")
    return [
        name_of(volume),
        text(spec, "capacity", "storage", default="0"),
        _access_modes(spec.get("accessModes")),
        text(spec, "persistentVolumeReclaimPolicy"),
        _phase(volume),
        f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else "",
        _storage_class(volume),
        text(spec, "volumeAttributesClassName", default=UNSET),
        text(volume, "status", "reason"),
        age_of(volume, now),
        text(spec, "volumeMode", default=UNSET),
    ]


def _claim(claim: Json, now: datetime) -> list[Cell]:
    spec, status = claim.get("spec", {}), claim.get("status", {})
    bound = bool(spec.get("volumeName"))
    return [
        name_of(claim),
        _phase(claim),
        text(spec, "volumeName"),
        text(status, "capacity", "storage", default="0") if bound else "",
        _access_modes(status.get("accessModes")) if bound else "",
        _storage_class(claim),
        text(spec, "volumeAttributesClassName", default=UNSET),
        age_of(claim, now),
        text(spec, "volumeMode", default=UNSET),
    ]


def _storage_class_cells(storage_class: Json, now: datetime) -> list[Cell]:
    annotations = lookup(storage_class, "metadata", "annotations") or {}
    default = " (default)" if annotations.get(_DEFAULT_CLASS) == "true" else ""
    return [
        name_of(storage_class) + default,
        text(storage_class, "provisioner"),
        text(storage_class, "reclaimPolicy", default="Delete"),
        text(storage_class, "volumeBindingMode", default="Immediate"),
        _flag(storage_class, "allowVolumeExpansion"),
        age_of(storage_class, now),
    ]


def _csi_driver(driver: Json) -> list[Cell]:
    spec = driver.get("spec", {})
    requests = spec.get("tokenRequests")
    return [
        _flag(spec, "attachRequired", default=True),
        _flag(spec, "podInfoOnMount"),
        _flag(spec, "storageCapacity"),
        UNSET if requests is None else ",".join(request.get("audience", "") for request in requests),
        _flag(spec, "requiresRepublish"),
        ",".join(spec.get("volumeLifecycleModes") or ()) or NONE,
    ]


STORAGE: Final[Mapping[tuple[str, str], Printer]] = MappingProxyType(
    {
        ("", "PersistentVolume"): Printer(
            columns=columns(
                "Name",
                "Capacity",
                "Access Modes",
                "Reclaim Policy",
                "Status",
                "Claim",
                "StorageClass",
                "VolumeAttributesClass",
                "Reason",
                "Age",
                wide=("VolumeMode",),
            ),
            cells=_volume,
        ),
        ("", "PersistentVolumeClaim"): Printer(
            columns=columns(
                "Name",
                "Status",
                "Volume",
                "Capacity",
                "Access Modes",
                "StorageClass",
                "VolumeAttributesClass",
                "Age",
                wide=("VolumeMode",),
            ),
            cells=_claim,
        ),
        ("storage.k8s.io", "CSIDriver"): Printer(
            columns=columns(
                "Name",
                "AttachRequired",
                "PodInfoOnMount",
                "StorageCapacity",
                "TokenRequests",
                "RequiresRepublish",
                "Modes",
                "Age",
                AttachRequired="boolean",
                PodInfoOnMount="boolean",
                StorageCapacity="boolean",
                RequiresRepublish="boolean",
            ),
            cells=named(_csi_driver),
        ),
        ("storage.k8s.io", "CSINode"): Printer(
            columns=columns("Name", "Drivers", "Age", Drivers="integer"),
            cells=named(lambda node: [count(node.get("spec", {}), "drivers")]),
        ),
        ("storage.k8s.io", "StorageClass"): Printer(
            columns=columns(
                "Name", "Provisioner", "ReclaimPolicy", "VolumeBindingMode", "AllowVolumeExpansion", "Age"
            ),
            cells=_storage_class_cells,
        ),
    }
)
