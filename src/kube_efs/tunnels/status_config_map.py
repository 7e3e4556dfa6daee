"""The ConfigMap with the status of a node's tunnels, for ``kube-efs status``: one for each node.

All nodes see the same change of a mount target at the same moment, and the API server limits the concurrent
requests of their common service account. So each node waits a random time before it writes. Numbers that
change all the time, such as connections, do not cause a write; the regular one updates them.

An agent that ends removes its ConfigMap. A node can also end without its agent, for example a Spot Instance.
So the Node owns the ConfigMap, and Kubernetes deletes both.
"""

import asyncio
import math
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import structlog
from lightkube import AsyncClient
from lightkube.models.meta_v1 import OwnerReference
from lightkube.resources.core_v1 import ConfigMap, Node

from kube_efs.kube.building import build_config_map
from kube_efs.kube.errors import translated
from kube_efs.model.errors import KubeError
from kube_efs.model.names import Names
from kube_efs.tunnels.status import TunnelsStatus, TunnelStatus, render_status

log = structlog.get_logger()

STATUS_KEY = "tunnels.json"
NODE_KEY = "node"

# A status that is older is from a node that is down, or that cannot reach the API server.
REFRESH_SECONDS = 300.0
# The regular writes of nodes that started together must not stay together.
_REFRESH_SPREAD = (0.8, 1.0)
_REMOVE_SECONDS = 1.0


async def publish_status(
    client: AsyncClient,
    get_status: Callable[[], TunnelsStatus],
    *,
    names: Names,
    node: str,
    interval_seconds: float,
    spread_seconds: float,
) -> None:
    """Write the status after each change and periodically, until cancelled; then remove it.

    The status is read every ``interval_seconds``. A change is written after at most ``spread_seconds``.
    """
    config_map = _StatusConfigMap(client, names, node)
    last: TunnelsStatus | None = None
    written: TunnelsStatus | None = None
    clock = asyncio.get_running_loop().time
    write_at = math.inf
    try:
        while True:
            status = get_status()
            # Most often nothing at all has changed, which is quick to see.
            if status != last and _differ(status, written):
                write_at = min(write_at, clock() + _random(0, spread_seconds))
            last = status
            if clock() >= write_at:
                if await config_map.write(status):
                    written = status
                    write_at = clock() + REFRESH_SECONDS * _random(*_REFRESH_SPREAD)
                else:
                    write_at = clock() + _random(0, spread_seconds)
            await asyncio.sleep(interval_seconds)
    finally:
        await config_map.remove()


def _random(least: float, most: float) -> float:
    return random.uniform(least, most)  # noqa: S311 - spreads load, guards nothing


def _differ(one: TunnelsStatus, other: TunnelsStatus | None) -> bool:
    """Whether they differ in more than numbers."""
    if other is None or len(one.tunnels) != len(other.tunnels):
        return True
    pairs = zip(one.tunnels, other.tunnels, strict=True)
    return replace(one, tunnels=()) != replace(other, tunnels=()) or any(
        tunnel is not known and _without_numbers(tunnel) != _without_numbers(known) for tunnel, known in pairs
    )


def _without_numbers(tunnel: TunnelStatus) -> TunnelStatus:
    """The status without the fields that change although the tunnel does not change its state."""
    return replace(
        tunnel,
        probe_seconds=None,
        connections=0,
        holders=0,
        certificate_ends="",
        sent_bytes=None,
        received_bytes=None,
    )


class _StatusConfigMap:
    """The ConfigMap of a node."""

    def __init__(self, client: AsyncClient, names: Names, node: str) -> None:
        self._client = client
        self._names = names
        self._node = node
        self._name = names.tunnel_status_of(node)
        self._uid: str | None = None
        self._owner: OwnerReference | None = None

    async def write(self, status: TunnelsStatus) -> bool:
        """Write the status; False if this must be repeated."""
        self._owner = self._owner or await self._find_owner()
        body = build_config_map(
            namespace=self._names.namespace,
            name=self._name,
            labels=self._names.tunnel_status_labels,
            data={
                NODE_KEY: self._node,
                STATUS_KEY: render_status(status, time=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")),
            },
            owner=self._owner,
        )
        try:
            with translated(f"ConfigMap {self._name}"):
                written = await self._client.apply(body, force=True)
        except KubeError as error:
            log.warning("status-not-published", node=self._node, reason=str(error))
            return False
        before, self._uid = self._uid, (written.metadata.uid if written.metadata else None)
        if before in {None, self._uid}:
            return True
        # Somebody deleted it: Kubernetes does so if the Node was created again, and so has another UID.
        self._owner = None
        return False

    async def _find_owner(self) -> OwnerReference | None:
        """The Node; None if it cannot be read: the status is written without an owner."""
        try:
            with translated(f"Node {self._node}"):
                found = await self._client.get(Node, self._node)
        except KubeError as error:
            log.info("status-without-owner", node=self._node, reason=str(error))
            return None
        uid = found.metadata and found.metadata.uid
        return OwnerReference(apiVersion="v1", kind="Node", name=self._node, uid=uid) if uid else None

    async def remove(self) -> None:
        """Remove the status: an agent that has ended must not look healthy."""
        try:
            async with asyncio.timeout(_REMOVE_SECONDS):
                with translated(f"ConfigMap {self._name}"):
                    await self._client.delete(ConfigMap, self._name, namespace=self._names.namespace)
        except (KubeError, TimeoutError) as error:
            log.info("status-not-removed", config_map=self._name, reason=str(error))
