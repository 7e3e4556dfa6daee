"""Claims and volumes as manifests, to be created again unchanged.

A manifest is an object of the Kubernetes API as decoded JSON. It is kept whole, with fields that are not
known here, less what the API server and its controllers write into it.
"""

import copy
from collections.abc import Mapping
from typing import Any

from kube_efs.migration.marks import MARK
from kube_efs.model.claims import ReclaimPolicy
from kube_efs.model.volumes import FINALIZER

Manifest = Mapping[str, Any]

BETA_CLASS = "volume.beta.kubernetes.io/storage-class"
_BINDING = frozenset(
    {
        "pv.kubernetes.io/bind-completed",
        "pv.kubernetes.io/bound-by-controller",
        "volume.beta.kubernetes.io/storage-provisioner",
        "volume.kubernetes.io/storage-provisioner",
        "volume.kubernetes.io/selected-node",
        BETA_CLASS,  # the field says it
        MARK,  # a new object gets its own
    }
)
# Their controllers add them while something uses the object. On a new claim, nothing would remove that of a
# snapshot or clone which was complete before, so the claim could never be deleted.
_PROTECTION = frozenset(
    {
        "kubernetes.io/pvc-protection",
        "kubernetes.io/pv-protection",
        "snapshot.storage.kubernetes.io/pvc-as-source-protection",
        "provisioner.storage.kubernetes.io/cloning-protection",
    }
)
_KEPT = ("name", "namespace", "labels", "annotations", "ownerReferences", "finalizers")


def plain_claim(body: Manifest) -> Manifest:
    """The claim without its volume; its class is always in ``spec.storageClassName``."""
    annotations = body["metadata"].get("annotations") or {}
    spec = {key: copy.deepcopy(value) for key, value in body["spec"].items() if key != "volumeName"}
    if BETA_CLASS in annotations:
        spec["storageClassName"] = annotations[BETA_CLASS]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": plain_metadata(body),
        "spec": spec,
    }


def plain_volume(body: Manifest) -> Manifest:
    """The volume, reserved for its claim with any UID."""
    spec = copy.deepcopy(dict(body["spec"]))
    claim = body["spec"]["claimRef"]
    annotations = body["metadata"].get("annotations") or {}
    if BETA_CLASS in annotations:
        spec["storageClassName"] = annotations[BETA_CLASS]
    spec["claimRef"] = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": claim["namespace"],
        "name": claim["name"],
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": plain_metadata(body),
        "spec": spec,
    }


def plain_metadata(body: Manifest) -> dict[str, Any]:
    """The fields that a user or program has written."""
    found = body["metadata"]
    kept = {key: copy.deepcopy(found[key]) for key in _KEPT if found.get(key)}
    if "annotations" in kept:
        kept["annotations"] = {k: v for k, v in kept["annotations"].items() if k not in _BINDING}
    if "finalizers" in kept:
        kept["finalizers"] = [name for name in kept["finalizers"] if name not in _PROTECTION]
    return {key: value for key, value in kept.items() if value}


def claim_with(claim: Manifest, *, volume: str, storage_class: str) -> Manifest:
    """The claim, bound to that volume, with that class."""
    spec = {**claim["spec"], "volumeName": volume, "storageClassName": storage_class}
    return {**claim, "spec": spec}


def same_claim(claim: Manifest, other: Manifest) -> bool:
    """Whether both are equal when they are created, except the class."""
    return _without_class(claim) == _without_class(other)


def _without_class(claim: Manifest) -> Manifest:
    spec = {key: value for key, value in claim["spec"].items() if key != "storageClassName"}
    return {"metadata": claim["metadata"], "spec": spec}


def kept_volume(volume: Manifest) -> Manifest:
    """The volume to create. Until it gets its own reclaim policy, its data is not removed."""
    spec = {**volume["spec"], "persistentVolumeReclaimPolicy": str(ReclaimPolicy.RETAIN)}
    return {**volume, "spec": spec}


def with_finalizer(metadata: Manifest) -> Manifest:
    """The metadata with the finalizer of provisioners, which each volume must have."""
    names = metadata.get("finalizers") or []
    return {**metadata, "finalizers": [*names, *([] if FINALIZER in names else [FINALIZER])]}
