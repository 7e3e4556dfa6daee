"""Removes the installation, in an order that breaks no mount in use.

Nothing is removed while a pod uses a volume of the driver or a tunnel volume, unless an administrator forces
it. Without the tunnel, each access of the pod to its volume would hang, and without the driver, the kubelet
could not unmount it.

Then the workloads are deleted one after the other: the controller, which creates and deletes volumes; the
driver of the nodes, which mounts them; the tunnels, through which they are mounted. Each one needs the next
until its last pod has ended. Each deletion is therefore a foreground deletion: the object exists until its
pods have ended, and only then is the next one deleted. All other objects follow, the CSIDriver last.

The objects are found by the label of the operator. Nothing is rendered, so objects of an earlier version or
of other settings are removed too.

Volumes, claims, StorageClasses, SharedVolumes and their definition, and everything in AWS stay.
"""

from collections.abc import Iterable
from typing import Final

from lightkube.types import CascadeType

from kube_efs.operator.cluster_csi_driver import FORCE_UNINSTALL
from kube_efs.operator.desired_objects import Component, component_of
from kube_efs.operator.installer import RecordChange
from kube_efs.operator.kinds import KEPT_AFTER_UNINSTALL, KINDS, MANAGED_BY, WORKLOADS, reference_of
from kube_efs.operator.manifests import Manifest
from kube_efs.operator.object_client import ObjectClient
from kube_efs.operator.progress import Progress
from kube_efs.operator.volumes_in_use import describe_pods, find_volume_uses

_ORDER: Final = (Component.CONTROLLER, Component.NODE, Component.TUNNEL)


class Uninstaller:
    """Deletes the objects with the operator's label; ``record_change`` is called for each."""

    def __init__(self, objects: ObjectClient, namespace: str, record_change: RecordChange) -> None:
        self._objects = objects
        self._namespace = namespace
        self._record_change = record_change

    async def step(self, *, forced: bool) -> Progress:
        """Do what is possible now; raises KubeError. ``forced`` also removes what pods use."""
        workloads = [one for kind in sorted(WORKLOADS) for one in await self._list_installed(kind)]
        # When all workloads are deleted, nothing that a pod needs is left to protect.
        if workloads and not forced:
            uses = await find_volume_uses(self._objects.client)
            if uses:
                blocked = (
                    f"pods use volumes of the driver: {describe_pods(uses)}; end them, or set the annotation"
                    f" {FORCE_UNINSTALL} to true and lose access to what they have mounted"
                )
                return Progress(blocked=blocked)
        for component in _ORDER:
            of_component = [one for one in workloads if component_of(one) is component]
            if of_component:
                await self._delete(of_component, CascadeType.FOREGROUND)
                return Progress(waiting=f"the pods of {reference_of(of_component[0])} are ending")
        for kind in KINDS:
            if kind not in KEPT_AFTER_UNINSTALL:
                await self._delete(await self._list_installed(kind), CascadeType.BACKGROUND)
        return Progress()

    async def _list_installed(self, kind: str) -> tuple[Manifest, ...]:
        namespace = KINDS[kind].namespace(self._namespace)
        return await self._objects.list(kind, labels=MANAGED_BY, namespace=namespace)

    async def _delete(self, manifests: Iterable[Manifest], cascade: CascadeType) -> None:
        for one in manifests:
            if one["metadata"].get("deletionTimestamp"):
                continue
            reference = reference_of(one)
            if await self._objects.delete(reference, cascade=cascade):
                self._record_change(reference, "Deleted")
