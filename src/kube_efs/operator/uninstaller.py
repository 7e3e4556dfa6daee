"""Removes the installation, in an order that breaks no mount in use.

Nothing is removed while a pod uses a volume of the driver or a tunnel volume, unless an administrator forces
it. Without the tunnel, each access of the pod to its volume would hang, and without the driver, the kubelet
could not unmount it. If such a pod starts during the removal, the removal pauses, and restores nothing.

It also waits for volumes that a running controller has begun to remove: nothing else would complete their
removal, such as that of a file system that was created for a claim.

Then the workloads are deleted one after the other: the controller, which creates and deletes volumes; the
driver of the nodes, which mounts them; the tunnels, through which they are mounted. Each one needs the next
until its last pod has ended. Each deletion is therefore a foreground deletion: the object exists until its
pods have ended, and only then is the next one deleted. The worker pods follow the controller. Without it,
nothing else would delete one that waits for a node, and it could later remove a directory that another
installation uses by then. All other objects follow, the CSIDriver last.

The objects are found by the label of the operator. Nothing is rendered, so objects of an earlier version or
of other settings are removed too.

Volumes, claims, StorageClasses, SharedVolumes and their definition, and everything in AWS stay.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from lightkube.resources.core_v1 import Pod
from lightkube.types import CascadeType

from kube_efs.kube.errors import translated
from kube_efs.model.errors import KubeError, KubeNotFound
from kube_efs.model.names import WORKER_LABELS
from kube_efs.operator.cluster_csi_driver import FORCE_UNINSTALL
from kube_efs.operator.desired_objects import Component, component_of
from kube_efs.operator.installer import RecordChange
from kube_efs.operator.kinds import (
    KEPT_AFTER_UNINSTALL,
    KINDS,
    MANAGED_BY,
    WORKLOADS,
    describe_ending,
    reference_of,
)
from kube_efs.operator.manifests import Manifest
from kube_efs.operator.object_client import ObjectClient
from kube_efs.operator.progress import Progress, is_available
from kube_efs.operator.volumes_in_use import (
    describe_names,
    describe_pods,
    find_volume_uses,
    find_volumes_being_removed,
)

_ORDER: Final = (Component.CONTROLLER, Component.NODE, Component.TUNNEL)


class Uninstaller:
    """Deletes the objects with the operator's label; ``record_change`` is called for each."""

    def __init__(self, objects: ObjectClient, namespace: str, record_change: RecordChange) -> None:
        self._objects = objects
        self._namespace = namespace
        self._record_change = record_change

    async def step(self, *, forced: bool) -> Progress:
        """Do what is possible now; raises KubeError. ``forced`` also removes what pods use.

        An object that cannot be deleted does not keep the other ones. Its error is part of the progress.
        """
        workloads = [one for kind in sorted(WORKLOADS) for one in await self._list_installed(kind)]
        kept = {component_of(one) for one in workloads if not one["metadata"].get("deletionTimestamp")}
        removed = frozenset(_ORDER) - kept
        workers = await self._delete_workers(workloads)
        # In each pass, also between two components: a pod may have started since the last one. When all
        # workloads are deleted, nothing that a pod needs is left to protect.
        if workloads and not forced:
            obstacle = await self._find_obstacle(workloads, workers)
            if not obstacle.done:
                return replace(obstacle, removed=removed)
        for component in _ORDER:
            of_component = [one for one in workloads if component_of(one) is component]
            # It is listed until its last pod has ended, also while it is being deleted.
            if of_component:
                # The next component must not be deleted before, so an error ends this pass.
                for one in of_component:
                    await self._delete(one, CascadeType.FOREGROUND)
                waiting = describe_ending(of_component[0])
                return Progress(waiting=waiting, removed=removed | {component})
        errors: list[str] = []
        for kind in KINDS:
            if kind not in KEPT_AFTER_UNINSTALL:
                errors += await self._delete_all(kind)
        return Progress(errors=tuple(errors), removed=removed)

    async def _find_obstacle(self, workloads: Iterable[Manifest], workers: Sequence[str]) -> Progress:
        """What blocks the next step, or what it waits for."""
        if workers:
            return Progress(
                waiting=f"the worker pods {describe_names(workers)} are ending; if the machine of one is"
                f" permanently off, delete its Node, or set the annotation {FORCE_UNINSTALL} to true"
            )
        uses = await find_volume_uses(self._objects.client)
        if uses:
            return Progress(
                blocked=f"pods use volumes of the driver: {describe_pods(uses)}; end them, or set the"
                f" annotation {FORCE_UNINSTALL} to true and lose access to what they have mounted"
            )
        controllers = (one for one in workloads if component_of(one) is Component.CONTROLLER)
        if any(is_available(one) and not one["metadata"].get("deletionTimestamp") for one in controllers):
            leaving = await find_volumes_being_removed(self._objects.client)
            if leaving:
                return Progress(
                    waiting=f"the controller removes the volumes {describe_names(leaving)}; see their events,"
                    f" or set the annotation {FORCE_UNINSTALL} to true and leave them Terminating"
                )
        return Progress()

    async def _list_installed(self, kind: str) -> tuple[Manifest, ...]:
        namespace = KINDS[kind].namespace(self._namespace)
        return await self._objects.list(kind, labels=MANAGED_BY, namespace=namespace)

    async def _delete_workers(self, workloads: Iterable[Manifest]) -> list[str]:
        """Delete the worker pods that a removed controller has left; gives those that may still run."""
        components = {component_of(one) for one in workloads}
        # Without any workload, they are those of an installation that another tool has made.
        if not components or Component.CONTROLLER in components:
            return []
        with translated("worker pods"):
            found = self._objects.client.list(Pod, namespace=self._namespace, labels=dict(WORKER_LABELS))
            pods = [one.metadata async for one in found if one.metadata]
        for pod in pods:
            if not pod.deletionTimestamp:
                with suppress(KubeNotFound), translated(f"worker pod {pod.name}"):
                    await self._objects.client.delete(Pod, pod.name or "", namespace=self._namespace)
        return [pod.name or "" for pod in pods]

    async def _delete_all(self, kind: str) -> list[str]:
        """Delete what is installed of that kind; gives the errors of objects that cannot be deleted."""
        try:
            installed = await self._list_installed(kind)
        except KubeError as error:
            return [str(error)]
        errors = []
        for one in installed:
            try:
                await self._delete(one, CascadeType.BACKGROUND)
            except KubeError as error:
                errors.append(str(error))
        return errors

    async def _delete(self, installed: Manifest, cascade: CascadeType) -> None:
        reference = reference_of(installed)
        if installed["metadata"].get("deletionTimestamp"):
            return
        if await self._objects.delete(installed, cascade=cascade):
            self._record_change(reference, "Deleted")
