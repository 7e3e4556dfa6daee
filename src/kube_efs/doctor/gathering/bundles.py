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
from kube_efs.doctor.checks.common import our_volumes, provisioners
from kube_efs.doctor.facts import ClusterFacts
from kube_efs.doctor.gathering.attempts import Attempts
from kube_efs.doctor.gathering.node import NodeCheckOptions
from kube_efs.doctor.gathering.objects import Json
from kube_efs.kube.csi_nodes import CsiNode
from kube_efs.kube.errors import translated
from kube_efs.mounts.mountinfo import MOUNTINFO
from kube_efs.tunnels.stunnel.assignment import shard_files

_LOG_LINES: Final = 2000
# Of a large cluster's nodes, those that are not well come first.
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
    Event,
)
_OF_THE_CLUSTER: Final[tuple[type, ...]] = (Node, CSIDriver, CsiNode, StorageClass)


async def collect_cluster(
    client: AsyncClient, cluster: ClusterFacts, bundle: Bundle, attempts: Attempts
) -> None:
    """Add the objects of kube-efs, those that it serves, and the logs of its pods."""
    volumes = {volume.name for volume, _ in our_volumes(cluster)}
    served = provisioners(cluster)
    classes = {one.name for one in cluster.classes or () if one.provisioner in served}

    def is_ours(claim: Json) -> bool:
        spec = claim.get("spec") or {}
        return spec.get("volumeName") in volumes or spec.get("storageClassName") in classes

    def is_about_ours(event: Json) -> bool:
        return (event.get("involvedObject") or {}).get("kind") in {
            "PersistentVolumeClaim",
            "PersistentVolume",
        }

    async def add(name: str, kind: Any, only: Callable[[Json], bool], namespace: str = "") -> None:  # noqa: ANN401
        found = await attempts.look(f"{name} for the bundle", _objects(client, kind, namespace))
        bundle.add_object(f"objects/{name}.json", [one for one in found or () if only(one)])

    for kind in _OF_THE_NAMESPACE:
        await add(f"{kind.__name__}", kind, lambda _: True, cluster.namespace)
    for kind in _OF_THE_CLUSTER:
        await add(f"{kind.__name__}", kind, lambda _: True)
    config_maps = ("efs-", cluster.names.config_map, cluster.names.tunnel_status)
    await add("ConfigMap", ConfigMap, lambda one: _name(one).startswith(config_maps), cluster.namespace)
    await add("PersistentVolume", PersistentVolume, lambda one: _name(one) in volumes)
    await add("PersistentVolumeClaim", PersistentVolumeClaim, is_ours, "*")
    await add("Event-of-volumes", Event, is_about_ours, "*")
    await _collect_logs(client, cluster, bundle, attempts)


async def _objects(client: AsyncClient, kind: Any, namespace: str) -> list[Json]:  # noqa: ANN401
    where: dict[str, Any] = {"namespace": namespace} if namespace else {}
    with translated(f"the list of {kind.__name__}s"):
        return [one.to_dict() async for one in client.list(kind, **where)]


def _name(body: Json) -> str:
    return str(body["metadata"]["name"])


async def _collect_logs(
    client: AsyncClient, cluster: ClusterFacts, bundle: Bundle, attempts: Attempts
) -> None:
    pods = [one for one in cluster.pods or () if one.namespace == cluster.namespace]
    chosen = sorted(pods, key=lambda one: (not one.waiting, one.phase == "Running", one.name))[:_MOST_PODS]
    for pod in chosen:  # one after the other: taking secrets out keeps this process busy
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
