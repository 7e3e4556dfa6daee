"""The pods of the demo: one writes into the volume of an access point, another one reads."""

import asyncio
from pathlib import Path

from lightkube.resources.core_v1 import Pod

from kube_efs.kube.errors import translated
from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import InvalidValue, KubeNotFound
from kube_efs.report.values import ClusterReport, VolumeReport
from kube_efs.tunnels.status import TunnelStatus
from kube_efs_lab.cluster import EmbeddedCluster
from kube_efs_lab.manifests import (
    ACCESS_POINT_CLAIM,
    ACCESS_POINT_POD,
    READER_POD,
    access_point_class,
    apply,
)

CLAIM = "efs-claim-1"
_WRITER, _READER = "efs-app-1", "efs-reader"
_NAMESPACE = "default"


class DemoPods:
    """Each look says what is still missing, and nothing when all is as promised.

    ``line`` is the first that the writer has written to ``file``, by the last look.
    """

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.file = "out1"
        self.line = ""
        self._cluster = cluster

    async def apply(self, file_system_id: FileSystemId) -> None:
        """Apply the class, the claim and the pods; raises KubeError."""
        class_ = access_point_class(file_system_id)
        await apply(self._cluster.client, [class_, ACCESS_POINT_CLAIM, ACCESS_POINT_POD, READER_POD])

    async def not_written(self, volume: VolumeReport) -> str:
        """Look for what the first pod writes in the directory of the access point."""
        phase = await self._phase(_WRITER)
        if phase != "Running":
            return f"pod {_WRITER} is {phase or 'not there'}"
        return "" if await self.has_written(volume) else f"pod {_WRITER} has written nothing"

    async def has_written(self, volume: VolumeReport) -> bool:
        """Whether there is a line of the first pod's in the directory of the access point."""
        self.line = await asyncio.to_thread(_first_line, await self._folder(volume) / self.file)
        return bool(self.line)

    async def not_read(self) -> str:
        """Look whether the second pod has read it and has ended."""
        phase = await self._phase(_READER)
        return "" if phase == "Succeeded" else f"pod {_READER} is {phase or 'not there'}"

    async def delete(self) -> None:
        """Delete the pods; raises KubeError."""
        for name in (_WRITER, _READER):
            with translated(f"pod {name}"):
                await self._cluster.client.delete(Pod, name, namespace=_NAMESPACE, grace_period=1)

    async def not_deleted(self) -> str:
        """Look whether both pods are gone, which they are not before their volumes are unmounted."""
        left = [name for name in (_WRITER, _READER) if await self._phase(name)]
        return f"{', '.join(left)} are still there" if left else ""

    async def not_removed(self, access_point_id: str) -> str:
        """Look whether the access point is gone."""
        try:
            await self._cluster.efs.access_point_folder(AccessPointId(access_point_id))
        except InvalidValue:
            return ""
        return f"{access_point_id} is still there"

    async def _folder(self, volume: VolumeReport) -> Path:
        return await self._cluster.efs.access_point_folder(AccessPointId(volume.access_point_id))

    async def _phase(self, name: str) -> str:
        try:
            with translated(f"pod {name}"):
                found = await self._cluster.client.get(Pod, name, namespace=_NAMESPACE)
        except KubeNotFound:
            return ""
        return (found.status and found.status.phase) or "Pending"


def tunnel_of(report: ClusterReport, access_point_id: str) -> TunnelStatus | None:
    """The tunnel on demand of an access point, if there is one."""
    tunnels = (tunnel for node in report.nodes for tunnel in node.tunnels)
    return next((tunnel for tunnel in tunnels if tunnel.access_point_id == access_point_id), None)


def _first_line(path: Path) -> str:
    return path.read_text(encoding="utf-8").partition("\n")[0] if path.exists() else ""
