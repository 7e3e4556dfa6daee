"""Which volume a claim gets (``FindMatchingVolume`` of component-helpers/storage/volume/pv_helpers.go).

Node affinity is not looked at: the embedded cluster has one node.
"""

from collections.abc import Iterable
from decimal import Decimal

from tinykube.controllers.values import Claim, Volume, VolumePhase


def best_match(claim: Claim, volumes: Iterable[Volume], *, reserved_only: bool = False) -> Volume | None:
    """The volume that is reserved for the claim, else the smallest free one that will do; None for none.

    A reserved volume may be of any class. ``reserved_only`` is for claims that wait for a consumer:
    choosing for those is the scheduler's part.
    """
    free: list[Volume] = []
    for volume in volumes:
        if volume.claim is not None and not volume.claim.means(claim):
            continue
        if volume.meta.deleting or not _suffices(volume, claim):
            continue
        if volume.claim is not None:
            return volume
        if not reserved_only and _is_free_for(volume, claim):
            free.append(volume)
    return min(free, key=_preference, default=None)


def fits(volume: Volume, claim: Claim) -> bool:
    """Whether a volume that the claim names can serve it."""
    same_class = volume.class_name == (claim.class_name or "")
    return not volume.meta.deleting and same_class and _suffices(volume, claim)


def _suffices(volume: Volume, claim: Claim) -> bool:
    return (
        volume.capacity_bytes >= claim.request_bytes
        and volume.volume_mode == claim.volume_mode
        and set(claim.access_modes) <= set(volume.access_modes)
    )


def _is_free_for(volume: Volume, claim: Claim) -> bool:
    return (
        volume.phase is VolumePhase.AVAILABLE
        and volume.class_name == (claim.class_name or "")
        and all(requirement.accepts(volume.meta.labels) for requirement in claim.selector)
    )


def _preference(volume: Volume) -> tuple[int, Decimal, str]:
    # As in Kubernetes, a volume with fewer access modes comes first, whatever its size.
    return len(volume.access_modes), volume.capacity_bytes, volume.meta.key.name
