"""Finds the pods that use volumes which need kube-efs on their node, and volumes that are being removed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lightkube import AsyncClient
from lightkube.models.core_v1 import ObjectReference
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim, Pod

from kube_efs.kube.errors import translated
from kube_efs.kube.pages import PAGE_SIZE
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


class VolumeUses:
    """Finds uses object by object: first all volumes are added, then all claims, then all pods.

    The whole objects of ten thousand pods would need more memory than the operator's container has.
    """

    def __init__(self) -> None:
        self._found: set[UseOfVolume] = set()
        # By name, whether the driver mounts the volume, and its claim.
        self._volumes: dict[str, tuple[bool, ObjectReference | None]] = {}
        # By namespace and name, whether the driver mounts the volume of the claim.
        self._claims: dict[tuple[str, str], bool] = {}

    @property
    def has_volumes(self) -> bool:
        """Whether any volume needs kube-efs."""
        return bool(self._volumes)

    @property
    def found(self) -> tuple[UseOfVolume, ...]:
        """The uses by the pods so far, sorted."""
        return tuple(sorted(self._found))

    def add_volume(self, volume: PersistentVolume) -> None:
        """Note the volume if it needs kube-efs."""
        if volume.metadata and volume.spec and _needs_kube_efs(volume):
            self._volumes[volume.metadata.name or ""] = (_is_csi(volume), volume.spec.claimRef)

    def add_claim(self, claim: PersistentVolumeClaim) -> None:
        """Note the claim if its volume needs kube-efs. A claim may name the volume of any other claim."""
        own, name = claim.metadata, (claim.spec and claim.spec.volumeName) or ""
        if own and name in self._volumes:
            by_driver, bound = self._volumes[name]
            if not bound or (bound.namespace, bound.name) == (own.namespace, own.name):
                self._claims[own.namespace or "", own.name or ""] = by_driver

    def add_pod(self, pod: Pod) -> None:
        """Note the uses of the pod."""
        if not (pod.metadata and pod.spec and _may_have_mounts(pod)):
            return
        namespace = _namespace_of(pod)
        for name in _claim_names(pod):
            if (namespace, name) in self._claims:
                self._found.add(
                    UseOfVolume(
                        node=pod.spec.nodeName or "",
                        namespace=namespace,
                        pod=pod.metadata.name or "",
                        claim=name,
                        by_driver=self._claims[namespace, name],
                    )
                )


async def find_volume_uses(client: AsyncClient) -> tuple[UseOfVolume, ...]:
    """The pods on nodes that use a volume of the driver or a tunnel volume; raises KubeError."""
    uses = VolumeUses()
    with translated("volumes in use"):
        async for volume in client.list(PersistentVolume, chunk_size=PAGE_SIZE):
            uses.add_volume(volume)
        if uses.has_volumes:
            async for claim in client.list(PersistentVolumeClaim, namespace="*", chunk_size=PAGE_SIZE):
                uses.add_claim(claim)
            async for pod in client.list(Pod, namespace="*", chunk_size=PAGE_SIZE):
                uses.add_pod(pod)
    return uses.found


async def find_volume_uses_on(client: AsyncClient, node: str) -> tuple[UseOfVolume, ...]:
    """The same for the pods on one node, in little time also in a large cluster; raises KubeError.

    The pods are read first: a claim is bound before its pod is on a node, so its volume is found then.
    """
    uses = VolumeUses()
    with translated(f"volumes in use on node {node}"):
        listing = client.list(Pod, namespace="*", fields={"spec.nodeName": node}, chunk_size=PAGE_SIZE)
        pods = [pod async for pod in listing if _may_have_mounts(pod)]
        claimed = {(_namespace_of(pod), name) for pod in pods for name in _claim_names(pod)}
        for namespace, claim_name in sorted(claimed):
            # Lists of one object: the operator may not get these kinds.
            async for claim in client.list(
                PersistentVolumeClaim, namespace=namespace, fields={"metadata.name": claim_name}
            ):
                if claim.spec and claim.spec.volumeName:
                    name = claim.spec.volumeName
                    async for volume in client.list(PersistentVolume, fields={"metadata.name": name}):
                        uses.add_volume(volume)
                    uses.add_claim(claim)
    for pod in pods:
        uses.add_pod(pod)
    return uses.found


async def find_volumes_being_removed(client: AsyncClient) -> tuple[str, ...]:
    """The names of the driver's volumes that the controller has begun to remove; raises KubeError.

    It deletes such a volume in Kubernetes first, and its finalizer last. Volumes that others created, or that
    are none of the driver, do not count: perhaps nothing will ever remove them.
    """
    with translated("volumes being removed"):
        found = [
            one.metadata.name or ""
            async for one in client.list(PersistentVolume, chunk_size=PAGE_SIZE)
            if one.metadata and one.metadata.deletionTimestamp
            if FINALIZER in (one.metadata.finalizers or ())
            if (one.metadata.annotations or {}).get(PROVISIONED_BY) == DRIVER
            if one.status and one.status.phase == "Released"
            if one.spec and one.spec.persistentVolumeReclaimPolicy == "Delete"
        ]
    return tuple(sorted(found))


def describe_pods(uses: Sequence[UseOfVolume]) -> str:
    """The names of the pods, at most ten of them."""
    return describe_names(sorted({f"{use.namespace}/{use.pod}" for use in uses}))


def describe_names(names: Sequence[str]) -> str:
    """The names, at most ten of them."""
    more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    return ", ".join(names[:_NAMES_MAX]) + more


def _is_csi(volume: PersistentVolume) -> bool:
    return bool(volume.spec and volume.spec.csi and volume.spec.csi.driver == DRIVER)


def _needs_kube_efs(volume: PersistentVolume) -> bool:
    return _is_csi(volume) or read_volume(volume.to_dict()).is_behind_port


def _may_have_mounts(pod: Pod) -> bool:
    """Whether the pod is on a node and runs.

    A pod that has ended has no mounts, but if it is being deleted, the kubelet may still unmount them.
    """
    has_ended = pod.status and pod.status.phase in {"Succeeded", "Failed"}
    is_leaving = pod.metadata and pod.metadata.deletionTimestamp
    return bool(pod.spec and pod.spec.nodeName and (is_leaving or not has_ended))


def _namespace_of(pod: Pod) -> str:
    return (pod.metadata and pod.metadata.namespace) or ""


def _claim_names(pod: Pod) -> tuple[str, ...]:
    """The claims that the pod refers to, and those that Kubernetes creates for its ephemeral volumes."""
    volumes = (pod.spec and pod.spec.volumes) or ()
    pod_name = (pod.metadata and pod.metadata.name) or ""
    named = (one.persistentVolumeClaim.claimName for one in volumes if one.persistentVolumeClaim)
    ephemeral = (f"{pod_name}-{one.name}" for one in volumes if one.ephemeral)
    return (*named, *ephemeral)
