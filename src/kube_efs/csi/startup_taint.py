"""The taint that keeps pods off a node until its driver serves.

Administrators add ``efs.csi.aws.com/agent-not-ready`` to new nodes, so that no pod is scheduled before its
volumes can be mounted. The driver removes it, when it is registered and the tunnel agent of the node serves.
Most volumes are mounted through a tunnel. Only where the DaemonSet of the tunnels does not exist, nothing is
mounted through them, and the driver alone is enough.
"""

import asyncio
from typing import Final

import structlog
from lightkube import AsyncClient
from lightkube.models.core_v1 import Taint
from lightkube.resources.apps_v1 import DaemonSet
from lightkube.resources.core_v1 import Node
from lightkube.types import PatchType

from kube_efs.kube.errors import translated
from kube_efs.model.errors import KubeError, KubeNotFound, TunnelError
from kube_efs.model.names import Names
from kube_efs.tunnels.api.client import TunnelClient

log = structlog.get_logger()

STARTUP_TAINT: Final = "efs.csi.aws.com/agent-not-ready"
_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 60.0
# A node takes no pods meanwhile.
_LONGEST_WAIT_SECONDS: Final = 10.0


async def wait_for_tunnels(
    client: AsyncClient, tunnels: TunnelClient, names: Names, *, pause_seconds: float = _PAUSE_SECONDS
) -> None:
    """Return when the tunnel agent of this node answers, or when the cluster has no tunnels.

    A cluster whose DaemonSets cannot be read counts as one with tunnels: a pod that starts too early cannot
    mount its volumes, and a taint that stays too long has this reason in the log.
    """
    pause = pause_seconds
    while True:
        try:
            await tunnels.tunnels()
        except TunnelError as error:
            reason = str(error)
        else:
            return
        try:
            with translated(f"DaemonSet {names.namespace}/{names.tunnel}"):
                await client.get(DaemonSet, names.tunnel, namespace=names.namespace)
        except KubeNotFound:
            log.info("tunnels-not-expected", namespace=names.namespace, daemon_set=names.tunnel)
            return
        except KubeError as error:
            reason = f"{reason}; {error}"
        log.warning("startup-taint-kept", reason=reason, retry_seconds=pause)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_WAIT_SECONDS)


async def remove_startup_taint(
    client: AsyncClient, node_name: str, *, pause_seconds: float = _PAUSE_SECONDS
) -> None:
    """Remove the taint from the node, whatever its effect; retry until it is removed."""
    pause = pause_seconds
    while True:
        try:
            await _remove(client, node_name)
        except KubeNotFound:
            log.info("startup-taint-skipped", node=node_name, reason="there is no such node")
            return
        except KubeError as error:
            log.warning("startup-taint-not-removed", node=node_name, reason=str(error))
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        else:
            return


async def _remove(client: AsyncClient, node_name: str) -> None:
    with translated(f"node {node_name}"):
        node = await client.get(Node, node_name)
        taints = (node.spec.taints if node.spec else None) or []
        kept = [taint for taint in taints if taint.key != STARTUP_TAINT]
        if kept == taints:
            return
        # The test operation refuses the patch if another client has changed the taints since.
        patch = [
            {"op": "test", "path": "/spec/taints", "value": _json(taints)},
            {"op": "replace", "path": "/spec/taints", "value": _json(kept)},
        ]
        await client.patch(Node, node_name, patch, patch_type=PatchType.JSON)
    log.info("startup-taint-removed", node=node_name)


def _json(taints: list[Taint]) -> list[object]:
    return [taint.to_dict() for taint in taints]
