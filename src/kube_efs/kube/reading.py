"""Reads values of the model from objects of the Kubernetes API, as decoded JSON.

Objects of other versions have unknown and missing fields. Unknown fields are ignored, and missing ones become
the documented default, never an error.
"""

from collections.abc import Hashable, Mapping
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, TypeVar

from kube_efs.model.claims import Claim, ClaimPhase, DataSource, ReclaimPolicy, StorageClass
from kube_efs.model.efs.ids import ClaimUid, FileSystemId, parse_file_system_id
from kube_efs.model.errors import InvalidValue
from kube_efs.model.gids import DIRECTORY_ID_ANNOTATION, GID_ANNOTATION, parse_gid
from kube_efs.model.tunnel_volumes import CHOSEN_FILE_SYSTEM, FILE_SYSTEM_ID, REJECT_REASON, REJECTED
from kube_efs.model.volumes import (
    DELETION_SECRET_NAME,
    DELETION_SECRET_NAMESPACE,
    PROVISIONED_BY,
    ZONE_LABEL,
    ClaimReference,
    CsiSource,
    NfsSource,
    Volume,
    VolumePhase,
)

Json = Mapping[str, Any]

_BETA_CLASS = "volume.beta.kubernetes.io/storage-class"
_BETA_MOUNT_OPTIONS = "volume.beta.kubernetes.io/mount-options"
_SELECTED_NODE = "volume.kubernetes.io/selected-node"
_STORAGE_PROVISIONER = "volume.kubernetes.io/storage-provisioner"
_BETA_STORAGE_PROVISIONER = "volume.beta.kubernetes.io/storage-provisioner"

E = TypeVar("E", bound=StrEnum)
H = TypeVar("H", bound=Hashable)

_EMPTY: Final[Mapping[str, str]] = MappingProxyType({})
# More than the number of classes and namespaces of a cluster.
_SHARED_MOST: Final = 4096


def read_claim(body: Json) -> Claim:
    """The claim in a PersistentVolumeClaim."""
    meta, spec = body["metadata"], body.get("spec") or {}
    annotations, status = meta.get("annotations") or {}, body.get("status") or {}
    selector = spec.get("selector")
    return Claim(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=ClaimUid(meta["uid"]),
        resource_version=meta.get("resourceVersion", ""),
        phase=_member(ClaimPhase, status.get("phase"), ClaimPhase.PENDING),
        deleting="deletionTimestamp" in meta,
        # The annotation of Kubernetes 1.5 still takes precedence, even if it is empty.
        storage_class=annotations.get(_BETA_CLASS, spec.get("storageClassName")),
        volume_name=spec.get("volumeName") or "",
        labels=_texts(meta.get("labels")),
        annotations=_texts(annotations),
        match_labels=None if selector is None else MappingProxyType(dict(selector.get("matchLabels") or {})),
        access_modes=tuple(spec.get("accessModes") or ()),
        requested_storage=((spec.get("resources") or {}).get("requests") or {}).get("storage", "1Gi"),
        capacity=(status.get("capacity") or {}).get("storage"),
        resizing=any(
            (one.get("type"), one.get("status")) == ("Resizing", "True")
            for one in status.get("conditions") or ()
        ),
        is_block=spec.get("volumeMode") == "Block",
        data_source=_data_source(spec.get("dataSourceRef") or spec.get("dataSource")),
        selected_node=annotations.get(_SELECTED_NODE),
        storage_provisioner=annotations.get(_STORAGE_PROVISIONER, annotations.get(_BETA_STORAGE_PROVISIONER)),
        attributes_class=spec.get("volumeAttributesClassName") or None,
        rejection=annotations.get(REJECT_REASON, "") if annotations.get(REJECTED) == "true" else None,
        file_system=_chosen_file_system(annotations.get(CHOSEN_FILE_SYSTEM, ""), meta["uid"]),
    )


def _data_source(found: Json | None) -> DataSource | None:
    if not found:
        return None
    return DataSource(
        kind=found.get("kind", ""),
        name=found.get("name", ""),
        group=found.get("apiGroup") or "",
        namespace=found.get("namespace") or "",
    )


def _chosen_file_system(text: str, uid: str) -> FileSystemId | None:
    """The file system that was recorded for the claim of that uid.

    A record with another uid belongs to a claim from which this one was copied or restored.
    """
    file_system_id, _, recorded_for = text.partition("/")
    if recorded_for != uid:
        return None
    try:
        return parse_file_system_id(file_system_id)
    except InvalidValue:
        return None


def read_storage_class(body: Json) -> StorageClass:
    """The class in a StorageClass."""
    return StorageClass(
        name=body["metadata"]["name"],
        provisioner=body.get("provisioner", ""),
        parameters=MappingProxyType(dict(body.get("parameters") or {})),
        reclaim_policy=_member(ReclaimPolicy, body.get("reclaimPolicy"), ReclaimPolicy.DELETE),
        mount_options=tuple(body.get("mountOptions") or ()),
        waits_for_consumer=body.get("volumeBindingMode") == "WaitForFirstConsumer",
    )


def read_volume(body: Json) -> Volume:
    """The volume in a PersistentVolume; volumes share equal strings."""
    meta, spec = body["metadata"], body.get("spec") or {}
    annotations, nfs = meta.get("annotations") or {}, spec.get("nfs")
    return Volume(
        name=meta["name"],
        uid=meta.get("uid", ""),
        resource_version=meta.get("resourceVersion", ""),
        phase=_member(VolumePhase, (body.get("status") or {}).get("phase"), VolumePhase.PENDING),
        deleting="deletionTimestamp" in meta,
        reclaim_policy=_member(
            ReclaimPolicy, spec.get("persistentVolumeReclaimPolicy"), ReclaimPolicy.RETAIN
        ),
        storage_class=_shared(annotations.get(_BETA_CLASS, spec.get("storageClassName") or "")),
        provisioned_by=_shared(annotations.get(PROVISIONED_BY)),
        file_system_id=_shared(annotations.get(FILE_SYSTEM_ID)),
        gid=parse_gid(annotations.get(GID_ANNOTATION)),
        directory_id=parse_gid(annotations.get(DIRECTORY_ID_ANNOTATION)),
        finalizers=_shared(tuple(meta.get("finalizers") or ())),
        claim=_read_claim_reference(spec.get("claimRef")),
        nfs=NfsSource(server=_shared(nfs.get("server", "")), path=nfs.get("path", "")) if nfs else None,
        csi=_read_csi(spec.get("csi")),
        zone=_read_zone(spec.get("nodeAffinity")),
        deletion_secret=_read_deletion_secret(annotations),
        mount_options=_shared(_read_mount_options(annotations, spec)),
        labels=_texts(meta.get("labels")),
        access_modes=_shared(tuple(spec.get("accessModes") or ())),
        capacity=_shared((spec.get("capacity") or {}).get("storage", "")),
    )


def _read_mount_options(annotations: Json, spec: Json) -> tuple[str, ...]:
    """The mount options of the kubelet, which still prefers the annotation of Kubernetes 1.7."""
    if _BETA_MOUNT_OPTIONS in annotations:
        options = (option.strip() for option in annotations[_BETA_MOUNT_OPTIONS].split(","))
        return tuple(option for option in options if option)
    return tuple(spec.get("mountOptions") or ())


def _read_claim_reference(body: Json | None) -> ClaimReference | None:
    if not body:
        return None
    uid = body.get("uid")
    return ClaimReference(
        namespace=_shared(body.get("namespace", "")),
        name=body.get("name", ""),
        uid=ClaimUid(uid) if uid else None,
    )


def _read_csi(body: Json | None) -> CsiSource | None:
    if not body:
        return None
    driver, handle = _shared(body.get("driver", "")), body.get("volumeHandle", "")
    return CsiSource(driver=driver, handle=handle, attributes=_texts(body.get("volumeAttributes")))


def _read_zone(body: Json | None) -> str | None:
    """The zone of a volume, if it has one; kube-efs creates no other rules."""
    for term in ((body or {}).get("required") or {}).get("nodeSelectorTerms") or ():
        for rule in term.get("matchExpressions") or ():
            if rule.get("key") == ZONE_LABEL and len(rule.get("values") or ()) == 1:
                return str(rule["values"][0])
    return None


def _read_deletion_secret(annotations: Json) -> tuple[str, str] | None:
    name = annotations.get(DELETION_SECRET_NAME)
    return (annotations.get(DELETION_SECRET_NAMESPACE, ""), name) if name else None


@lru_cache(maxsize=_SHARED_MOST)
def _shared(value: H) -> H:
    """The first equal value, to save memory: thousands of volumes have the same class."""
    return value


def _texts(found: Mapping[str, str] | None) -> Mapping[str, str]:
    return MappingProxyType(dict(found)) if found else _EMPTY


def _member(enum: type[E], text: object, default: E) -> E:
    try:
        return enum(str(text))
    except ValueError:
        return default
