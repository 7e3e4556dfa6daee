"""The node: its Node object, its Lease, and where its directories are."""

import asyncio
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

import structlog
from lightkube import AsyncClient
from lightkube.models.coordination_v1 import LeaseSpec
from lightkube.models.core_v1 import NodeSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Node as NodeObject
from lightkube.types import PatchType

from tinykube.client.calls import CALL_ERRORS, unless_exists

log = structlog.get_logger(__name__)

ADDRESS = "127.0.0.1"
"""Of the node and of every pod: they use the network of the machine."""
_VERSION = "v1.35.0"
_LEASES = "kube-node-lease"
_LEASE_SECONDS = 40
_RENEW_SECONDS = 10.0
_RETRY_SECONDS = 1.0
_MAX_PODS = 250


class HostFolders:
    """Directories of the node that are elsewhere on this machine, so that several nodes can be on it.

    Who speaks with the kubelet from a pod names files as they are on the node; the kubelet has to find them
    here. ``folders`` has the places here of directories of the node, of which none is inside another.
    """

    def __init__(self, folders: Mapping[str, Path] | None = None) -> None:
        self._folders = {PurePosixPath(name): place for name, place in (folders or {}).items()}

    def here(self, path: str) -> Path:
        """Where a path of the node is on this machine."""
        for folder, place in self._folders.items():
            if PurePosixPath(path).is_relative_to(folder):
                return place / PurePosixPath(path).relative_to(folder)
        return Path(path)

    def there(self, path: Path) -> str:
        """What the node calls a path of this machine."""
        for folder, place in self._folders.items():
            if path.is_relative_to(place):
                return str(folder / path.relative_to(place))
        return str(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDescription:
    """The node as it presents itself; ``zone`` and ``region``, when set, become its topology labels.

    ``provider_id`` is the name of its machine at a cloud provider, if it has one.
    """

    name: str
    zone: str = ""
    region: str = ""
    provider_id: str = ""


async def keep_registered(client: AsyncClient, node: NodeDescription) -> None:
    """Make the node known and ready, and renew its Lease until cancelled."""
    known = False
    while True:
        try:
            if not known:
                await _write_node(client, node)
                log.info("node-registered", node=node.name)
            known = True
            await _renew(client, node.name)
        except CALL_ERRORS as error:
            log.warning("node-not-kept-alive", node=node.name, reason=str(error))
        await asyncio.sleep(_RENEW_SECONDS if known else _RETRY_SECONDS)


async def _write_node(client: AsyncClient, node: NodeDescription) -> None:
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    labels = {
        "kubernetes.io/hostname": node.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": architecture,
        "topology.kubernetes.io/zone": node.zone,
        "topology.kubernetes.io/region": node.region,
    }
    labels = {label: value for label, value in labels.items() if value}
    spec = NodeSpec(providerID=node.provider_id or None)
    wanted = NodeObject(metadata=ObjectMeta(name=node.name, labels=labels), spec=spec)
    if not await unless_exists(client.create(wanted)):
        described = {"metadata": {"labels": labels}, "spec": spec.to_dict()}
        await client.patch(NodeObject, node.name, described, patch_type=PatchType.MERGE)
    status = {"status": _status(node.name, architecture)}
    await client.patch(NodeObject.Status, node.name, status, patch_type=PatchType.MERGE)


def _status(name: str, architecture: str) -> Mapping[str, Any]:
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    resources = {
        "cpu": str(os.cpu_count() or 1),
        "memory": f"{memory // 1024}Ki",
        "pods": str(_MAX_PODS),
    }
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status; pods run as processes of this machine",
        "lastHeartbeatTime": stamp,
        "lastTransitionTime": stamp,
    }
    return {
        "addresses": [
            {"type": "InternalIP", "address": ADDRESS},
            {"type": "Hostname", "address": name},
        ],
        "capacity": resources,
        "allocatable": resources,
        "conditions": [ready],
        "nodeInfo": {
            "architecture": architecture,
            "containerRuntimeVersion": "process://1",
            "kernelVersion": platform.release(),
            "kubeletVersion": _VERSION,
            "operatingSystem": "linux",
            "osImage": "tinykube",
        },
    }


async def _renew(client: AsyncClient, name: str) -> None:
    now = datetime.now(UTC)
    spec = LeaseSpec(holderIdentity=name, leaseDurationSeconds=_LEASE_SECONDS, renewTime=now)
    wanted = Lease(metadata=ObjectMeta(name=name, namespace=_LEASES), spec=spec)
    if not await unless_exists(client.create(wanted)):
        renewed = {"spec": {"renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}}
        await client.patch(Lease, name, renewed, namespace=_LEASES, patch_type=PatchType.MERGE)
