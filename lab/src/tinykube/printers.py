"""Server-side tables (``meta.k8s.io/v1`` Table): the columns that ``kubectl get`` shows.

Of JSONPath, the paths of ``additionalPrinterColumns`` have members such as ``.spec.size`` and filters such as
``[?(@.type=="Ready")]``. As in Kubernetes only the first result is shown.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from types import MappingProxyType
from typing import Final, TypeAlias

from tinykube.objects.values import Json, JsonValue, lookup, parse_time

Cell: TypeAlias = str | bool | None

_UNITS: Final = (("d", 24 * 3600), ("h", 3600), ("m", 60))
_UNSET: Final = "<unset>"
_ACCESS_MODES = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}
_STEP = re.compile(
    r"""\.(?P<name>[^.\[\]\\]+)|\[\?\(\s*@\.(?P<key>\w+)\s*==\s*(?P<quote>['"])(?P<value>[^'"]*)(?P=quote)\s*\)\]"""
)
_AGE_COLUMN: Json = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}


@dataclass(frozen=True, slots=True)
class Column:
    """The head of a column; kubectl shows those with a priority above 0 with ``-o wide`` only."""

    name: str
    type: str = "string"
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Printer:
    """The columns of a kind, and the cells of one object in them; ``now`` is what ages count to."""

    columns: tuple[Column, ...]
    cells: Callable[[Json, datetime], list[Cell]]


def table_for(
    printer: Printer,
    objects: Iterable[Json],
    *,
    metadata: Mapping[str, str],
    now: datetime,
) -> Json:
    """A Table of these objects.

    ``metadata`` is that of the list the table stands for (``resourceVersion``, ``continue``); for one object
    it has the object's resource version.
    """
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": dict(metadata),
        "columnDefinitions": [
            {
                "name": column.name,
                "type": column.type,
                "format": "" if index else "name",
                "description": "",
                "priority": column.priority,
            }
            for index, column in enumerate(printer.columns)
        ],
        "rows": [
            {"cells": printer.cells(json_object, now), "object": json_object} for json_object in objects
        ],
    }


def text(json_object: Json, *path: str, default: str = "") -> str:
    """The text at this path; the default where there is none or an empty one."""
    return str(lookup(json_object, *path) or default)


def name_of(json_object: Json) -> str:
    """The object's name."""
    return text(json_object, "metadata", "name")


def age_of(json_object: Json, now: datetime) -> str:
    """How long ago the object was created."""
    return age(lookup(json_object, "metadata", "creationTimestamp"), now)


def age(timestamp: str | None, now: datetime) -> str:
    """How long ago this RFC 3339 time was, in the largest unit that fits: 5s, 3m, 2d."""
    moment = parse_time(timestamp)
    if moment is None:
        return "<unknown>"
    seconds = max(int((now - moment).total_seconds()), 0)
    unit, length = next((one for one in _UNITS if seconds >= one[1]), ("s", 1))
    return f"{seconds // length}{unit}"


def printer_for(group: str, kind: str) -> Printer:
    """The printer of a built-in kind; name and age for one without columns here."""
    return _PRINTERS.get((group, kind), _NAME_AND_AGE)


def _columns(names: str, wide: str = "") -> tuple[Column, ...]:
    return (
        *(Column(name) for name in names.split(", ")),
        *(Column(name, priority=1) for name in wide.split(", ") if name),
    )


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
    return [
        name_of(storage_class),
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
    columns=_columns("Name, Age"),
    cells=lambda json_object, now: [name_of(json_object), age_of(json_object, now)],
)
_PRINTERS: Final[Mapping[tuple[str, str], Printer]] = MappingProxyType(
    {
        ("", "Event"): Printer(columns=_columns("Last Seen, Type, Reason, Object, Message"), cells=_event),
        ("", "PersistentVolume"): Printer(
            columns=_columns(
                "Name, Capacity, Access Modes, Reclaim Policy, Status, Claim, StorageClass, "
                "VolumeAttributesClass, Reason, Age",
                wide="VolumeMode",
            ),
            cells=_volume,
        ),
        ("", "PersistentVolumeClaim"): Printer(
            columns=_columns(
                "Name, Status, Volume, Capacity, Access Modes, StorageClass, VolumeAttributesClass, Age",
                wide="VolumeMode",
            ),
            cells=_claim,
        ),
        ("", "Pod"): Printer(
            columns=_columns("Name, Ready, Status, Restarts, Age", wide="IP, Node"), cells=_pod
        ),
        ("storage.k8s.io", "StorageClass"): Printer(
            columns=_columns(
                "Name, Provisioner, ReclaimPolicy, VolumeBindingMode, AllowVolumeExpansion, Age"
            ),
            cells=_storage_class,
        ),
    }
)


def printer_for_definition(additional_columns: Sequence[Json]) -> Printer:
    """A printer of the name and these columns; without any, of the name and the age.

    Paths may have members and filters only, see above; a column with another path is empty.
    """
    wanted = additional_columns or [_AGE_COLUMN]
    paths = [(column["type"], list(_STEP.finditer(column["jsonPath"]))) for column in wanted]
    return Printer(
        columns=(
            Column("Name"),
            *(Column(one["name"], one["type"], one.get("priority", 0)) for one in wanted),
        ),
        cells=lambda json_object, now: [
            name_of(json_object),
            *(_cell(kind, _first(json_object, steps), now) for kind, steps in paths),
        ],
    )


def _first(value: JsonValue, steps: list[re.Match[str]]) -> JsonValue:
    """The first value that the steps lead to; None where they lead nowhere."""
    found = [value]
    for step in steps:
        found = list(chain.from_iterable(_step(one, step) for one in found))
    return found[0] if found else None


def _step(value: JsonValue, step: re.Match[str]) -> list[JsonValue]:
    if name := step["name"]:
        return [value[name]] if isinstance(value, dict) and name in value else []
    elements = value if isinstance(value, list) else []
    return [one for one in elements if isinstance(one, dict) and one.get(step["key"]) == step["value"]]


def _cell(kind: str, found: JsonValue, now: datetime) -> str | None:
    """The cell for a value: the age of a date, the text of anything else; None is shown as nothing."""
    if found is None:
        return None
    if kind == "date":
        return age(found, now)
    return found if isinstance(found, str) else json.dumps(found, separators=(",", ":"), ensure_ascii=False)
