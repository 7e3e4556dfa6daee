from datetime import UTC, datetime
from typing import Any

import pytest

from tinykube.printers.printers import printer_for
from tinykube.printers.tables import Cell

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
            {"status": {"phase": "Pending", "capacity": {"storage": "1Gi"}}},
            {"STATUS": "Pending", "VOLUME": "", "CAPACITY": "", "ACCESS MODES": "", "VOLUMEMODE": "<unset>"},
            id="pending",
        ),
        pytest.param({**CLAIM, "status": {"phase": "Lost"}}, {"STATUS": "Lost", "CAPACITY": "0"}, id="lost"),
        pytest.param({**CLAIM, "metadata": DELETED}, {"STATUS": "Terminating"}, id="deleted"),
        pytest.param(
            {"metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": "old"}}},
            {"STORAGECLASS": "old"},
            id="class by the old annotation",
        ),
    ],
)
def test_claims(claim: dict[str, Any], shown: dict[str, Cell]) -> None:
    assert cells("", "PersistentVolumeClaim", **claim).items() >= shown.items()


def test_a_default_storage_class() -> None:
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"}
    assert cells(
        "storage.k8s.io", "StorageClass", metadata={"annotations": annotations}, provisioner="p"
    ) == {
        "NAME": "x (default)",
        "PROVISIONER": "p",
        "RECLAIMPOLICY": "Delete",
        "VOLUMEBINDINGMODE": "Immediate",
        "ALLOWVOLUMEEXPANSION": False,
        "AGE": "2m",
    }


@pytest.mark.parametrize(
    ("group", "event"),
    [
        pytest.param(
            "",
            {
                "involvedObject": {"kind": "PersistentVolumeClaim", "name": "data"},
                "message": " no such file system\n",
                "source": {"component": "kube-efs", "host": "n1"},
                "firstTimestamp": "2026-11-21T11:50:00Z",
                "lastTimestamp": "2026-11-21T11:59:55Z",
                "count": 3,
            },
            id="core event",
        ),
    ],
)
def test_events(group: str, event: dict[str, Any]) -> None:
    shown = cells(group, "Event", type="Warning", reason="ProvisioningFailed", **event)
    assert list(shown.items()) == [
        ("LAST SEEN", "5s"),
        ("TYPE", "Warning"),
        ("REASON", "ProvisioningFailed"),
        ("OBJECT", "persistentvolumeclaim/data"),
        ("SUBOBJECT", ""),
        ("SOURCE", "kube-efs, n1"),
        ("MESSAGE", "no such file system"),
        ("FIRST SEEN", "10m"),
        ("COUNT", 3),
        ("NAME", "x"),
    ]


def test_a_single_event_counts_once_and_has_one_time() -> None:
    shown = cells("", "Event", involvedObject={"kind": "Node"}, eventTime="2026-11-21T11:59:55.0Z")
    assert shown.items() >= {"COUNT": 1, "LAST SEEN": "5s", "FIRST SEEN": "5s", "OBJECT": "node"}.items()


def test_wide_columns_have_a_priority() -> None:
    wide = [column.name for column in printer_for("", "Event").columns if column.priority]
    assert wide == ["Subobject", "Source", "First Seen", "Count", "Name"]


@pytest.mark.parametrize(
    ("group", "kind", "json_object", "shown"),
    [
        ("", "Namespace", {"status": {"phase": "Active"}}, {"NAME": "x", "STATUS": "Active", "AGE": "2m"}),
        ("", "ConfigMap", {"data": {"a": "", "b": ""}, "binaryData": {"c": ""}}, {"DATA": 3}),
        ("", "Secret", {"type": "Opaque", "data": {"a": ""}}, {"TYPE": "Opaque", "DATA": 1}),
        ("", "ServiceAccount", {}, {"SECRETS": 0}),
        ("coordination.k8s.io", "Lease", {"spec": {"holderIdentity": "me"}}, {"HOLDER": "me"}),
        ("storage.k8s.io", "CSINode", {"spec": {"drivers": [{}, {}]}}, {"DRIVERS": 2}),
        (
            "storage.k8s.io",
            "CSIDriver",
            {"spec": {"attachRequired": False, "volumeLifecycleModes": ["Persistent", "Ephemeral"]}},
            {
                "ATTACHREQUIRED": False,
                "PODINFOONMOUNT": False,
                "TOKENREQUESTS": "<unset>",
                "MODES": "Persistent,Ephemeral",
            },
        ),
        (
            "storage.k8s.io",
            "CSIDriver",
            {"spec": {"tokenRequests": [{"audience": "sts"}, {"audience": "b"}]}},
            {"ATTACHREQUIRED": True, "TOKENREQUESTS": "sts,b", "MODES": "<none>"},
        ),
        (
            "",
            "Node",
            {
                "metadata": {
                    "labels": {"node-role.kubernetes.io/worker": "", "kubernetes.io/role": "control"}
                },
                "spec": {"unschedulable": True},
                "status": {
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                    "nodeInfo": {"kubeletVersion": "v1"},
                },
            },
            {
                "STATUS": "Ready,SchedulingDisabled",
                "ROLES": "control,worker",
                "VERSION": "v1",
                "INTERNAL-IP": "10.0.0.1",
                "EXTERNAL-IP": "<none>",
                "OS-IMAGE": "<unknown>",
            },
        ),
        ("", "Node", {}, {"STATUS": "Unknown", "ROLES": "<none>"}),
        (
            "",
            "Node",
            {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
            {"STATUS": "NotReady"},
        ),
        (
            "apiextensions.k8s.io",
            "CustomResourceDefinition",
            {},
            {"NAME": "x", "CREATED AT": "2026-11-21T11:58:00Z"},
        ),
        ("example.com", "Unknown", {}, {"NAME": "x", "AGE": "2m"}),
    ],
)
def test_other_kinds(group: str, kind: str, json_object: dict[str, Any], shown: dict[str, Cell]) -> None:
    assert cells(group, kind, **json_object).items() >= shown.items()


def pod(statuses: list[dict[str, Any]] | None = None, **status: Any) -> dict[str, Any]:
    return {
        "spec": {"containers": [{"name": "a"}, {"name": "b"}], "nodeName": "n1"},
        "status": {"phase": "Running", "containerStatuses": statuses or [], **status},
    }


def init(*statuses: dict[str, Any], restart_policy: str | None = None) -> dict[str, Any]:
    base = pod(phase="Pending", initContainerStatuses=list(statuses))
    base["spec"]["initContainers"] = [
        {"name": status["name"], "restartPolicy": restart_policy} for status in statuses
    ]
    return base


RUNNING = {"state": {"running": {}}, "ready": True, "restartCount": 0}


@pytest.mark.parametrize(
    ("json_object", "ready", "status", "restarts"),
    [
        pytest.param(pod([RUNNING, RUNNING]), "2/2", "Running", "0", id="running"),
        pytest.param({**pod([RUNNING]), "metadata": DELETED}, "1/2", "Terminating", "0", id="deleted"),
        pytest.param(
            {**pod(phase="Succeeded"), "metadata": DELETED}, "0/2", "Succeeded", "0", id="over, then deleted"
        ),
        pytest.param(
            {**pod(reason="NodeLost"), "metadata": DELETED}, "0/2", "Unknown", "0", id="its node is lost"
        ),
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
                [{"state": {"terminated": {"reason": "Completed"}}}, RUNNING],
                conditions=[{"type": "Ready", "status": "True"}],
            ),
            "1/2",
            "Running",
            "0",
            id="one completed, one runs",
        ),
        pytest.param(
            pod([{"state": {"terminated": {"reason": "Completed"}}}, RUNNING]),
            "1/2",
            "NotReady",
            "0",
            id="one completed, one runs, not ready",
        ),
        pytest.param(
            pod([{"state": {"terminated": {"exitCode": 3}}}]), "0/2", "ExitCode:3", "0", id="exit code"
        ),
        pytest.param(pod([{"state": {"terminated": {"signal": 9}}}]), "0/2", "Signal:9", "0", id="signal"),
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
            "4 (30s ago)",
            id="crash loop",
        ),
        pytest.param(
            pod(phase="Pending", conditions=[{"type": "PodScheduled", "reason": "SchedulingGated"}]),
            "0/2",
            "SchedulingGated",
            "0",
            id="held back",
        ),
        pytest.param(
            init(
                {"name": "i", "state": {"terminated": {"exitCode": 0}}},
                {"name": "j", "state": {"waiting": {"reason": "PodInitializing"}}},
            ),
            "0/2",
            "Init:1/2",
            "0",
            id="second init container is next",
        ),
        pytest.param(
            init({"name": "i", "state": {"terminated": {"exitCode": 2}}, "restartCount": 1}),
            "0/2",
            "Init:ExitCode:2",
            "1",
            id="init container failed",
        ),
        pytest.param(
            init({"name": "i", "state": {"waiting": {"reason": "ErrImagePull"}}}),
            "0/2",
            "Init:ErrImagePull",
            "0",
            id="init container cannot start",
        ),
        pytest.param(
            init(
                {"name": "i", "started": True, "ready": True, "state": {"running": {}}},
                restart_policy="Always",
            ),
            "1/3",
            "Pending",
            "0",
            id="a sidecar runs",
        ),
    ],
)
def test_pods(json_object: dict[str, Any], ready: str, status: str, restarts: str) -> None:
    shown = cells("", "Pod", **json_object)
    assert (shown["READY"], shown["STATUS"], shown["RESTARTS"]) == (ready, status, restarts)


def test_the_wide_columns_of_a_pod() -> None:
    json_object = pod(podIPs=[{"ip": "10.0.0.9"}], conditions=[{"type": "gate", "status": "True"}])
    json_object["spec"]["readinessGates"] = [{"conditionType": "gate"}, {"conditionType": "other"}]
    assert (
        cells("", "Pod", **json_object).items()
        >= {
            "IP": "10.0.0.9",
            "NODE": "n1",
            "NOMINATED NODE": "<none>",
            "READINESS GATES": "1/2",
        }.items()
    )
