"""A cluster for the operator: a control plane, simulated nodes, and the operator's process."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import yaml
from lightkube import ApiError, AsyncClient
from lightkube.models import core_v1
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Event, Node, Pod
from lightkube.types import PatchType
from tests.conformance.kubectl import Kubectl
from tests.scenarios.faulty_api import FaultyApi
from tests.scenarios.forking import fork_module
from tests.scenarios.steps import eventually

from kube_efs.kube.client import connect, load_config
from kube_efs.kube.watching import Applied, Deleted, Listed, follow
from kube_efs.operator.kinds import ClusterCSIDriver, ObjectReference
from kube_efs.operator.manifests import Manifest, RenderOptions
from kube_efs.operator.object_client import ObjectClient, manifest_of
from kube_efs.operator.operator_manifests import render_operator
from kube_efs.operator.platforms import Platform
from kube_efs_lab.control_plane import ControlPlane
from kube_efs_lab.program import Program
from kube_efs_lab.real_control_plane import ServiceAccountName
from kube_efs_lab.real_plane import RealPlane
from tinykube.controllers.running import run_controllers
from tinykube.controllers.scheduler import _Binding

NAMESPACE = "storage"
DRIVER = "efs.csi.aws.com"
RESYNC_SECONDS = 2
IMAGE = "registry.example.com/kube-efs:1"
NODES = ("first", "second")
_INHERITED = ("HOME", "LANG", "PATH", "PYTHONPATH", "TMPDIR")


class PretendedNodes:
    """Simulated nodes, whose pods are ready at once, except those of ``broken`` images.

    As kube-scheduler does, it respects anti-affinity between pods.
    """

    def __init__(self, client: AsyncClient) -> None:
        self.broken: set[str] = set()
        self.most_missing = 0
        self._client = client
        self._pods: dict[tuple[str, str], Pod] = {}
        self._changed = asyncio.Event()
        self._treated: set[str] = set()

    async def make(self) -> None:
        """Create the nodes."""
        for name in NODES:
            labels = {"kubernetes.io/os": "linux", "kubernetes.io/hostname": name}
            await self._client.create(Node(metadata=ObjectMeta(name=name, labels=labels)))
            ready = {"conditions": [{"type": "Ready", "status": "True", "reason": "Pretended"}]}
            await self._client.patch(Node.Status, name, {"status": ready}, patch_type=PatchType.MERGE)
            await self._client.patch(Node, name, {"spec": {"taints": None}}, patch_type=PatchType.MERGE)

    async def run(self) -> None:
        """Manage pods until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch())
            while True:
                self._changed.clear()
                for pod in list(self._pods.values()):
                    with suppress(ApiError):
                        await self._look_at(pod)
                await self._changed.wait()

    def __contains__(self, pod: tuple[str, str]) -> bool:
        return pod in self._pods

    def recheck(self) -> None:
        """Check all pods again, because ``broken`` has changed."""
        self._changed.set()

    async def _watch(self) -> None:
        async for change in follow(self._client, Pod, namespace="*"):
            match change:
                case Listed(pods):
                    self._pods = {_key(pod): pod for pod in pods}
                case Applied(pod):
                    self._pods[_key(pod)] = pod
                case Deleted(pod):
                    self._pods.pop(_key(pod), None)
            self._changed.set()

    async def _look_at(self, pod: Pod) -> None:
        assert pod.metadata
        version = pod.metadata.resourceVersion or ""
        # What came of a treatment is heard of as a new version.
        if version not in self._treated and await self._treat(pod):
            self._treated.add(version)

    async def _treat(self, pod: Pod) -> bool:
        """Take the next step for a pod; False if there is none now."""
        namespace, name = _key(pod)
        if pod.metadata and pod.metadata.deletionTimestamp:
            await self._client.delete(Pod, name, namespace=namespace, grace_period=0)
        elif pod.spec and not pod.spec.nodeName:
            node = _wanted_node(pod) or NODES[0]
            if self._is_kept_away(pod, node):
                return False
            target = core_v1.ObjectReference(apiVersion="v1", kind="Node", name=node)
            binding = _Binding(metadata=ObjectMeta(name=name, namespace=namespace), target=target)
            await self._client.create(binding, name, namespace=namespace)
        elif pod.spec and not _is_ready(pod) and pod.spec.containers[0].image not in self.broken:
            ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            await self._client.patch(
                Pod.Status, name, {"status": ready}, namespace=namespace, patch_type=PatchType.MERGE
            )
        else:
            return False
        return True

    def _is_kept_away(self, pod: Pod, node: str) -> bool:
        affinity = pod.spec and pod.spec.affinity and pod.spec.affinity.podAntiAffinity
        terms = (affinity and affinity.requiredDuringSchedulingIgnoredDuringExecution) or ()
        there = [one for one in self._pods.values() if one.spec and one.spec.nodeName == node]
        return any(
            one.metadata and (one.metadata.labels or {}).get(expression.key) in (expression.values or ())
            for term in terms
            for expression in (term.labelSelector and term.labelSelector.matchExpressions) or ()
            for one in there
            # A selector of namespaces that is empty selects all.
            if term.namespaceSelector is not None
            or (one.metadata and one.metadata.namespace in (term.namespaces or ()))
        )


class OperatorCluster:
    """The cluster of a module; ``operator`` is its running process, which reaches the API through ``api``."""

    def __init__(
        self, kubeconfig: Path, client: AsyncClient, nodes: PretendedNodes, operator: Program, api: FaultyApi
    ) -> None:
        self.kubectl = Kubectl(kubeconfig)
        self.client = client
        self.nodes = nodes
        self.operator = operator
        self.api = api
        self.objects = ObjectClient(client)

    async def ask(self, **spec: Any) -> None:
        """Create the ClusterCSIDriver, or change its specification."""
        body = {
            "apiVersion": "operator.openshift.io/v1",
            "kind": "ClusterCSIDriver",
            "metadata": {"name": DRIVER},
            "spec": spec,
        }
        await self.client.patch(
            ClusterCSIDriver,
            DRIVER,
            body,
            patch_type=PatchType.APPLY,
            field_manager="administrator",
            force=True,
        )

    async def annotate(self, **annotations: str | None) -> None:
        """Annotate the ClusterCSIDriver."""
        body = {"metadata": {"annotations": annotations}}
        await self.client.patch(ClusterCSIDriver, DRIVER, body, patch_type=PatchType.MERGE)

    async def driver(self) -> Mapping[str, Any] | None:
        """The ClusterCSIDriver; None if it or its kind does not exist."""
        with suppress(httpx2.HTTPStatusError):
            return manifest_of(await self.client.get(ClusterCSIDriver, DRIVER), "ClusterCSIDriver")
        return None

    async def is_defined(self) -> bool:
        """Whether the API server serves the kind ClusterCSIDriver."""
        try:
            _ = [item async for item in self.client.list(ClusterCSIDriver)]
        except httpx2.HTTPStatusError:
            return False
        return True

    async def withdraw(self) -> None:
        """Delete the ClusterCSIDriver, and wait until it is deleted."""
        with suppress(ApiError):
            await self.client.delete(ClusterCSIDriver, DRIVER)
        await self.until(lambda: _absent(self.driver()), "the driver's resource is gone")

    async def condition(self, kind: str, *, status: bool, reason: str = "", text: str = "") -> str:
        """Wait until a condition has that status; returns its message."""

        seen: list[object] = []

        async def look() -> str | None:
            driver = await self.driver()
            seen[:] = [((driver or {}).get("status") or {}).get("conditions")]
            for one in ((driver or {}).get("status") or {}).get("conditions") or ():
                said = one["type"] == kind and one["status"] == str(status)
                if said and one["reason"].startswith(reason) and text in one["message"]:
                    return f"{one['message']} "
            return None

        try:
            return (await eventually(look, what=f"{kind} is {status} {reason} {text}")).strip()
        except AssertionError as error:
            raise AssertionError(f"{error}; conditions: {seen}; pods: {await self._pods()}") from error

    async def _pods(self) -> list[str]:
        """The state of each pod, for the message of a failed wait."""
        return [
            f"{_key(pod)} on {pod.spec and pod.spec.nodeName}, ready: {_is_ready(pod)}, "
            f"known to the nodes: {_key(pod) in self.nodes}"
            async for pod in self.client.list(Pod, namespace="*")
        ]

    async def get(self, kind: str, name: str, namespace: str = NAMESPACE) -> Manifest | None:
        """An object of the installation; ``namespace`` is empty for kinds without namespaces."""
        return await self.objects.get(ObjectReference(kind, namespace, name))

    async def becomes(
        self, kind: str, name: str, so: Callable[[Manifest], object], namespace: str = NAMESPACE
    ) -> Manifest:
        """Wait until the object meets the condition."""

        async def look() -> Manifest | None:
            found = await self.get(kind, name, namespace)
            return found if found is not None and so(found) else None

        return await eventually(look, what=f"{kind} {name} is as expected")

    async def gone(self, kind: str, name: str, namespace: str = NAMESPACE) -> None:
        """Wait until the object is deleted."""
        await self.until(lambda: _absent(self.get(kind, name, namespace)), f"{kind} {name} is gone")

    async def until(self, so: Callable[[], Awaitable[object]], what: str) -> None:
        """Wait until the condition is true."""
        await eventually(so, what=what)

    async def events(self, reason: str) -> list[str]:
        """The messages of the operator's events with that reason."""
        return [
            event.message or ""
            async for event in self.client.list(Event, namespace="*", fields={"reason": reason})
            if event.source and event.source.component == "kube-efs-operator"
        ]

    async def create(self, text: str) -> None:
        """Create objects from YAML."""
        await self.kubectl("apply", "-f", "-", stdin=text)


@asynccontextmanager
async def operator_cluster(
    kubeconfig: Path, api: FaultyApi, client: AsyncClient, folder: Path
) -> AsyncIterator[OperatorCluster]:
    """The operator with its own account, on simulated nodes."""
    nodes = PretendedNodes(client)
    await nodes.make()
    running = asyncio.create_task(nodes.run())
    environment = {
        **{name: os.environ[name] for name in _INHERITED if name in os.environ},
        "KUBECONFIG": str(api.kubeconfig),
        # Without KUBE_EFS_NAMES, as an operator of an earlier version: it keeps the names that it had.
        "POD_NAMESPACE": NAMESPACE,
        "POD_NAME": "kube-efs-operator-0",
        "KUBE_EFS_HEALTH_HOST": "127.0.0.1",
        "KUBE_EFS_HEALTH_PORT": "0",
        "KUBE_EFS_RESYNC_SECONDS": str(RESYNC_SECONDS),
        "KUBE_EFS_IMAGE": IMAGE,
    }
    operator = Program("operator", environment, folder / "operator.log", starter=fork_module)
    try:
        await operator.start()
        await operator.ready()
        yield OperatorCluster(kubeconfig, client, nodes, operator, api)
    finally:
        await operator.stop()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def install_operator(
    kubeconfig: Path, *, platform: Platform = Platform.KUBERNETES, namespace: str = NAMESPACE
) -> None:
    """Apply ``kube-efs render --operator`` without the Deployment, because a test starts its process."""
    options = RenderOptions(platform=platform, namespace=namespace, create_namespace=True, csi=True)
    manifests = render_operator(options)
    kept = [dict(one) for one in manifests if one["kind"] not in {"Deployment", "CustomResourceDefinition"}]
    await Kubectl(kubeconfig)("apply", "-f", "-", stdin=yaml.safe_dump_all(kept))


@asynccontextmanager
async def running_operator(
    plane: ControlPlane,
    folder: Path,
    *,
    platform: Platform = Platform.KUBERNETES,
    kinds: tuple[str, ...] = (),
) -> AsyncIterator[OperatorCluster]:
    """The operator on a new control plane, with additional kinds (YAML of definitions)."""
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(plane)
        client = await stack.enter_async_context(connected(running.kubeconfig))
        for text in kinds:
            await Kubectl(running.kubeconfig)("apply", "-f", "-", stdin=text)
        await install_operator(running.kubeconfig, platform=platform)
        if isinstance(running, RealPlane):
            account = ServiceAccountName(NAMESPACE, "kube-efs-operator")
            kubeconfig = await running.plane.kubeconfig(account)
        else:
            kubeconfig = running.kubeconfig
            task = asyncio.create_task(run_controllers(client, node=None))
            stack.push_async_callback(_end, task)
        api = await stack.enter_async_context(FaultyApi(kubeconfig, folder / "operator.kubeconfig"))
        cluster = await stack.enter_async_context(operator_cluster(running.kubeconfig, api, client, folder))
        await eventually(cluster.is_defined, what="the API server has the kind ClusterCSIDriver")
        yield cluster


@asynccontextmanager
async def other_operator(
    cluster: OperatorCluster, plane: ControlPlane, namespace: str, folder: Path
) -> AsyncIterator[Program]:
    """A second operator, in a namespace of its own."""
    await install_operator(cluster.kubectl.kubeconfig, namespace=namespace)
    changes = {"POD_NAMESPACE": namespace, "KUBECONFIG": str(cluster.kubectl.kubeconfig)}
    if isinstance(plane, RealPlane):
        account = ServiceAccountName(namespace, "kube-efs-operator")
        changes["KUBECONFIG"] = str(await plane.plane.kubeconfig(account))
    other = cluster.operator.replica(folder / f"operator-{namespace}.log", changes)
    await other.start()
    try:
        await other.ready()
        yield other
    finally:
        await other.stop()


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def connected(kubeconfig: Path) -> AsyncClient:
    """A client of the administrator."""
    return connect(load_config(kubeconfig))


async def _absent(looking: Awaitable[object]) -> bool:
    return await looking is None


def _key(pod: Pod) -> tuple[str, str]:
    assert pod.metadata
    return pod.metadata.namespace or "", pod.metadata.name or ""


def _is_ready(pod: Pod) -> bool:
    conditions = (pod.status and pod.status.conditions) or ()
    return any(one.type == "Ready" and one.status == "True" for one in conditions)


def _wanted_node(pod: Pod) -> str:
    affinity = pod.spec and pod.spec.affinity and pod.spec.affinity.nodeAffinity
    required = affinity and affinity.requiredDuringSchedulingIgnoredDuringExecution
    for term in (required and required.nodeSelectorTerms) or ():
        for field in term.matchFields or ():
            return (field.values or [""])[0]
    return ""
