"""A cluster's objects, read from the embedded API server."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from lightkube import AsyncClient
from lightkube.codecs import load_all_yaml
from lightkube.models.apps_v1 import DeploymentSpec
from lightkube.models.core_v1 import Container, EventSource, ObjectReference, PodSpec, PodTemplateSpec
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.models.rbac_v1 import RoleRef, Subject
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import ConfigMap, Namespace, Node, PersistentVolumeClaim
from lightkube.resources.rbac_authorization_v1 import ClusterRoleBinding

from kube_efs.doctor.checks.common import VolumeKind, needs_tunnels, provisioners
from kube_efs.doctor.facts import ProgressEvent, ReportedCondition
from kube_efs.doctor.gathering.attempts import Attempts
from kube_efs.doctor.gathering.cluster import gather_cluster
from kube_efs.doctor.gathering.objects import read_degraded
from kube_efs.doctor.gathering.rights import missing_rights
from kube_efs.doctor.grants import AccountName, Grant, Right
from kube_efs.kube.csi_nodes import CsiNode
from kube_efs.kube.events import EventType
from kube_efs.model.names import OPENSHIFT_EFS_STUNNEL, NameSet

# As efs-provisioner's own manifests have it: settings are in a ConfigMap.
_OBJECTS = """
apiVersion: v1
kind: ConfigMap
metadata: {name: efs-provisioner, namespace: default}
data: {provisioner.name: example.com/aws-efs, aws.region: eu-west-1, dns.name: ""}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: efs-provisioner, namespace: default, labels: {app.kubernetes.io/part-of: kube-efs}}
spec:
  replicas: 1
  selector: {matchLabels: {app: efs-provisioner}}
  template:
    metadata: {labels: {app: efs-provisioner}}
    spec:
      containers:
      - name: efs-provisioner
        image: quay.io/kube-efs/kube-efs:0.1.0
        args: [controller]
        env:
        - {name: KUBE_EFS_BACKENDS, value: directory}
        - name: PROVISIONER_NAME
          valueFrom: {configMapKeyRef: {name: efs-provisioner, key: provisioner.name}}
        - name: DNS_NAME
          valueFrom: {configMapKeyRef: {name: efs-provisioner, key: dns.name, optional: true}}
        - name: FILE_SYSTEM_ID
          valueFrom: {configMapKeyRef: {name: missing, key: file.system.id}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: default, finalizers: [example.com/held]}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: aws-efs
  resources: {requests: {storage: 1Gi}}
---
apiVersion: v1
kind: Event
metadata: {name: first, namespace: default}
involvedObject: {kind: PersistentVolumeClaim, name: data, namespace: default, uid: "7"}
type: Warning
reason: ProvisioningFailed
message: first
lastTimestamp: "2026-01-01T00:00:00Z"
---
apiVersion: v1
kind: Event
metadata: {name: second, namespace: default}
involvedObject: {kind: PersistentVolumeClaim, name: data, namespace: default, uid: "7"}
type: Warning
reason: ProvisioningFailed
message: second
lastTimestamp: "2026-01-01T00:00:01Z"
---
apiVersion: v1
kind: Event
metadata: {name: step-b, namespace: default}
involvedObject: {kind: PersistentVolumeClaim, name: data, namespace: default, uid: "7"}
type: Normal
reason: CreatingFileSystem
message: "File system fs-1: mount targets 1 of 2 (9 s)"
lastTimestamp: "2026-01-01T00:00:09Z"
---
apiVersion: v1
kind: Event
metadata: {name: step-a, namespace: default}
involvedObject: {kind: PersistentVolumeClaim, name: data, namespace: default, uid: "7"}
type: Normal
reason: CreatingFileSystem
message: Creating a file system (0 s)
lastTimestamp: "2026-01-01T00:00:01Z"
"""


async def test_cluster_is_read_into_facts(kube: AsyncClient) -> None:
    for one in load_all_yaml(_OBJECTS):
        await kube.create(one)
    await kube.delete(PersistentVolumeClaim, "data", namespace="default")
    attempts = Attempts(timeout_seconds=30)

    cluster = await gather_cluster(kube, replace(OPENSHIFT_EFS_STUNNEL, namespace="default"), attempts)

    assert provisioners(cluster)["example.com/aws-efs"] is VolumeKind.DIRECTORY
    assert not needs_tunnels(cluster)
    (workload,) = cluster.workloads or ()
    assert dict(workload.environment) == {
        "KUBE_EFS_BACKENDS": "directory",
        "PROVISIONER_NAME": "example.com/aws-efs",
    }
    (claim,) = cluster.claims or ()
    assert claim.deleting_since is not None
    assert "example.com/held" in claim.finalizers
    assert [one.message for one in cluster.warnings_of("PersistentVolumeClaim", "7")] == ["second"]
    assert cluster.progress_of("7") == ProgressEvent(
        uid="7",
        reason="CreatingFileSystem",
        message="File system fs-1: mount targets 1 of 2 (9 s)",
        time=datetime(2026, 1, 1, 0, 0, 9, tzinfo=UTC),
    )
    kube_system = await kube.get(Namespace, "kube-system")
    assert cluster.uid == (kube_system.metadata and kube_system.metadata.uid) != ""
    assert cluster.targets is not None
    assert not cluster.targets.found
    assert cluster.shared_volumes == ()  # a cluster without that kind
    assert cluster.degraded == ()  # nor that one
    assert [one.what for one in attempts.gaps] == ["ConfigMap default/missing"]


def _deployment(namespace: str, name: str, image: str = "a", **labels: str) -> Deployment:
    container = Container(name="a", image=image, args=["controller"])
    template = PodTemplateSpec(metadata=ObjectMeta(labels={"app": "a"}), spec=PodSpec(containers=[container]))
    spec = DeploymentSpec(selector=LabelSelector(matchLabels={"app": "a"}), template=template)
    metadata = ObjectMeta(name=name, namespace=namespace, labels=labels)
    return Deployment(metadata=metadata, spec=spec)


async def test_workloads_of_tenants_are_not_of_kube_efs(kube: AsyncClient) -> None:
    part_of = {"app.kubernetes.io/part-of": "kube-efs"}
    for namespace in ("other", "older", "tenant"):
        await kube.create(Namespace(metadata=ObjectMeta(name=namespace)))
    for name, role, namespace, labels in (
        ("other", "any", "other", part_of),
        ("older", "efs-provisioner-runner", "older", {}),
        ("tenant", "view", "tenant", {}),
    ):
        await kube.create(
            ClusterRoleBinding(
                metadata=ObjectMeta(name=name, labels=labels),
                roleRef=RoleRef(apiGroup="rbac.authorization.k8s.io", kind="ClusterRole", name=role),
                subjects=[Subject(kind="ServiceAccount", name="a", namespace=namespace)],
            )
        )
    for namespace in ("default", "other", "older", "tenant"):
        await kube.create(_deployment(namespace, "a", **part_of))
        # As manifests of older systems, without a label.
        await kube.create(_deployment(namespace, "efs-provisioner"))
        await kube.create(_deployment(namespace, "b", "kube-efs:1"))
        await kube.create(_deployment(namespace, "unrelated"))
    attempts = Attempts(timeout_seconds=30)

    cluster = await gather_cluster(kube, replace(OPENSHIFT_EFS_STUNNEL, namespace="default"), attempts)

    ours = {(one.namespace, one.name) for one in cluster.workloads or () if one.ours}
    names = ("a", "b", "efs-provisioner")
    assert ours == {(one, name) for one in ("default", "other", "older") for name in names}
    assert not attempts.gaps


async def test_drivers_of_nodes_are_read_also_if_a_node_has_none(kube: AsyncClient) -> None:
    entry = {"name": "efs.csi.aws.com", "nodeID": "i-0a", "topologyKeys": None}
    for name, drivers in (("none", None), ("one", [entry])):
        await kube.create(Node(metadata=ObjectMeta(name=name)))
        await kube.create(CsiNode(metadata=ObjectMeta(name=name), spec={"drivers": drivers}))
    attempts = Attempts(timeout_seconds=30)

    cluster = await gather_cluster(kube, replace(OPENSHIFT_EFS_STUNNEL, namespace="default"), attempts)

    assert {one.name: set(one.drivers) for one in cluster.nodes or ()} == {
        "none": set(),
        "one": {"efs.csi.aws.com"},
    }
    assert not attempts.gaps


def _trash_event(name: str, system: str, kind: EventType, reason: str, second: int) -> Any:
    return load_all_yaml(f"""
apiVersion: v1
kind: Event
metadata: {{name: {name}, namespace: efs}}
involvedObject: {{kind: PersistentVolumeClaim, name: efs-stunnel-{system}, namespace: efs, uid: "7"}}
type: {kind}
reason: {reason}
message: "File system {system}: 1 entry: of the trash"
lastTimestamp: "2026-01-01T00:00:{second:02}Z"
source: {{component: kube-efs-controller}}
""")[0]


def _stuck(name: str, **changes: Any) -> Any:
    """A warning of the controller about a trash, with these fields changed."""
    event = _trash_event(name, "fs-a", EventType.WARNING, "TrashNotEmptied", 1)
    for field, value in changes.items():
        setattr(event, field, value)
    return event


async def _stuck_trashes(kube: AsyncClient, *events: Any) -> list[tuple[str, str, str]]:
    for namespace in ("efs", "tenant"):
        await kube.create(Namespace(metadata=ObjectMeta(name=namespace)))
    for one in events:
        await kube.create(one)
    cluster = await gather_cluster(
        kube, replace(OPENSHIFT_EFS_STUNNEL, namespace="efs"), Attempts(timeout_seconds=30)
    )
    return [(one.file_system_id, one.name, one.message) for one in cluster.stuck_trash]


async def test_trash_is_stuck_if_its_last_event_is_a_warning(kube: AsyncClient) -> None:
    found = await _stuck_trashes(
        kube,
        _trash_event("a", "fs-a", EventType.WARNING, "TrashNotEmptied", 1),
        _trash_event("b1", "fs-b", EventType.WARNING, "TrashNotEmptied", 1),
        _trash_event("b2", "fs-b", EventType.NORMAL, "TrashEmptied", 1),
        _trash_event("c1", "fs-c", EventType.NORMAL, "TrashEmptied", 1),
        _trash_event("c2", "fs-c", EventType.WARNING, "TrashNotEmptied", 2),
    )
    assert found == [
        ("fs-a", "efs-stunnel-fs-a", "1 entry: of the trash"),
        ("fs-c", "efs-stunnel-fs-c", "1 entry: of the trash"),
    ]


async def test_trash_event_about_the_lease_of_the_controller_counts(kube: AsyncClient) -> None:
    about = ObjectReference(kind="Lease", name="kube-efs-controller", namespace="efs")
    found = await _stuck_trashes(kube, _stuck("a", involvedObject=about))
    assert found == [("fs-a", "kube-efs-controller", "1 entry: of the trash")]


async def test_trash_events_that_the_controller_does_not_write_are_ignored(kube: AsyncClient) -> None:
    def about(kind: str, name: str, namespace: str = "efs") -> ObjectReference:
        return ObjectReference(kind=kind, name=name, namespace=namespace)

    claim = "PersistentVolumeClaim"
    others: dict[str, dict[str, Any]] = {
        "another-namespace": {
            "metadata": ObjectMeta(name="a", namespace="tenant"),
            "involvedObject": about(claim, "efs-stunnel-fs-a", "tenant"),
        },
        "another-component": {"source": EventSource(component="kubelet")},
        "no-component": {"source": None},
        "no-file-system": {"message": "File system $(reboot): 1 entry of the trash"},
        "another-kind": {"involvedObject": about("Pod; reboot", "efs-stunnel-fs-a")},
        "another-claim": {"involvedObject": about(claim, "efs-stunnel-fs-b")},
        "name-of-a-lease": {"involvedObject": about("Lease", "a; reboot | sh")},
    }
    events = [
        _stuck(name, **{"metadata": ObjectMeta(name=name, namespace="efs"), **changes})
        for name, changes in others.items()
    ]
    assert await _stuck_trashes(kube, *events) == []


async def test_embedded_api_server_allows_everything(kube: AsyncClient) -> None:
    grant = Grant(
        account=AccountName(namespace="a", name="b"),
        right=Right(verb="get", resource="pods/log", namespace="c"),
    )
    attempts = Attempts(timeout_seconds=30)
    assert await missing_rights(kube, [grant], attempts) == ()
    assert await missing_rights(kube, [], attempts) == ()
    assert attempts.gaps == ()


def test_only_degraded_conditions_are_read() -> None:
    conditions = [
        {"type": "AvailableDegraded", "status": "True", "message": "no credentials yet"},
        {"type": "OtherDegraded", "status": "False", "message": "all is well"},
        {"type": "Progressing", "status": "True"},
    ]
    found = read_degraded({"status": {"conditions": conditions}})
    assert found == (ReportedCondition(type="AvailableDegraded", message="no credentials yet"),)


async def test_config_maps_of_other_names_are_found_in_their_namespaces(kube: AsyncClient) -> None:
    older, own = NameSet.OPENSHIFT_EFS_STUNNEL.names, replace(NameSet.KUBE_EFS.names, namespace="default")
    await kube.create(Namespace(metadata=ObjectMeta(name=older.namespace)))
    for namespace, name in (
        (older.namespace, older.config_map),
        ("default", older.config_map),
        ("default", own.config_map),
        ("default", "unrelated"),
    ):
        await kube.create(ConfigMap(metadata=ObjectMeta(name=name, namespace=namespace)))
    cluster = await gather_cluster(kube, own, Attempts(timeout_seconds=30))
    assert set(cluster.other_config_maps) == {
        ("default", older.config_map),
        (older.namespace, older.config_map),
    }
