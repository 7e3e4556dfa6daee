"""The Node object, and telling the cluster that the node is alive."""

import asyncio
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
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

_LEASES = "kube-node-lease"
_LEASE_SECONDS = 40
_RENEW_SECONDS = 10.0
_RETRY_SECONDS = 1.0
_MAX_PODS = 250


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDescription:
    """The node as it presents itself; ``zone`` and ``region``, when set, become its topology labels."""

    name: str
    address: str = "127.0.0.1"
    zone: str = ""
    region: str = ""
    version: str = "v1.35.0"


async def register(client: AsyncClient, node: NodeDescription) -> None:
    """Make the node known and ready; tries until the API takes it."""
    while True:
        try:
            await _write_node(client, node)
        except CALL_ERRORS as error:
            log.warning("node-not-registered", node=node.name, reason=str(error))
            await asyncio.sleep(_RETRY_SECONDS)
        else:
            log.info("node-registered", node=node.name, address=node.address)
            return


async def keep_alive(client: AsyncClient, node: NodeDescription) -> None:
    """Renew the node's Lease until cancelled."""
    while True:
        try:
            await _renew(client, node.name)
        except CALL_ERRORS as error:
            log.warning("lease-not-renewed", node=node.name, reason=str(error))
        await asyncio.sleep(_RENEW_SECONDS)


def node_labels(node: NodeDescription) -> dict[str, str]:
    """Kubernetes' well-known labels for this machine."""
    architectures = {"x86_64": "amd64", "aarch64": "arm64"}
    machine = platform.machine()
    labels = {
        "kubernetes.io/hostname": node.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": architectures.get(machine, machine),
        "topology.kubernetes.io/zone": node.zone,
        "topology.kubernetes.io/region": node.region,
    }
    return {label: value for label, value in labels.items() if value}


def render_node_status(node: NodeDescription, now: datetime) -> Mapping[str, Any]:
    """``status`` of the Node."""
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    resources = {
        "cpu": str(os.cpu_count() or 1),
        "memory": f"{memory // 1024}Ki",
        "pods": str(_MAX_PODS),
    }
    return {
        "addresses": [
            {"type": "InternalIP", "address": node.address},
            {"type": "Hostname", "address": node.name},
        ],
        "capacity": resources,
        "allocatable": resources,
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "KubeletReady",
                "message": "kubelet is posting ready status; pods run as processes of this machine",
                "lastHeartbeatTime": stamp,
                "lastTransitionTime": stamp,
            }
        ],
        "nodeInfo": _node_info(node),
    }


def _node_info(node: NodeDescription) -> dict[str, str]:
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return {
        "architecture": node_labels(node)["kubernetes.io/arch"],
        "bootID": boot_id,
        "containerRuntimeVersion": "process://1",
        "kernelVersion": platform.release(),
        "kubeProxyVersion": "",
        "kubeletVersion": node.version,
        "machineID": boot_id,
        "operatingSystem": "linux",
        "osImage": "kube-efs embedded node",
        "systemUUID": boot_id,
    }


async def _write_node(client: AsyncClient, node: NodeDescription) -> None:
    labels = node_labels(node)
    wanted = NodeObject(metadata=ObjectMeta(name=node.name, labels=labels), spec=NodeSpec())
    if not await unless_exists(client.create(wanted)):
        relabelled = {"metadata": {"labels": labels}}
        await client.patch(NodeObject, node.name, relabelled, patch_type=PatchType.MERGE)
    status = {"status": render_node_status(node, datetime.now(UTC))}
    await client.patch(NodeObject.Status, node.name, status, patch_type=PatchType.MERGE)


async def _renew(client: AsyncClient, name: str) -> None:
    now = datetime.now(UTC)
    spec = LeaseSpec(holderIdentity=name, leaseDurationSeconds=_LEASE_SECONDS, renewTime=now)
    wanted = Lease(metadata=ObjectMeta(name=name, namespace=_LEASES), spec=spec)
    if not await unless_exists(client.create(wanted)):
        renewed = {"spec": {"renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}}
        await client.patch(Lease, name, renewed, namespace=_LEASES, patch_type=PatchType.MERGE)
