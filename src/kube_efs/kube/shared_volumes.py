"""Reads and builds SharedVolumes with their volumes and claims.

Patches change only our fields. The uid in a patch makes it fail, instead of changing a new object of the same
name.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

from lightkube.generic_resource import create_namespaced_resource
from lightkube.models.core_v1 import (
    CSIPersistentVolumeSource,
    ObjectReference,
    PersistentVolumeClaimSpec,
    PersistentVolumeSpec,
    VolumeResourceRequirements,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim

from kube_efs.kube.reading import Json, read_claim, read_volume
from kube_efs.model.shared_volumes.shared_volume import (
    ACCESS_MODES,
    GROUP,
    KIND,
    PLURAL,
    STORAGE,
    STORAGE_CLASS,
    VERSION,
    MarkedClaim,
    MarkedVolume,
    Marks,
    Owner,
    SharedVolume,
    SharedVolumePhase,
    SharedVolumeSource,
    Status,
    marks_among,
    marks_of,
)
from kube_efs.model.volumes import DRIVER

SharedVolumeResource = create_namespaced_resource(GROUP, VERSION, KIND, PLURAL)

_BOUND, _MATCHES = "Bound", "VolumeMatches"
_REASONS = {
    (_BOUND, True): "ClaimBound",
    (_BOUND, False): "ClaimNotBound",
    (_MATCHES, True): "SameAccessPoint",
    (_MATCHES, False): "NotTheSameAccessPoint",
}


Inputs: TypeAlias = tuple[str, int, bool, tuple[str, ...]]


def read_owner(body: Json) -> Owner:
    """The name of a SharedVolume."""
    return Owner(namespace=body["metadata"]["namespace"], name=body["metadata"]["name"])


def read_shared_volume(body: Json) -> SharedVolume:
    """The SharedVolume in an object, which may have no spec: older definitions allow that."""
    meta, spec = body["metadata"], body.get("spec") or {}
    return SharedVolume(
        owner=read_owner(body),
        uid=meta["uid"],
        resource_version=meta.get("resourceVersion", ""),
        generation=meta.get("generation", 0),
        deleting="deletionTimestamp" in meta,
        finalizers=tuple(meta.get("finalizers") or ()),
        source=SharedVolumeSource(
            file_system_id=spec.get("fileSystemID", ""), access_point_id=spec.get("accessPointID", "")
        ),
        status=read_status(body),
        since={kind: one.get("lastTransitionTime", "") for kind, one in _conditions(body).items()},
    )


def read_status(body: Json) -> Status:
    """The status of a SharedVolume; older definitions accept values of any type in it."""
    status, conditions = _mapping(body.get("status")), _conditions(body)
    phase = status.get("phase")
    return Status(
        phase=next((one for one in SharedVolumePhase if one == phase), None),
        message=status.get("message", ""),
        claim_name=_mapping(status.get("claimRef")).get("name", ""),
        bound=_truth(conditions.get(_BOUND)),
        matches=_truth(conditions.get(_MATCHES)),
        generation=status.get("observedGeneration", 0),
    )


def _conditions(body: Json) -> Mapping[str, Json]:
    found = _mapping(body.get("status")).get("conditions")
    every = map(_mapping, found if isinstance(found, list) else ())
    return {one["type"]: one for one in every if isinstance(one.get("type"), str)}


def _mapping(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def read_inputs(body: Json) -> Inputs:
    """What decides about a SharedVolume: everything but its status."""
    meta = body["metadata"]
    finalizers = tuple(meta.get("finalizers") or ())
    return meta["uid"], meta.get("generation", 0), "deletionTimestamp" in meta, finalizers


def _truth(condition: Json | None) -> bool | None:
    status = (condition or {}).get("status")
    return {"True": True, "False": False}.get(status) if isinstance(status, str) else None


def build_status(shared: SharedVolume, status: Status) -> Json:
    """The new ``status``, with the times of the old one."""
    return {
        "phase": str(status.phase),
        "message": status.message,
        "claimRef": {"apiGroup": "", "kind": "PersistentVolumeClaim", "name": status.claim_name},
        "observedGeneration": status.generation,
        "conditions": [
            _condition(shared, _BOUND, status.bound, shared.status.bound),
            _condition(shared, _MATCHES, status.matches, shared.status.matches),
        ],
    }


def _condition(shared: SharedVolume, kind: str, value: bool | None, before: bool | None) -> Json:
    truth = bool(value)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "type": kind,
        "status": str(truth),
        "reason": _REASONS[kind, truth],
        "message": "",
        "observedGeneration": shared.generation,
        "lastTransitionTime": shared.since.get(kind, now) if truth is before else now,
    }


def read_marked_volume(body: Json) -> MarkedVolume:
    """The volume with the labels and annotations of its owner."""
    return MarkedVolume(volume=read_volume(body), marks=_read_marks(body))


def read_marked_claim(body: Json) -> MarkedClaim:
    """The claim with the labels and annotations of its owner."""
    return MarkedClaim(claim=read_claim(body), marks=_read_marks(body))


def _read_marks(body: Json) -> Marks:
    meta = body["metadata"]
    return marks_among(meta.get("labels") or {}, meta.get("annotations") or {})


def build_shared_volume_s_volume(shared: SharedVolume, claim_uid: str | None) -> PersistentVolume:
    """The PersistentVolume, reserved for the claim."""
    marks, source = marks_of(shared.owner), shared.source
    return PersistentVolume(
        metadata=ObjectMeta(
            name=shared.owner.volume_name, labels=dict(marks.labels), annotations=dict(marks.annotations)
        ),
        spec=PersistentVolumeSpec(
            accessModes=list(ACCESS_MODES),
            capacity={"storage": STORAGE},
            claimRef=ObjectReference(
                apiVersion="v1",
                kind="PersistentVolumeClaim",
                namespace=shared.owner.namespace,
                name=shared.owner.claim_name,
                uid=claim_uid,
            ),
            csi=CSIPersistentVolumeSource(driver=DRIVER, volumeHandle=source.handle),
            persistentVolumeReclaimPolicy="Retain",
            storageClassName=STORAGE_CLASS,
            volumeMode="Filesystem",
        ),
    )


def build_shared_volume_s_claim(shared: SharedVolume) -> PersistentVolumeClaim:
    """The PersistentVolumeClaim, which can bind only to that volume."""
    owner, marks = shared.owner, marks_of(shared.owner)
    return PersistentVolumeClaim(
        metadata=ObjectMeta(
            namespace=owner.namespace,
            name=owner.claim_name,
            labels=dict(marks.labels),
            annotations=dict(marks.annotations),
        ),
        spec=PersistentVolumeClaimSpec(
            accessModes=list(ACCESS_MODES),
            resources=VolumeResourceRequirements(requests={"storage": STORAGE}),
            storageClassName=STORAGE_CLASS,
            volumeMode="Filesystem",
            volumeName=owner.volume_name,
        ),
    )


def marks_patch(owner: Owner) -> Mapping[str, Any]:
    """The labels and annotations of an object of this owner, as a part of its metadata."""
    marks = marks_of(owner)
    return {"labels": dict(marks.labels), "annotations": dict(marks.annotations)}
