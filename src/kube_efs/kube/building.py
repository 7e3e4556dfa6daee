"""Builds objects of the Kubernetes API from values of the model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lightkube.models.core_v1 import (
    Affinity,
    Container,
    CSIPersistentVolumeSource,
    NFSVolumeSource,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    ObjectReference,
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimVolumeSource,
    PersistentVolumeSpec,
    PodSchedulingGate,
    PodSpec,
    PreferredSchedulingTerm,
    ResourceRequirements,
    SecurityContext,
    Toleration,
    VolumeMount,
    VolumeNodeAffinity,
    VolumeResourceRequirements,
)
from lightkube.models.core_v1 import Volume as PodVolume
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta, OwnerReference
from lightkube.resources.core_v1 import ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod

from kube_efs.model.gids import DIRECTORY_ID_ANNOTATION, GID_ANNOTATION
from kube_efs.model.tunnel_volumes import FILE_SYSTEM_ID
from kube_efs.model.volumes import (
    DELETION_SECRET_NAME,
    DELETION_SECRET_NAMESPACE,
    PROVISIONED_BY,
    ZONE_LABEL,
    CsiSource,
    Volume,
)

# The name of a worker pod's container.
WORKER = "worker"
_WORKER_VOLUME = "efs"
_HIGHEST_WEIGHT = 100


def build_volume(volume: Volume) -> PersistentVolume:
    """The PersistentVolume, bound to its claim by reference."""
    annotations = {
        PROVISIONED_BY: volume.provisioned_by,
        FILE_SYSTEM_ID: volume.file_system_id,
        GID_ANNOTATION: None if volume.gid is None else str(volume.gid),
        DIRECTORY_ID_ANNOTATION: None if volume.directory_id is None else str(volume.directory_id),
        **_deletion_secret(volume),
    }
    claim, nfs = volume.claim, volume.nfs
    return PersistentVolume(
        metadata=ObjectMeta(
            name=volume.name,
            labels=dict(volume.labels) or None,
            annotations={key: value for key, value in annotations.items() if value is not None},
            finalizers=list(volume.finalizers) or None,
        ),
        spec=PersistentVolumeSpec(
            accessModes=list(volume.access_modes),
            capacity={"storage": volume.capacity},
            persistentVolumeReclaimPolicy=str(volume.reclaim_policy),
            storageClassName=volume.storage_class,
            volumeAttributesClassName=volume.attributes_class,
            mountOptions=list(volume.mount_options),
            nfs=NFSVolumeSource(server=nfs.server, path=nfs.path) if nfs else None,
            csi=_csi(volume.csi) if volume.csi else None,
            nodeAffinity=_only_in(volume.zone) if volume.zone else None,
            claimRef=ObjectReference(
                apiVersion="v1",
                kind="PersistentVolumeClaim",
                namespace=claim.namespace,
                name=claim.name,
                uid=claim.uid,
                resourceVersion=claim.resource_version or None,
            )
            if claim
            else None,
        ),
    )


def reservation_patch(namespace: str, name: str, uid: str | None) -> Mapping[str, str | None]:
    """``spec.claimRef`` of a volume, for a merge patch: the claim of this name, with this uid or any.

    None removes a field. Kubernetes' binder writes the uid and the version of the claim that it binds. If
    they stayed there after that claim was deleted, the volume would be Released, and Kubernetes would bind it
    to no new claim of that name.
    """
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": namespace,
        "name": name,
        "uid": uid,
        "resourceVersion": None,
    }


def _deletion_secret(volume: Volume) -> Mapping[str, str]:
    # Without a Secret, csi-provisioner writes them empty. It reads them when it deletes the volume.
    if volume.csi is None:
        return {}
    namespace, name = volume.deletion_secret or ("", "")
    return {DELETION_SECRET_NAME: name, DELETION_SECRET_NAMESPACE: namespace}


def _csi(source: CsiSource) -> CSIPersistentVolumeSource:
    return CSIPersistentVolumeSource(
        driver=source.driver,
        volumeHandle=source.handle,
        volumeAttributes=dict(source.attributes) or None,
    )


def _only_in(zone: str) -> VolumeNodeAffinity:
    rule = NodeSelectorRequirement(key=ZONE_LABEL, operator="In", values=[zone])
    term = NodeSelectorTerm(matchExpressions=[rule])
    return VolumeNodeAffinity(required=NodeSelector(nodeSelectorTerms=[term]))


def build_claim(
    *,
    namespace: str,
    name: str,
    storage_class: str,
    match_labels: Mapping[str, str],
    annotations: Mapping[str, str],
    access_modes: Sequence[str],
    storage: str,
) -> PersistentVolumeClaim:
    """A claim that selects its volume by labels."""
    return PersistentVolumeClaim(
        metadata=ObjectMeta(namespace=namespace, name=name, annotations=dict(annotations)),
        spec=PersistentVolumeClaimSpec(
            accessModes=list(access_modes),
            resources=VolumeResourceRequirements(requests={"storage": storage}),
            selector=LabelSelector(matchLabels=dict(match_labels)),
            storageClassName=storage_class,
        ),
    )


def build_owned_claim(
    *,
    namespace: str,
    name: str,
    labels: Mapping[str, str],
    pod_uid: str,
    storage_class: str,
    access_modes: Sequence[str],
    storage: str,
) -> PersistentVolumeClaim:
    """The claim of the pod with the same name, which owns it, for the volume with the same name."""
    owner = OwnerReference(apiVersion="v1", kind="Pod", name=name, uid=pod_uid)
    return PersistentVolumeClaim(
        metadata=ObjectMeta(namespace=namespace, name=name, labels=dict(labels), ownerReferences=[owner]),
        spec=PersistentVolumeClaimSpec(
            accessModes=list(access_modes),
            resources=VolumeResourceRequirements(requests={"storage": storage}),
            storageClassName=storage_class,
            volumeName=name,
        ),
    )


def build_config_map(
    *,
    namespace: str,
    name: str,
    labels: Mapping[str, str],
    data: Mapping[str, str],
    owner: OwnerReference | None = None,
) -> ConfigMap:
    """A ConfigMap, which Kubernetes deletes after its ``owner``."""
    owners = [owner] if owner else None
    metadata = ObjectMeta(namespace=namespace, name=name, labels=dict(labels), ownerReferences=owners)
    return ConfigMap(metadata=metadata, data=dict(data))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPod:
    """A pod that runs one job on the file system of ``root_claim`` and ends.

    With a ``gate``, it does not run until the gate is removed. It runs on a node with all labels of
    ``node_selector`` that fits one of the ``node_terms``, if there are any, and if possible the
    ``preferred_nodes``. Taints are tolerated as ``tolerations`` say.
    """

    namespace: str
    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    image: str
    arguments: Sequence[str]
    service_account: str
    root_claim: str
    mount_path: str
    timeout_seconds: int
    node_selector: Mapping[str, str]
    node_terms: Sequence[NodeSelectorTerm]
    preferred_nodes: NodeSelectorTerm | None = None
    tolerations: Sequence[Toleration] = ()
    gate: str | None = None


def build_worker_pod(worker: WorkerPod) -> Pod:
    """The Pod of a worker.

    It runs as root because the directories of a file system belong to any user, and never restarts by
    itself: a removal that is retried must pass its guards again.
    """
    claim = PersistentVolumeClaimVolumeSource(claimName=worker.root_claim)
    return Pod(
        metadata=ObjectMeta(
            namespace=worker.namespace,
            name=worker.name,
            labels=dict(worker.labels),
            annotations=dict(worker.annotations),
        ),
        spec=PodSpec(
            restartPolicy="Never",
            schedulingGates=[PodSchedulingGate(name=worker.gate)] if worker.gate else None,
            activeDeadlineSeconds=worker.timeout_seconds,
            automountServiceAccountToken=False,
            enableServiceLinks=False,
            serviceAccountName=worker.service_account,
            terminationGracePeriodSeconds=5,
            nodeSelector=dict(worker.node_selector),
            affinity=_affinity(worker.node_terms, worker.preferred_nodes),
            tolerations=list(worker.tolerations) or None,
            containers=[_worker_container(worker)],
            volumes=[PodVolume(name=_WORKER_VOLUME, persistentVolumeClaim=claim)],
        ),
    )


def _affinity(required: Sequence[NodeSelectorTerm], preferred: NodeSelectorTerm | None) -> Affinity | None:
    if not (required or preferred):
        return None
    return Affinity(
        nodeAffinity=NodeAffinity(
            requiredDuringSchedulingIgnoredDuringExecution=NodeSelector(nodeSelectorTerms=list(required))
            if required
            else None,
            preferredDuringSchedulingIgnoredDuringExecution=[
                PreferredSchedulingTerm(weight=_HIGHEST_WEIGHT, preference=preferred)
            ]
            if preferred
            else None,
        )
    )


def _worker_container(worker: WorkerPod) -> Container:
    return Container(
        name=WORKER,
        image=worker.image,
        args=list(worker.arguments),
        resources=ResourceRequirements(requests={"cpu": "10m", "memory": "32Mi"}),
        securityContext=SecurityContext(
            runAsUser=0, allowPrivilegeEscalation=False, readOnlyRootFilesystem=True
        ),
        terminationMessagePolicy="FallbackToLogsOnError",
        volumeMounts=[VolumeMount(name=_WORKER_VOLUME, mountPath=worker.mount_path)],
    )
