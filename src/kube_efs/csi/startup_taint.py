"""The taint that keeps pods off a node until its driver serves.

Administrators add ``efs.csi.aws.com/agent-not-ready`` to new nodes, so that no pod is scheduled before its
volumes can be mounted. The driver removes it.
"""

import asyncio
from typing import Final

import structlog
from lightkube import AsyncClient
from lightkube.models.core_v1 import Taint
from lightkube.resources.core_v1 import Node
from lightkube.types import PatchType

from kube_efs.kube.errors import translated
from kube_efs.model.errors import KubeError, KubeNotFound

log = structlog.get_logger()

STARTUP_TAINT: Final = "efs.csi.aws.com/agent-not-ready"
_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 60.0


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
