"""One look at everything: what is wanted, what is there, and the steps from one to the other."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Final

import structlog
from lightkube.types import PatchType

from kube_efs.kube.errors import translated
from kube_efs.model.errors import KubeConflict, KubeError, KubeNotFound
from kube_efs.operator.cluster_csi_driver import (
    DRIVER_NAME,
    FINALIZER,
    OLDER_FINALIZERS,
    DriverResource,
    ManagementState,
    read_driver_resource,
)
from kube_efs.operator.cluster_facts import count_nodes, read_cluster_facts
from kube_efs.operator.conditions import (
    Component,
    Generation,
    OperatorCondition,
    render_conditions,
    render_generations,
)
from kube_efs.operator.desired_objects import component_of, desired_objects
from kube_efs.operator.events import OperatorEvents
from kube_efs.operator.extras import unrequested_objects
from kube_efs.operator.installer import Installer, InstallResult
from kube_efs.operator.kinds import ClusterCSIDriver
from kube_efs.operator.manifests import Manifest, RenderOptions
from kube_efs.operator.object_cache import ObjectCache
from kube_efs.operator.object_client import ObjectClient
from kube_efs.operator.platforms import Platform
from kube_efs.operator.statuses import (
    blocked_conditions,
    failed_conditions,
    generations_of,
    installed_conditions,
    management_condition,
    merge_conditions,
    ready_replicas,
    uninstall_conditions,
)
from kube_efs.operator.takeover import OlderSystems, TakeoverProgress, take_over
from kube_efs.operator.uninstaller import Uninstaller, UninstallProgress
from kube_efs.settings import OperatorSettings
from kube_efs.telemetry.metrics import OperatorMetrics

log = structlog.get_logger(__name__)

# Until what was deleted is gone, and while it waits for pods of users.
_AT_ONCE_SECONDS: Final = 0.2
_SOON_SECONDS: Final = 2.0
_PATIENT_SECONDS: Final = 15.0


class Reconciler:
    """Brings the cluster one step nearer to the desired state at each call."""

    def __init__(
        self,
        cluster: ObjectClient,
        cache: ObjectCache,
        events: OperatorEvents,
        metrics: OperatorMetrics,
        settings: OperatorSettings,
        platform: Platform,
    ) -> None:
        self._cluster = cluster
        self._cache = cache
        self._events = events
        self._metrics = metrics
        self._settings = settings
        self._platform = platform
        self._installer = Installer(cluster, cache, events.changed)
        self._uninstaller = Uninstaller(cluster, settings.namespace, events.changed)
        self._older = OlderSystems(cluster, settings.namespace)
        self._taken_over = False
        self._nodes: int | None = None
        self._blocked = ""

    async def look(self, *, thoroughly: bool = False) -> float:
        """Do what can be done now; the seconds after which to look again. Raises KubeError.

        ``thoroughly`` looks for what older operators have left, too, though nothing was there before.
        """
        if thoroughly:
            self._taken_over = False
            self._nodes = None
        found = self._cache.driver
        self._metrics.requested.set(found is not None)
        if found is None:
            self._nothing_asked_for()
            return self._settings.resync_seconds
        driver = read_driver_resource(found)
        self._events.follow_log_level(driver)
        try:
            seconds = await self._act(driver)
        except KubeConflict:
            # The driver's resource has just changed, and with it perhaps the next step.
            return _AT_ONCE_SECONDS
        except KubeError as error:
            self._metrics.degraded.set(1)
            await self._say(driver, failed_conditions(str(error)))
            raise
        return min(seconds, self._settings.resync_seconds)

    def _nothing_asked_for(self) -> None:
        """Only a reminder: an older driver continues unchanged."""
        self._forget()
        self._metrics.degraded.set(0)
        message = f"there is no ClusterCSIDriver {DRIVER_NAME}, so no driver is installed or changed"
        self._events.note("DriverNotRequested", message)

    def _forget(self) -> None:
        """In state Unmanaged, others may change anything."""
        self._installer.forget()
        self._taken_over = False

    async def _act(self, driver: DriverResource) -> float:
        if driver.deleting:
            return await self._end(driver)
        match driver.state:
            case ManagementState.MANAGED:
                return await self._manage(driver)
            case ManagementState.REMOVED:
                return await self._remove(driver)
            case ManagementState.UNMANAGED | ManagementState.UNKNOWN:
                self._forget()
                await self._say(driver, ())
                return self._settings.resync_seconds

    async def _manage(self, driver: DriverResource) -> float:
        takeover = await self._take_over(driver)
        if takeover.obstacle:
            self._metrics.degraded.set(1)
            self._events.tell(driver, "OlderOperatorRuns", takeover.obstacle, warning=True)
            await self._say(driver, blocked_conditions(takeover.obstacle))
            return self._patience_seconds
        driver = await self._hold(driver)
        facts = await read_cluster_facts(
            self._cluster.client, self._cache, self._platform, self._settings, nodes=await self._count()
        )
        report = await self._installer.install(desired_objects(self._options(), facts, driver.log_level))
        await self._installer.withdraw(unrequested_objects(facts.extras, self._settings.namespace))
        has_credentials = bool(facts.credentials_version)
        conditions = installed_conditions(report, takeover, has_credentials=has_credentials)
        self._metrics.degraded.set(any(one.type == "Degraded" and one.status for one in conditions))
        await self._say(driver, conditions, report=report)
        if report.errors or any(report.waits.values()):
            return _SOON_SECONDS
        # The new driver's pods are watched; the older ones, and who uses them, have to be asked for.
        return self._settings.resync_seconds if takeover.done else self._patience_seconds

    @property
    def _patience_seconds(self) -> float:
        return min(_PATIENT_SECONDS, self._settings.resync_seconds)

    async def _count(self) -> int:
        if self._nodes is None:
            self._nodes = await count_nodes(self._cluster.client)
        return self._nodes

    async def _take_over(self, driver: DriverResource) -> TakeoverProgress:
        if self._taken_over:
            return TakeoverProgress(done=True)
        takeover = await take_over(self._older, forced=driver.forces_takeover, node_set=self._node_set())
        self._taken_over = takeover.done
        return takeover

    def _node_set(self) -> Manifest | None:
        found = self._cache.of_kind("DaemonSet")
        return next((one for one in found if component_of(one) is Component.NODE), None)

    async def _remove(self, driver: DriverResource) -> float:
        removal = await self._uninstall(driver)
        await self._say(driver, uninstall_conditions(removal))
        if removal.done and driver.own_finalizers:
            await self._let_go(driver)
        return self._pause(removal)

    async def _end(self, driver: DriverResource) -> float:
        """Delete the driver's resource and everything that is installed and managed here."""
        if not driver.own_finalizers:
            return self._settings.resync_seconds
        if driver.state is not ManagementState.UNMANAGED:
            removal = await self._uninstall(driver)
            if not removal.done:
                await self._say(driver, uninstall_conditions(removal))
                return self._pause(removal)
        await self._let_go(driver)
        return self._settings.resync_seconds

    async def _uninstall(self, driver: DriverResource) -> UninstallProgress:
        self._forget()
        removal = await self._uninstaller.step(forced=driver.forces_uninstall)
        if removal.blocked and removal.blocked != self._blocked:
            self._events.tell(driver, "VolumesInUse", removal.blocked, warning=True)
        self._blocked = removal.blocked
        return removal

    def _pause(self, removal: UninstallProgress) -> float:
        if removal.done:
            return self._settings.resync_seconds
        return self._patience_seconds if removal.blocked else _SOON_SECONDS

    async def _hold(self, driver: DriverResource) -> DriverResource:
        """With the finalizer, before anything is made, and without those of the operator before it."""
        wanted = [one for one in driver.finalizers if one not in OLDER_FINALIZERS and one != FINALIZER]
        wanted.append(FINALIZER)
        if set(wanted) == set(driver.finalizers):
            return driver
        changed = await self._write_finalizers(driver, wanted)
        return replace(driver, finalizers=tuple(wanted), version=changed)

    async def _let_go(self, driver: DriverResource) -> None:
        await self._write_finalizers(
            driver, [one for one in driver.finalizers if one not in driver.own_finalizers]
        )

    async def _write_finalizers(self, driver: DriverResource, finalizers: list[str]) -> str:
        body = {
            "metadata": {
                "uid": driver.uid,
                "resourceVersion": driver.version,
                "finalizers": finalizers,
            }
        }
        with translated(f"ClusterCSIDriver {DRIVER_NAME}"):
            written = await self._cluster.client.patch(
                ClusterCSIDriver, DRIVER_NAME, body, patch_type=PatchType.MERGE
            )
        return (written.metadata and written.metadata.resourceVersion) or ""

    async def _say(
        self,
        driver: DriverResource,
        conditions: Iterable[OperatorCondition],
        *,
        report: InstallResult | None = None,
    ) -> None:
        """Write the status, if it is not what is there; raises KubeError."""
        stated = merge_conditions((management_condition(driver), *conditions), driver.conditions)
        generations: tuple[Generation, ...] = generations_of(report) if report else driver.generations
        status: dict[str, Any] = {
            "conditions": render_conditions(stated, driver.conditions, datetime.now(UTC)),
            "generations": render_generations(generations),
            "observedGeneration": driver.generation,
            "readyReplicas": ready_replicas(report) if report else 0,
            "version": version("kube-efs"),
        }
        before = driver.status or {}
        if all(before.get(name) == value for name, value in status.items()):
            return
        try:
            with translated(f"status of ClusterCSIDriver {DRIVER_NAME}"):
                await self._cluster.client.patch(
                    ClusterCSIDriver.Status,
                    DRIVER_NAME,
                    {"metadata": {"uid": driver.uid}, "status": status},
                    patch_type=PatchType.MERGE,
                )
        except KubeNotFound:
            return

    def _options(self) -> RenderOptions:
        settings = self._settings
        return RenderOptions(
            platform=self._platform,
            namespace=settings.namespace,
            image=settings.image,
            region=settings.region,
            csi=True,
            kubelet_folder=settings.kubelet_folder,
        )
