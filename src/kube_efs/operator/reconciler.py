"""Brings the cluster one step nearer to the state that the ClusterCSIDriver specifies.

Each pass starts from the objects in the cluster, not from what earlier passes did. A crash at any point
therefore needs no recovery: the next leader repeats the pass. The reconciler remembers the digests of applied
objects, the number of nodes, and that a takeover is complete, but only to save requests.

A pass of a managed driver has this order, for these reasons:

1. The takeover from an older operator is first. While that operator is active, nothing else may change.
2. The finalizer is written before the first object is created. Without it, the deletion of the resource would
   leave the installation behind.
3. All desired objects are applied, also if some of them fail.
4. The status is last, so that it shows the result of this pass.

Every write to the resource has the version or the UID of the resource that was read, so a pass never acts on
a resource that was deleted and created again meanwhile.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from lightkube.types import PatchType

from kube_efs.kube.errors import translated
from kube_efs.kube.events import EventType
from kube_efs.model.errors import KubeConflict, KubeError, KubeNotFound
from kube_efs.operator.cluster_csi_driver import (
    DRIVER_NAME,
    FINALIZER,
    OLDER_FINALIZERS,
    DriverResource,
    LogLevel,
    ManagementState,
    read_driver_resource,
    read_log_level,
)
from kube_efs.operator.cluster_facts import count_schedulable_nodes, read_cluster_facts
from kube_efs.operator.desired_objects import (
    Component,
    ProcessSettings,
    component_of,
    desired_objects,
    unrequested_objects,
)
from kube_efs.operator.events import OperatorEvents
from kube_efs.operator.installer import Installer, InstallResult
from kube_efs.operator.kinds import ClusterCSIDriver
from kube_efs.operator.manifests import RenderOptions
from kube_efs.operator.object_cache import ObjectCache
from kube_efs.operator.object_client import ObjectClient
from kube_efs.operator.platforms import Platform
from kube_efs.operator.progress import Progress
from kube_efs.operator.status import (
    OLDER_OPERATOR_RUNS,
    VOLUMES_IN_USE,
    OperatorCondition,
    blocked_conditions,
    failed_conditions,
    installed_conditions,
    render_status,
    uninstall_conditions,
)
from kube_efs.operator.takeover import Takeover
from kube_efs.operator.uninstaller import Uninstaller
from kube_efs.settings import OperatorSettings
from kube_efs.telemetry.logging import configure
from kube_efs.telemetry.metrics import OperatorMetrics

# After a conflict; while pods start or end; and while the operator waits for users.
_CONFLICT_SECONDS: Final = 0.2
_ROLLOUT_SECONDS: Final = 2.0
_USERS_SECONDS: Final = 15.0


class Reconciler:
    """Reconciles the one ClusterCSIDriver of kube-efs."""

    def __init__(
        self,
        objects: ObjectClient,
        cache: ObjectCache,
        events: OperatorEvents,
        metrics: OperatorMetrics,
        settings: OperatorSettings,
        platform: Platform,
    ) -> None:
        self._objects = objects
        self._cache = cache
        self._events = events
        self._metrics = metrics
        self._settings = settings
        self._platform = platform
        self._processes = ProcessSettings.from_settings(settings)
        self._installer = Installer(objects, cache, events.object_changed)
        self._uninstaller = Uninstaller(objects, settings.namespace, events.object_changed)
        self._takeover = Takeover(objects, settings.namespace)
        self._takeover_done = False
        self._nodes: int | None = None
        self._blocked = ""
        self._log_level = ""

    async def reconcile(self, *, full: bool = False) -> float:
        """One pass. Returns the seconds after which the next one must start; raises KubeError.

        ``full`` also searches again for older operators, and counts the nodes again.
        """
        if full:
            self._takeover_done = False
            self._nodes = None
        found = self._cache.driver
        self._metrics.requested.set(found is not None)
        if found is None:
            self._forget()
            self._metrics.degraded.set(0)
            message = f"there is no ClusterCSIDriver {DRIVER_NAME}, so no driver is installed or changed"
            self._events.on_deployment("DriverNotRequested", message)
            return self._settings.resync_seconds
        driver = read_driver_resource(found)
        self._set_log_level(driver)
        try:
            seconds = await self._reconcile(driver)
        except KubeConflict:
            # The resource changed while we acted on it. The watch shows the change soon.
            return _CONFLICT_SECONDS
        except KubeError as error:
            self._metrics.degraded.set(1)
            await self._write_status(driver, failed_conditions(str(error)))
            raise
        return min(seconds, self._settings.resync_seconds)

    async def _reconcile(self, driver: DriverResource) -> float:
        if driver.deleting:
            return await self._finalize(driver)
        match driver.state:
            case ManagementState.MANAGED:
                return await self._install(driver)
            case ManagementState.REMOVED:
                return await self._remove(driver)
            case ManagementState.UNMANAGED | ManagementState.UNKNOWN:
                self._forget()
                await self._write_status(driver, ())
                return self._settings.resync_seconds

    def _forget(self) -> None:
        """While the driver is not managed, others may change all objects."""
        self._installer.forget()
        self._takeover_done = False

    async def _install(self, driver: DriverResource) -> float:
        takeover = Progress()
        if not self._takeover_done:
            daemon_sets = self._cache.of_kind("DaemonSet")
            node_daemon_set = next((one for one in daemon_sets if component_of(one) is Component.NODE), None)
            takeover = await self._takeover.step(
                forced=driver.forces_takeover, node_daemon_set=node_daemon_set
            )
            self._takeover_done = takeover.done
        if takeover.blocked:
            self._metrics.degraded.set(1)
            self._events.on_driver(driver, EventType.WARNING, OLDER_OPERATOR_RUNS, takeover.blocked)
            await self._write_status(driver, blocked_conditions(takeover.blocked))
            return _USERS_SECONDS
        driver = await self._ensure_finalizer(driver)
        if self._nodes is None:
            self._nodes = await count_schedulable_nodes(self._objects.client)
        facts = await read_cluster_facts(
            self._objects.client,
            self._platform,
            self._settings,
            trusted_ca_version=self._cache.trusted_ca_version,
            credentials_version=self._cache.credentials_version,
            nodes=self._nodes,
        )
        options = RenderOptions(
            platform=self._platform,
            namespace=self._settings.namespace,
            image=self._settings.image,
            region=self._settings.region,
            csi=True,
            kubelet_folder=self._settings.kubelet_folder,
        )
        desired = desired_objects(options, facts, self._processes, driver.log_level)
        result = await self._installer.install(desired)
        await self._installer.remove(unrequested_objects(self._processes, self._settings.namespace))
        has_credentials = bool(facts.credentials_version)
        conditions = installed_conditions(result, takeover, has_credentials=has_credentials)
        self._metrics.degraded.set(any(one.type == "Degraded" and one.status for one in conditions))
        await self._write_status(driver, conditions, result)
        if result.errors or any(result.waiting.values()):
            return _ROLLOUT_SECONDS
        # There is a watch for the new driver's pods, but none for older pods and the users of volumes.
        return self._settings.resync_seconds if takeover.done else _USERS_SECONDS

    async def _remove(self, driver: DriverResource) -> float:
        """Uninstall, and keep the resource."""
        progress = await self._uninstall(driver)
        await self._write_status(driver, uninstall_conditions(progress))
        if progress.done:
            await self._remove_finalizers(driver)
        return self._seconds_after(progress)

    async def _finalize(self, driver: DriverResource) -> float:
        """Uninstall, then let Kubernetes delete the resource. An unmanaged installation stays."""
        if not driver.own_finalizers:
            return self._settings.resync_seconds
        if driver.state is not ManagementState.UNMANAGED:
            progress = await self._uninstall(driver)
            if not progress.done:
                await self._write_status(driver, uninstall_conditions(progress))
                return self._seconds_after(progress)
        await self._remove_finalizers(driver)
        return self._settings.resync_seconds

    async def _uninstall(self, driver: DriverResource) -> Progress:
        self._forget()
        progress = await self._uninstaller.step(forced=driver.forces_uninstall)
        if progress.blocked and progress.blocked != self._blocked:
            self._events.on_driver(driver, EventType.WARNING, VOLUMES_IN_USE, progress.blocked)
        self._blocked = progress.blocked
        return progress

    def _seconds_after(self, progress: Progress) -> float:
        if progress.done:
            return self._settings.resync_seconds
        return _USERS_SECONDS if progress.blocked else _ROLLOUT_SECONDS

    async def _ensure_finalizer(self, driver: DriverResource) -> DriverResource:
        """Add our finalizer, and remove those of the older operator, which no longer runs."""
        kept = [one for one in driver.finalizers if one not in OLDER_FINALIZERS and one != FINALIZER]
        finalizers = (*kept, FINALIZER)
        if set(finalizers) == set(driver.finalizers):
            return driver
        version = await self._write_finalizers(driver, finalizers)
        return replace(driver, finalizers=finalizers, version=version)

    async def _remove_finalizers(self, driver: DriverResource) -> None:
        if driver.own_finalizers:
            others = tuple(one for one in driver.finalizers if one not in driver.own_finalizers)
            await self._write_finalizers(driver, others)

    async def _write_finalizers(self, driver: DriverResource, finalizers: tuple[str, ...]) -> str:
        metadata = {"uid": driver.uid, "resourceVersion": driver.version, "finalizers": list(finalizers)}
        with translated(f"ClusterCSIDriver {DRIVER_NAME}"):
            written = await self._objects.client.patch(
                ClusterCSIDriver, DRIVER_NAME, {"metadata": metadata}, patch_type=PatchType.MERGE
            )
        return (written.metadata and written.metadata.resourceVersion) or ""

    async def _write_status(
        self,
        driver: DriverResource,
        conditions: Iterable[OperatorCondition],
        result: InstallResult | None = None,
    ) -> None:
        """Write the status if it differs; raises KubeError. A write starts another pass."""
        status = render_status(driver, conditions, result, datetime.now(UTC))
        if all(driver.status.get(name) == value for name, value in status.items()):
            return
        try:
            with translated(f"status of ClusterCSIDriver {DRIVER_NAME}"):
                await self._objects.client.patch(
                    ClusterCSIDriver.Status,
                    DRIVER_NAME,
                    {"metadata": {"uid": driver.uid}, "status": status},
                    patch_type=PatchType.MERGE,
                )
        except KubeNotFound:
            return

    def _set_log_level(self, driver: DriverResource) -> None:
        """Log at the level of ``operatorLogLevel``."""
        stated = driver.operator_log_level
        if stated == self._log_level:
            return
        level = read_log_level(stated)
        if level is None:
            message = f"operatorLogLevel {stated!r} is not valid; Normal is used"
            self._events.on_driver(driver, EventType.WARNING, "OperatorLogLevelInvalid", message)
        level = level or LogLevel.NORMAL
        is_first = not self._log_level
        self._log_level = stated
        is_normal = level is LogLevel.NORMAL
        configure(self._settings.logging_level if is_normal else level.logging_level)
        if not (is_first and is_normal):
            message = f"the operator logs at level {level}"
            self._events.on_driver(driver, EventType.NORMAL, "OperatorLogLevelChange", message)
