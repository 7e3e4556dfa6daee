"""The RBAC of ``kube-efs render``: it allows every call of the code, and no others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from lightkube import AsyncClient
from lightkube.models.authorization_v1 import ResourceAttributes, SubjectAccessReviewSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.authorization_v1 import SubjectAccessReview
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import ConfigMap, Event, Secret
from tests.conformance.installing import MANAGER, NAMES, NAMESPACE, NODE, TUNNEL, WORKER
from tests.conformance.kubectl import Kubectl

from kube_efs.controllers.sole_leader import SoleLeader
from kube_efs.csi.startup_taint import STARTUP_TAINT, remove_startup_taint
from kube_efs.kube.building import build_config_map
from kube_efs.kube.client import connect, load_config
from kube_efs.kube.errors import translated
from kube_efs.kube.events import CONTROLLER, EventRecorder
from kube_efs.kube.leases import Leadership, LeaseTerms
from kube_efs.kube.references import References
from kube_efs.kube.watching import Listed, follow
from kube_efs.model.csi.parameters import FileSystemReference, ReferenceKind
from kube_efs.model.errors import KubeDenied
from kube_efs.model.names import OPENSHIFT_EFS_STUNNEL, NameSet
from kube_efs.settings.controller import DEFAULT_LEASE, DEFAULT_PROVISIONER
from kube_efs_lab.real_control_plane import RealControlPlane, ServiceAccountName

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("installed")]

OTHER = "default"
STATUS = NAMES.tunnel_status_of("first")


@dataclass(frozen=True, slots=True)
class Call:
    """A request in the terms of RBAC; "" means no namespace, or any name."""

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.verb, self.resource, self.name, self.namespace)))


def _calls(verbs: str, resource: str, namespace: str = "", name: str = "") -> list[Call]:
    return [Call(verb, resource, namespace, name) for verb in verbs.split()]


# Each line names the part of the code that makes the calls.
ALLOWED = {
    MANAGER: [
        *_calls("list watch patch", "persistentvolumeclaims"),  # watches, announcing
        *_calls("patch", "persistentvolumeclaims", OTHER, "any"),
        *_calls("patch", "persistentvolumeclaims/status", OTHER, "any"),  # expansion
        *_calls("list create delete", "persistentvolumeclaims", NAMESPACE),  # root_volumes
        *_calls("get list watch create patch delete", "persistentvolumes"),  # volumes, root_volumes
        *_calls("list watch", "storageclasses.storage.k8s.io"),  # run, watches
        *_calls("get create patch", "events", OTHER),  # events
        *_calls("get create patch", "events", NAMESPACE),
        *_calls("get list watch patch", "configmaps", NAMESPACE, NAMES.config_map),  # tunnel_targets
        *_calls("get", "configmaps", NAMESPACE, OPENSHIFT_EFS_STUNNEL.config_map),
        *_calls("create", "configmaps", NAMESPACE),
        *_calls("get list watch create patch delete", "pods", NAMESPACE),  # workers
        *_calls("get", "pods/log", NAMESPACE),  # worker_pods
        *_calls("create", "leases.coordination.k8s.io", NAMESPACE),  # leases
        *_calls("get update", "leases.coordination.k8s.io", NAMESPACE, DEFAULT_LEASE),
        *_calls("get", "leases.coordination.k8s.io", OTHER, DEFAULT_LEASE),  # sole_leader
        *_calls(
            "get list watch patch", "sharedvolumes.aws-efs.managed.openshift.io", OTHER
        ),  # shared_volumes
        *_calls("patch", "sharedvolumes/status.aws-efs.managed.openshift.io", OTHER),
        *_calls("get create delete", "persistentvolumeclaims", OTHER),
        *_calls("list", "pods", OTHER),
        *_calls("get list watch", "namespaces"),
        *_calls("get", "secrets", OTHER, "role"),  # references
        *_calls("get", "configmaps", OTHER, "file-systems"),
        *_calls("get", "nodes", name="first"),  # location
        *_calls("list", "nodes"),  # backends/csi/file_systems
        *_calls("get", "infrastructures.config.openshift.io", name="cluster"),
        *_calls("list watch", "csinodes.storage.k8s.io"),  # workers/placement
        *_calls("list watch", "daemonsets.apps", NAMESPACE, TUNNEL),
    ],
    TUNNEL: [
        *_calls("list watch", "configmaps", NAMESPACE, NAMES.config_map),  # run
        *_calls("create patch delete", "configmaps", NAMESPACE, STATUS),  # publishing
        *_calls("get create patch", "events", "default"),  # news
        *_calls("get", "nodes", name="first"),  # location
        *_calls("get", "infrastructures.config.openshift.io", name="cluster"),
    ],
    NODE: [
        *_calls("get patch", "nodes", name="first"),  # location, startup_taint
        *_calls("get", "infrastructures.config.openshift.io", name="cluster"),
        *_calls("get", "daemonsets.apps", NAMESPACE, TUNNEL),  # startup_taint
        *_calls("get", "serviceaccounts", OTHER, "any"),  # pod_tokens
    ],
    WORKER: [],
}
REFUSED = {
    MANAGER: [
        *_calls("update deletecollection", "persistentvolumeclaims", OTHER),
        *_calls("update", "persistentvolumeclaims/status", OTHER),
        *_calls("create update delete", "sharedvolumes.aws-efs.managed.openshift.io", OTHER),
        *_calls("create patch delete", "customresourcedefinitions.apiextensions.k8s.io"),
        *_calls("update deletecollection", "persistentvolumes"),
        *_calls("create update patch delete", "storageclasses.storage.k8s.io"),
        *_calls("get watch create delete", "pods", OTHER),
        *_calls("update", "pods", NAMESPACE),
        *_calls("get", "pods/log", OTHER),
        *_calls("create get", "pods/exec", NAMESPACE),
        *_calls("get list watch create patch", "configmaps", OTHER),
        *_calls("get list patch delete", "configmaps", NAMESPACE, "kube-root-ca.crt"),
        *_calls("list watch patch", "configmaps", NAMESPACE, OPENSHIFT_EFS_STUNNEL.config_map),
        *_calls("get update", "leases.coordination.k8s.io", NAMESPACE, "another"),
        *_calls("update delete", "leases.coordination.k8s.io", OTHER, DEFAULT_LEASE),
        *_calls("get", "leases.coordination.k8s.io", OTHER, "another"),
        *_calls("list watch", "leases.coordination.k8s.io"),
        *_calls("list watch delete", "events", OTHER),
        *_calls("get list watch create", "secrets", NAMESPACE),
        *_calls("get list watch", "secrets", OTHER),
        *_calls("get", "secrets", OTHER, "another"),
        *_calls("list watch create patch delete", "secrets", OTHER, "role"),
        *_calls("get", "secrets", NAMESPACE, "role"),
        *_calls("list watch create patch delete", "configmaps", OTHER, "file-systems"),
        *_calls("create", "serviceaccounts/token", NAMESPACE, MANAGER),
        *_calls("watch", "nodes"),
        *_calls("patch update", "nodes", name="first"),
        *_calls("list watch create update patch delete", "csidrivers.storage.k8s.io", name="efs.csi.aws.com"),
        *_calls("create update patch delete", "csinodes.storage.k8s.io"),
        *_calls("list watch create update patch delete", "daemonsets.apps", NAMESPACE),
        *_calls("list watch", "daemonsets.apps", OTHER, TUNNEL),
        *_calls("list watch patch", "infrastructures.config.openshift.io"),
        *_calls("get", "infrastructures.config.openshift.io", name="another"),
        *_calls("patch", "namespaces"),
        *_calls("create patch bind escalate", "clusterroles.rbac.authorization.k8s.io"),
    ],
    TUNNEL: [
        *_calls("get list watch", "configmaps", NAMESPACE),
        *_calls("create patch delete", "configmaps", OTHER),
        *_calls("get list watch create", "secrets", NAMESPACE),
        *_calls("get list watch create", "pods", NAMESPACE),
        *_calls("get list watch patch", "persistentvolumes"),
        *_calls("get list watch patch", "persistentvolumeclaims", NAMESPACE),
        *_calls("list watch", "nodes"),
        *_calls("patch update", "nodes", name="first"),
    ],
    NODE: [
        *_calls("list watch update delete create", "nodes"),
        *_calls("get patch update", "nodes/status", name="first"),
        *_calls("get list watch create", "secrets", NAMESPACE),
        *_calls("get list watch create", "configmaps", NAMESPACE),
        *_calls("get list watch create", "pods", NAMESPACE),
        *_calls("get list patch", "persistentvolumes"),
        *_calls("get list patch", "csinodes.storage.k8s.io"),
        *_calls("list watch patch", "daemonsets.apps", NAMESPACE),
        *_calls("get", "daemonsets.apps", NAMESPACE, NODE),
        *_calls("list watch create patch delete", "serviceaccounts", OTHER),
        *_calls("create", "serviceaccounts/token", OTHER, "any"),
    ],
    WORKER: [
        *_calls("get list watch create", "configmaps", NAMESPACE),
        *_calls("get list watch create", "pods", NAMESPACE),
        *_calls("get list watch create", "secrets", NAMESPACE),
        *_calls("get list patch", "persistentvolumes"),
    ],
}


def _table(rules: dict[str, list[Call]]) -> list[Any]:
    return [
        pytest.param(account, call, id=f"{account}: {call}") for account in rules for call in rules[account]
    ]


@pytest.mark.parametrize(("account", "call"), _table(ALLOWED))
async def test_calls_of_the_code_are_allowed(client: AsyncClient, account: str, call: Call) -> None:
    assert await _may(client, account, call)


@pytest.mark.parametrize(("account", "call"), _table(REFUSED))
async def test_unneeded_calls_are_refused(client: AsyncClient, account: str, call: Call) -> None:
    assert not await _may(client, account, call)


async def _may(client: AsyncClient, account: str, call: Call) -> bool:
    kind, _, group = call.resource.partition(".")
    resource, _, subresource = kind.partition("/")
    attributes = ResourceAttributes(
        verb=call.verb,
        group=group,
        resource=resource,
        subresource=subresource,
        namespace=call.namespace,
        name=call.name,
    )
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated"]
    user = f"system:serviceaccount:{NAMESPACE}:{account}"
    spec = SubjectAccessReviewSpec(user=user, groups=groups, resourceAttributes=attributes)
    review = await client.create(SubjectAccessReview(metadata=ObjectMeta(), spec=spec))
    assert review.status is not None
    return review.status.allowed


# --- the driver of a node

TAINTS = ("dedicated=storage:NoSchedule", f"{STARTUP_TAINT}:NoExecute")


@pytest_asyncio.fixture(loop_scope="session")
async def nodes(installed: Kubectl) -> AsyncIterator[None]:
    """The nodes "one" and "other"."""
    for name in ("one", "other"):
        await installed("create", "-f", "-", stdin=_manifest("v1", "Node", {"name": name}))
        await installed("taint", "node", name, *TAINTS)
    yield
    await installed("delete", "node", "one", "other")


@pytest_asyncio.fixture(loop_scope="session")
async def driver(
    control_plane: RealControlPlane, installed: Kubectl, nodes: None, tmp_path: Path
) -> AsyncIterator[tuple[Kubectl, AsyncClient]]:
    """kubectl and a client, each with the token of the driver's pod on the node "one"."""
    token = _pod_on_node(control_plane, installed, NODE, tmp_path)
    async with token as kubeconfig, connect(load_config(kubeconfig)) as client:
        yield Kubectl(kubeconfig), client


@pytest_asyncio.fixture(loop_scope="session")
async def agent(
    control_plane: RealControlPlane, installed: Kubectl, nodes: None, tmp_path: Path
) -> AsyncIterator[AsyncClient]:
    """A client with the token of the tunnel pod on the node "one"."""
    token = _pod_on_node(control_plane, installed, TUNNEL, tmp_path)
    async with token as kubeconfig, connect(load_config(kubeconfig)) as client:
        yield client


@asynccontextmanager
async def _pod_on_node(
    control_plane: RealControlPlane, installed: Kubectl, account: str, folder: Path
) -> AsyncIterator[Path]:
    """The kubeconfig with the token of a pod of that account on the node "one"."""
    pod = {"name": f"of-{account}", "namespace": NAMESPACE}
    spec = {"nodeName": "one", "serviceAccountName": account, "containers": [{"name": "one", "image": "any"}]}
    await installed("create", "-f", "-", stdin=_manifest("v1", "Pod", pod, spec=spec))
    bound = ("--bound-object-kind=Pod", f"--bound-object-name={pod['name']}")
    config = yaml.safe_load(control_plane.admin_kubeconfig.read_text())
    token = await installed("create", "token", account, "-n", NAMESPACE, *bound)
    config["users"][0]["user"] = {"token": token}
    kubeconfig = folder / f"{account}.kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))
    yield kubeconfig
    await installed("delete", "pod", pod["name"], "-n", NAMESPACE, "--force", "--grace-period=0")


def _manifest(version: str, kind: str, metadata: dict[str, str], **more: object) -> str:
    return yaml.safe_dump({"apiVersion": version, "kind": kind, "metadata": metadata, **more})


async def test_driver_can_remove_its_taint_from_its_node(
    installed: Kubectl, driver: tuple[Kubectl, AsyncClient]
) -> None:
    _, client = driver
    async with asyncio.timeout(30):
        await remove_startup_taint(client, "one")
    taints = await installed("get", "node", "one", "-o", "jsonpath={.spec.taints[*].key}")
    assert "dedicated" in taints.split()
    assert STARTUP_TAINT not in taints.split()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(
            ("taint", "node", "other", f"{STARTUP_TAINT}-"), "changes no other node", id="other node"
        ),
        pytest.param(("taint", "node", "one", "dedicated-"), "its startup taint only", id="another taint"),
        pytest.param(("taint", "node", "one", "new=x:NoExecute"), "adds no taint", id="new taint"),
        pytest.param(("label", "node", "one", "a=b"), "only taints", id="label"),
        pytest.param(("annotate", "node", "one", "a=b"), "only taints", id="annotation"),
        pytest.param(("cordon", "one"), "only taints", id="cordoned"),
    ],
)
async def test_driver_cannot_change_anything_else(
    driver: tuple[Kubectl, AsyncClient], change: tuple[str, ...], reason: str
) -> None:
    kubectl, _ = driver
    assert reason in (await kubectl.run(*change)).errors


# --- the tunnels of a node


async def test_tunnel_agent_can_write_the_status_of_its_node(agent: AsyncClient) -> None:
    name = NAMES.tunnel_status_of("one")
    status = build_config_map(namespace=NAMESPACE, name=name, labels={}, data={"a": "b"})
    async with asyncio.timeout(30):
        for _ in range(2):
            await agent.apply(status, force=True)
        await agent.delete(ConfigMap, name, namespace=NAMESPACE)


@pytest.mark.parametrize("name", [NAMES.config_map, NAMES.tunnel_status_of("other"), "any"])
async def test_tunnel_agent_cannot_write_other_config_maps(
    agent: AsyncClient, installed: Kubectl, name: str
) -> None:
    """The token belongs to one node, and such a ConfigMap would redirect the tunnels of all nodes."""
    await installed("delete", "configmap", name, "-n", NAMESPACE, "--ignore-not-found")
    wanted = build_config_map(namespace=NAMESPACE, name=name, labels={}, data={"a": "b"})
    with pytest.raises(KubeDenied, match="status of their own node"), translated(name):
        await agent.apply(wanted, force=True)
    await installed("create", "configmap", name, "-n", NAMESPACE)
    with pytest.raises(KubeDenied, match="status of their own node"), translated(name):
        await agent.apply(wanted, force=True)
    with pytest.raises(KubeDenied, match="status of their own node"), translated(name):
        await agent.delete(ConfigMap, name, namespace=NAMESPACE)
    await installed("delete", "configmap", name, "-n", NAMESPACE)


# --- the controller


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def manager(control_plane: RealControlPlane, installed: Kubectl) -> AsyncIterator[AsyncClient]:
    """A client with the identity of the controller."""
    kubeconfig = await control_plane.kubeconfig(ServiceAccountName(NAMESPACE, MANAGER))
    assert f"system:serviceaccount:{NAMESPACE}:{MANAGER}" in await Kubectl(kubeconfig)("auth", "whoami")
    async with connect(load_config(kubeconfig)) as client:
        yield client


def _targets(name: str) -> ConfigMap:
    return build_config_map(namespace=NAMESPACE, name=name, labels={"component": TUNNEL}, data={"a": "b"})


async def test_controller_can_apply_only_its_own_config_map(manager: AsyncClient) -> None:
    # Once to create it, once to change it: the first needs one permission more.
    for _ in range(2):
        await manager.apply(_targets(NAMES.config_map), force=True)
    with pytest.raises(KubeDenied, match="another"), translated("ConfigMap another"):
        await manager.apply(_targets("another"), force=True)


async def test_controller_can_watch_only_its_own_config_map(manager: AsyncClient) -> None:
    stream = follow(manager, ConfigMap, namespace=NAMESPACE, fields={"metadata.name": NAMES.config_map})
    async with asyncio.timeout(20):
        assert isinstance(await anext(stream), Listed)
    await stream.aclose()
    with pytest.raises(KubeDenied), translated("ConfigMaps"):
        [_ async for _ in manager.list(ConfigMap, namespace=NAMESPACE)]


async def test_controller_can_acquire_and_release_its_lease(manager: AsyncClient) -> None:
    terms = LeaseTerms(namespace=NAMESPACE, name=DEFAULT_LEASE, identity="one", retry_period_seconds=0.1)
    leadership = Leadership(manager, terms, asyncio.get_running_loop().time)
    async with asyncio.timeout(20):
        await leadership.acquire()
        await leadership.release()
    assert not leadership.is_leader


async def test_controller_sees_the_leader_of_another_installation(
    manager: AsyncClient, client: AsyncClient
) -> None:
    clock = asyncio.get_running_loop().time
    own = LeaseTerms(
        namespace=NAMESPACE,
        name=DEFAULT_LEASE,
        identity="one",
        retry_period_seconds=0.1,
        serves=frozenset({DEFAULT_PROVISIONER}),
    )
    namespace = NameSet.AWS_EFS_CSI_DRIVER.names.namespace
    other = Leadership(client, replace(own, namespace=namespace, identity="other"), clock)
    await other.acquire()
    async with EventRecorder(manager, component=CONTROLLER) as recorder, asyncio.timeout(60):
        leadership = Leadership(manager, own, clock)
        acquiring = asyncio.create_task(SoleLeader(manager, leadership, own, recorder, clock).acquire())
        keeping = asyncio.create_task(other.keep())
        try:
            async for _, event in client.watch(Event, namespace=NAMESPACE, fields={"reason": "NotLeading"}):
                assert event.involvedObject.kind == "Lease"
                break
            assert not leadership.is_leader
        finally:
            keeping.cancel()
            acquiring.cancel()
            await asyncio.gather(keeping, acquiring, return_exceptions=True)
            await client.delete(Lease, DEFAULT_LEASE, namespace=namespace)


async def test_controller_can_read_only_the_named_secrets_and_config_maps(
    manager: AsyncClient, installed: Kubectl
) -> None:
    for kind, name in (("secret", "role"), ("configmap", "file-systems"), ("configmap", "others")):
        generic = ["generic"] if kind == "secret" else []
        await installed("create", kind, *generic, name, "--from-literal=key=fs-1", "-n", OTHER)
    references = References(manager)
    assert await references.secret(OTHER, "role") == {"key": "fs-1"}
    assert await references.text(_reference("file-systems")) == "fs-1"
    with pytest.raises(KubeDenied):
        await references.text(_reference("others"))
    with pytest.raises(KubeDenied), translated("secrets"):
        [_ async for _ in manager.list(Secret, namespace=OTHER)]


def _reference(name: str) -> FileSystemReference:
    return FileSystemReference(kind=ReferenceKind.CONFIG_MAP, namespace=OTHER, name=name, key="key")
