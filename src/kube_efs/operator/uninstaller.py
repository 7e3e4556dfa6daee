"""Removing the installation, in an order that breaks nothing that is still in use.

What makes and removes volumes goes first, then what mounts them, then the tunnels, then all that these
needed, the CSIDriver last. Each step waits until the pods of the one before are gone. Volumes, claims,
storage classes, resources of users, and what is in AWS stay.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from lightkube.types import CascadeType

from kube_efs.operator.cluster_csi_driver import FORCE_UNINSTALL
from kube_efs.operator.conditions import Component
from kube_efs.operator.desired_objects import component_of
from kube_efs.operator.injection import MANAGED_BY
from kube_efs.operator.installer import Tell
from kube_efs.operator.kinds import KEPT_AFTER_UNINSTALL, KINDS, WORKLOADS, reference_of
from kube_efs.operator.manifests import Manifest
from kube_efs.operator.object_client import ObjectClient
from kube_efs.operator.volumes_in_use import describe_pods, find_volume_uses

_ORDER: Final = (Component.CONTROLLER, Component.NODE, Component.TUNNEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class UninstallProgress:
    """How far it is: ``blocked`` names who keeps it from beginning, ``waits`` what is going right now."""

    blocked: str = ""
    waits: str = ""

    @property
    def done(self) -> bool:
        """Whether nothing is left."""
        return not (self.blocked or self.waits)


class Uninstaller:
    """Removes what carries the operator's label; nothing is rendered, so nothing can be missing for it."""

    def __init__(self, cluster: ObjectClient, namespace: str, tell: Tell) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._tell = tell

    async def step(self, *, forced: bool) -> UninstallProgress:
        """Go as far as possible now; raises KubeError. ``forced`` removes what pods use, too."""
        workloads = [one for kind in sorted(WORKLOADS) for one in await self._installed(kind)]
        if workloads and not forced:
            uses = await find_volume_uses(self._cluster.client)
            if uses:
                return UninstallProgress(blocked=blocked_by(describe_pods(uses)))
        for component in _ORDER:
            of_component = [one for one in workloads if component_of(one) is component]
            if of_component:
                await self._remove(of_component, CascadeType.FOREGROUND)
                return UninstallProgress(waits=f"the pods of {reference_of(of_component[0])} are ending")
        for kind in KINDS:
            if kind not in KEPT_AFTER_UNINSTALL:
                await self._remove(await self._installed(kind), CascadeType.BACKGROUND)
        return UninstallProgress()

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
