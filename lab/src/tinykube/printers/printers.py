"""The columns of built-in kinds, as ``kubectl get`` shows them on a real cluster."""

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Final

from tinykube.objects.json_types import Json, JsonValue, lookup
from tinykube.printers.pod_printer import POD
from tinykube.printers.storage_printers import STORAGE
from tinykube.printers.tables import (
    NONE,
    UNKNOWN,
    Cell,
    Column,
    Printer,
    age,
    age_of,
    columns,
    count,
    name_of,
    named,
    text,
)

_ROLE_PREFIX = "node-role.kubernetes.io/"


def printer_for(group: str, kind: str) -> Printer:
    """The printer of a built-in kind; name and age for one without columns here."""
    return _PRINTERS.get((group, kind), NAME_AND_AGE)


def _node(node: Json, now: datetime) -> list[Cell]:
    spec, status = node.get("spec", {}), node.get("status", {})
    ready = next((c["status"] for c in status.get("conditions") or () if c.get("type") == "Ready"), None)
    state = {None: "Unknown", "True": "Ready"}.get(ready, "NotReady")
    addresses = {address["type"]: address["address"] for address in reversed(status.get("addresses") or ())}
    return [
        name_of(node),
        f"{state},SchedulingDisabled" if spec.get("unschedulable") else state,
        ",".join(_node_roles(lookup(node, "metadata", "labels") or {})) or NONE,
        age_of(node, now),
        text(status, "nodeInfo", "kubeletVersion"),
        addresses.get("InternalIP", NONE),
        addresses.get("ExternalIP", NONE),
        *(
            text(status, "nodeInfo", field, default=UNKNOWN)
            for field in ("osImage", "kernelVersion", "containerRuntimeVersion")
        ),
    ]


def _node_roles(labels: Mapping[str, str]) -> list[str]:
    roles = {label.removeprefix(_ROLE_PREFIX) for label in labels if label.startswith(_ROLE_PREFIX)}
    roles.add(labels.get("kubernetes.io/role", ""))
    return sorted(roles - {""})


def _event(event: Json, now: datetime) -> list[Cell]:
    subject, source = event.get("involvedObject") or {}, event.get("source") or {}
    series = event.get("series") or {}
    first_seen = _first(event, "firstTimestamp", "eventTime")
    last_seen = event.get("lastTimestamp") or first_seen
    reporter = (
        source.get("component") or event.get("reportingComponent"),
        source.get("host") or event.get("reportingInstance"),
    )
    name = subject.get("name")
    return [
        age(series.get("lastObservedTime") or last_seen, now),
        text(event, "type"),
        text(event, "reason"),
        text(subject, "kind").lower() + (f"/{name}" if name else ""),
        text(subject, "fieldPath"),
        ", ".join(filter(None, reporter)),
        text(event, "message").strip(),
        age(first_seen, now),
        series.get("count") or event.get("count") or 1,
        name_of(event),
    ]


def _first(json_object: Json, *fields: str) -> JsonValue:
    return next((json_object[field] for field in fields if json_object.get(field)), None)


NAME_AND_AGE: Final = Printer(columns=columns("Name", "Age"), cells=named(lambda _: []))
_NAME_AND_CREATION = Printer(
    columns=(Column(name="Name", format="name"), Column(name="Created At", type="date")),
    cells=lambda json_object, _: [name_of(json_object), text(json_object, "metadata", "creationTimestamp")],
)
_EVENT_COLUMNS = (
    *(Column(name=name) for name in ("Last Seen", "Type", "Reason", "Object")),
    *(Column(name=name, priority=1) for name in ("Subobject", "Source")),
    Column(name="Message"),
    *(Column(name=name, priority=1) for name in ("First Seen", "Count")),
    Column(name="Name", format="name", priority=1),
)
_EVENT = Printer(columns=_EVENT_COLUMNS, cells=_event)

_PRINTERS: Final[Mapping[tuple[str, str], Printer]] = MappingProxyType(
    {
        ("", "ConfigMap"): Printer(
            columns=columns("Name", "Data", "Age"), cells=named(lambda c: [count(c, "data", "binaryData")])
        ),
        ("", "Event"): _EVENT,
        ("", "Namespace"): Printer(
            columns=columns("Name", "Status", "Age"), cells=named(lambda n: [text(n, "status", "phase")])
        ),
        ("", "Node"): Printer(
            columns=columns(
                "Name",
                "Status",
                "Roles",
                "Age",
                "Version",
                wide=("Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime"),
            ),
            cells=_node,
        ),
        ("", "Pod"): POD,
        ("", "Secret"): Printer(
            columns=columns("Name", "Type", "Data", "Age"),
            cells=named(lambda s: [text(s, "type"), count(s, "data")]),
        ),
        ("", "ServiceAccount"): Printer(
            columns=columns("Name", "Secrets", "Age"), cells=named(lambda a: [count(a, "secrets")])
        ),
        ("apiextensions.k8s.io", "CustomResourceDefinition"): _NAME_AND_CREATION,
        ("coordination.k8s.io", "Lease"): Printer(
            columns=columns("Name", "Holder", "Age"),
            cells=named(lambda lease: [text(lease, "spec", "holderIdentity")]),
        ),
        ("rbac.authorization.k8s.io", "ClusterRole"): _NAME_AND_CREATION,
        ("rbac.authorization.k8s.io", "Role"): _NAME_AND_CREATION,
        **STORAGE,
    }
)
