"""``kube-efs node`` for machines whose kernel has no NFS: a volume is mounted if its tunnel leads to NFS.

``node_runner.py EXPORTS``; all else is in the environment, as for ``kube-efs node`` itself.
"""

import asyncio
import itertools
import sys
from pathlib import Path

from tests.integration.folder_mounter import FolderMounter

from kube_efs.csi.run_node import run_node
from kube_efs.model.errors import MountFailed
from kube_efs.settings import NodeSettings, load
from kube_efs.telemetry.logging import configure
from kube_efs.tunnels.probe import probe

_xids = itertools.count(1)
_ATTEMPTS = 20
_PAUSE_SECONDS = 0.1
_PATIENCE_SECONDS = 30.0


class ServedMounter(FolderMounter):
    """Mounts folders in the place of what an NFS server at the other end of the tunnel exports."""

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
