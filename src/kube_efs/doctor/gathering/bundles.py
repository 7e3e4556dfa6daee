"""Reads the content of a bundle: objects and logs of a cluster, files of a node. It never reads Secrets."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import aiohttp
from lightkube import AsyncClient
from lightkube.resources.apps_v1 import DaemonSet, Deployment
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import (
    ConfigMap,
    Event,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    ServiceAccount,
)
from lightkube.resources.rbac_authorization_v1 import Role, RoleBinding
from lightkube.resources.storage_v1 import CSIDriver, StorageClass

from kube_efs.doctor.bundle import Bundle
from kube_efs.doctor.checks.common import is_our_volume, provisioners, targets_of
from kube_efs.doctor.facts import ClusterFacts, PodFacts
from kube_efs.doctor.gathering.attempts import Attempts
from kube_efs.doctor.gathering.node import NodeCheckOptions
from kube_efs.doctor.gathering.objects import Json, is_labeled, read_pod
from kube_efs.kube.csi_nodes import CsiNode
from kube_efs.kube.errors import translated
from kube_efs.kube.pages import PAGE_SIZE
from kube_efs.model.names import WORKER_LABELS
from kube_efs.model.volumes import DRIVER
from kube_efs.mounts.mountinfo import MOUNTINFO
from kube_efs.settings.controller import DEFAULT_LEASE
from kube_efs.tunnels.stunnel.assignment import shard_files

_LOG_LINES: Final = 2000
# Of a large cluster, pods that are not well come first, then those of the controllers.
_MOST_PODS: Final = 40
_MOST_BYTES: Final = 2 * 1024 * 1024
_PAGE_SECONDS: Final = 5.0

_OF_THE_NAMESPACE: Final[tuple[type, ...]] = (
    Deployment,
    DaemonSet,
    Pod,
    Lease,
    ServiceAccount,
    Role,
    RoleBinding,
)
_OF_THE_CLUSTER: Final[tuple[type, ...]] = (Node, CSIDriver, CsiNode, StorageClass)
# The sidecars of the driver name their Leases after it.
_SIDECAR_LEASE: Final = DRIVER.replace(".", "-")


async def collect_cluster(
    client: AsyncClient, cluster: ClusterFacts, bundle: Bundle, attempts: Attempts
) -> None:
    """Add the objects of kube-efs, those that it serves, and the logs of its pods.

    The namespace can contain workloads of others, for example ``kube-system``.
    """
    targets = targets_of(cluster)
    volumes = {one.volume.name for one in cluster.volumes or () if is_our_volume(one.volume, targets)}
    served = provisioners(cluster)
    classes = {one.name for one in cluster.classes or () if one.provisioner in served}
    own_names = _own_names(cluster)

    def is_own_name(name: str) -> bool:
        is_begun = any(name == one or name.startswith(f"{one}-") for one in own_names)
        return is_begun or _SIDECAR_LEASE in name

    def is_own(body: Json) -> bool:
        labels = body["metadata"].get("labels") or {}
        is_worker = WORKER_LABELS.items() <= labels.items()
        return is_labeled(body) or is_worker or is_own_name(body["metadata"]["name"])

    def is_own_claim(claim: Json) -> bool:
        spec = claim.get("spec") or {}
        return spec.get("volumeName") in volumes or spec.get("storageClassName") in classes

    async def add(name: str, kind: Any, only: Callable[[Json], bool], namespace: str = "") -> list[Json]:  # noqa: ANN401
        found = await attempts.look(f"{name} for the bundle", _objects(client, kind, namespace))
        added = [one for one in found or () if only(one)]
        bundle.add_object(f"objects/{name}.json", added)
        return added

    here = {one: await add(one.__name__, one, is_own, cluster.namespace) for one in _OF_THE_NAMESPACE}
    for kind in _OF_THE_CLUSTER:
        await add(kind.__name__, kind, lambda _: True)
    uids = {
        one["metadata"]["uid"]
        for found in (
            *here.values(),
            await add("ConfigMap", ConfigMap, is_own, cluster.namespace),
            await add("PersistentVolume", PersistentVolume, lambda one: one["metadata"]["name"] in volumes),
            await add("PersistentVolumeClaim", PersistentVolumeClaim, is_own_claim, "*"),
        )
        for one in found
    }

    def is_about_own(event: Json) -> bool:
        subject = event.get("involvedObject") or {}
        # Events stay after their pods, and those of ReplicaSets concern Deployments.
        is_here = subject.get("namespace") == cluster.namespace and subject.get("kind") in {
            "Pod",
            "ReplicaSet",
        }
        return subject.get("uid") in uids or (is_here and is_own_name(subject.get("name", "")))

    await add("Event", Event, is_about_own, "*")
    await _collect_logs(client, cluster, here[Pod], bundle, attempts)


def _own_names(cluster: ClusterFacts) -> frozenset[str]:
    """The beginnings of the names of objects of kube-efs, because not all have a label."""
    names = cluster.names
    own = {names.controller, names.controller_account, names.tunnel, names.tunnel_account}
    own |= {names.node, names.node_account, names.worker_account, names.config_map, DEFAULT_LEASE}
    if names.older_config_map:
        own.add(names.older_config_map)
    for one in cluster.workloads or ():
        if one.ours and one.namespace == cluster.namespace:
            lease = one.environment.get("KUBE_EFS_LEASE_NAME", one.name)
            own |= {one.name, one.account, lease, *(name for name, _ in one.references.values())}
    return frozenset(own - {"default"})


async def _objects(client: AsyncClient, kind: Any, namespace: str) -> list[Json]:  # noqa: ANN401
    where: dict[str, Any] = {"namespace": namespace} if namespace else {}
    with translated(f"the list of {kind.__name__} objects"):
        return [one.to_dict() async for one in client.list(kind, chunk_size=PAGE_SIZE, **where)]


async def _collect_logs(
    client: AsyncClient, cluster: ClusterFacts, bodies: list[Json], bundle: Bundle, attempts: Attempts
) -> None:
    of_nodes = {cluster.names.tunnel, cluster.names.node}

    def rank(pod: PodFacts) -> tuple[bool, bool, bool, str]:
        return not pod.waiting, pod.phase == "Running", pod.component in of_nodes, pod.name

    # One after the other: taking secrets out keeps this process busy.
    for pod in sorted(map(read_pod, bodies), key=rank)[:_MOST_PODS]:
        text = await attempts.look(f"the log of pod {pod.name}", _log(client, pod.name, cluster.namespace))
        bundle.add_text(f"logs/{pod.name}.log", text or "")


async def _log(client: AsyncClient, pod: str, namespace: str) -> str:
    with translated(f"the log of pod {pod}"):
        lines = client.log(pod, namespace=namespace, tail_lines=_LOG_LINES)
        return "".join([line async for line in lines])


async def collect_node(options: NodeCheckOptions, kernel: tuple[str, ...] | None, bundle: Bundle) -> None:
    """Add the agent's state, the configuration and logs of its data planes, and kernel messages about NFS."""
    first = options.configuration
    configurations = list(dict.fromkeys([first, *shard_files(first).values()]))
    logs = [path.with_suffix(".log") for path in configurations] + [first.with_suffix(".relay.log")]
    for path in (*configurations, *logs, first.with_suffix(".targets.json")):
        bundle.add_text(f"node/{path.name}", await asyncio.to_thread(_tail, path))
    mounts = (await asyncio.to_thread(_tail, MOUNTINFO)).splitlines()
    bundle.add_text("node/mounts", "\n".join(line for line in mounts if " nfs" in line))
    bundle.add_text("node/kernel.log", "\n".join(line for line in kernel or () if "nfs" in line.lower()))
    async with aiohttp.ClientSession(trust_env=False) as session:
        for page in ("tunnels", "metrics"):
            text = await _page(session, f"{options.agent_url}/{page}")
            bundle.add_text(f"node/{page}", text)


def _tail(path: Path) -> str:
    """The end of a file; empty when it cannot be read."""
    try:
        return path.read_bytes()[-_MOST_BYTES:].decode(errors="replace")
    except OSError:
        return ""


async def _page(session: aiohttp.ClientSession, url: str) -> str:
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=_PAGE_SECONDS)) as answer:
            return await answer.text()
    except (aiohttp.ClientError, OSError):
        return ""
