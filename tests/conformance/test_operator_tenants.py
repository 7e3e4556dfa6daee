"""The administrator of one namespace cannot disturb the operator, the controller or other namespaces.

The operator, and the controller with the permissions that the operator has granted to it, run on a real API
server, while a tenant creates everything that RBAC allows. After each attack, a new claim of another
namespace is served, a change of an object of the operator is reverted, and all objects outside the namespace
of the tenant are the same as before.
"""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from lightkube.resources.core_v1 import PersistentVolume
from tests.conformance.kubectl import Kubectl
from tests.conformance.tenants import ATTACKS, Attack, Targets, Tenant, impersonating
from tests.scenarios.csi_steps import new_class
from tests.scenarios.forking import fork_module
from tests.scenarios.operator_steps import (
    DRIVER,
    NAMESPACE,
    NODES,
    RESYNC_SECONDS,
    OperatorCluster,
    running_operator,
)
from tests.scenarios.steps import bound_volume, eventually

from fake_efs.service import EmbeddedEfs
from kube_efs.operator.cluster_csi_driver import FORCE_UNINSTALL
from kube_efs.operator.kinds import ClusterCSIDriver
from kube_efs_lab.program import Program
from kube_efs_lab.real_control_plane import ControlPlanes, ServiceAccountName
from kube_efs_lab.real_plane import RealPlane

pytestmark = pytest.mark.asyncio(loop_scope="session")

USER: Final = "mallory"
VICTIM: Final = "team"
# Their content is not a state of the cluster: they report it, or renew themselves.
_IGNORED_KINDS: Final = frozenset(
    {"events", "events.events.k8s.io", "leases.coordination.k8s.io", "componentstatuses"}
)
_INHERITED: Final = ("HOME", "LANG", "PATH", "PYTHONPATH", "TMPDIR")
_DRIFT: Final = json.dumps({"rules": []})

Snapshot = Mapping[tuple[str, str, str], Mapping[str, Any]]


@dataclass(slots=True)
class AttackedCluster:
    """The cluster with the driver, the running controller, a victim, and a tenant for each attack."""

    cluster: OperatorCluster
    controller: Program
    targets: Targets
    folder: Path
    tenants: set[str] = field(default_factory=set)
    _served: int = 0

    async def tenant(self, name: str) -> Tenant:
        """A tenant with a new namespace."""
        namespace = f"{VICTIM}-{name}"
        administrator = self.cluster.kubectl
        await administrator("create", "namespace", namespace)
        await administrator(
            "create", "rolebinding", "admin", "-n", namespace, "--clusterrole=admin", f"--user={USER}"
        )
        self.tenants.add(namespace)
        kubeconfig = impersonating(administrator.kubeconfig, USER, self.folder)
        tenant = Tenant(Kubectl(kubeconfig), administrator, namespace, self.targets)

        async def is_admin() -> bool:
            verbs = (("create", "pods"), ("create", "sharedvolumes.aws-efs.managed.openshift.io"))
            answers = [await tenant.kubectl.run("auth", "can-i", *one, "-n", namespace) for one in verbs]
            return all(one.status == 0 for one in answers)

        await eventually(is_admin, what=f"{USER} administers {namespace}")
        return tenant

    async def snapshot(self) -> Snapshot:
        """All objects outside the namespaces of tenants, without their status and versions.

        The volumes of claims of tenants, and the addresses of their services, are objects of tenants.
        """
        listed = await self.cluster.kubectl("api-resources", "--verbs=list,get", "-o", "name")
        kinds = sorted(set(listed.split()) - _IGNORED_KINDS)
        found = json.loads(await self.cluster.kubectl("get", ",".join(kinds), "-A", "-o", "json"))
        return {
            (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]): _content(one)
            for one in found["items"]
            if not self._is_left_out(one)
        }

    def _is_left_out(self, found: Mapping[str, Any]) -> bool:
        """Whether it belongs to a tenant, or to a worker pod, which the controller creates as needed."""
        metadata, spec = found["metadata"], found.get("spec") or {}
        parent = {**(spec.get("claimRef") or {}), **(spec.get("parentRef") or {})}.get("namespace")
        if found["kind"] == "PersistentVolume" and parent == NAMESPACE:
            return True
        namespace = metadata["name"] if found["kind"] == "Namespace" else metadata.get("namespace")
        is_worker = (metadata.get("labels") or {}).get("component") == "efs-worker"
        return is_worker or bool({namespace, parent} & self.tenants)

    async def serve_claim(self) -> None:
        """A new claim of the victim gets its volume, within the usual deadline; then it is deleted."""
        self._served += 1
        name = f"fresh-{self._served}"
        await self.cluster.create(_claim(name, self.targets.storage_class))
        volume = await bound_volume(self.cluster.client, VICTIM, name)
        await self.cluster.kubectl("delete", "pvc", name, "-n", VICTIM)

        async def is_deleted() -> bool:
            return (await self.cluster.kubectl.run("get", "pv", volume.name)).status != 0

        await eventually(is_deleted, what=f"volume {volume.name} is deleted")

    async def repair_drift(self) -> None:
        """The operator reverts a change of one of its objects, within the usual deadline."""
        await self.cluster.kubectl("patch", "clusterrole", "kube-efs-node", "--type=merge", "-p", _DRIFT)
        await self.cluster.becomes("ClusterRole", "kube-efs-node", lambda found: found.get("rules"), "")

    async def works(self) -> None:
        """The operator and the controller do their work, and report no failure."""
        await asyncio.gather(self.serve_claim(), self.repair_drift())
        await self.cluster.condition("Available", status=True)
        await self.cluster.condition("Degraded", status=False)
        await self.cluster.condition("OlderDriverInUse", status=False)

    async def failures(self) -> list[str]:
        """The lines of the logs about passes that failed, and about errors in the programs."""
        texts = [
            await asyncio.to_thread(one.log_file.read_text)
            for one in (self.cluster.operator, self.controller)
        ]
        marks = ("reconcile-failed", "duty-failed", "Traceback", '"level": "error"')
        return [line for text in texts for line in text.splitlines() if any(mark in line for mark in marks)]


def _content(found: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = {
        name: value
        for name, value in found["metadata"].items()
        if name not in {"managedFields", "resourceVersion"}
    }
    return {**{name: value for name, value in found.items() if name != "status"}, "metadata": metadata}


def _claim(name: str, storage_class: str) -> str:
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": VICTIM},
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "resources": {"requests": {"storage": "1Gi"}},
                "storageClassName": storage_class,
            },
        }
    )


# OLM creates such a role for each kind of a bundle.
_MAY_SHARE: Final = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {
        "name": "sharedvolumes.aws-efs.managed.openshift.io-v1alpha1-admin",
        "labels": {"rbac.authorization.k8s.io/aggregate-to-admin": "true"},
    },
    "rules": [
        {"apiGroups": ["aws-efs.managed.openshift.io"], "resources": ["sharedvolumes"], "verbs": ["*"]}
    ],
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def attacked(
    control_planes: ControlPlanes, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[AttackedCluster, None]:
    folder = tmp_path_factory.mktemp("attacked")
    plane = RealPlane(control_planes)
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(running_operator(plane, folder))
        efs = await stack.enter_async_context(EmbeddedEfs(folder / "efs", starter=fork_module))
        file_system = await efs.create_file_system("first")
        await cluster.ask(managementState="Managed")
        await cluster.condition("Available", status=True)
        await cluster.create(json.dumps(_MAY_SHARE))
        controller = await _start_controller(cluster, plane, efs, folder)
        stack.push_async_callback(controller.stop)
        yield AttackedCluster(cluster, controller, await _victim(cluster, file_system), folder)


async def _start_controller(
    cluster: OperatorCluster, plane: RealPlane, efs: EmbeddedEfs, folder: Path
) -> Program:
    """The controller with the variables of the installed Deployment, and with the account of its pods."""
    deployment = await cluster.get("Deployment", "efs-manager")
    assert deployment
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    account = ServiceAccountName(NAMESPACE, deployment["spec"]["template"]["spec"]["serviceAccountName"])
    environment = {
        **{name: os.environ[name] for name in _INHERITED if name in os.environ},
        **{one["name"]: one["value"] for one in container["env"] if "value" in one},
        **efs.environment(),
        "KUBECONFIG": str(await plane.plane.kubeconfig(account, node=NODES[0])),
        "NODE_NAME": NODES[0],
        "POD_NAME": "efs-manager-0",
        "POD_NAMESPACE": NAMESPACE,
        "KUBE_EFS_HEALTH_HOST": "127.0.0.1",
        "KUBE_EFS_HEALTH_PORT": "0",
    }
    controller = Program("controller", environment, folder / "controller.log", starter=fork_module)
    await controller.start()
    await controller.ready()
    return controller


async def _victim(cluster: OperatorCluster, file_system: str) -> Targets:
    """A namespace with a claim that a pod uses, and with a SharedVolume."""
    parameters = {"fileSystemId": file_system}
    storage_class = await new_class(cluster.client, parameters=parameters)
    await cluster.create(json.dumps(_class_of_unknown()))
    await cluster.kubectl("create", "namespace", VICTIM)
    await cluster.create(_claim("data", storage_class))
    volume = await bound_volume(cluster.client, VICTIM, "data")
    source = (await cluster.client.get(PersistentVolume, volume.name)).to_dict()["spec"]["csi"]
    access_point = source["volumeHandle"].rpartition(":")[2]
    await cluster.create(json.dumps(_pod_of_victim()))
    await cluster.kubectl("wait", "pod/web", "-n", VICTIM, "--for=condition=Ready", "--timeout=60s")
    shared = {
        "apiVersion": "aws-efs.managed.openshift.io/v1alpha1",
        "kind": "SharedVolume",
        # Its volume has the name that the volume of another namespace's SharedVolume would have.
        "metadata": {"name": "shared-volumes-data", "namespace": VICTIM},
        "spec": {"fileSystemID": file_system, "accessPointID": access_point},
    }
    await cluster.create(json.dumps(shared))
    await bound_volume(cluster.client, VICTIM, "pvc-shared-volumes-data")
    driver, daemon_set = await cluster.driver(), await cluster.get("DaemonSet", "efs-csi-node")
    assert driver
    assert daemon_set
    return Targets(
        namespace=VICTIM,
        driver=driver,
        daemon_set=daemon_set,
        volume=volume.name,
        access_point=access_point,
        file_system=file_system,
        storage_class=storage_class,
        node=NODES[0],
    )


def _class_of_unknown() -> Mapping[str, Any]:
    parameters = {"provisioningMode": "efs-ap", "directoryPerms": "700", "fileSystemId": "fs-00000000"}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "unknown-file-system"},
        "provisioner": DRIVER,
        "parameters": parameters,
    }


def _pod_of_victim() -> Mapping[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": VICTIM},
        "spec": {
            "nodeName": NODES[0],
            "containers": [{"name": "main", "image": "registry.example.com/web:1"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        },
    }


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
async def test_tenant_changes_nothing_of_others_and_stalls_nothing(
    attacked: AttackedCluster, attack: Attack
) -> None:
    tenant = await attacked.tenant(attack.__name__.replace("_", "-"))
    before = await attacked.snapshot()
    await attack(tenant)
    await attacked.works()
    await asyncio.sleep(2 * RESYNC_SECONDS)  # to see that the passes that look for older drivers do nothing
    await attacked.works()
    assert await attacked.snapshot() == before
    assert await attacked.failures() == []


async def test_only_pods_with_a_volume_of_the_driver_delay_its_removal(attacked: AttackedCluster) -> None:
    cluster = attacked.cluster
    await cluster.kubectl("delete", "pod", "web", "-n", VICTIM, "--now")
    before = await attacked.snapshot()
    await cluster.client.delete(ClusterCSIDriver, DRIVER)
    message = await cluster.condition("VolumesInUse", status=True)
    # The pod of the first tenant uses its own volume. Those of the other only name the volume of the victim.
    assert f"{VICTIM}-finalizers/kept" in message
    assert f"{VICTIM}-volumes-of-others/" not in message
    await cluster.annotate(**{FORCE_UNINSTALL: "true"})
    await cluster.withdraw()
    assert await cluster.get("DaemonSet", "efs-csi-node") is None
    await cluster.ask(managementState="Managed")
    await cluster.condition("Available", status=True)
    after = await attacked.snapshot()
    kept = {key: one for key, one in before.items() if key[1] == VICTIM or key[0] == "PersistentVolume"}
    assert {key: after.get(key) for key in kept} == kept
    # The account of the running controller is another one now, so only the operator is asked.
    await attacked.repair_drift()
    await cluster.condition("Degraded", status=False)
