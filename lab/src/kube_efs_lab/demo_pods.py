"""The pods of the demo: one writes into the volume of an access point, others read.

The last one reads through a SharedVolume, in a namespace that has no right to volumes.
"""

import asyncio
from pathlib import Path
from typing import Any

from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim, Pod

from fake_efs.errors import InvalidValue
from kube_efs.kube.errors import translated
from kube_efs.kube.shared_volumes import SharedVolumeResource
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import KubeNotFound
from kube_efs.report.values import ClusterReport, VolumeReport
from kube_efs.tunnels.status import TunnelStatus
from kube_efs_lab.cluster import EmbeddedCluster
from kube_efs_lab.manifests import (
    ACCESS_POINT_CLAIM,
    ACCESS_POINT_POD,
    READER_POD,
    SHARED_VOLUME_POD,
    access_point_class,
    apply,
    shared_volume,
)

CLAIM = "efs-claim-1"
SHARED_NAMESPACE = "proj2"
SHARED_CLAIM = "pvc-sv1"
_WRITER, _READER, _SHARED_READER = "efs-app-1", "efs-reader", "pod1"
_NAMESPACE = "default"
_SHARED_VOLUME, _VOLUME = "sv1", f"pv-{SHARED_NAMESPACE}-sv1"


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
        phase = await self._phase(_WRITER, _NAMESPACE)
        if phase != "Running":
            return f"pod {_WRITER} is {phase or 'not there'}"
        return "" if await self.has_written(volume) else f"pod {_WRITER} has written nothing"

    async def has_written(self, volume: VolumeReport) -> bool:
        """Whether there is a line of the first pod's in the directory of the access point."""
        self.line = await asyncio.to_thread(_first_line, await self._folder(volume) / self.file)
        return bool(self.line)

    async def not_read(self) -> str:
        """Look whether the second pod has read it and has ended."""
        return await self._not_succeeded(_READER, _NAMESPACE)

    async def share(self, volume: VolumeReport) -> None:
        """Make the other namespace, a SharedVolume of the access point, and a pod; raises KubeError."""
        resource = shared_volume(volume.file_system_id, volume.access_point_id)
        namespace = f"apiVersion: v1\nkind: Namespace\nmetadata: {{name: {SHARED_NAMESPACE}}}\n"
        await apply(self._cluster.client, [namespace, resource, SHARED_VOLUME_POD])

    async def not_read_through_share(self) -> str:
        """Look whether that pod has found what the first one has written."""
        return await self._not_succeeded(_SHARED_READER, SHARED_NAMESPACE)

    async def unshare(self) -> None:
        """Delete the pod and the SharedVolume; raises KubeError."""
        client = self._cluster.client
        with translated(f"pod {_SHARED_READER}"):
            await client.delete(Pod, _SHARED_READER, namespace=SHARED_NAMESPACE, grace_period=1)
        with translated(f"SharedVolume {_SHARED_VOLUME}"):
            await client.delete(SharedVolumeResource, _SHARED_VOLUME, namespace=SHARED_NAMESPACE)

    async def not_unshared(self) -> str:
        """Look whether the SharedVolume is gone, with its claim and its volume."""
        shared = {"namespace": SHARED_NAMESPACE}
        for kind, name, place in (
            (SharedVolumeResource, _SHARED_VOLUME, shared),
            (PersistentVolumeClaim, SHARED_CLAIM, shared),
            (PersistentVolume, _VOLUME, {}),
        ):
            if await self._found(kind, name, **place):
                return f"{name} is still there"
        return ""

    async def delete(self) -> None:
        """Delete the pods; raises KubeError."""
        for name in (_WRITER, _READER):
            with translated(f"pod {name}"):
                await self._cluster.client.delete(Pod, name, namespace=_NAMESPACE, grace_period=1)

    async def not_deleted(self) -> str:
        """Look whether both pods are gone, which they are not before their volumes are unmounted."""
        left = [name for name in (_WRITER, _READER) if await self._phase(name, _NAMESPACE)]
        return f"{', '.join(left)} are still there" if left else ""

    async def not_removed(self, access_point_id: str) -> str:
        """Look whether the access point is gone."""
        try:
            await self._cluster.efs.access_point_folder(access_point_id)
        except InvalidValue:
            return ""
        return f"{access_point_id} is still there"

    async def _folder(self, volume: VolumeReport) -> Path:
        return await self._cluster.efs.access_point_folder(volume.access_point_id)

    async def _not_succeeded(self, name: str, namespace: str) -> str:
        phase = await self._phase(name, namespace)
        return "" if phase == "Succeeded" else f"pod {name} is {phase or 'not there'}"

    async def _phase(self, name: str, namespace: str) -> str:
        found = await self._found(Pod, name, namespace=namespace)
        return ((found.status and found.status.phase) or "Pending") if found else ""

    async def _found(self, kind: Any, name: str, **place: str) -> Any:  # noqa: ANN401 - of whichever kind
        try:
            with translated(name):
                return await self._cluster.client.get(kind, name, **place)
        except KubeNotFound:
            return None


def tunnel_of(report: ClusterReport, access_point_id: str) -> TunnelStatus | None:
    """The tunnel on demand of an access point, if there is one."""
    tunnels = (tunnel for node in report.nodes for tunnel in node.tunnels)
    return next((tunnel for tunnel in tunnels if tunnel.access_point_id == access_point_id), None)


def _first_line(path: Path) -> str:
    return path.read_text(encoding="utf-8").partition("\n")[0] if path.exists() else ""
