"""``kube-efs node`` for kernels without NFS: a volume is mounted if its tunnel reaches an NFS server.

``node_runner.py EXPORTS``; the other settings are in the environment, as for ``kube-efs node``.
"""

import asyncio
import itertools
import sys
from pathlib import Path

from tests.integration.folder_mounter import FolderMounter

from kube_efs.csi.run_node import run_node
from kube_efs.model.errors import MountFailed
from kube_efs.settings.loading import load
from kube_efs.settings.node import NodeSettings
from kube_efs.telemetry.logging import configure
from kube_efs.tunnels.probe import probe

_xids = itertools.count(1)
_ATTEMPTS = 20
_PAUSE_SECONDS = 0.1
_PATIENCE_SECONDS = 30.0


class ServedMounter(FolderMounter):
    """Mounts directories instead of the exports of the NFS server behind the tunnel."""

    async def mount(self, source: str, target: Path, options: str) -> None:
        [port] = [int(one.removeprefix("port=")) for one in options.split(",") if one.startswith("port=")]
        for _ in range(_ATTEMPTS):
            result = await probe(port, timeout_seconds=_PATIENCE_SECONDS, xid=next(_xids))
            if result.ok:
                return await super().mount(source, target, options)
            # As the kernel does: what was not yet accepted when stunnel loads its configuration is reset.
            await asyncio.sleep(_PAUSE_SECONDS)
        raise MountFailed(result.reason, field="target", value=str(target))


if __name__ == "__main__":
    settings = load(NodeSettings)
    configure(settings.logging_level)
    asyncio.run(run_node(settings, ServedMounter(Path(sys.argv[1]))))
