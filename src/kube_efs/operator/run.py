"""The process ``kube-efs operator``: connects, waits to lead, and reconciles until it is stopped."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import structlog
from lightkube import AsyncClient

from kube_efs.kube.client import connect, load_config
from kube_efs.kube.errors import translated
from kube_efs.kube.events import EventRecorder
from kube_efs.kube.installations import find_installed
from kube_efs.kube.leases import Leadership, LeaseTerms
from kube_efs.model.errors import KubeError, KubeNotFound, KubeUnavailable
from kube_efs.model.names import NameSet
from kube_efs.operator.cluster_facts import has_single_control_plane, read_infrastructure
from kube_efs.operator.desired_objects import (
    LEASE,
    LEASE_OF_SINGLE_CONTROL_PLANE,
    LeaseTimes,
    check_settings,
)
from kube_efs.operator.events import COMPONENT, OperatorEvents
from kube_efs.operator.kinds import SecurityContextConstraints
from kube_efs.operator.object_cache import ObjectCache
from kube_efs.operator.object_client import FIELD_MANAGER, ObjectClient
from kube_efs.operator.operator_manifests import ensure_driver_crd, ensure_monitoring, find_deployment_uid
from kube_efs.operator.platforms import Platform
from kube_efs.operator.reconciler import Reconciler
from kube_efs.settings.operator import OperatorSettings
from kube_efs.signals import run_until_stopped
from kube_efs.telemetry.duties import Duties
from kube_efs.telemetry.health import Health, HealthServer, Heartbeat
from kube_efs.telemetry.metrics import ApiServerMetrics, OperatorMetrics, new_registry

log = structlog.get_logger(__name__)

T = TypeVar("T")

LEASE_NAME: Final = "kube-efs-operator"
# Changes come in bursts: a new DaemonSet and its first status need one pass.
_BURST_SECONDS: Final = 0.2
_RETRY_SECONDS: Final = (1.0, 30.0)  # the first and the longest
_STUCK_SECONDS: Final = 900.0
_FIRST_LISTS_SECONDS: Final = 30.0


@dataclass(slots=True)
class _State:
    """What the health endpoint reports. A replica that waits to lead is ready."""

    ready: bool = False
    heartbeat: Heartbeat = field(
        default_factory=lambda: Heartbeat("the reconciliation", max_age_seconds=_STUCK_SECONDS)
    )

    def readiness(self) -> Health:
        return Health() if self.ready else Health.failing("the cluster has not been read yet")


async def run_operator(settings: OperatorSettings) -> None:
    """Run until SIGTERM or SIGINT; raises InvalidSetting, and KubeUnavailable when it no longer leads."""
    check_settings(settings)
    await run_until_stopped(_run(settings))
    log.info("operator-stopped")


async def _run(settings: OperatorSettings) -> None:
    registry, state = new_registry(), _State()
    metrics, duties = OperatorMetrics(registry), Duties(registry)
    async with AsyncExitStack() as stack:
        config = load_config(settings.kubeconfig)
        connection = connect(config, field_manager=FIELD_MANAGER, metrics=ApiServerMetrics(registry))
        client = await stack.enter_async_context(connection)
        health = HealthServer(
            settings.health_host,
            settings.health_port,
            registry,
            liveness=state.heartbeat.health,
            readiness=state.readiness,
        )
        await stack.enter_async_context(health)
        log.info("operator-started", image=settings.image, health_port=health.port)
        recorder = await stack.enter_async_context(
            EventRecorder(client, component=COMPONENT, host=settings.identity)
        )
        work = _lead(client, recorder, metrics, duties, settings, state)
        if not settings.leader_election:
            await work
            return
        state.ready = True
        times = await _find_lease_times(client)
        terms = LeaseTerms(
            namespace=settings.namespace,
            name=LEASE_NAME,
            identity=settings.identity,
            duration_seconds=times.duration,
            renew_deadline_seconds=times.renew_deadline,
            retry_period_seconds=times.retry_period,
        )
        leadership = Leadership(client, terms, time.monotonic)
        beating = asyncio.create_task(_beat(state.heartbeat))
        try:
            await leadership.acquire()
        finally:
            beating.cancel()
        # A late request of this process does no harm to the next leader, which repeats its passes until the
        # cluster is as desired. The Lease is therefore released at the end, and not left to expire.
        leadership.release_at_end()
        stack.push_async_callback(leadership.release)
        await _while_leading(leadership, work)


async def _find_lease_times(client: AsyncClient) -> LeaseTimes:
    """Those for the control plane of the cluster; the shorter ones if it cannot be read."""
    try:
        is_single = has_single_control_plane(await read_infrastructure(client))
    except KubeError as error:
        log.warning("control-plane-unknown", reason=str(error))
        return LEASE
    return LEASE_OF_SINGLE_CONTROL_PLANE if is_single else LEASE


async def _beat(heartbeat: Heartbeat) -> None:
    """Report that the process is alive while it waits to lead."""
    while True:
        heartbeat.beat()
        await asyncio.sleep(_RETRY_SECONDS[1])


async def _while_leading(leadership: Leadership, work: Coroutine[Any, Any, None]) -> None:
    """Do the work until cancelled; raises KubeUnavailable when another process leads, or may lead."""
    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(work)
        await leadership.keep()
        working.cancel()
    remedy = "the pod restarts and waits to lead again"
    raise KubeUnavailable("was lost", field="leadership", value=LEASE_NAME, remedy=remedy)


async def _lead(
    client: AsyncClient,
    recorder: EventRecorder,
    metrics: OperatorMetrics,
    duties: Duties,
    settings: OperatorSettings,
    state: _State,
) -> None:
    """Maintain the installation until cancelled."""
    metrics.leader.set(1)
    objects, changed = ObjectClient(client), asyncio.Event()
    await _retry(lambda: ensure_driver_crd(objects))
    platform = await _retry(lambda: find_platform(client))
    names = await _retry(lambda: find_names(client, settings))
    deployment_uid = await find_deployment_uid(objects, settings)
    events = OperatorEvents(recorder, metrics, settings, deployment_uid)
    async with asyncio.TaskGroup() as tasks:
        cache = ObjectCache(client, settings.namespace, tasks, changed.set)
        cache.start()
        await cache.ready.wait()
        state.ready = True
        # Without the trusted CAs, for example, the first pass could not update workloads.
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_LISTS_SECONDS):
                await cache.complete.wait()
        log.info("cluster-read", platform=str(platform), names=str(names), driver=cache.driver is not None)
        await _reconcile_forever(
            Reconciler(objects, cache, events, metrics, settings, platform, names),
            changed,
            settings.resync_seconds,
            state.heartbeat,
            duties,
            before_full=lambda: ensure_monitoring(objects, settings, platform, deployment_uid),
        )


async def _retry(work: Callable[[], Awaitable[T]]) -> T:
    """The result of the first attempt that succeeds."""
    while True:
        try:
            return await work()
        except KubeError as error:
            log.warning("cluster-not-ready", reason=str(error), retry_seconds=_RETRY_SECONDS[0])
            await asyncio.sleep(_RETRY_SECONDS[0])


async def find_platform(client: AsyncClient) -> Platform:
    """OpenShift, if the cluster has the kind SecurityContextConstraints; raises KubeError."""
    try:
        with translated("kinds of OpenShift"):
            async for _ in client.list(SecurityContextConstraints):
                break
    except KubeNotFound:
        return Platform.KUBERNETES
    return Platform.OPENSHIFT


async def find_names(client: AsyncClient, settings: OperatorSettings) -> NameSet:
    """The names of the installation in the namespace, else those of the settings; raises KubeError.

    Other names would leave the running DaemonSets, the ConfigMap with the ports and its volumes behind.
    """
    requested: NameSet = settings.name_set
    candidates = [replace(one.names, namespace=settings.namespace) for one in (requested, *NameSet)]
    found = await find_installed(client, candidates)
    if found is None or found.name_set is requested:
        return requested
    log.warning("names-kept", names=str(found.name_set), requested=str(requested))
    return found.name_set


async def _reconcile_forever(
    reconciler: Reconciler,
    changed: asyncio.Event,
    resync_seconds: float,
    heartbeat: Heartbeat,
    duties: Duties,
    *,
    before_full: Callable[[], Awaitable[None]],
) -> None:
    """Reconcile after each change, when the last pass requested it, and fully at regular intervals."""
    full_at = time.monotonic()
    retry = _RETRY_SECONDS[0]
    while True:
        heartbeat.beat()
        full = time.monotonic() >= full_at
        if full:
            full_at = time.monotonic() + resync_seconds
            await before_full()
        # Before the pass: a change during the pass starts another one.
        changed.clear()
        try:
            seconds = await reconciler.reconcile(full=full)
            retry = _RETRY_SECONDS[0]
        except KubeError as error:
            log.warning("reconcile-failed", reason=str(error), retry_seconds=retry)
            seconds, retry = retry, min(retry * 2, _RETRY_SECONDS[1])
        except Exception as error:  # noqa: BLE001 - an internal error must not end the process, which corrects
            seconds = _RETRY_SECONDS[1]
            duties.note("reconciliation", error, retry_seconds=seconds)
        try:
            async with asyncio.timeout(seconds):
                await changed.wait()
        except TimeoutError:
            continue
        await asyncio.sleep(_BURST_SECONDS)
