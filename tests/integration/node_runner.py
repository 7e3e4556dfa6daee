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


class ServedMounter(FolderMounter):
    """Mounts folders in the place of what an NFS server at the other end of the tunnel exports."""

    async def mount(self, source: str, target: Path, options: str) -> None:
        [port] = [int(one.removeprefix("port=")) for one in options.split(",") if one.startswith("port=")]
        result = await probe(port, timeout_seconds=10, xid=next(_xids))
        if not result.ok:
            raise MountFailed(result.reason, field="target", value=str(target))
        await super().mount(source, target, options)


if __name__ == "__main__":
    settings = load(NodeSettings)
    configure(settings.logging_level)
    asyncio.run(run_node(settings, ServedMounter(Path(sys.argv[1]))))
