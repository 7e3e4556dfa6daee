"""What administrators look at: usage in the kubelet, events, logs, and the commands of kube-efs in pods."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.kubelet import installing
from tests.kubelet.cluster import NAMES, NODE, PATIENCE, Cluster, Workload, claim, pod
from tests.kubelet.images import SHELL
from tests.kubelet.installing import DRIVER
from tests.scenarios.steps import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

_IN_NAMESPACE = ("-n", NAMES.namespace)
_METRIC = re.compile(r"kubelet_volume_stats_(?P<name>\w+)\{(?P<labels>[^}]*)\} (?P<value>\S+)")
# The kubelet measures each minute.
_MEASURED_SECONDS = 600.0
# What docs/doctor.md lists as the permissions of the doctor and of the status.
_READ = {
    "": ["pods", "nodes", "persistentvolumeclaims", "persistentvolumes", "events", "configmaps"],
    "apps": ["deployments", "daemonsets"],
    "storage.k8s.io": ["storageclasses", "csinodes"],
    "aws-efs.managed.openshift.io": ["sharedvolumes"],
    "coordination.k8s.io": ["leases"],
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def users(installed: Cluster) -> AsyncIterator[tuple[Workload, ...]]:
    """kube-efs with the usage of volumes, and pods that write."""
    cluster = installed
    metrics = (f"daemonset/{NAMES.node}", *_IN_NAMESPACE, "KUBE_EFS_VOLUME_METRICS=true")
    await cluster.kubectl("set", "env", *metrics)
    await installing.rolled_out(cluster)
    async with installing.workloads(cluster) as workloads:
        yield workloads


async def _exec(cluster: Cluster, daemon_set: str, *command: str) -> str:
    """The output of a command in a pod of a DaemonSet."""
    return await cluster.kubectl("exec", *_IN_NAMESPACE, f"daemonset/{daemon_set}", "--", *command)


async def _described(cluster: Cluster, kind: str, name: str, namespace: str, *texts: str) -> str:
    """What ``kubectl describe`` shows once it contains these texts; white space counts as one blank."""

    async def look() -> str | None:
        shown = " ".join((await cluster.kubectl("describe", kind, name, "-n", namespace)).split())
        return shown if all(text in shown for text in texts) else None

    return await eventually(look, what=f"describe {kind} {name} shows {texts}", seconds=600)


@pytest.mark.parametrize("its_claim", ["access-point", "tunnel"])
async def test_kubelet_reports_the_usage_of_a_volume(
    cluster: Cluster, users: tuple[Workload, ...], its_claim: str
) -> None:
    namespace = users[0].namespace
    labels = f'namespace="{namespace}",persistentvolumeclaim="{its_claim}"'

    async def in_metrics() -> dict[str, float] | None:
        text = await cluster.kubectl("get", "--raw", f"/api/v1/nodes/{NODE}/proxy/metrics")
        found = {
            one["name"]: float(one["value"]) for one in _METRIC.finditer(text) if one["labels"] == labels
        }
        return found or None

    measured = await eventually(in_metrics, what="the kubelet has measured", seconds=_MEASURED_SECONDS)
    assert measured["capacity_bytes"] > measured["used_bytes"] > 0
    assert measured["available_bytes"] > 0

    summary = json.loads(await cluster.kubectl("get", "--raw", f"/api/v1/nodes/{NODE}/proxy/stats/summary"))
    reference = {"namespace": namespace, "name": its_claim}
    (volume,) = [
        volume
        for one in summary["pods"]
        for volume in one.get("volume", ())
        if volume.get("pvcRef") == reference
    ]
    assert volume["capacityBytes"] == measured["capacity_bytes"]
    for one in users:
        await one.has_seen_no_error()


@pytest.mark.parametrize(
    ("component", "event"),
    [
        (NAMES.controller, "volume-provisioned"),
        (NAMES.node, "volume-mounted"),
        (NAMES.tunnel, "tunnel-up"),
    ],
)
async def test_logs_are_lines_of_json(
    cluster: Cluster, users: tuple[Workload, ...], component: str, event: str
) -> None:
    log = await cluster.kubectl("logs", *_IN_NAMESPACE, "-l", f"component={component}", "--tail=-1")
    entries = [json.loads(line) for line in log.splitlines()]
    assert event in {one["event"] for one in entries}


async def test_doctor_of_the_node_finds_nothing_broken_in_the_pod_of_the_tunnels(
    cluster: Cluster, users: tuple[Workload, ...]
) -> None:
    shown = await _exec(cluster, NAMES.tunnel, "kube-efs", "doctor", "node")
    assert f"{NODE}: region us-east-1 (settings)" in shown
    report = json.loads(await _exec(cluster, NAMES.tunnel, "kube-efs", "doctor", "node", "--output", "json"))
    # A container without permissions cannot read the log of the kernel.
    assert {one["id"] for one in report["findings"]} <= {"doctor/not-checked", "tunnel/slow"}
    names = {one["name"] for one in report["tunnels"]}
    # That of the whole file system, and that of the access point.
    assert cluster.file_system in names
    assert len(names) > 1
    for one in report["tunnels"]:
        assert one["null_call_seconds"] is not None
        assert set(one["handshakes"].values()) == {"done"}


async def test_doctor_of_the_node_reads_the_log_of_the_kernel_in_the_pod_of_the_driver(
    cluster: Cluster, users: tuple[Workload, ...]
) -> None:
    # The command fails if something is broken.
    report = json.loads(await _exec(cluster, NAMES.node, "kube-efs", "doctor", "node", "--output", "json"))
    found = {one["id"] for one in report["findings"]}
    assert "stunnel/not-visible" in found
    assert "doctor/not-checked" not in found


async def test_doctor_of_the_cluster_finds_nothing_broken_in_a_pod(
    cluster: Cluster, users: tuple[Workload, ...]
) -> None:
    status, output = await _in_pod(cluster, "doctor", "cluster", "--output", "json")
    assert status == 0
    found = {one["id"] for one in json.loads(output)["findings"]}
    # The policy that AWS manages for the driver does not allow all that the doctor would read.
    assert found == {"aws/not-checked", "doctor/not-checked"}


async def test_status_shows_volumes_and_tunnels_in_a_pod(
    cluster: Cluster, users: tuple[Workload, ...]
) -> None:
    status, output = await _in_pod(cluster, "status", "--output", "json")
    assert status == 0
    report = json.loads(output)
    bound = {one["name"]: one["phase"] for one in report["claims"] if one["namespace"] == users[0].namespace}
    assert bound == {"access-point": "Bound", "tunnel": "Bound"}
    (node,) = report["nodes"]
    assert node["node"] == NODE
    assert {one["state"] for one in node["tunnels"]} == {"up"}


async def test_describe_shows_why_a_claim_has_no_volume(
    cluster: Cluster, users: tuple[Workload, ...]
) -> None:
    namespace = users[0].namespace
    storage_class = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "wrong"},
        "provisioner": DRIVER,
        "parameters": {
            "provisioningMode": "efs-ap",
            "fileSystemId": cluster.file_system,
            "directoryPerms": "rwx",
        },
    }
    await cluster.apply(storage_class, claim("wrong", namespace, "wrong"))
    try:
        shown = await _described(cluster, "pvc", "wrong", namespace, "ProvisioningFailed")
        assert "Status: Pending" in shown
        reason = "directoryPerms: 'rwx' is not a valid octal mode; use three or four octal digits"
        assert reason in shown
        status, output = await _in_pod(cluster, "doctor", "claim", f"{namespace}/wrong", "--output", "json")
        assert status == 1
        assert "claim/pending" in {one["id"] for one in json.loads(output)["findings"]}
        assert reason in output
    finally:
        await cluster.kubectl("delete", "pvc/wrong", "-n", namespace, PATIENCE)
        await cluster.kubectl("delete", "storageclass/wrong")


async def test_describe_shows_why_a_pod_has_no_volume(cluster: Cluster, users: tuple[Workload, ...]) -> None:
    namespace = users[0].namespace
    missing = "fsap-0123456789abcdef0"
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "wrong"},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": "1Gi"},
            "storageClassName": "",
            "csi": {"driver": DRIVER, "volumeHandle": f"{cluster.file_system}::{missing}"},
        },
    }
    command = ("/bin/sleep", "1000")
    await cluster.apply(
        volume,
        claim("wrong", namespace, "", volumeName="wrong"),
        pod("wrong", namespace, "wrong", image=SHELL, command=command),
    )
    try:
        shown = await _described(cluster, "pod", "wrong", namespace, "FailedMount")
        assert "the tunnel closed the connection; check that the access point exists" in shown
    finally:
        # The pod ends after the attempt to mount that is running, which takes up to two minutes.
        await cluster.kubectl("delete", "pod/wrong", "pvc/wrong", "-n", namespace, "--wait=false")
        pod_and_claim = ("get", "pod/wrong", "pvc/wrong", "-n", namespace, "--ignore-not-found", "-o", "name")

        async def are_gone() -> bool:
            return not await cluster.kubectl(*pod_and_claim)

        await eventually(are_gone, what="the pod and its claim are gone", seconds=600)
        await cluster.kubectl("delete", "pv/wrong", PATIENCE)
    for one in users:
        await one.continues()
        await one.has_seen_no_error()


async def _in_pod(cluster: Cluster, *arguments: str) -> tuple[int, str]:
    """Exit status and output of kube-efs in a pod, whose account has the documented permissions."""
    name = "visitor"
    rules: list[dict[str, Any]] = [
        {"apiGroups": [group], "resources": resources, "verbs": ["get", "list"]}
        for group, resources in _READ.items()
    ]
    rules.append(
        {
            "apiGroups": ["authorization.k8s.io"],
            "resources": ["subjectaccessreviews"],
            "verbs": ["create"],
        }
    )
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name}}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    account = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
    main = {"name": "main", "image": cluster.image, "args": list(arguments)}
    await cluster.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": "default"}},
        {**role, "kind": "ClusterRole", "rules": rules},
        {**role, "kind": "ClusterRoleBinding", "roleRef": reference, "subjects": [account]},
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"restartPolicy": "Never", "serviceAccountName": name, "containers": [main]},
        },
    )
    where = (name, "-n", "default")

    async def status() -> str:
        return await cluster.kubectl(
            "get", "pod", *where, "-o", "jsonpath={.status.containerStatuses[0].state.terminated.exitCode}"
        )

    ended = await eventually(status, what=f"{arguments} ends", seconds=600)
    output = await cluster.kubectl("logs", *where)
    await cluster.kubectl("delete", "pod", *where, PATIENCE)
    return int(ended), output
