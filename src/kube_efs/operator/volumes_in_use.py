"""Which pods use volumes that stop to work without kube-efs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from lightkube import AsyncClient
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim, Pod

from kube_efs.kube.errors import translated
from kube_efs.model.volumes import LOOPBACK
from kube_efs.operator.cluster_csi_driver import DRIVER_NAME

_SHOWN: Final = 10


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class VolumeUse:
    """A pod on a node that has such a volume; ``by_driver`` when the CSI driver has mounted it."""

    node: str
    namespace: str
    pod: str
    claim: str
    by_driver: bool = True


async def find_volume_uses(client: AsyncClient) -> tuple[VolumeUse, ...]:
    """Every pod that is on a node and uses a volume of the driver or of a tunnel; raises KubeError."""
    with translated("volumes in use"):
        volumes = [item async for item in client.list(PersistentVolume)]
        if not any(_is_ours(volume) for volume in volumes):
            return ()
        claims = [item async for item in client.list(PersistentVolumeClaim, namespace="*")]
        pods = [item async for item in client.list(Pod, namespace="*")]
    return volume_uses_of(pods, claims, volumes)


def volume_uses_of(
    pods: Iterable[Pod], claims: Iterable[PersistentVolumeClaim], volumes: Iterable[PersistentVolume]
) -> tuple[VolumeUse, ...]:
    """The same for what was listed, in order. A pod that has ended has nothing mounted."""
    by_driver = {
        volume.metadata.name: _is_csi(volume) for volume in volumes if volume.metadata and _is_ours(volume)
    }
    ours = {
        (claim.metadata.namespace, claim.metadata.name): by_driver[claim.spec.volumeName]
        for claim in claims
        if claim.metadata and claim.spec and claim.spec.volumeName in by_driver
    }
    found = {
        VolumeUse(
            node=pod.spec.nodeName or "",
            namespace=pod.metadata.namespace or "",
            pod=pod.metadata.name or "",
            claim=name,
            by_driver=ours[pod.metadata.namespace, name],
        )
        for pod in pods
        if pod.metadata and pod.spec and pod.spec.nodeName and not _has_ended(pod)
        for name in _claim_names(pod)
        if (pod.metadata.namespace, name) in ours
    }
    return tuple(sorted(found))


def describe_pods(uses: Sequence[VolumeUse]) -> str:
    """The pods by name, the first few of many."""
    pods = sorted({f"{use.namespace}/{use.pod}" for use in uses})
    more = f" and {len(pods) - _SHOWN} more" if len(pods) > _SHOWN else ""
    return ", ".join(pods[:_SHOWN]) + more


def _is_csi(volume: PersistentVolume) -> bool:
    return bool(volume.spec and volume.spec.csi and volume.spec.csi.driver == DRIVER_NAME)


def _is_ours(volume: PersistentVolume) -> bool:
    nfs = volume.spec and volume.spec.nfs
    return _is_csi(volume) or bool(nfs and nfs.server == LOOPBACK)


def _has_ended(pod: Pod) -> bool:
    return bool(pod.status and pod.status.phase in {"Succeeded", "Failed"})


def _claim_names(pod: Pod) -> tuple[str, ...]:
    """Claims that the pod names, and those that are made for it (ephemeral volumes)."""
    volumes = (pod.spec and pod.spec.volumes) or ()
    pod_name = (pod.metadata and pod.metadata.name) or ""
    named = (one.persistentVolumeClaim.claimName for one in volumes if one.persistentVolumeClaim)
    made = (f"{pod_name}-{one.name}" for one in volumes if one.ephemeral)
    return (*named, *made)
