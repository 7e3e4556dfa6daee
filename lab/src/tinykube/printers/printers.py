"""The columns of built-in kinds, as ``kubectl get`` shows them on a real cluster."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Final

from tinykube.objects.json_types import Json, lookup
from tinykube.printers.tables import Cell, Column, Printer, age, age_of, name_of, text

_UNSET: Final = "<unset>"
_ACCESS_MODES = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


def printer_for(group: str, kind: str) -> Printer:
    """The printer of a built-in kind; name and age for one without columns here."""
    return _PRINTERS.get((group, kind), _NAME_AND_AGE)


def _columns(*names: str, wide: tuple[str, ...] = ()) -> tuple[Column, ...]:
    return (*(Column(name) for name in names), *(Column(name, priority=1) for name in wide))


def _phase(json_object: Json) -> str:
    deleted = lookup(json_object, "metadata", "deletionTimestamp")
    return "Terminating" if deleted else text(json_object, "status", "phase")


def _access_modes(modes: list[str] | None) -> str:
    """The access modes in kubectl's short form, always in the same order."""
    return ",".join(short for mode, short in _ACCESS_MODES.items() if mode in (modes or ()))


def _volume(volume: Json, now: datetime) -> list[Cell]:
    spec = volume.get("spec", {})
    claim = spec.get("claimRef")
    return [
        name_of(volume),
        text(spec, "capacity", "storage"),
        _access_modes(spec.get("accessModes")),
        text(spec, "persistentVolumeReclaimPolicy"),
        _phase(volume),
        f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else "",
        text(spec, "storageClassName"),
        text(spec, "volumeAttributesClassName", default=_UNSET),
        text(volume, "status", "reason"),
        age_of(volume, now),
        text(spec, "volumeMode", default=_UNSET),
    ]


def _claim(claim: Json, now: datetime) -> list[Cell]:
    spec, status = claim.get("spec", {}), claim.get("status", {})
    return [
        name_of(claim),
        _phase(claim),
        text(spec, "volumeName"),
        text(status, "capacity", "storage"),
        _access_modes(status.get("accessModes")),
        text(spec, "storageClassName"),
        text(spec, "volumeAttributesClassName", default=_UNSET),
        age_of(claim, now),
        text(spec, "volumeMode", default=_UNSET),
    ]


def _storage_class(storage_class: Json, now: datetime) -> list[Cell]:
    annotations = lookup(storage_class, "metadata", "annotations") or {}
    default = " (default)" if annotations.get(_DEFAULT_CLASS) == "true" else ""
    return [
        name_of(storage_class) + default,
        text(storage_class, "provisioner"),
        text(storage_class, "reclaimPolicy"),
        text(storage_class, "volumeBindingMode"),
        bool(storage_class.get("allowVolumeExpansion")),
        age_of(storage_class, now),
    ]


def _pod(pod: Json, now: datetime) -> list[Cell]:
    statuses = lookup(pod, "status", "containerStatuses") or ()
    ready = sum(bool(status.get("ready")) for status in statuses)
    return [
        name_of(pod),
        f"{ready}/{len(lookup(pod, 'spec', 'containers') or ())}",
        _pod_status(pod, statuses),
        str(sum(status.get("restartCount", 0) for status in statuses)),
        age_of(pod, now),
        text(pod, "status", "podIP", default="<none>"),
        text(pod, "spec", "nodeName", default="<none>"),
    ]


def _pod_status(pod: Json, statuses: Sequence[Json]) -> str:
    """The phase, or what is in its way."""
    if lookup(pod, "metadata", "deletionTimestamp"):
        return "Terminating"
    states = [status.get("state") or {} for status in statuses]
    reasons = (text(state, kind, "reason") for state in states for kind in ("waiting", "terminated"))
    return next(filter(None, reasons), "") or text(pod, "status", "reason") or text(pod, "status", "phase")


def _event(event: Json, now: datetime) -> list[Cell]:
    about = event.get("involvedObject") or {}
    return [
        age(event.get("lastTimestamp") or event.get("eventTime"), now),
        text(event, "type"),
        text(event, "reason"),
        f"{text(about, 'kind').lower()}/{text(about, 'name')}",
        text(event, "message"),
    ]


_NAME_AND_AGE: Final = Printer(
    columns=_columns("Name", "Age"),
    cells=lambda json_object, now: [name_of(json_object), age_of(json_object, now)],
)
_PRINTERS: Final[Mapping[tuple[str, str], Printer]] = MappingProxyType(
    {
        ("", "Event"): Printer(
            columns=_columns("Last Seen", "Type", "Reason", "Object", "Message"), cells=_event
        ),
        ("", "PersistentVolume"): Printer(
            columns=_columns(
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
            columns=_columns(
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
        ("", "Pod"): Printer(
            columns=_columns("Name", "Ready", "Status", "Restarts", "Age", wide=("IP", "Node")), cells=_pod
        ),
        ("storage.k8s.io", "StorageClass"): Printer(
            columns=_columns(
                "Name", "Provisioner", "ReclaimPolicy", "VolumeBindingMode", "AllowVolumeExpansion", "Age"
            ),
            cells=_storage_class,
        ),
    }
)
