"""Finds the pods that use volumes which need kube-efs on their node, and volumes that are being removed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from lightkube import AsyncClient
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim, Pod

from kube_efs.kube.errors import translated
from kube_efs.kube.reading import read_volume
from kube_efs.model.volumes import DRIVER, FINALIZER, PROVISIONED_BY

_NAMES_MAX: Final = 10


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class UseOfVolume:
    """A pod on a node and one of its claims; ``by_driver`` if the CSI driver mounts the volume."""

    node: str
    namespace: str
    pod: str
    claim: str
    by_driver: bool = True


async def find_volume_uses(client: AsyncClient) -> tuple[UseOfVolume, ...]:
    """The pods on nodes that use a volume of the driver or a tunnel volume; raises KubeError."""
    with translated("volumes in use"):
        volumes = [item async for item in client.list(PersistentVolume)]
        if not any(_needs_kube_efs(volume) for volume in volumes):
            return ()
        claims = [item async for item in client.list(PersistentVolumeClaim, namespace="*")]
        pods = [item async for item in client.list(Pod, namespace="*")]
    return volume_uses_of(pods, claims, volumes)


async def find_volumes_being_removed(client: AsyncClient) -> tuple[str, ...]:
    """The names of the driver's volumes that the controller has begun to remove; raises KubeError.

    It deletes such a volume in Kubernetes first, and its finalizer last. Volumes that others created, or that
    are none of the driver, do not count: perhaps nothing will ever remove them.
    """
    with translated("volumes being removed"):
        found = [
            one.metadata.name or ""
            async for one in client.list(PersistentVolume)
            if one.metadata and one.metadata.deletionTimestamp
            if FINALIZER in (one.metadata.finalizers or ())
            if (one.metadata.annotations or {}).get(PROVISIONED_BY) == DRIVER
            if one.status and one.status.phase == "Released"
            if one.spec and one.spec.persistentVolumeReclaimPolicy == "Delete"
        ]
    return tuple(sorted(found))


def volume_uses_of(
    pods: Iterable[Pod], claims: Iterable[PersistentVolumeClaim], volumes: Iterable[PersistentVolume]
) -> tuple[UseOfVolume, ...]:
    """The same for these objects, sorted.

    A pod that has ended has no mounts, but if it is being deleted, the kubelet may still be unmounting them.
    """
    volume_of_name = {
        volume.metadata.name: volume for volume in volumes if volume.metadata and _needs_kube_efs(volume)
    }
    by_driver_of_claim = {
        (claim.metadata.namespace, claim.metadata.name): _is_csi(volume)
        for claim in claims
        if claim.metadata and claim.spec and (volume := volume_of_name.get(claim.spec.volumeName))
        if _is_for(volume, claim)
    }
    found = {
        UseOfVolume(
            node=pod.spec.nodeName or "",
            namespace=pod.metadata.namespace or "",
            pod=pod.metadata.name or "",
            claim=name,
            by_driver=by_driver_of_claim[pod.metadata.namespace, name],
        )
        for pod in pods
        if pod.metadata and pod.spec and pod.spec.nodeName
        if pod.metadata.deletionTimestamp or not _has_ended(pod)
        for name in _claim_names(pod)
        if (pod.metadata.namespace, name) in by_driver_of_claim
    }
    return tuple(sorted(found))


def describe_pods(uses: Sequence[UseOfVolume]) -> str:
    """The names of the pods, at most ten of them."""
    return describe_names(sorted({f"{use.namespace}/{use.pod}" for use in uses}))


def describe_names(names: Sequence[str]) -> str:
    """The names, at most ten of them."""
    more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    return ", ".join(names[:_NAMES_MAX]) + more


def _is_for(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Whether the volume is not bound to another claim. A claim may name the volume of any other claim."""
    bound, own = volume.spec and volume.spec.claimRef, claim.metadata
    return not bound or bool(own and (bound.namespace, bound.name) == (own.namespace, own.name))


def _is_csi(volume: PersistentVolume) -> bool:
    return bool(volume.spec and volume.spec.csi and volume.spec.csi.driver == DRIVER)


def _needs_kube_efs(volume: PersistentVolume) -> bool:
    return _is_csi(volume) or read_volume(volume.to_dict()).is_behind_port


def _has_ended(pod: Pod) -> bool:
    return bool(pod.status and pod.status.phase in {"Succeeded", "Failed"})


def _claim_names(pod: Pod) -> tuple[str, ...]:
    """The claims that the pod refers to, and those that Kubernetes creates for its ephemeral volumes."""
    volumes = (pod.spec and pod.spec.volumes) or ()
    pod_name = (pod.metadata and pod.metadata.name) or ""
    named = (one.persistentVolumeClaim.claimName for one in volumes if one.persistentVolumeClaim)
    ephemeral = (f"{pod_name}-{one.name}" for one in volumes if one.ephemeral)
    return (*named, *ephemeral)
