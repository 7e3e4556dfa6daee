"""The writes of ``binding`` as merge patches."""

from collections.abc import Mapping
from typing import Any

from tinykube.controllers.binding import (
    ReferClaim,
    Report,
    SetClaim,
    SetClaimStatus,
    SetVolumePhase,
    Step,
)
from tinykube.controllers.values import BOUND_BY_CONTROLLER, ClaimReference, Meta


def on_top_of(meta: Meta, versions: Mapping[str, str], step: Step) -> dict[str, Any]:
    """The patch of a step, which the server refuses when the object is no longer what was decided on.

    ``versions`` has the newer version of an object that a step before has already written, by its uid.
    """
    patch = render_patch(step)
    metadata = {"resourceVersion": versions.get(meta.uid, meta.version), "uid": meta.uid}
    return {**patch, "metadata": {**patch.get("metadata", {}), **metadata}}


def render_patch(step: Step) -> dict[str, Any]:
    """What a step changes, as a merge patch; nothing for events."""
    match step:
        case ReferClaim():
            annotation = {BOUND_BY_CONTROLLER: "yes" if step.by_controller else None}
            return {
                "metadata": {"annotations": annotation},
                "spec": {"claimRef": step.claim and _claim_reference(step.claim)},
            }
        case SetVolumePhase():
            return {"status": {"phase": step.phase, "message": step.message or None}}
        case SetClaim():
            spec = {"spec": {"volumeName": step.volume_name}} if step.volume_name else {}
            return {"metadata": {"annotations": dict(step.annotations)}, **spec}
        case SetClaimStatus():
            volume = step.volume
            return {
                "status": {
                    "phase": step.phase,
                    "accessModes": list(volume.access_modes) if volume else None,
                    "capacity": {"storage": volume.capacity} if volume else None,
                }
            }
        case Report():
            return {}


def _claim_reference(claim: ClaimReference) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": claim.key.namespace,
        "name": claim.key.name,
        "uid": claim.uid or None,
    }
