"""What the administrator of one namespace can create to disturb the others: one function for each idea."""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from tests.conformance.kubectl import Answer, Kubectl

from kube_efs.model.shared_volumes.shared_volume import FINALIZER as SHARED_VOLUME
from kube_efs.operator.cluster_csi_driver import FINALIZER as UNINSTALL
from kube_efs.operator.kinds import MANAGED_BY
from kube_efs.operator.takeover import COMMUNITY_LABEL

Manifest = Mapping[str, Any]

OLDER_DEPLOYMENTS: Final = (
    "aws-efs-operator",
    "aws-efs-csi-driver-operator",
    "aws-efs-csi-driver-controller",
    "efs-csi-controller",
)
OLDER_DAEMON_SETS: Final = ("efs-csi-node", "aws-efs-csi-driver-node")
OUR_LABELS: Final = {**MANAGED_BY, "app.kubernetes.io/part-of": "kube-efs"}
# Nearly as much as the API server accepts.
HUGE: Final = {"example.com/huge": "x" * 250_000}
# More than a page.
HUGE_CLAIMS: Final = 30
# More than Python decodes.
DEPTH: Final = 2000
FLOOD: Final = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Objects of others that a tenant knows by name: where they are, and what they are."""

    namespace: str
    driver: Manifest
    daemon_set: Manifest
    volume: str
    access_point: str
    file_system: str
    storage_class: str
    node: str


@dataclass(frozen=True, slots=True)
class Tenant:
    """A user with the ClusterRole ``admin`` in one namespace, and with no other permission.

    ``administrator`` is the administrator of the cluster, who limits the namespace of the tenant.
    """

    kubectl: Kubectl
    administrator: Kubectl
    namespace: str
    targets: Targets

    async def create(self, *manifests: Manifest) -> None:
        """Create the objects; fails unless the API server accepts all of them."""
        # Warnings about deprecated fields do not matter, but a refusal would make the attack void.
        answer = await self.try_to_create(*manifests)
        assert answer.status == 0, answer.errors

    async def try_to_create(self, *manifests: Manifest) -> Answer:
        """The answer of the API server."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})
        return await self.kubectl.run("create", "--validate=ignore", "-f", "-", stdin=text)

    def named(self, kind: str, name: str, *, version: str = "v1", **more: Any) -> Manifest:
        """An object of the tenant's namespace; ``labels`` and other fields of its metadata go there."""
        metadata = {"name": name, "namespace": self.namespace}
        for field in ("labels", "annotations", "finalizers", "ownerReferences"):
            if field in more:
                metadata[field] = more.pop(field)
        return {"apiVersion": version, "kind": kind, "metadata": metadata, **more}

    def workload(self, kind: str, name: str, of_pods: Mapping[str, str], **more: Any) -> Manifest:
        """A Deployment or DaemonSet whose pods have these labels."""
        template = {"metadata": {"labels": of_pods}, "spec": _pod_spec()}
        spec = {"selector": {"matchLabels": of_pods}, "template": template}
        return self.named(kind, name, version="apps/v1", spec=spec, **more)

    def pod(
        self,
        name: str,
        *,
        node: str = "",
        claims: Iterable[str] = (),
        host_network: bool = False,
        **more: Any,
    ) -> Manifest:
        """A pod; with a node, no scheduler is asked."""
        spec = _pod_spec()
        spec["volumes"] = [{"name": one, "persistentVolumeClaim": {"claimName": one}} for one in claims]
        if node:
            spec["nodeName"] = node
        if host_network:
            spec["hostNetwork"] = True
        return self.named("Pod", name, spec=spec, **more)

    def claim(
        self, name: str, *, storage_class: str = "", spec: Mapping[str, Any] | None = None, **more: Any
    ) -> Manifest:
        """A claim of the class of the victim, or of another one."""
        whole = {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": storage_class or self.targets.storage_class,
            **(spec or {}),
        }
        return self.named("PersistentVolumeClaim", name, spec=whole, **more)

    def shared_volume(self, name: str, **more: Any) -> Manifest:
        """A SharedVolume of an access point that need not exist."""
        spec = {"fileSystemID": self.targets.file_system, "accessPointID": "fsap-0123456789abcdef0"}
        group = "aws-efs.managed.openshift.io/v1alpha1"
        return self.named("SharedVolume", name, version=group, **{"spec": spec, **more})


def _pod_spec() -> dict[str, Any]:
    return {"containers": [{"name": "main", "image": "registry.example.com/main:1"}]}


Attack = Callable[[Tenant], Awaitable[None]]


async def older_drivers(tenant: Tenant) -> None:
    """Workloads, pods and accounts with the names and labels of older drivers."""
    community = {COMMUNITY_LABEL: "true"}
    daemon_sets = [
        tenant.workload("DaemonSet", one, {"app": one}, labels=community) for one in OLDER_DAEMON_SETS
    ]
    deployments = [
        tenant.workload("Deployment", one, {"app": OLDER_DAEMON_SETS[index % 2]}, labels=community)
        for index, one in enumerate(OLDER_DEPLOYMENTS)
    ]
    pods = [
        tenant.pod(f"{one}-{node}", node=node, host_network=True, labels={"app": one, **community})
        for one in OLDER_DAEMON_SETS
        for node in (tenant.targets.node, "second")
    ]
    accounts = (
        "efs-csi-sa",
        "efs-csi-node-sa",
        "aws-efs-csi-driver-node-sa",
        "aws-efs-csi-driver-controller-sa",
    )
    await tenant.create(
        *daemon_sets,
        *deployments,
        *pods,
        *(tenant.named("ServiceAccount", one, labels=community) for one in accounts),
        *_bindings(tenant, ("edit-efs-manager", "aws-efs-csi-driver-lease-leader-election"), accounts[2]),
    )


async def our_names(tenant: Tenant) -> None:
    """Objects of every kind that a namespace can have, with the names and labels of kube-efs."""
    await tenant.create(
        tenant.workload("DaemonSet", "efs-stunnel", {"component": "efs-stunnel"}, labels=OUR_LABELS),
        tenant.workload("DaemonSet", "efs-csi-node", {"component": "efs-csi-node"}, labels=OUR_LABELS),
        tenant.workload("Deployment", "efs-manager", {"component": "efs-manager"}, labels=OUR_LABELS),
        tenant.workload(
            "Deployment", "kube-efs-operator", {"component": "kube-efs-operator"}, labels=OUR_LABELS
        ),
        *(
            tenant.pod(
                f"efs-worker-{number}",
                node=tenant.targets.node,
                labels={"component": "efs-worker", **OUR_LABELS},
            )
            for number in range(3)
        ),
        *(
            tenant.named("ServiceAccount", one, labels=OUR_LABELS)
            for one in ("efs-manager", "efs-stunnel", "efs-worker", "efs-csi-node", "kube-efs-operator")
        ),
        *(
            tenant.named(
                "ConfigMap",
                one,
                labels={**OUR_LABELS, "component": "efs-stunnel"},
                data={"tunnels": "[]", "ca-bundle.crt": "x"},
            )
            for one in (
                "efs-stunnel",
                "efs-stunnel-status-first",
                "efs-usage",
                "aws-efs-csi-driver-trusted-ca-bundle",
            )
        ),
        tenant.named(
            "Secret", "aws-efs-cloud-credentials", labels=OUR_LABELS, stringData={"aws_access_key_id": "x"}
        ),
        tenant.named("Secret", "aws-efs-csi-driver-controller-metrics-serving-cert", labels=OUR_LABELS),
        tenant.named(
            "Service",
            "aws-efs-csi-driver-controller-metrics",
            labels=OUR_LABELS,
            spec={"selector": {"component": "efs-manager"}, "ports": [{"port": 9815}]},
        ),
        *_leases(tenant),
        *_bindings(
            tenant,
            ("kube-efs-controller", "kube-efs-tunnel", "kube-efs-node", "kube-efs-operator"),
            "efs-manager",
        ),
    )


def _leases(tenant: Tenant) -> Iterable[Manifest]:
    spec = {"holderIdentity": "tenant", "leaseDurationSeconds": 3600, "leaseTransitions": 9}
    for name in ("kube-efs-operator", "kube-efs-controller"):
        yield tenant.named("Lease", name, version="coordination.k8s.io/v1", labels=OUR_LABELS, spec=spec)


def _bindings(tenant: Tenant, names: Iterable[str], account: str) -> Iterable[Manifest]:
    group = "rbac.authorization.k8s.io"
    for name in names:
        rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
        yield tenant.named("Role", name, version=f"{group}/v1", labels=OUR_LABELS, rules=rules)
        subject = {"kind": "ServiceAccount", "name": account, "namespace": "storage"}
        role = {"apiGroup": group, "kind": "Role", "name": name}
        yield tenant.named(
            "RoleBinding", name, version=f"{group}/v1", labels=OUR_LABELS, subjects=[subject], roleRef=role
        )


async def finalizers(tenant: Tenant) -> None:
    """Deleted objects that stay: also with finalizers that kube-efs removes from its own objects."""
    of_volumes = "external-provisioner.volume.kubernetes.io/finalizer"
    ours = [UNINSTALL, of_volumes, "example.com/never"]
    kept = (
        tenant.claim("kept", finalizers=ours),
        tenant.shared_volume("kept", finalizers=[SHARED_VOLUME, *ours]),
        tenant.pod(
            "kept", node=tenant.targets.node, claims=["kept"], finalizers=ours, labels={"app": "efs-csi-node"}
        ),
        tenant.workload("DaemonSet", "efs-csi-node", {"app": "efs-csi-node"}, finalizers=ours),
        tenant.named("ConfigMap", "efs-stunnel", finalizers=ours, data={}),
    )
    await tenant.create(*kept)
    for one in kept:
        await tenant.kubectl(
            "delete", one["kind"], one["metadata"]["name"], "-n", tenant.namespace, "--wait=false"
        )


async def owner_references(tenant: Tenant) -> None:
    """Objects whose owners are objects of the cluster or of the namespace of kube-efs."""
    owners = [_owner(one) for one in (tenant.targets.driver, tenant.targets.daemon_set)]
    labels = {"component": "efs-stunnel", **OUR_LABELS}
    await tenant.create(
        tenant.pod("of-driver", labels=labels, ownerReferences=owners[:1]),
        tenant.pod("of-daemon-set", labels=labels, ownerReferences=[{**owners[1], "controller": True}]),
        tenant.claim("of-both", ownerReferences=owners),
        tenant.shared_volume("of-both", ownerReferences=owners),
        tenant.workload("Deployment", "efs-manager", labels, labels=labels, ownerReferences=owners),
    )
    blocking = {**owners[0], "blockOwnerDeletion": True}
    answer = await tenant.try_to_create(tenant.named("ConfigMap", "blocking", ownerReferences=[blocking]))
    assert "cannot set blockOwnerDeletion" in answer.errors


def _owner(found: Manifest) -> dict[str, Any]:
    metadata = found["metadata"]
    version = found.get("apiVersion") or {"DaemonSet": "apps/v1"}.get(
        found["kind"], "operator.openshift.io/v1"
    )
    return {"apiVersion": version, "kind": found["kind"], "name": metadata["name"], "uid": metadata["uid"]}


async def limits(tenant: Tenant) -> None:
    """A quota and limits that allow nothing. Only the administrator of the cluster can create them."""
    nothing = {"pods": "0", "persistentvolumeclaims": "1", "requests.storage": "1"}
    tiny = {"type": "PersistentVolumeClaim", "max": {"storage": "1"}, "min": {"storage": "1"}}
    both = (
        tenant.named("ResourceQuota", "nothing", spec={"hard": nothing}),
        tenant.named("LimitRange", "tiny", spec={"limits": [tiny]}),
    )
    assert (await tenant.try_to_create(*both)).errors.count("is forbidden") == len(both)
    for one in both:
        await tenant.administrator("create", "-f", "-", stdin=json.dumps(one))
    await tenant.create(tenant.shared_volume("limited"))
    assert "is forbidden" in (await tenant.try_to_create(tenant.claim("limited"))).errors


async def volumes_of_others(tenant: Tenant) -> None:
    """Claims that name the volume of the victim, and pods that seem to use them."""
    volume = tenant.targets.volume
    bound = {"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"}
    served = {
        "volume.kubernetes.io/storage-provisioner": "efs.csi.aws.com",
        "volume.kubernetes.io/selected-node": tenant.targets.node,
    }
    await tenant.create(
        tenant.claim("stolen", spec={"volumeName": volume}),
        tenant.claim("bound", spec={"volumeName": volume}, annotations=bound),
        tenant.claim("served", spec={"volumeName": volume}, annotations={**bound, **served}),
        tenant.claim("cloned", spec={"dataSource": {"kind": "PersistentVolumeClaim", "name": "served"}}),
        *(
            tenant.pod(f"with-{one}", node=node, claims=[one])
            for one, node in (("stolen", tenant.targets.node), ("bound", "second"), ("served", "nowhere"))
        ),
    )


async def other_administrators_objects(tenant: Tenant) -> None:
    """Objects that only an administrator of the cluster can create: each one is refused."""
    targets = tenant.targets
    csi = {"driver": "efs.csi.aws.com", "volumeHandle": f"{targets.file_system}::{targets.access_point}"}
    volume = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "csi": csi}
    refused: tuple[Manifest, ...] = (
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "mine"}, "spec": volume},
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "mine"},
            "provisioner": "efs.csi.aws.com",
        },
        {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "other"}, "spec": {}},
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "mine"}},
        {**targets.driver, "metadata": {"name": "efs.csi.aws.com"}},
        {
            **tenant.pod("intruder"),
            "metadata": {"name": "intruder", "namespace": targets.daemon_set["metadata"]["namespace"]},
        },
        {**tenant.claim("intruder"), "metadata": {"name": "intruder", "namespace": targets.namespace}},
    )
    for one in refused:
        answer = await tenant.try_to_create(one)
        assert "forbidden" in answer.errors.lower(), one["kind"]
    for arguments in (
        ("label", "namespace", tenant.namespace, "a=b"),
        ("label", "node", targets.node, "a=b"),
        ("delete", "clustercsidriver", "efs.csi.aws.com"),
        ("delete", "pv", targets.volume),
    ):
        assert "forbidden" in (await tenant.kubectl.run(*arguments)).errors.lower(), arguments


async def huge_objects(tenant: Tenant) -> None:
    """Objects near the limit of the API server, with the names and labels that kube-efs looks for."""
    await tenant.create(
        *(tenant.claim(f"huge-{number}", annotations=HUGE) for number in range(5)),
        *(tenant.shared_volume(f"huge-{number}", annotations=HUGE) for number in range(5)),
        *(
            tenant.pod(
                f"huge-{number}",
                node=tenant.targets.node,
                annotations=HUGE,
                labels={"app": "efs-csi-node"},
                claims=["huge-0"],
            )
            for number in range(5)
        ),
        tenant.workload("DaemonSet", "efs-csi-node", {"app": "efs-csi-node"}, annotations=HUGE),
        tenant.workload("Deployment", "aws-efs-operator", {"app": "efs-csi-node"}, annotations=HUGE),
    )


async def huge_claims(tenant: Tenant) -> None:
    """Claims as large as the API server accepts, and more of them than a page has."""
    values = [f"v{number:061}" for number in range(15_000)]
    selector = {"matchExpressions": [{"key": "k", "operator": "In", "values": values}]}
    await tenant.create(
        *(
            tenant.claim(
                f"huge-{number}", storage_class="other", spec={"selector": selector}, annotations=HUGE
            )
            for number in range(HUGE_CLAIMS)
        )
    )


async def unreadable_values(tenant: Tenant) -> None:
    """Times that other programs cannot read, and owners of fields thousands of levels deep."""
    times = ("0000-01-01T00:00:00Z", "0000-01-01T00:00:00+10:00", "9999-12-31T23:59:59-10:00")
    objects = (
        tenant.claim("strange"),
        tenant.shared_volume("strange"),
        tenant.pod("strange", labels={"app": "efs-csi-node"}, node=tenant.targets.node, claims=["strange"]),
        tenant.workload("DaemonSet", "efs-csi-node", {"app": "strange"}),
        tenant.named("ConfigMap", "efs-stunnel", data={}),
    )
    await tenant.create(*objects)
    for one in objects:
        # For custom resources, the API server ignores owners with times outside of the years 0 to 9999.
        await _replace_owners(tenant, one, times[:1] if one["kind"] == "SharedVolume" else times)
    for number, time in enumerate(times):
        subject = {"kind": "PersistentVolumeClaim", "namespace": tenant.namespace, "name": "strange"}
        event: dict[str, Any] = {"involvedObject": subject, "type": "Warning", "reason": "Strange"}
        await tenant.create(tenant.named("Event", f"strange-{number}", lastTimestamp=time, **event))


async def _replace_owners(tenant: Tenant, found: Manifest, times: Sequence[str]) -> None:
    kind, name, namespace = found["kind"], found["metadata"]["name"], tenant.namespace
    entries = [
        {
            "manager": f"tenant-{number}",
            "operation": "Update",
            "apiVersion": found["apiVersion"],
            "time": time,
            "fieldsType": "FieldsV1",
            "fieldsV1": "deep",
        }
        for number, time in enumerate(times)
    ]
    deep = '{"f:metadata":' * DEPTH + "{}" + "}" * DEPTH
    text = json.dumps({"metadata": {"managedFields": entries}}).replace('"deep"', deep)
    await tenant.kubectl("patch", kind, name, "-n", namespace, "--type=merge", "-p", text)
    stored = await tenant.kubectl("get", kind, name, "-n", namespace, "-o", "json", "--show-managed-fields")
    assert stored.count('"f:metadata"') == DEPTH * len(entries), kind


async def shared_volumes(tenant: Tenant) -> None:
    """SharedVolumes with names and specifications at the edges, and with the volume of another one."""
    spec = {"fileSystemID": "fs-0", "accessPointID": "fsap-0"}
    await tenant.create(
        # The volume of this one would have the name of the volume of the victim's "names-data".
        tenant.shared_volume("data"),
        tenant.shared_volume(".".join(["a" * 62] * 4)),
        tenant.shared_volume("0"),
        tenant.shared_volume("strange", spec=spec),
        tenant.shared_volume("long", spec={**spec, "accessPointID": "fsap-" + "0" * 5000}),
        tenant.shared_volume("marked", labels=OUR_LABELS, finalizers=[SHARED_VOLUME]),
        tenant.claim("pvc-taken", spec={"volumeName": tenant.targets.volume}),
        tenant.shared_volume("taken"),
    )
    await tenant.kubectl("delete", "sharedvolume", "strange", "-n", tenant.namespace, "--wait=false")
    answer = await tenant.try_to_create({**tenant.shared_volume("empty"), "spec": {}})
    assert "Required value" in answer.errors


async def disruption_budgets(tenant: Tenant) -> None:
    """Budgets that allow no eviction, and policies that allow no connection, for all pods."""
    await tenant.create(
        tenant.named(
            "PodDisruptionBudget",
            "everything",
            version="policy/v1",
            spec={"selector": {}, "maxUnavailable": 0},
        ),
        tenant.named(
            "NetworkPolicy",
            "nothing",
            version="networking.k8s.io/v1",
            spec={"podSelector": {}, "policyTypes": ["Ingress", "Egress"]},
        ),
        tenant.pod("covered", node=tenant.targets.node, labels={"app": "efs-csi-node"}),
    )


async def floods(tenant: Tenant) -> None:
    """Many claims that cannot be served, each for one of several reasons."""
    reasons: tuple[Mapping[str, Any], ...] = (
        {"storageClassName": "efs-stunnel", "selector": {"matchLabels": {"file_system_id": "fs-00000000"}}},
        {"storageClassName": "efs-stunnel", "selector": {"matchLabels": {"file_system_id": "no-id"}}},
        {"storageClassName": "unknown-file-system"},
        {"volumeMode": "Block"},
        {"selector": {"matchLabels": {"file_system_id": "fs-00000000"}}},
    )
    claims = [tenant.claim(f"flood-{number}", spec=reasons[number % len(reasons)]) for number in range(FLOOD)]
    await tenant.create(*claims)
    await tenant.create(*(tenant.shared_volume(f"flood-{number}") for number in range(FLOOD // 5)))


ATTACKS: Final[tuple[Attack, ...]] = (
    older_drivers,
    our_names,
    finalizers,
    owner_references,
    limits,
    volumes_of_others,
    other_administrators_objects,
    huge_objects,
    huge_claims,
    unreadable_values,
    shared_volumes,
    disruption_budgets,
    floods,
)


def impersonating(admin: Path, user: str, folder: Path) -> Path:
    """A kubeconfig of the administrator that acts as this user, with only the permissions of the user."""
    config = yaml.safe_load(admin.read_text())
    config["users"][0]["user"]["as"] = user
    kubeconfig = folder / f"{user}.kubeconfig"
    kubeconfig.touch(mode=0o600)
    kubeconfig.write_text(yaml.safe_dump(config))
    return kubeconfig
