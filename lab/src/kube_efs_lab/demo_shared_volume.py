"""The demo's SharedVolume: the access point of a claim, in another namespace, without a right to volumes."""

from typing import Any

from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim, Pod

from kube_efs.kube.errors import translated
from kube_efs.kube.shared_volumes import SharedVolumeResource
from kube_efs.report.values import VolumeReport
from kube_efs_lab.cluster import EmbeddedCluster
from kube_efs_lab.manifests import SHARED_VOLUME_POD, apply, shared_volume

NAMESPACE = "proj2"
CLAIM = "pvc-sv1"
_NAME, _POD, _VOLUME = "sv1", "pod1", f"pv-{NAMESPACE}-sv1"


class DemoSharedVolume:
    """Each look says what is still missing, and nothing when all is as promised."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._client = cluster.client

    async def apply(self, volume: VolumeReport) -> None:
        """Make the namespace, a SharedVolume of that volume's access point, and a pod; raises KubeError."""
        resource = shared_volume(volume.file_system_id, volume.access_point_id)
        namespace = f"apiVersion: v1\nkind: Namespace\nmetadata: {{name: {NAMESPACE}}}\n"
        await apply(self._client, [namespace, resource, SHARED_VOLUME_POD])

    async def not_read(self) -> str:
        """Look whether the pod has found in its volume what another one has written in another namespace."""
        pod = await self._found(Pod, _POD)
        phase = pod and pod.status and pod.status.phase
        return "" if phase == "Succeeded" else f"pod {_POD} is {phase or 'not there'}"

    async def delete(self) -> None:
        """Delete the pod and the SharedVolume; raises KubeError."""
        with translated(f"pod {_POD}"):
            await self._client.delete(Pod, _POD, namespace=NAMESPACE, grace_period=1)
        with translated(f"SharedVolume {_NAME}"):
            await self._client.delete(SharedVolumeResource, _NAME, namespace=NAMESPACE)

    async def not_gone(self) -> str:
        """Look whether the SharedVolume is gone, with its claim and its volume."""
        for kind, name in (
            (SharedVolumeResource, _NAME),
            (PersistentVolumeClaim, CLAIM),
            (PersistentVolume, _VOLUME),
        ):
            if await self._found(kind, name):
                return f"{name} is still there"
        return ""

    async def _found(self, kind: Any, name: str) -> Any:  # noqa: ANN401 - of whichever kind
        place = {} if kind is PersistentVolume else {"namespace": NAMESPACE}
        try:
            return await self._client.get(kind, name, **place)
        except ApiError as error:
            if error.status.code == 404:
                return None
            raise
