"""Brings the cluster one step nearer to the state that the ClusterCSIDriver specifies.

Each pass starts from the objects in the cluster, not from what earlier passes did. A crash at any point
therefore needs no recovery: the next leader repeats the pass. The reconciler remembers the digests of applied
objects, the number of nodes, that a takeover is complete, and since when a removal waits, but only to save
requests.

A pass of a managed driver has this order, for these reasons:

1. While another operator of kube-efs manages the driver, this one changes nothing.
2. The takeover from an older operator is next. While that operator is active, nothing else may change, and a
   removal of the driver is its own.
3. The finalizer, with the namespace of this operator, is written before the first object is created. Without
   it, the deletion of the resource would leave the installation behind.
4. The reason why pods are replaced is in the status and in an event before the first pod is.
5. All desired objects are applied, also if some of them fail.
6. The status is last, so that it shows the result of this pass.

Every write to the resource has the version or the UID of the resource that was read, so a pass never acts on
a resource that was deleted and created again meanwhile.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final

from lightkube.types import PatchType

from kube_efs.kube.errors import translated
from kube_efs.kube.events import EventType
from kube_efs.model.errors import KubeConflict, KubeError, KubeNotFound, KubeUnavailable
from kube_efs.model.names import NameSet
from kube_efs.model.volumes import DRIVER
from kube_efs.operator.cluster_csi_driver import (
    FINALIZER,
    OLDER_FINALIZERS,
    OPERATOR_NAMESPACE,
    DriverResource,
    LogLevel,
    ManagementState,
    read_driver_resource,
    read_log_level,
)
from kube_efs.operator.cluster_facts import (
    CREDENTIALS_SECRET,
    TRUSTED_CA_CONFIG_MAP,
    InstallationFacts,
    NodeCounts,
    controller_replicas,
    count_nodes,
    read_cluster_facts,
)
from kube_efs.operator.desired_objects import (
    Component,
    ProcessSettings,
    component_of,
    desired_objects,
    installation_options,
    missing_ownership_tag,
    unrequested_objects,
    without_pod_tokens,
)
from kube_efs.operator.events import OperatorEvents
from kube_efs.operator.installer import Installer, InstallResult
from kube_efs.operator.kinds import WORKLOADS, ClusterCSIDriver, ObjectReference
from kube_efs.operator.manifests import Manifest
from kube_efs.operator.object_cache import ObjectCache
from kube_efs.operator.object_client import ObjectClient
from kube_efs.operator.other_operators import OtherOperators
from kube_efs.operator.platforms import Platform
from kube_efs.operator.progress import Progress, is_stable
from kube_efs.operator.status import (
    OLDER_OPERATOR_RUNS,
    OTHER_OPERATOR,
    VOLUMES_IN_USE,
    OperatorCondition,
    announced_conditions,
    blocked_conditions,
    failed_conditions,
    installed_conditions,
    read_conditions,
    render_status,
    uninstall_conditions,
    unmanaged_conditions,
)
from kube_efs.operator.takeover import Takeover
from kube_efs.operator.uninstaller import Uninstaller
from kube_efs.settings.operator import OperatorSettings
from kube_efs.telemetry.logging import configure
from kube_efs.telemetry.metrics import OperatorMetrics

# After a conflict; while pods start or end; and while the operator waits for users.
_CONFLICT_SECONDS: Final = 0.2
# More in succession have another cause, such as a webhook or a watch that shows nothing: an error, as others.
_CONFLICTS_MAX: Final = 10
_ROLLOUT_SECONDS: Final = 2.0
_USERS_SECONDS: Final = 15.0
# While a removal waits, each pass lists all volumes, claims and pods. The pause is a part of the time that it
# has waited so far: the end of the wait is noticed soon after it, and a wait of days costs little.
_REMOVAL_SECONDS: Final = (2.0, 60.0)  # the shortest and the longest
_REMOVAL_PART: Final = 1 / 4
# The CSIDriver also depends on the takeover.
_DEPEND_ON_FACTS: Final = WORKLOADS | {"CSIDriver", "CredentialsRequest"}


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
        names: NameSet,
    ) -> None:
        self._objects = objects
        self._cache = cache
        self._events = events
        self._metrics = metrics
        self._settings = settings
        self._platform = platform
        self._names = names
        self._processes = ProcessSettings.from_settings(settings)
        self._installer = Installer(objects, cache, events.object_changed)
        self._uninstaller = Uninstaller(objects, settings.namespace, events.object_changed)
        self._takeover = Takeover(objects, settings.namespace, names.names.node)
        self._others = OtherOperators(objects, settings.namespace)
        self._other_operator = ""
        self._takeover_done = False
        self._last_takeover: Progress | None = None
        self._nodes = NodeCounts(ready=0, existing=0)
        self._recounts_nodes = True
        self._facts: InstallationFacts | None = None
        self._causes: dict[Component, str] = {}
        self._blocked = ""
        # What a removal waits for, and since when.
        self._removal: tuple[object, float] | None = None
        self._log_level = ""
        self._conflicts = 0

    async def reconcile(self, *, full: bool = False) -> float:
        """One pass. Returns the seconds after which the next one must start; raises KubeError.

        ``full`` also searches again for older operators, and counts the nodes again.
        """
        if full:
            self._takeover_done = False
            self._other_operator = ""
            self._recounts_nodes = True
        found = self._cache.driver
        self._metrics.requested.set(found is not None)
        if found is None:
            self._forget()
            self._metrics.degraded.set(0)
            message = f"there is no ClusterCSIDriver {DRIVER}, so no driver is installed or changed"
            self._events.on_deployment("DriverNotRequested", message)
            return self._settings.resync_seconds
        driver = read_driver_resource(found)
        self._set_log_level(driver)
        try:
            seconds = await self._reconcile(driver)
        except KubeError as error:
            if isinstance(error, KubeConflict) and self._conflicts < _CONFLICTS_MAX:
                # The resource changed while we acted on it. The watch shows the change soon.
                self._conflicts += 1
                return _CONFLICT_SECONDS
            self._metrics.degraded.set(1)
            # Never into the status of a driver that the operator of another namespace manages.
            if driver.operator_namespace in {"", self._settings.namespace}:
                await self._write_status(driver, failed_conditions(str(error)))
            raise
        self._conflicts = 0
        return min(seconds, self._settings.resync_seconds)

    async def _reconcile(self, driver: DriverResource) -> float:
        other = await self._find_other_operator(driver)
        if other:
            return await self._wait_for_other_operator(driver, other)
        if driver.deleting or driver.state is ManagementState.REMOVED:
            # Without our finalizer, this operator has only stood by. The older one uninstalls its driver.
            manager = "" if FINALIZER in driver.finalizers else await self._find_older_operator(driver)
            if manager:
                return await self._wait_for_older_operator(driver, manager)
        if driver.deleting:
            return await self._finalize(driver)
        match driver.state:
            case ManagementState.MANAGED:
                return await self._install(driver)
            case ManagementState.REMOVED:
                return await self._remove(driver)
            case ManagementState.UNMANAGED | ManagementState.UNKNOWN:
                self._forget()
                self._metrics.degraded.set(driver.state is ManagementState.UNKNOWN)
                before = read_conditions(driver.status.get("conditions") or ())
                await self._write_status(driver, unmanaged_conditions(before))
                return self._settings.resync_seconds

    async def _find_other_operator(self, driver: DriverResource) -> str:
        """Which other operator manages the driver; empty if there is none; raises KubeError if unknown."""
        is_own = driver.operator_namespace == self._settings.namespace
        if is_own and self._takeover_done:
            return ""
        try:
            return await self._others.find(driver)
        except KubeError:
            if is_own:
                # This operator manages the driver already, and an API server in trouble must not stop it.
                return ""
            raise

    async def _wait_for_other_operator(self, driver: DriverResource, other: str) -> float:
        """Change nothing, and report it. The status is that of the other one, if that one may write it."""
        self._forget()
        self._metrics.degraded.set(1)
        if other != self._other_operator:
            self._events.on_driver(driver, EventType.WARNING, OTHER_OPERATOR, other)
            self._other_operator = other
        is_own = driver.operator_namespace == self._settings.namespace
        is_unmanaged = not driver.operator_namespace and FINALIZER not in driver.finalizers
        if is_own or is_unmanaged:
            await self._write_status(driver, blocked_conditions(OTHER_OPERATOR, other))
        return _USERS_SECONDS

    async def _find_older_operator(self, driver: DriverResource) -> str:
        """Which older operator removes its finalizers itself, and the remedy; empty if none does.

        Raises KubeError. Nothing else would remove the finalizers of one that does not exist any more.
        """
        return await self._takeover.find_manager() if driver.has_older_finalizers else ""

    async def _wait_for_older_operator(self, driver: DriverResource, manager: str) -> float:
        """Change nothing, and report it."""
        self._metrics.degraded.set(1)
        self._events.on_driver(driver, EventType.WARNING, OLDER_OPERATOR_RUNS, manager)
        await self._write_status(driver, blocked_conditions(OLDER_OPERATOR_RUNS, manager))
        return _USERS_SECONDS

    def _forget(self) -> None:
        """While the driver is not managed, others may change all objects."""
        self._installer.forget()
        self._takeover_done = False
        self._causes = {}

    async def _install(self, driver: DriverResource) -> float:
        takeover, knows_older_pods = await self._take_over(driver)
        if takeover.blocked:
            return await self._wait_for_older_operator(driver, takeover.blocked)
        driver = await self._ensure_finalizer(driver)
        options = installation_options(self._settings, self._platform, self._names)
        try:
            facts, observation_error = await self._observe()
        except KubeError:
            # No facts were ever read. Workloads without the proxy, for example, would be replaced again by
            # the next pass, so only the objects are installed that do not depend on facts.
            known = desired_objects(options, InstallationFacts(), self._processes)
            await self._installer.install(one for one in known if one["kind"] not in _DEPEND_ON_FACTS)
            raise
        desired = desired_objects(options, facts, self._processes, driver.log_level, driver.volume_metrics)
        if takeover.waiting:
            desired = without_pod_tokens(desired)
        elif not knows_older_pods:
            # Whether it may request tokens depends on these pods, so it stays as it is.
            desired = tuple(one for one in desired if one["kind"] != "CSIDriver")
        if takeover.controller:
            desired = tuple(one for one in desired if component_of(one) is not Component.CONTROLLER)
        driver = await self._announce(driver, await self._installer.find_replacements(desired))
        result = await self._installer.install(desired)
        await self._installer.remove(unrequested_objects(self._processes, options), result)
        if takeover.controller:
            result.waiting[Component.CONTROLLER].append(takeover.controller)
        # Without the errors of the takeover, whose next step may wait longer.
        has_errors = any(result.errors.values())
        result.errors[Component.STATIC] += takeover.errors
        self._causes = {one: cause for one, cause in self._causes.items() if not _is_replaced(one, result)}
        conditions = installed_conditions(
            result,
            takeover,
            has_credentials=bool(facts.credentials_version),
            observation_error="; ".join(
                filter(None, (observation_error, missing_ownership_tag(facts, self._processes)))
            ),
            causes=self._causes,
        )
        self._metrics.degraded.set(any(one.type == "Degraded" and one.status for one in conditions))
        await self._write_status(driver, conditions, result)
        if has_errors or any(result.waiting.values()):
            return _ROLLOUT_SECONDS
        # There is a watch for the new driver's pods, but none for older pods and the users of volumes.
        is_complete = takeover.done and not observation_error
        return self._settings.resync_seconds if is_complete else _USERS_SECONDS

    async def _take_over(self, driver: DriverResource) -> tuple[Progress, bool]:
        """One step of the takeover, and whether the pods of older drivers are known.

        Raises KubeError if the driver must not be installed.
        """
        if self._takeover_done and not driver.has_older_finalizers:
            return Progress(), True
        try:
            takeover = await self._takeover.step(forced=driver.forces_takeover)
        except KubeConflict:
            # The next pass repeats the step at once, with newer objects.
            raise
        except KubeError as error:
            # Without our finalizer, or with older ones, the driver of another operator may be active, and two
            # controllers would create volumes for one claim. Else this operator has installed the driver.
            is_own = FINALIZER in driver.finalizers and driver.operator_namespace == self._settings.namespace
            if not is_own or driver.has_older_finalizers:
                raise
            last = self._last_takeover
            if last is None:
                # The former leader may have deleted an older controller, whose pods may still run. They have
                # ended if there is one of ours.
                is_installed = await self._live_controller() is not None
                unknown = "whether an older controller has ended is not known yet"
                last = Progress(controller="" if is_installed else unknown)
            return replace(last, errors=(str(error),)), False
        self._takeover_done, self._last_takeover = takeover.done, takeover
        return takeover, True

    async def _observe(self) -> tuple[InstallationFacts, str]:
        """The facts of the cluster; raises KubeError if they were never read.

        After an error these are the last known facts, with the error. Without the proxy, for example, all
        tunnels would be replaced. The versions of the trusted CAs and of the credentials come from watches
        and are current also then: a rotated Secret must not wait for the other facts.
        """
        try:
            if self._recounts_nodes:
                self._nodes = await count_nodes(self._objects.client)
                self._recounts_nodes = False
            facts, error = await self._read_facts(), ""
        except KubeError as failure:
            if self._facts is None:
                raise
            last, cache = self._facts, self._cache
            trusted_ca, credentials = self._trusted_ca_version(), cache.credentials_version
            facts = replace(
                last,
                trusted_ca_version=last.trusted_ca_version if trusted_ca is None else trusted_ca,
                credentials_version=last.credentials_version if credentials is None else credentials,
            )
            error = str(failure)
        self._facts = facts
        return facts, error

    async def _read_facts(self) -> InstallationFacts:
        credentials, trusted_ca = self._cache.credentials_version, self._trusted_ca_version()
        if credentials is None or trusted_ca is None:
            name = CREDENTIALS_SECRET if credentials is None else TRUSTED_CA_CONFIG_MAP
            remedy = "check the service account's roles"
            raise KubeUnavailable("has not been read yet", field="object", value=name, remedy=remedy)
        live = await self._live_controller() or {}
        current = int((live.get("spec") or {}).get("replicas") or 0)
        return replace(
            await read_cluster_facts(self._objects.client, self._platform, self._settings),
            trusted_ca_version=trusted_ca,
            credentials_version=credentials,
            controller_replicas=controller_replicas(self._nodes, current),
        )

    async def _live_controller(self) -> Manifest | None:
        name = self._names.names.controller
        controller = ObjectReference("Deployment", self._settings.namespace, name)
        return self._cache.get(controller) or await self._objects.get(controller)

    def _trusted_ca_version(self) -> str | None:
        """The digest of the bundle of trusted CAs; None before it is known.

        OpenShift writes the bundle again soon after somebody has deleted it, and usually the same one. An
        empty ConfigMap is therefore no reason to replace the tunnels of all nodes.
        """
        version = self._cache.trusted_ca_version
        if version == "" and self._platform is Platform.OPENSHIFT and self._facts is not None:
            return self._facts.trusted_ca_version
        return version

    async def _announce(self, driver: DriverResource, causes: Mapping[Component, str]) -> DriverResource:
        """Report why pods are going to be replaced, before the first of them is."""
        new = {
            component: cause for component, cause in causes.items() if self._causes.get(component) != cause
        }
        self._causes.update(new)
        if not new:
            return driver
        for cause in dict.fromkeys(new.values()):
            self._events.on_driver(driver, EventType.NORMAL, "PodsReplaced", cause)
        return await self._write_status(driver, announced_conditions(new))

    async def _remove(self, driver: DriverResource) -> float:
        """Uninstall, and keep the resource."""
        progress = await self._uninstall(driver)
        result = InstallResult() if progress.done else None
        await self._write_status(driver, uninstall_conditions(progress), result)
        if progress.done:
            # If the status was just written, this ends with a conflict, and the next pass removes them.
            await self._remove_finalizers(driver)
        return self._seconds_after(driver, progress)

    async def _finalize(self, driver: DriverResource) -> float:
        """Uninstall, then let Kubernetes delete the resource. An unmanaged installation stays.

        Kubernetes keeps the resource until our finalizer is removed, so a crash in between only repeats this.
        """
        if not driver.own_finalizers:
            return self._settings.resync_seconds
        if driver.state is not ManagementState.UNMANAGED:
            progress = await self._uninstall(driver)
            if not progress.done:
                await self._write_status(driver, uninstall_conditions(progress))
                return self._seconds_after(driver, progress)
        await self._remove_finalizers(driver)
        return self._settings.resync_seconds

    async def _uninstall(self, driver: DriverResource) -> Progress:
        self._forget()
        progress = await self._uninstaller.step(forced=driver.forces_uninstall)
        if progress.blocked and progress.blocked != self._blocked:
            self._events.on_driver(driver, EventType.WARNING, VOLUMES_IN_USE, progress.blocked)
        self._blocked = progress.blocked
        self._metrics.degraded.set(bool(progress.errors))
        return progress

    def _seconds_after(self, driver: DriverResource, progress: Progress) -> float:
        """The pause before the next step of a removal. A change of what is watched ends it."""
        if progress.done:
            return self._settings.resync_seconds
        # Without the texts, which change with each of a thousand volumes that the controller removes.
        step = (driver.uid, driver.generation, bool(progress.blocked), progress.removed)
        now = asyncio.get_running_loop().time()
        if self._removal is None or self._removal[0] != step:
            self._removal = (step, now)
        shortest, longest = _REMOVAL_SECONDS
        return min(max((now - self._removal[1]) * _REMOVAL_PART, shortest), longest)

    async def _ensure_finalizer(self, driver: DriverResource) -> DriverResource:
        """Add our finalizer and namespace, and remove the finalizers of the older operator, which ended."""
        kept = [one for one in driver.finalizers if one not in OLDER_FINALIZERS and one != FINALIZER]
        finalizers = (*kept, FINALIZER)
        namespace = self._settings.namespace
        if set(finalizers) == set(driver.finalizers) and driver.operator_namespace == namespace:
            return driver
        version = await self._write_finalizers(driver, finalizers, {OPERATOR_NAMESPACE: namespace})
        return replace(driver, finalizers=finalizers, version=version, operator_namespace=namespace)

    async def _remove_finalizers(self, driver: DriverResource) -> None:
        is_older_running = bool(await self._find_older_operator(driver))
        removed = driver.own_finalizers - (OLDER_FINALIZERS if is_older_running else frozenset())
        if removed:
            others = tuple(one for one in driver.finalizers if one not in removed)
            await self._write_finalizers(driver, others)

    async def _write_finalizers(
        self,
        driver: DriverResource,
        finalizers: tuple[str, ...],
        annotations: Mapping[str, str] = MappingProxyType({}),
    ) -> str:
        """Write them, unless the resource has changed since it was read; gives the new resource version."""
        metadata = {
            "uid": driver.uid,
            "resourceVersion": driver.version,
            "finalizers": list(finalizers),
            "annotations": dict(annotations),
        }
        with translated(f"ClusterCSIDriver {DRIVER}"):
            written = await self._objects.client.patch(
                ClusterCSIDriver, DRIVER, {"metadata": metadata}, patch_type=PatchType.MERGE
            )
        return (written.metadata and written.metadata.resourceVersion) or ""

    async def _write_status(
        self,
        driver: DriverResource,
        conditions: Iterable[OperatorCondition],
        result: InstallResult | None = None,
    ) -> DriverResource:
        """Write the status if it differs, and give the resource with it; raises KubeError.

        A write starts another pass.
        """
        status = render_status(driver, conditions, result, datetime.now(UTC))
        if all(driver.status.get(name) == value for name, value in status.items()):
            return driver
        try:
            with translated(f"status of ClusterCSIDriver {DRIVER}"):
                await self._objects.client.patch(
                    ClusterCSIDriver.Status,
                    DRIVER,
                    {"metadata": {"uid": driver.uid}, "status": status},
                    patch_type=PatchType.MERGE,
                )
        except KubeNotFound:
            return driver
        return replace(driver, status={**driver.status, **status})

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


def _is_replaced(component: Component, result: InstallResult) -> bool:
    """Whether the announced replacement of the pods is complete, or is not necessary any more."""
    workload = result.workloads.get(component)
    is_pending = result.waiting.get(component) or result.errors.get(component)
    return workload is not None and is_stable(workload) and not is_pending
