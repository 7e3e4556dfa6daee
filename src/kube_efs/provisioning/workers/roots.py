"""The root of a file system as a volume of the CSI driver, for one worker pod.

The pod, its claim and its volume have the same name. Nothing needs to remember them:

1. The pod is created first, and waits for its claim. The volume and the claim are created after it, so a
   volume whose pod does not exist has no use.
2. The pod owns the claim, so Kubernetes deletes the claim after the pod.
3. The controller deletes every such volume whose pod does not exist (``controllers/worker_volumes.py``).

Each volume is reserved for its claim, in the namespace of the controller. No other claim can bind it.
"""

from typing import Final

from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim

from kube_efs.kube.building import build_owned_claim, build_volume
from kube_efs.model.claims import ReclaimPolicy
from kube_efs.model.csi.volume_handles import VolumeHandle
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.names import WORKER_LABELS
from kube_efs.model.tunnel_volumes import ROOT_CLASS
from kube_efs.model.volumes import DRIVER, ClaimReference, CsiSource, Volume
from kube_efs.provisioning.workers.pod_objects import ObservedPod

# A file system policy can require an identity. Nodes without credentials connect without one.
MOUNT_OPTIONS: Final = ("tls", "iam=auto")
# S3 Files always needs an identity, and no option for it.
_SIGNED_OPTIONS: Final = ("tls",)
_ACCESS_MODES: Final = ("ReadWriteMany",)
_STORAGE: Final = "1Gi"


def root_objects(
    pod: ObservedPod, kind: FileSystemKind, namespace: str
) -> tuple[PersistentVolume, PersistentVolumeClaim]:
    """The volume and the claim of a pod that exists; ``kind`` is that of its file system."""
    # The AWS driver before 3.0, which may still run on some nodes, knows EFS without a prefix only.
    handle: str = pod.file_system_id
    if kind is not FileSystemKind.EFS:
        handle = str(VolumeHandle(kind=kind, file_system_id=pod.file_system_id))
    volume = Volume(
        name=pod.name,
        reclaim_policy=ReclaimPolicy.RETAIN,
        storage_class=ROOT_CLASS,
        file_system_id=pod.file_system_id,
        claim=ClaimReference(namespace=namespace, name=pod.name),
        csi=CsiSource(driver=DRIVER, handle=handle),
        mount_options=_SIGNED_OPTIONS if kind.always_signs else MOUNT_OPTIONS,
        labels=WORKER_LABELS,
        access_modes=_ACCESS_MODES,
        capacity=_STORAGE,
    )
    claim = build_owned_claim(
        namespace=namespace,
        name=pod.name,
        labels=WORKER_LABELS,
        pod_uid=pod.uid,
        storage_class=ROOT_CLASS,
        access_modes=_ACCESS_MODES,
        storage=_STORAGE,
    )
    return build_volume(volume), claim


def is_root_of_pod(volume: Volume, namespace: str) -> bool:
    """Whether the volume was created for a worker pod of this namespace; the pod may not exist."""
    claim = volume.claim
    is_reserved = claim is not None and (claim.namespace, claim.name) == (namespace, volume.name)
    return volume.storage_class == ROOT_CLASS and volume.csi is not None and is_reserved
