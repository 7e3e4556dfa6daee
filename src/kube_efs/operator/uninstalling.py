"""Removing the installation, in an order that breaks nothing that is still in use.

What makes and removes volumes goes first, then what mounts them, then the tunnels, then all that these
needed, the CSIDriver last. Each step waits until the pods of the one before are gone. Volumes, claims,
storage classes, resources of users, and what is in AWS stay.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from lightkube.types import CascadeType

from kube_efs.operator.cluster import Cluster
from kube_efs.operator.conditions import Part
from kube_efs.operator.driver import FORCE_UNINSTALL
from kube_efs.operator.injecting import MANAGED_BY
from kube_efs.operator.installation import part_of
from kube_efs.operator.installing import Tell
from kube_efs.operator.kinds import KEPT, KINDS, WORKLOADS, reference_of
from kube_efs.operator.manifests import Manifest
from kube_efs.operator.usage import describe, find_uses

_ORDER: Final = (Part.CONTROLLER, Part.NODE, Part.TUNNEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """How far it is: ``blocked`` names who keeps it from beginning, ``waits`` what is going right now."""

    blocked: str = ""
    waits: str = ""

    @property
    def done(self) -> bool:
        """Whether nothing is left."""
        return not (self.blocked or self.waits)


class Uninstaller:
    """Removes what carries the operator's label; nothing is rendered, so nothing can be missing for it."""

    def __init__(self, cluster: Cluster, namespace: str, tell: Tell) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._tell = tell

    async def step(self, *, forced: bool) -> Removal:
        """Go as far as possible now; raises KubeError. ``forced`` removes what pods use, too."""
        workloads = [one for kind in sorted(WORKLOADS) for one in await self._installed(kind)]
        if workloads and not forced:
            uses = await find_uses(self._cluster.client)
            if uses:
                return Removal(blocked=blocked_by(describe(uses)))
        for part in _ORDER:
            of_part = [one for one in workloads if part_of(one) is part]
            if of_part:
                await self._remove(of_part, CascadeType.FOREGROUND)
                return Removal(waits=f"the pods of {reference_of(of_part[0])} are ending")
        for kind in KINDS:
            if kind not in KEPT:
                await self._remove(await self._installed(kind), CascadeType.BACKGROUND)
        return Removal()

    async def _installed(self, kind: str) -> tuple[Manifest, ...]:
        namespace = KINDS[kind].namespace(self._namespace)
        return await self._cluster.find(kind, labels=MANAGED_BY, namespace=namespace)

    async def _remove(self, objects: Iterable[Manifest], cascade: CascadeType) -> None:
        for one in objects:
            if one["metadata"].get("deletionTimestamp"):
                continue
            reference = reference_of(one)
            if await self._cluster.delete(reference, cascade=cascade):
                self._tell(reference, "Deleted")


def blocked_by(pods: str) -> str:
    """What to do about pods that use volumes."""
    return (
        f"pods use volumes of the driver: {pods}; end them, or set the annotation {FORCE_UNINSTALL} to true"
        " and lose access to what they have mounted"
    )
