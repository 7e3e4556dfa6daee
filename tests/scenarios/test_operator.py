"""The operator on a control plane: it installs, restores, takes over and removes the driver."""

import asyncio
import json
import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path

import pytest
import pytest_asyncio
import yaml
from lightkube.core.resource import NamespacedResource, Resource
from lightkube.resources.apps_v1 import DaemonSet
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Pod
from tests.prometheus import running_prometheus
from tests.scenarios.faulty_api import Call, Fault, answering, no_fault
from tests.scenarios.operator_steps import (
    DRIVER,
    IMAGE,
    NAMESPACE,
    RESYNC_SECONDS,
    OperatorCluster,
    other_operator,
    running_operator,
)
from tests.scenarios.steps import metric

from kube_efs.kube.watching import Applied, Listed, follow
from kube_efs.model.names import NEW_INSTALLATION
from kube_efs.operator.cluster_csi_driver import FORCE_TAKEOVER, FORCE_UNINSTALL, OPERATOR_NAMESPACE
from kube_efs.operator.cluster_facts import CREDENTIALS_SECRET
from kube_efs.operator.injection import dependency_key
from kube_efs.operator.installer import RESTARTED
from kube_efs.operator.kinds import ClusterCSIDriver
from kube_efs.operator.manifests import Manifest
from kube_efs.operator.object_client import manifest_of
from kube_efs_lab.control_plane import ControlPlane

pytestmark = pytest.mark.asyncio(loop_scope="session")

OPENSHIFT_EFS_STUNNEL = Path(__file__).parents[1] / "conformance" / "openshift-efs-stunnel.yaml"
WORKLOADS = (("DaemonSet", "efs-stunnel"), ("DaemonSet", "efs-csi-node"), ("Deployment", "efs-manager"))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(plane: ControlPlane, cluster_folder: Path) -> AsyncGenerator[OperatorCluster, None]:
    async with running_operator(plane, cluster_folder) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def cluster(shared: OperatorCluster) -> AsyncGenerator[OperatorCluster, None]:
    """The cluster without a driver. The driver that a test installs is removed after it."""
    if await shared.driver():
        await shared.withdraw()
    yield shared
    await _remove(shared)


@pytest_asyncio.fixture(loop_scope="session")
async def installed(shared: OperatorCluster) -> OperatorCluster:
    """The cluster with the driver. A test leaves it installed for the next one."""
    await _install(shared)
    return shared


@pytest_asyncio.fixture(loop_scope="session")
async def disposable(installed: OperatorCluster) -> AsyncGenerator[OperatorCluster, None]:
    """The same for a test after which the driver is removed."""
    yield installed
    await _remove(installed)


async def _install(cluster: OperatorCluster) -> None:
    await cluster.ask(managementState="Managed")
    await cluster.until(lambda: _observes(cluster), "the operator has read the specification")
    await cluster.condition("Available", status=True)
    await cluster.condition("Progressing", status=False)


async def _remove(cluster: OperatorCluster) -> None:
    cluster.nodes.broken.clear()
    cluster.nodes.recheck()
    await cluster.ask(managementState="Managed")
    await cluster.withdraw()


async def _observes(cluster: OperatorCluster) -> bool:
    driver = await cluster.driver()
    status = (driver or {}).get("status") or {}
    return bool(driver and status.get("observedGeneration") == driver["metadata"]["generation"])


async def test_nothing_is_installed_without_a_clustercsidriver(cluster: OperatorCluster) -> None:
    await cluster.until(lambda: cluster.events("DriverNotRequested"), "the reminder is written")
    assert await cluster.get("CSIDriver", DRIVER, "") is None
    assert await metric(cluster.operator, "kube_efs_operator_driver_requested") == 0


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus (Debian: prometheus) is missing")
async def test_alerts_fire_for_a_missing_and_for_a_degraded_driver(
    cluster: OperatorCluster, tmp_path: Path
) -> None:
    operator = {"operator": cluster.operator}
    async with running_prometheus(tmp_path, operator, namespace=NAMESPACE) as prometheus:

        async def firing(*names: str) -> None:
            async def look() -> bool:
                return await prometheus.firing() == set(names)

            await cluster.until(look, f"the alerts that fire are {names}")

        await firing("EFSCSIDriverNotRequested")
        await _install(cluster)
        await firing()
        await cluster.ask(managementState="Force")
        await firing("EFSCSIDriverDegraded")
        await cluster.ask(managementState="Unmanaged")
        await firing()


async def test_driver_is_installed_and_reported_as_available(cluster: OperatorCluster) -> None:
    await _install(cluster)
    await cluster.kubectl("wait", "clustercsidriver", DRIVER, "--for=condition=Available", "--timeout=20s")
    for kind, name in WORKLOADS:
        assert await cluster.get(kind, name)
    assert await cluster.get("CSIDriver", DRIVER, "")
    driver = await cluster.driver()
    assert driver
    status = driver["status"]
    assert status["observedGeneration"] == driver["metadata"]["generation"]
    assert status["version"] == version("kube-efs")
    assert {one["name"] for one in status["generations"]} == {name for _, name in WORKLOADS}
    types = {one["type"]: one["status"] for one in status["conditions"]}
    assert types["AWSEFSDriverNodeServiceControllerAvailable"] == "True"
    assert await cluster.condition("Degraded", status=False) == ""
    assert types["CSIStaticResourceControllerDegraded"] == "False"
    assert "AWSEFSDriverCredentialsRequestControllerDegraded" not in types
    assert await metric(cluster.operator, "kube_efs_operator_driver_requested") == 1


async def test_lease_survives_an_api_server_that_is_away_for_a_minute(installed: OperatorCluster) -> None:
    lease = await installed.client.get(Lease, "kube-efs-operator", namespace=NAMESPACE)
    assert lease.spec
    assert lease.spec.leaseDurationSeconds == 137


async def test_empty_specification_counts_as_managed(cluster: OperatorCluster) -> None:
    await cluster.ask()
    await cluster.condition("Available", status=True)
    message = await cluster.condition("ManagementStateDegraded", status=False)
    assert message == "managementState is not set, which counts as Managed"


async def test_idle_operator_writes_nothing_and_keeps_objects_of_others(
    installed: OperatorCluster,
) -> None:
    # docs/usage.md creates this role where there is no operator.
    metadata = {"name": "kube-efs-observing", "namespace": NAMESPACE}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": []}
    await installed.create(yaml.safe_dump(role))
    await installed.until(lambda: _rests(installed), "the operator has nothing left to write")
    assert await installed.get("Role", "kube-efs-observing")
    await installed.kubectl("delete", "role", "kube-efs-observing", "-n", NAMESPACE)


async def _rests(cluster: OperatorCluster) -> bool:
    """Whether nobody writes to the resource and the workloads during two passes."""
    before = await _versions(cluster)
    await asyncio.sleep(2 * RESYNC_SECONDS)  # as long as the passes take
    return await _versions(cluster) == before


async def _versions(cluster: OperatorCluster) -> dict[str, object]:
    found = {f"{kind} {name}": await cluster.get(kind, name) for kind, name in WORKLOADS}
    found["driver"] = await cluster.driver()
    return {name: one and one["metadata"]["resourceVersion"] for name, one in found.items()}


@pytest.mark.parametrize(
    ("kind", "name", "patch"),
    [
        pytest.param(
            "Deployment",
            "efs-manager",
            {"containers": [{"name": "efs-manager", "image": "registry.example.com/other:1"}]},
            id="another image",
        ),
        pytest.param(
            "DaemonSet",
            "efs-csi-node",
            {"containers": [{"name": "intruder", "image": "registry.example.com/intruder:1"}]},
            id="further container",
        ),
        pytest.param(
            "DaemonSet", "efs-stunnel", {"nodeSelector": {"disk": "fast"}}, id="further node selector"
        ),
    ],
)
async def test_edited_workloads_are_restored(
    installed: OperatorCluster, kind: str, name: str, patch: dict[str, object]
) -> None:
    before = await installed.get(kind, name)
    assert before
    body = json.dumps({"spec": {"template": {"spec": patch}}})
    await installed.kubectl("patch", kind, name, "-n", NAMESPACE, "--type=strategic", "-p", body)
    wanted = before["spec"]["template"]["spec"]
    after = await installed.becomes(kind, name, lambda found: found["spec"]["template"]["spec"] == wanted)
    assert after["metadata"]["generation"] > before["metadata"]["generation"]


async def test_deleted_and_edited_objects_are_restored(installed: OperatorCluster) -> None:
    await installed.kubectl("delete", "serviceaccount", "efs-csi-node", "-n", NAMESPACE)
    await installed.kubectl("delete", "csidriver", DRIVER)
    await installed.kubectl("label", "clusterrole", "kube-efs-node", "app.kubernetes.io/managed-by-")
    rules = json.dumps({"rules": []})
    await installed.kubectl("patch", "clusterrole", "kube-efs-controller", "--type=merge", "-p", rules)
    await installed.becomes("ServiceAccount", "efs-csi-node", bool)
    await installed.becomes("CSIDriver", DRIVER, bool, "")
    await installed.becomes("ClusterRole", "kube-efs-controller", lambda found: found.get("rules"), "")
    label = "app.kubernetes.io/managed-by"
    await installed.becomes(
        "ClusterRole", "kube-efs-node", lambda found: label in found["metadata"]["labels"], ""
    )
    await installed.until(lambda: installed.events("CSIDriverCreated"), "the event is written")


async def test_csidriver_with_another_immutable_field_is_recreated(cluster: OperatorCluster) -> None:
    other = {"metadata": {"name": DRIVER}, "spec": {"attachRequired": True}}
    await cluster.create(yaml.safe_dump({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", **other}))
    await _install(cluster)
    found = await cluster.get("CSIDriver", DRIVER, "")
    assert found
    assert found["spec"]["attachRequired"] is False


async def test_rollout_restart_is_kept(installed: OperatorCluster) -> None:
    await installed.kubectl("rollout", "restart", "daemonset", "efs-csi-node", "-n", NAMESPACE)
    await asyncio.sleep(RESYNC_SECONDS)  # to see that it stays
    found = await installed.get("DaemonSet", "efs-csi-node")
    assert found
    assert RESTARTED in found["spec"]["template"]["metadata"]["annotations"]


async def test_unmanaged_driver_is_not_changed(installed: OperatorCluster) -> None:
    await installed.ask(managementState="Unmanaged")
    await installed.until(lambda: _observes(installed), "the operator has read the change")
    await installed.kubectl("delete", "deployment", "efs-manager", "-n", NAMESPACE)
    await asyncio.sleep(RESYNC_SECONDS)  # to see that nothing happens
    assert await installed.get("Deployment", "efs-manager") is None
    await installed.ask(managementState="Managed")
    await installed.becomes("Deployment", "efs-manager", bool)


async def test_unmanaged_driver_stays_when_its_resource_is_deleted(disposable: OperatorCluster) -> None:
    await disposable.ask(managementState="Unmanaged")
    await disposable.withdraw()
    for kind, name in WORKLOADS:
        assert await disposable.get(kind, name)


async def test_removed_driver_leaves_only_objects_that_volumes_refer_to(installed: OperatorCluster) -> None:
    await installed.ask(managementState="Removed")
    await installed.condition("Available", status=False, reason="Removed")
    for kind, name in WORKLOADS:
        assert await installed.get(kind, name) is None
    assert await installed.get("CSIDriver", DRIVER, "") is None
    assert await installed.get("ClusterRole", "kube-efs-node", "") is None
    assert await installed.get("StorageClass", "efs-stunnel", "")
    await installed.ask(managementState="Managed")
    await installed.condition("Available", status=True)


async def test_unsupported_management_state_is_reported(installed: OperatorCluster) -> None:
    await installed.ask(managementState="Force")
    message = await installed.condition("ManagementStateDegraded", status=True, reason="Unknown")
    assert message == "managementState 'Force' is not supported; use Managed, Unmanaged or Removed"


async def test_nothing_is_removed_while_a_pod_uses_a_volume(disposable: OperatorCluster) -> None:
    async with _using_volume(disposable):
        await disposable.client.delete(ClusterCSIDriver, DRIVER)
        message = await disposable.condition("VolumesInUse", status=True)
        assert message.startswith("pods use volumes of the driver: default/web; end them, or set")
        for kind, name in WORKLOADS:
            assert await disposable.get(kind, name)
        await disposable.until(lambda: disposable.events("VolumesInUse"), "the event is written")
    await disposable.gone("DaemonSet", "efs-stunnel")
    await disposable.withdraw()


async def test_removal_can_be_forced(disposable: OperatorCluster) -> None:
    async with _using_volume(disposable):
        await disposable.ask(managementState="Removed")
        await disposable.condition("VolumesInUse", status=True)
        await disposable.annotate(**{FORCE_UNINSTALL: "true"})
        await disposable.condition("Available", status=False, reason="Removed")
        assert await disposable.kubectl("get", "pv", "in-use")
        assert await disposable.kubectl("get", "pvc", "data", "-n", "default")


@asynccontextmanager
async def _using_volume(cluster: OperatorCluster) -> AsyncGenerator[None, None]:
    text = await asyncio.to_thread(_read, "using-volume")
    await cluster.create(text)
    await cluster.kubectl("wait", "pod/web", "-n", "default", "--for=condition=Ready", "--timeout=60s")
    try:
        yield
    finally:
        await cluster.kubectl("delete", "-f", "-", stdin=text)


def _read(name: str) -> str:
    return Path(__file__).with_name(f"{name}.yaml").read_text()


async def test_driver_of_the_community_operator_is_taken_over_node_by_node(cluster: OperatorCluster) -> None:
    owner = await _community(cluster)
    await cluster.becomes("DaemonSet", "efs-csi-node", lambda one: one["status"]["numberReady"] == 2)
    async with _using_volume(cluster):
        await cluster.ask(managementState="Managed")
        message = await cluster.condition("Degraded", status=True, reason="OlderOperatorRuns")
        assert message.startswith("Deployment storage/aws-efs-operator still runs")
        found = await cluster.get("DaemonSet", "efs-csi-node")
        assert found
        assert found["spec"]["selector"] == {"matchLabels": {"app": "efs-csi-node"}}

        await cluster.kubectl("delete", "deployment", "aws-efs-operator", "-n", NAMESPACE)
        message = await cluster.condition("OlderDriverInUse", status=True, text="node first")
        assert message.startswith("node first keeps the older driver while default/web use its volumes")
        await cluster.until(lambda: _older_pods(cluster, {"first"}), "the second node has the new driver")
        for kind, name in (("CSIDriver", DRIVER), ("StorageClass", "efs-sc")):
            kept = await cluster.becomes(
                kind, name, lambda one: not one["metadata"].get("ownerReferences"), ""
            )
            assert "openshift.io/aws-efs-operator-owned" not in (kept["metadata"].get("labels") or {})
            # The older driver would refuse to mount volumes with tokens of pods.
            assert not kept.get("spec", {}).get("tokenRequests")
    await cluster.condition("OlderDriverInUse", status=False)
    await cluster.gone("ServiceAccount", "efs-csi-sa")
    await cluster.becomes("DaemonSet", "efs-csi-node", lambda one: one["status"]["numberReady"] == 2)
    assert await _older_pods(cluster, set())
    await cluster.becomes("CSIDriver", DRIVER, lambda one: one["spec"].get("requiresRepublish") is True, "")
    # The definition that owned these objects can be deleted now, and they stay.
    definition = await cluster.get("CustomResourceDefinition", owner, "")
    assert definition
    # kubectl would wait for its absence, but the operator creates it again at once.
    await cluster.kubectl("delete", "crd", owner, "--wait=false")
    uid = definition["metadata"]["uid"]
    await cluster.becomes("CustomResourceDefinition", owner, lambda one: one["metadata"]["uid"] != uid, "")
    assert await cluster.get("StorageClass", "efs-sc", "")
    await cluster.kubectl("delete", "storageclass", "efs-sc")


async def _community(cluster: OperatorCluster) -> str:
    """Create the objects of the community operator; returns the name of the definition that owns them."""
    await cluster.create(await asyncio.to_thread(_read, "shared-volume-crd"))
    name = "sharedvolumes.aws-efs.managed.openshift.io"
    uid = await cluster.kubectl("get", "crd", name, "-o", "jsonpath={.metadata.uid}")
    text = (await asyncio.to_thread(_read, "community-operator")).replace("{namespace}", NAMESPACE)
    await cluster.create(text.replace("{owner}", uid))
    return name


async def _older_pods(cluster: OperatorCluster, nodes: set[str]) -> bool:
    """Whether pods of an older driver are on these nodes, and on no others."""
    listing = cluster.client.list(Pod, namespace=NAMESPACE)
    older = {"efs-csi-node", "aws-efs-csi-driver-node"}
    found = [
        one.spec.nodeName
        async for one in listing
        if one.spec and one.metadata and (one.metadata.labels or {}).get("app") in older
    ]
    return set(found) == nodes


async def test_driver_of_the_supported_operator_is_taken_over_by_force(
    cluster: OperatorCluster,
) -> None:
    text = (await asyncio.to_thread(_read, "supported-operator")).replace("{namespace}", NAMESPACE)
    await cluster.create(text)
    await cluster.becomes(
        "DaemonSet", "aws-efs-csi-driver-node", lambda one: one["status"]["numberReady"] == 2
    )
    older = ("deployment", "aws-efs-csi-driver-controller", "-n", NAMESPACE)
    held = json.dumps({"metadata": {"finalizers": ["example.com/held"]}})
    await cluster.kubectl("patch", *older, "--type=merge", "-p", held)
    async with _using_volume(cluster):
        await cluster.ask(managementState="Managed")
        # Two controllers must not work at the same time, so the new one waits for the end of the older one.
        await cluster.condition(
            "AWSEFSDriverControllerServiceControllerProgressing",
            status=True,
            text="the pods of Deployment storage/aws-efs-csi-driver-controller are ending",
        )
        await cluster.condition("OlderDriverInUse", status=True, text="node first")
        assert await cluster.get("Deployment", "efs-manager") is None
        assert await cluster.get("DaemonSet", "efs-stunnel")
        await cluster.kubectl("patch", *older, "--type=merge", "-p", _NO_FINALIZERS)
        await cluster.annotate(**{FORCE_TAKEOVER: "true"})
        await cluster.condition("OlderDriverInUse", status=False)
        await cluster.condition("Available", status=True)
    for kind, name in (
        ("DaemonSet", "aws-efs-csi-driver-node"),
        ("Deployment", "aws-efs-csi-driver-controller"),
    ):
        assert await cluster.get(kind, name) is None
    assert await cluster.get("ClusterRole", "efs-privileged-role", "") is None


async def test_openshift_efs_stunnel_is_updated_in_place(cluster: OperatorCluster) -> None:
    text = await asyncio.to_thread(OPENSHIFT_EFS_STUNNEL.read_text)
    text = text.replace("openshift-efs-stunnel", NAMESPACE)
    accounts = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": NAMESPACE}}
        for name in ("efs-manager", "efs-stunnel")
    ]
    await cluster.create(yaml.safe_dump_all(accounts))
    await cluster.create(text)
    before = await cluster.becomes("DaemonSet", "efs-stunnel", lambda one: one["status"]["numberReady"] == 2)
    await _install(cluster)
    after = await cluster.get("DaemonSet", "efs-stunnel")
    assert after
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    (container,) = after["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"memory": "512Mi"}
    await cluster.gone("RoleBinding", "edit-efs-manager")


async def test_driver_of_the_chart_is_not_changed(cluster: OperatorCluster) -> None:
    text = (await asyncio.to_thread(_read, "community-operator")).replace("{namespace}", "default")
    (daemon_set,) = [one for one in yaml.safe_load_all(text) if one["kind"] == "DaemonSet"]
    del daemon_set["spec"]["template"]["spec"]["serviceAccountName"]
    daemon_set["metadata"] = {"name": "efs-csi-node", "namespace": "default"}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "efs-csi-node-binding"},
        "subjects": [{"kind": "ServiceAccount", "name": "account-for-irsa", "namespace": "default"}],
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "efs-csi-node-role",
        },
    }
    await cluster.create(yaml.safe_dump_all([daemon_set, binding]))
    await cluster.ask(managementState="Managed")
    message = await cluster.condition("Available", status=False, reason="OlderOperatorRuns")
    assert message == (
        "DaemonSet default/efs-csi-node of the AWS driver still exists;"
        " remove its release or add-on, its volumes are kept"
    )
    assert await cluster.get("CSIDriver", DRIVER, "") is None
    await cluster.kubectl("delete", "daemonset", "efs-csi-node", "-n", "default")
    await cluster.kubectl("delete", "clusterrolebinding", "efs-csi-node-binding")


async def test_nothing_is_installed_beside_another_installation(cluster: OperatorCluster) -> None:
    names = NEW_INSTALLATION.names
    metadata = {"labels": {"component": names.tunnel, "app.kubernetes.io/part-of": "kube-efs"}}
    tunnels = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {**metadata, "name": names.tunnel, "namespace": "default"},
        "spec": {
            "selector": {"matchLabels": {"component": names.tunnel}},
            "template": {
                "metadata": metadata,
                "spec": {
                    "containers": [{"name": names.tunnel, "image": "kube-efs"}],
                    "nodeSelector": {"no": "node"},
                },
            },
        },
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "kube-efs-tunnel:default"},
        "subjects": [{"kind": "ServiceAccount", "name": names.tunnel_account, "namespace": "default"}],
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "kube-efs-tunnel",
        },
    }

    async def has_seen_no_driver() -> bool:
        return await metric(cluster.operator, "kube_efs_operator_driver_requested") == 0

    # It does not look again for a resource that was replaced within milliseconds.
    await cluster.until(has_seen_no_driver, "the operator has seen that there is no driver")
    await cluster.create(yaml.safe_dump_all([tunnels, binding]))
    await cluster.ask(managementState="Managed")
    message = await cluster.condition("Available", status=False, reason="AnotherInstallation")
    assert message == (
        f"DaemonSet default/{names.tunnel} is of another installation of kube-efs, so the operator in "
        f"namespace {NAMESPACE} does nothing; install the operator in namespace default instead (kube-efs "
        "render --operator --namespace default), or end all pods that use volumes of the driver, and remove "
        "that installation"
    )
    assert await cluster.get("CSIDriver", DRIVER, "") is None
    # Without the binding, which only an administrator can create, it is an object of a tenant.
    await cluster.kubectl("delete", "clusterrolebinding", "kube-efs-tunnel:default")
    await cluster.condition("Available", status=True)
    # The own installation exists now, and continues beside any other one.
    await cluster.create(yaml.safe_dump(binding))
    await cluster.kubectl("delete", "serviceaccount", "efs-manager", "-n", NAMESPACE)
    await cluster.becomes("ServiceAccount", "efs-manager", bool)
    await cluster.kubectl("delete", "daemonset", names.tunnel, "-n", "default")
    await cluster.kubectl("delete", "clusterrolebinding", "kube-efs-tunnel:default")


async def test_objects_of_strangers_with_the_names_of_older_drivers_are_not_changed(
    cluster: OperatorCluster,
) -> None:
    text = await asyncio.to_thread(_read, "strangers-objects")
    await cluster.create(text.replace("{namespace}", NAMESPACE))
    kinds = "deployment,daemonset,pod,serviceaccount,rolebinding"
    before = await _uids(cluster, kinds)
    await _install(cluster)
    await cluster.condition("OlderDriverInUse", status=False)
    # Kubernetes may have created more pods of theirs meanwhile.
    assert before <= await _uids(cluster, kinds)
    await cluster.kubectl("delete", "-f", "-", stdin=text.replace("{namespace}", NAMESPACE))


async def _uids(cluster: OperatorCluster, kinds: str) -> set[str]:
    """The objects of the tenant and the cluster-scoped ones of the stranger."""
    template = "jsonpath={.items[*].metadata.uid}"
    of_tenant = await cluster.kubectl("get", kinds, "-n", "tenant", "-o", template)
    names = ("clusterrole/efs-privileged-role", "clusterrolebinding/efs-node-privileged-binding")
    of_others = await cluster.kubectl("get", *names, "-o", template)
    account = await cluster.kubectl(
        "get", "serviceaccount/efs-csi-sa", "-n", NAMESPACE, "-o", "jsonpath={.metadata.uid}"
    )
    return {*of_tenant.split(), *of_others.split(), account}


async def test_new_credentials_replace_only_the_pods_of_the_controller(installed: OperatorCluster) -> None:
    def restarts(found: Manifest) -> object:
        annotations = found["spec"]["template"]["metadata"].get("annotations") or {}
        return annotations.get(dependency_key(NAMESPACE, CREDENTIALS_SECRET, "secret"))

    tunnel = await installed.get("DaemonSet", "efs-stunnel")
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": CREDENTIALS_SECRET, "namespace": NAMESPACE},
    }
    await installed.create(yaml.safe_dump({**secret, "stringData": {"aws_access_key_id": "first"}}))
    first = restarts(await installed.becomes("Deployment", "efs-manager", restarts))
    await installed.create(yaml.safe_dump({**secret, "stringData": {"aws_access_key_id": "second"}}))
    second = await installed.becomes("Deployment", "efs-manager", lambda found: restarts(found) != first)
    names = {one["name"] for one in second["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_CONFIG_FILE"} <= names
    assert "first" not in json.dumps(second)
    now = await installed.get("DaemonSet", "efs-stunnel")
    assert tunnel
    assert now
    assert now["metadata"]["generation"] == tunnel["metadata"]["generation"]
    await installed.kubectl("delete", "secret", CREDENTIALS_SECRET, "-n", NAMESPACE)


async def test_kinds_that_are_installed_later_are_used(installed: OperatorCluster) -> None:
    await installed.condition(
        "AWSEFSDriverServiceMonitorControllerDegraded", status=False, text="no ServiceMonitors"
    )
    kinds = await asyncio.to_thread(_read, "openshift-kinds")
    await installed.create(kinds)
    await installed.kubectl("wait", "crd", "--all", "--for=condition=Established", "--timeout=60s")
    await installed.becomes("ServiceMonitor", "aws-efs-csi-driver-controller-monitor", bool)
    rule = await installed.becomes("PrometheusRule", "kube-efs-operator", bool)
    alerts = {one["alert"]: one for one in rule["spec"]["groups"][0]["rules"]}
    assert alerts["EFSCSIDriverNotRequested"]["labels"] == {"severity": "info"}
    assert "kube_efs_operator_driver_requested" in alerts["EFSCSIDriverNotRequested"]["expr"]

    status = {"httpsProxy": "http://proxy.example.com:3128", "noProxy": ".installed.local"}
    proxy = {
        "apiVersion": "config.openshift.io/v1",
        "kind": "Proxy",
        "metadata": {"name": "cluster"},
        "status": status,
    }
    installed.nodes.broken.add(IMAGE)
    try:
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            watching = asyncio.Barrier(3)
            announced = tasks.create_task(
                _first_version(installed, ClusterCSIDriver, "the proxy changed", watching)
            )
            changed = tasks.create_task(_first_version(installed, DaemonSet, "HTTPS_PROXY", watching))
            await watching.wait()
            await installed.create(yaml.safe_dump(proxy))
        assert announced.result() < changed.result()
        # The second node waits for the new tunnel of the first one.
        await installed.becomes(
            "DaemonSet", "efs-stunnel", lambda one: one["status"].get("updatedNumberScheduled") == 1
        )
        message = await installed.condition("Progressing", status=True, text="the proxy changed")
        assert "so the pods of DaemonSet storage/efs-stunnel are replaced" in message
    finally:
        installed.nodes.broken.clear()
        installed.nodes.recheck()
    for kind, name in WORKLOADS:
        found = await installed.becomes(kind, name, lambda one: "HTTPS_PROXY" in json.dumps(one))
        variables = {
            one["name"]: one.get("value") for one in found["spec"]["template"]["spec"]["containers"][0]["env"]
        }
        assert variables["HTTPS_PROXY"] == "http://proxy.example.com:3128"
        assert variables["NO_PROXY"] == ".installed.local"
        assert "HTTP_PROXY" not in variables
    await installed.condition("Progressing", status=False)
    assert any("the proxy changed" in one for one in await installed.events("PodsReplaced"))
    await installed.until(lambda: _rests(installed), "the operator has nothing left to write")
    versions = await _versions(installed)
    await installed.kubectl("annotate", "proxy", "cluster", "touched=yes")
    await asyncio.sleep(2 * RESYNC_SECONDS)  # to see that nothing happens
    assert await _versions(installed) == versions
    await installed.kubectl("delete", "-f", "-", stdin=kinds)
    for kind, name in WORKLOADS:
        await installed.becomes(kind, name, lambda one: "HTTPS_PROXY" not in json.dumps(one))
    await installed.condition("Progressing", status=False)


async def _first_version(
    cluster: OperatorCluster, kind: type[Resource], text: str, watching: asyncio.Barrier
) -> int:
    """The version of the first object that contains the text after the change that follows the barrier."""
    namespace = NAMESPACE if issubclass(kind, NamespacedResource) else None
    async for change in follow(cluster.client, kind, namespace=namespace):
        match change:
            case Listed():
                await watching.wait()
            case Applied(found):
                body = manifest_of(found, kind.__name__)
                if text in json.dumps(body):
                    return int(body["metadata"]["resourceVersion"])
    raise AssertionError("the watch ended")


async def test_log_level_is_set_on_controller_and_nodes_but_not_on_tunnels(
    installed: OperatorCluster,
) -> None:
    tunnel = await installed.get("DaemonSet", "efs-stunnel")
    await installed.ask(managementState="Managed", logLevel="Trace", operatorLogLevel="Debug")
    for kind, name in WORKLOADS[1:]:
        await installed.becomes(kind, name, lambda one: "LOGGING_LEVEL" in json.dumps(one))
    await installed.until(lambda: installed.events("OperatorLogLevelChange"), "the event is written")
    now = await installed.get("DaemonSet", "efs-stunnel")
    assert now
    assert tunnel
    assert now["spec"] == tunnel["spec"]


async def test_upgrade_continues_only_when_the_new_tunnel_of_a_node_is_ready(
    disposable: OperatorCluster, cluster_folder: Path
) -> None:
    new_image = "registry.example.com/kube-efs:2"
    async with _using_volume(disposable):
        disposable.nodes.broken.add(new_image)
        await disposable.operator.stop()
        changes = {"KUBE_EFS_IMAGE": new_image, "POD_NAME": "kube-efs-operator-1"}
        newer = disposable.operator.replica(cluster_folder / "newer.log", changes)
        await newer.start()
        try:
            await disposable.becomes(
                "DaemonSet", "efs-stunnel", lambda one: one["status"].get("updatedNumberScheduled") == 1
            )
            await disposable.condition(
                "AWSEFSDriverNodeServiceControllerProgressing", status=True, text="tunnels"
            )
            node_set = await disposable.get("DaemonSet", "efs-csi-node")
            tunnel = await disposable.get("DaemonSet", "efs-stunnel")
            assert tunnel
            assert tunnel["status"]["numberReady"] == 1
            assert new_image not in json.dumps(node_set)
            await disposable.condition("Progressing", status=True, text=f"keeps the image {IMAGE} until all")
            assert new_image not in json.dumps(await disposable.get("Deployment", "efs-manager"))
            disposable.nodes.broken.clear()
            disposable.nodes.recheck()
            await disposable.becomes(
                "DaemonSet", "efs-csi-node", lambda one: new_image in json.dumps(one["spec"])
            )
            await disposable.becomes(
                "Deployment", "efs-manager", lambda one: new_image in json.dumps(one["spec"])
            )
            await disposable.condition("Progressing", status=False)
            await disposable.kubectl("get", "pod", "web", "-n", "default")
        finally:
            await newer.stop()
            await disposable.operator.start()
            await disposable.operator.ready()


def _refusing(*refused: tuple[str, str, str]) -> Callable[[Call], Fault | None]:
    """403 for these calls, each a method, a resource and a name."""
    return lambda call: (
        answering(403) if (call.method, call.resource, call.name) in refused and not call.is_watch else None
    )


@asynccontextmanager
async def _faults(
    cluster: OperatorCluster, fault: Callable[[Call], Fault | None]
) -> AsyncGenerator[None, None]:
    cluster.api.fault = fault
    try:
        yield
    finally:
        cluster.api.fault = no_fault


async def _is_restored(cluster: OperatorCluster) -> None:
    """Whether the operator still corrects other objects."""
    await cluster.kubectl("delete", "serviceaccount", "efs-csi-node", "-n", NAMESPACE)
    await cluster.becomes("ServiceAccount", "efs-csi-node", bool)


@pytest.mark.parametrize(
    ("refused", "condition"),
    [
        pytest.param(
            ("PATCH", "clusterroles", "kube-efs-node"), "CSIStaticResourceControllerDegraded", id="a role"
        ),
        pytest.param(
            ("GET", "daemonsets", "efs-csi-node"),
            "AWSEFSDriverNodeServiceControllerDegraded",
            id="a workload",
        ),
        pytest.param(("GET", "deployments", ""), "CSIStaticResourceControllerDegraded", id="older drivers"),
        pytest.param(
            ("GET", "infrastructures", "cluster"), "ConfigObservationDegraded", id="the cluster's facts"
        ),
        pytest.param(("GET", "nodes", ""), "ConfigObservationDegraded", id="nodes"),
    ],
)
async def test_refused_object_degrades_its_condition_and_nothing_else(
    installed: OperatorCluster, refused: tuple[str, str, str], condition: str
) -> None:
    before = await installed.get("DaemonSet", "efs-stunnel")
    async with _faults(installed, _refusing(refused)):
        await installed.kubectl("delete", "clusterrole", "kube-efs-node")
        await installed.kubectl("label", "daemonset", "efs-csi-node", "-n", NAMESPACE, "a=b", "--overwrite")
        await installed.operator.stop()
        await installed.operator.start()
        await installed.operator.ready()
        await installed.condition(condition, status=True, text="403")
        await _is_restored(installed)
        await installed.condition("Available", status=True)
        driver = await installed.driver()
        assert driver
        conditions = [one for one in driver["status"]["conditions"] if one["type"].endswith("Degraded")]
        assert {one["type"] for one in conditions if one["status"] == "True"} == {condition, "Degraded"}
    await installed.condition("Degraded", status=False)
    await installed.becomes("ClusterRole", "kube-efs-node", bool, "")
    after = await installed.get("DaemonSet", "efs-stunnel")
    assert before
    assert after
    assert after["metadata"]["generation"] == before["metadata"]["generation"]


async def test_finalizer_of_a_stranger_degrades_its_condition_and_nothing_else(
    installed: OperatorCluster,
) -> None:
    service = ("service", "aws-efs-csi-driver-controller-metrics", "-n", NAMESPACE)
    held = json.dumps({"metadata": {"finalizers": ["example.com/held"]}})
    await installed.kubectl("patch", *service, "--type=merge", "-p", held)
    await installed.kubectl("delete", *service, "--wait=false")
    message = await installed.condition(
        "CSIStaticResourceControllerDegraded", status=True, text="finalizers example.com/held"
    )
    assert message.startswith("Service storage/aws-efs-csi-driver-controller-metrics is being removed")
    await _is_restored(installed)
    freed = json.dumps({"metadata": {"finalizers": None}})
    await installed.kubectl("patch", *service, "--type=merge", "-p", freed)
    await installed.condition("Degraded", status=False)
    await installed.becomes("Service", service[1], lambda one: "deletionTimestamp" not in one["metadata"])


async def test_conditions_stay_while_the_driver_is_not_managed(installed: OperatorCluster) -> None:
    await installed.until(lambda: _rests(installed), "the operator has nothing left to write")
    before = await installed.driver()
    await installed.ask(managementState="Unmanaged")
    await installed.until(lambda: _observes(installed), "the operator has read the specification")
    after = await installed.driver()
    assert before
    assert after
    assert after["status"]["conditions"] == before["status"]["conditions"]


async def test_rebooted_node_is_no_rollout(installed: OperatorCluster) -> None:
    await installed.condition("Progressing", status=False)
    installed.nodes.broken.add(IMAGE)
    try:
        pods = [
            one.metadata.name or ""
            async for one in installed.client.list(
                Pod, namespace=NAMESPACE, labels={"component": "efs-stunnel"}
            )
            if one.metadata
        ]
        await installed.kubectl("delete", "pod", pods[0], "-n", NAMESPACE)
        message = await installed.condition(
            "AWSEFSDriverTunnelServiceControllerProgressing", status=False, text="not ready"
        )
        assert message == "1 of 2 pods are not ready"
        await installed.condition("Progressing", status=False)
    finally:
        installed.nodes.broken.clear()
        installed.nodes.recheck()
    await installed.becomes("DaemonSet", "efs-stunnel", lambda one: one["status"].get("numberReady") == 2)


async def test_settings_of_the_processes_are_applied_and_removed_again(
    disposable: OperatorCluster, cluster_folder: Path
) -> None:
    await disposable.operator.stop()
    settings = {"KUBE_EFS_CONTROLLER_SETTINGS": '{"KUBE_EFS_STATUS_PAGE": true}'}
    configured = disposable.operator.replica(cluster_folder / "configured.log", settings)
    await configured.start()
    try:
        await disposable.becomes(
            "Deployment", "efs-manager", lambda one: "KUBE_EFS_STATUS_PAGE" in json.dumps(one["spec"])
        )
        await disposable.becomes("Role", "kube-efs-observing", bool)
        await disposable.becomes("ClusterRole", "kube-efs-observing", bool, "")
    finally:
        await configured.stop()
        await disposable.operator.start()
        await disposable.operator.ready()
    await disposable.gone("Role", "kube-efs-observing")
    await disposable.gone("ClusterRole", "kube-efs-observing", "")
    await disposable.becomes(
        "Deployment", "efs-manager", lambda one: "KUBE_EFS_STATUS_PAGE" not in json.dumps(one["spec"])
    )


# --- a second operator of kube-efs

OTHER = "other"


async def test_only_one_of_two_operators_manages_the_driver(
    cluster: OperatorCluster, plane: ControlPlane, cluster_folder: Path
) -> None:
    async with other_operator(cluster, plane, OTHER, cluster_folder) as other:
        await cluster.ask(managementState="Managed")
        await cluster.condition("Available", status=True)
        await cluster.condition("Progressing", status=False)
        driver = await cluster.driver()
        assert driver
        manager = driver["metadata"]["annotations"][OPERATOR_NAMESPACE]
        waiting = OTHER if manager == NAMESPACE else NAMESPACE
        for kind, name in WORKLOADS:
            assert await cluster.get(kind, name, manager)
            assert await cluster.get(kind, name, waiting) is None
        is_reported = f"the operator in namespace {manager} manages the ClusterCSIDriver"

        async def event() -> bool:
            events = await cluster.events("AnotherInstallation")
            return any(one.startswith(is_reported) for one in events)

        await cluster.until(event, "the waiting operator names the other one")
        process = other if waiting == OTHER else cluster.operator
        assert await metric(process, "kube_efs_operator_degraded") == 1
        await cluster.until(lambda: _rests(cluster), "none of them reverts what the other one wrote")
        await cluster.withdraw()
        for kind, name in WORKLOADS:
            assert await cluster.get(kind, name, manager) is None


async def test_driver_of_a_removed_operator_is_reported_and_not_duplicated(
    disposable: OperatorCluster, plane: ControlPlane, cluster_folder: Path
) -> None:
    """The workloads of the first operator serve mounts, also when nothing manages them any more."""
    await disposable.operator.stop()
    try:
        async with other_operator(disposable, plane, OTHER, cluster_folder):
            # As after a restore of the resource from a backup without its metadata.
            await disposable.annotate(**{OPERATOR_NAMESPACE: None})
            await disposable.until(
                lambda: _is_reported(
                    disposable, f"DaemonSet {NAMESPACE}/efs-stunnel is of another installation"
                ),
                "the workloads are reported",
            )
            await disposable.client.delete(ClusterCSIDriver, DRIVER)
            await disposable.kubectl(
                "patch", "clustercsidriver", DRIVER, "--type=merge", "-p", _NO_FINALIZERS
            )
            await disposable.ask(managementState="Managed")
            message = await disposable.condition("Degraded", status=True, reason="AnotherInstallation")
            assert message.startswith(f"DaemonSet {NAMESPACE}/efs-stunnel is of another installation")
            assert await disposable.get("DaemonSet", "efs-stunnel", OTHER) is None
            assert await disposable.get("DaemonSet", "efs-stunnel")
    finally:
        await disposable.operator.start()
        await disposable.operator.ready()
    await disposable.condition("Available", status=True)


_NO_FINALIZERS = json.dumps({"metadata": {"finalizers": None}})


async def _is_reported(cluster: OperatorCluster, beginning: str) -> bool:
    return any(one.startswith(beginning) for one in await cluster.events("AnotherInstallation"))


async def test_operator_takes_over_when_the_namespace_of_the_other_one_is_gone(
    cluster: OperatorCluster, plane: ControlPlane, cluster_folder: Path
) -> None:
    await cluster.operator.stop()
    try:
        async with other_operator(cluster, plane, OTHER, cluster_folder):
            await cluster.ask(managementState="Managed")
            await cluster.becomes("DaemonSet", "efs-csi-node", bool, OTHER)
            await cluster.condition("Available", status=True)
    finally:
        await cluster.operator.start()
        await cluster.operator.ready()
    await cluster.until(
        lambda: _is_reported(cluster, f"the operator in namespace {OTHER} manages"), "it waits"
    )
    await cluster.kubectl("delete", "namespace", OTHER, "--timeout=60s")
    await cluster.becomes("DaemonSet", "efs-csi-node", bool)
    await cluster.condition("Available", status=True)
    driver = await cluster.driver()
    assert driver
    assert driver["metadata"]["annotations"][OPERATOR_NAMESPACE] == NAMESPACE
