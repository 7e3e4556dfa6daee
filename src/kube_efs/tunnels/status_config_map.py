"""The ConfigMap with the status of a node's tunnels, for ``kube-efs status``: one for each node."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import structlog
from lightkube import AsyncClient
from lightkube.resources.core_v1 import ConfigMap

from kube_efs.kube.building import build_config_map
from kube_efs.kube.errors import translated
from kube_efs.model.errors import KubeError
from kube_efs.model.names import Names
from kube_efs.tunnels.status import TunnelsStatus, render_status

log = structlog.get_logger()

STATUS_KEY = "tunnels.json"
NODE_KEY = "node"

# A status that is older than this is from a node that is down, or that cannot reach the API server.
_REFRESH_SECONDS = 60.0
_REMOVE_SECONDS = 1.0


async def publish_status(
    client: AsyncClient,
    get_status: Callable[[], TunnelsStatus],
    *,
    names: Names,
    node: str,
    interval_seconds: float,
) -> None:
    """Write the status after each change and periodically, until cancelled; then remove it."""
    written: TunnelsStatus | None = None
    next_refresh = 0.0
    loop = asyncio.get_running_loop()
    try:
        while True:
            status = get_status()
            due = _without_probe_times(status) != written or loop.time() >= next_refresh
            if due and await _write(client, names, node, status):
                written, next_refresh = _without_probe_times(status), loop.time() + _REFRESH_SECONDS
            await asyncio.sleep(interval_seconds)
    finally:
        await _remove(client, names.namespace, names.tunnel_status_of(node))


def _without_probe_times(status: TunnelsStatus) -> TunnelsStatus:
    """The status without the fields that change with every probe."""
    return replace(status, tunnels=tuple(replace(tunnel, probe_seconds=None) for tunnel in status.tunnels))


async def _write(client: AsyncClient, names: Names, node: str, status: TunnelsStatus) -> bool:
    name = names.tunnel_status_of(node)
    time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    body = build_config_map(
        namespace=names.namespace,
        name=name,
        labels=names.tunnel_status_labels,
        data={NODE_KEY: node, STATUS_KEY: render_status(status, time=time)},
    )
    try:
        with translated(f"ConfigMap {name}"):
            await client.apply(body, force=True)
    except KubeError as error:
        log.warning("status-not-published", node=node, reason=str(error))
        return False
    return True


async def _remove(client: AsyncClient, namespace: str, name: str) -> None:
    """Remove the status: an agent that has ended must not look healthy."""
    try:
        async with asyncio.timeout(_REMOVE_SECONDS):
            with translated(f"ConfigMap {name}"):
                await client.delete(ConfigMap, name, namespace=namespace)
    except (KubeError, TimeoutError) as error:
        log.info("status-not-removed", config_map=name, reason=str(error))
