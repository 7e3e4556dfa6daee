from datetime import UTC, datetime
from typing import Any

import pytest

from tinykube.printers import Cell, age, printer_for, table_for

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
META = {"name": "x", "creationTimestamp": "2026-11-21T11:58:00Z"}


def cells(group: str, kind: str, **json_object: Any) -> dict[str, Cell]:
    """The cells by the heads that kubectl prints, which are in capitals."""
    printer = printer_for(group, kind)
    row = printer.cells({**json_object, "metadata": {**META, **json_object.get("metadata", {})}}, NOW)
    return dict(zip((column.name.upper() for column in printer.columns), row, strict=True))


VOLUME = {
    "spec": {
        "capacity": {"storage": "1Mi"},
        "accessModes": ["ReadWriteMany", "ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": {"namespace": "shop", "name": "data"},
        "storageClassName": "efs",
        "volumeMode": "Filesystem",
    },
    "status": {"phase": "Bound"},
}
CLAIM = {
    "spec": {"volumeName": "pv1", "storageClassName": "efs", "volumeMode": "Filesystem"},
    "status": {"phase": "Bound", "accessModes": ["ReadWriteMany"], "capacity": {"storage": "1Mi"}},
}
DELETED = {"deletionTimestamp": "2026-11-21T11:59:00Z"}


def test_a_bound_volume() -> None:
    assert cells("", "PersistentVolume", **VOLUME) == {
        "NAME": "x",
        "CAPACITY": "1Mi",
        "ACCESS MODES": "RWO,RWX",
        "RECLAIM POLICY": "Retain",
        "STATUS": "Bound",
        "CLAIM": "shop/data",
        "STORAGECLASS": "efs",
        "VOLUMEATTRIBUTESCLASS": "<unset>",
        "REASON": "",
        "AGE": "2m",
        "VOLUMEMODE": "Filesystem",
    }


def test_a_bound_claim() -> None:
    assert cells("", "PersistentVolumeClaim", **CLAIM) == {
        "NAME": "x",
        "STATUS": "Bound",
        "VOLUME": "pv1",
        "CAPACITY": "1Mi",
        "ACCESS MODES": "RWX",
        "STORAGECLASS": "efs",
        "VOLUMEATTRIBUTESCLASS": "<unset>",
        "AGE": "2m",
        "VOLUMEMODE": "Filesystem",
    }


@pytest.mark.parametrize(
    ("claim", "shown"),
    [
        pytest.param(
            {"status": {"phase": "Pending"}},
            {"STATUS": "Pending", "VOLUME": "", "CAPACITY": "", "ACCESS MODES": "", "VOLUMEMODE": "<unset>"},
            id="pending",
        ),
        pytest.param({**CLAIM, "status": {"phase": "Lost"}}, {"STATUS": "Lost"}, id="lost"),
        pytest.param({**CLAIM, "metadata": DELETED}, {"STATUS": "Terminating"}, id="deleted"),
    ],
)
def test_claims(claim: dict[str, Any], shown: dict[str, Cell]) -> None:
    assert cells("", "PersistentVolumeClaim", **claim).items() >= shown.items()


def test_a_storage_class() -> None:
    assert cells("storage.k8s.io", "StorageClass", provisioner="p", reclaimPolicy="Delete") == {
        "NAME": "x",
        "PROVISIONER": "p",
        "RECLAIMPOLICY": "Delete",
        "VOLUMEBINDINGMODE": "",
        "ALLOWVOLUMEEXPANSION": False,
        "AGE": "2m",
    }


def test_an_event() -> None:
    shown = cells(
        "",
        "Event",
        type="Warning",
        reason="ProvisioningFailed",
        involvedObject={"kind": "PersistentVolumeClaim", "name": "data"},
        message="no such file system",
        lastTimestamp="2026-11-21T11:59:55Z",
    )
    assert list(shown.items()) == [
        ("LAST SEEN", "5s"),
        ("TYPE", "Warning"),
        ("REASON", "ProvisioningFailed"),
        ("OBJECT", "persistentvolumeclaim/data"),
        ("MESSAGE", "no such file system"),
    ]


def test_other_kinds_show_name_and_age() -> None:
    assert cells("example.com", "Unknown") == {"NAME": "x", "AGE": "2m"}


def pod(statuses: list[dict[str, Any]] | None = None, **status: Any) -> dict[str, Any]:
    return {
        "spec": {"containers": [{"name": "a"}, {"name": "b"}], "nodeName": "n1"},
        "status": {"phase": "Running", "containerStatuses": statuses or [], **status},
    }


RUNNING = {"state": {"running": {}}, "ready": True, "restartCount": 0}


@pytest.mark.parametrize(
    ("json_object", "ready", "status", "restarts"),
    [
        pytest.param(pod([RUNNING, RUNNING]), "2/2", "Running", "0", id="running"),
        pytest.param({**pod([RUNNING]), "metadata": DELETED}, "1/2", "Terminating", "0", id="deleted"),
        pytest.param(pod(reason="Evicted", phase="Failed"), "0/2", "Evicted", "0", id="reason of the pod"),
        pytest.param(
            pod([{"state": {"waiting": {"reason": "ContainerCreating"}}}] * 2, phase="Pending"),
            "0/2",
            "ContainerCreating",
            "0",
            id="starting",
        ),
        pytest.param(
            pod([{"state": {"terminated": {"reason": "Completed"}}}] * 2, phase="Succeeded"),
            "0/2",
            "Completed",
            "0",
            id="completed",
        ),
        pytest.param(
            pod(
                [
                    {
                        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                        "restartCount": 4,
                        "lastState": {"terminated": {"finishedAt": "2026-11-21T11:59:30Z"}},
                    }
                ]
            ),
            "0/2",
            "CrashLoopBackOff",
            "4",
            id="crash loop",
        ),
    ],
)
def test_pods(json_object: dict[str, Any], ready: str, status: str, restarts: str) -> None:
    shown = cells("", "Pod", **json_object)
    assert (shown["READY"], shown["STATUS"], shown["RESTARTS"]) == (ready, status, restarts)


@pytest.mark.parametrize(
    ("timestamp", "text"),
    [
        pytest.param("2026-11-21T11:59:55Z", "5s", id="seconds"),
        pytest.param("2026-11-21T11:58:55.500000Z", "1m", id="minutes"),
        pytest.param("2026-11-21T12:59:55+01:00", "5s", id="another zone"),
        pytest.param("2026-11-20T10:00:00Z", "1d", id="days"),
        pytest.param("2026-11-21T12:00:01Z", "0s", id="of a clock that is ahead"),
        pytest.param(None, "<unknown>", id="nothing"),
        pytest.param("yesterday", "<unknown>", id="no time"),
    ],
)
def test_ages(timestamp: str | None, text: str) -> None:
    assert age(timestamp, NOW) == text


def test_a_table() -> None:
    shown = {"metadata": META, "spec": {"a": 1}}
    table = table_for(printer_for("", "ConfigMap"), [shown], metadata={"resourceVersion": "7"}, now=NOW)
    assert table == {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": "7"},
        "columnDefinitions": [
            {"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0},
            {"name": "Age", "type": "string", "format": "", "description": "", "priority": 0},
        ],
        "rows": [{"cells": ["x", "2m"], "object": shown}],
    }
