"""Expands volumes: their capacity follows the requests of their claims, and no data is touched.

EFS has no quotas: the usage of a volume is only compared with the request of its claim. Users can raise the
request if the class has ``allowVolumeExpansion``, which the API server checks. These are the steps of
csi-resizer 2.0:

1. The claim gets the condition ``Resizing``.
2. The volume gets the requested capacity.
3. The claim gets this capacity in its status, and loses the condition.

A step that fails is repeated, and so is an expansion that an earlier leader has begun. Each write has the
version of the object that was read: a late write of an earlier leader, for a smaller request, has no effect.
"""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Final

from kube_efs.kube.claims import ClaimStore
from kube_efs.kube.quantities import parse_quantity
from kube_efs.kube.volumes import VolumeStore
from kube_efs.model.claims import Claim, ClaimPhase
from kube_efs.model.errors import KubeConflict, KubeNotFound
from kube_efs.model.volumes import Volume

# How often a claim or volume may change during one expansion.
_CHANGES_FOLLOWED: Final = 5


def wants_expansion(claim: Claim) -> bool:
    """Whether the claim requests more than it has, or an expansion of it has begun."""
    if claim.phase is not ClaimPhase.BOUND or claim.deleting or claim.capacity is None:
        return False
    # Nearly all claims have what they request, in the same words.
    is_same = claim.requested_storage == claim.capacity
    return claim.resizing or (not is_same and _size(claim.requested_storage) > _size(claim.capacity))


class Expansions:
    """Expands the volumes that ``serves`` accepts."""

    def __init__(self, *, claims: ClaimStore, volumes: VolumeStore, serves: Callable[[Volume], bool]) -> None:
        self._claims = claims
        self._volumes = volumes
        self._serves = serves

    async def expand(self, claim: Claim) -> Volume | None:
        """The expanded volume of the claim; None if there is nothing to do. Raises KubeError."""
        for _ in range(_CHANGES_FOLLOWED):
            try:
                return await self._expand(claim)
            except KubeConflict as conflict:
                last = conflict
        raise last

    async def _expand(self, claim: Claim) -> Volume | None:
        live = await self._claims.get(claim.namespace, claim.name)
        if live is None or live.uid != claim.uid or not wants_expansion(live):
            return None
        try:
            volume = await self._volumes.get(live.volume_name)
        except KubeNotFound:
            return None
        is_of_claim = volume.claim is not None and volume.claim.uid == live.uid
        if not is_of_claim or volume.deleting or not self._serves(volume):
            return None
        if _size(volume.capacity) < _size(live.requested_storage):
            # Before the volume: if this ends in between and the request is then lowered, the condition
            # remains.
            if not live.resizing:
                live = await self._claims.mark_resizing(live)
            await self._volumes.expand(volume, live.requested_storage)
            volume = replace(volume, capacity=live.requested_storage)
        # A volume can have more than is requested: the request may be lowered while the expansion runs.
        await self._claims.record_capacity(live, volume.capacity)
        return volume


def _size(text: str) -> Fraction:
    return parse_quantity(text) or Fraction(0)
