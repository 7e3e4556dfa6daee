"""The columns of the kinds that run pods: deployments, daemon sets, stateful sets."""

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Final

from tinykube.objects.json_types import Json, lookup
from tinykube.printers.tables import (
    NONE,
    Cell,
    Column,
    Printer,
    age_of,
    columns,
    name_of,
)


def label_text(labels: Mapping[str, str] | None) -> str:
    """The labels as one text, sorted by key."""
    return ",".join(f"{key}={value}" for key, value in sorted((labels or {}).items())) or NONE


def selector_text(selector: Json | None) -> str:
    """A structured label selector in the form that ``kubectl -l`` takes."""
    if selector is None:
        return NONE
    terms = [(key, f"{key}={value}") for key, value in (selector.get("matchLabels") or {}).items()]
    for expression in selector.get("matchExpressions") or ():
        key, operator = expression["key"], expression["operator"]
        values = ",".join(sorted(expression.get("values") or ()))
        text = {"Exists": key, "DoesNotExist": f"!{key}"}.get(
            operator, f"{key} {operator.lower()} ({values})"
        )
        terms.append((key, text))
    return ",".join(text for _, text in sorted(terms)) or NONE


def _template_cells(workload: Json) -> list[Cell]:
    """The wide cells: containers, images, selector."""
    containers = lookup(workload, "spec", "template", "spec", "containers") or ()
    return [
        ",".join(container["name"] for container in containers),
        ",".join(container.get("image", "") for container in containers),
        selector_text(lookup(workload, "spec", "selector")),
    ]


def _number(workload: Json, *path: str, default: int = 0) -> int:
    value = lookup(workload, *path)
    return default if value is None else int(value)


def _ready(workload: Json) -> str:
    return (
        f"{_number(workload, 'status', 'readyReplicas')}/{_number(workload, 'spec', 'replicas', default=1)}"
    )


def _deployment(deployment: Json, now: datetime) -> list[Cell]:
    return [
        name_of(deployment),
        _ready(deployment),
        _number(deployment, "status", "updatedReplicas"),
        _number(deployment, "status", "availableReplicas"),
        age_of(deployment, now),
        *_template_cells(deployment),
    ]


def _stateful_set(stateful_set: Json, now: datetime) -> list[Cell]:
    wide = _template_cells(stateful_set)[:2]
    return [name_of(stateful_set), _ready(stateful_set), age_of(stateful_set, now), *wide]


def _replica_set(replica_set: Json, now: datetime) -> list[Cell]:
    return [
        name_of(replica_set),
        _number(replica_set, "spec", "replicas", default=1),
        _number(replica_set, "status", "replicas"),
        _number(replica_set, "status", "readyReplicas"),
        age_of(replica_set, now),
        *_template_cells(replica_set),
    ]


def _daemon_set(daemon_set: Json, now: datetime) -> list[Cell]:
    counts = (
        "desiredNumberScheduled",
        "currentNumberScheduled",
        "numberReady",
        "updatedNumberScheduled",
        "numberAvailable",
    )
    return [
        name_of(daemon_set),
        *(_number(daemon_set, "status", count) for count in counts),
        label_text(lookup(daemon_set, "spec", "template", "spec", "nodeSelector")),
        age_of(daemon_set, now),
        *_template_cells(daemon_set),
    ]


_WIDE = ("Containers", "Images", "Selector")

WORKLOADS: Final[Mapping[tuple[str, str], Printer]] = MappingProxyType(
    {
        ("apps", "DaemonSet"): Printer(
            columns=(
                Column(name="Name", format="name"),
                *(
                    Column(name=name, type="integer")
                    for name in ("Desired", "Current", "Ready", "Up-to-date", "Available")
                ),
                Column(name="Node Selector"),
                Column(name="Age"),
                *(Column(name=name, priority=1) for name in _WIDE),
            ),
            cells=_daemon_set,
        ),
        ("apps", "Deployment"): Printer(
            columns=columns("Name", "Ready", "Up-to-date", "Available", "Age", wide=_WIDE), cells=_deployment
        ),
        ("apps", "ReplicaSet"): Printer(
            columns=columns(
                "Name",
                "Desired",
                "Current",
                "Ready",
                "Age",
                wide=_WIDE,
                Desired="integer",
                Current="integer",
                Ready="integer",
            ),
            cells=_replica_set,
        ),
        ("apps", "StatefulSet"): Printer(
            columns=columns("Name", "Ready", "Age", wide=("Containers", "Images")), cells=_stateful_set
        ),
    }
)
