"""The process ``kube-efs operator``: its parts, put together."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from lightkube import AsyncClient

from kube_efs.kube.client import connect, load_config
from kube_efs.kube.errors import translated
from kube_efs.kube.events import EventRecorder
from kube_efs.kube.leases import Leadership, LeaseTerms
from kube_efs.model.errors import KubeError, KubeNotFound, KubeUnavailable
from kube_efs.operator.drift import FIELD_MANAGER
from kube_efs.operator.events import COMPONENT, OperatorEvents
from kube_efs.operator.kinds import SecurityContextConstraints
from kube_efs.operator.object_cache import ObjectCache
from kube_efs.operator.object_client import ObjectClient
from kube_efs.operator.own_objects import ensure_driver_kind, ensure_monitoring
from kube_efs.operator.platforms import Platform
from kube_efs.operator.reconciler import Reconciler
from kube_efs.settings import OperatorSettings
from kube_efs.signals import run_until_told_to_stop
from kube_efs.telemetry.health import Health, HealthServer, Heartbeat
from kube_efs.telemetry.metrics import ApiServerMetrics, OperatorMetrics, new_registry

log = structlog.get_logger(__name__)

LEASE: Final = "kube-efs-operator"
# Changes come in bursts: a new DaemonSet and the first of its statuses are one look.
_SETTLE_SECONDS: Final = 0.2
_RETRY_SECONDS: Final = (1.0, 30.0)
_STUCK_SECONDS: Final = 900.0


@dataclass(slots=True)
class _State:
    """How far the process has come; a replica that waits to lead is ready."""

    ready: bool = False
    heartbeat: Heartbeat = field(
        default_factory=lambda: Heartbeat("the comparison", max_age_seconds=_STUCK_SECONDS)
    )

    def readiness(self) -> Health:
        return Health() if self.ready else Health.failing("the cluster has not been read yet")


async def run_operator(settings: OperatorSettings) -> None:
    """Run until SIGTERM or SIGINT; raises InvalidSetting, and KubeUnavailable when the lead is lost."""
    await run_until_told_to_stop(_run(settings))
    log.info("operator-stopped")


async def _run(settings: OperatorSettings) -> None:
    registry, state = new_registry(), _State()
    metrics = OperatorMetrics(registry)
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
        recorder = EventRecorder(client, component=COMPONENT, host=settings.identity)
        events = OperatorEvents(await stack.enter_async_context(recorder), metrics, settings)
        work = _lead(client, events, metrics, settings, state)
        if not settings.leader_election:
            await work
            return
        state.ready = True
        leadership = Leadership(client, _lease_terms(settings), time.monotonic)
        beating = asyncio.create_task(_beat(state.heartbeat))
        try:
            await leadership.acquire()
        finally:
            beating.cancel()
        # It repeats what it does until the cluster is as it should be, so late requests do no harm.
        leadership.release_at_end()
        stack.push_async_callback(leadership.release)
        await _while_leading(leadership, work)


async def _beat(heartbeat: Heartbeat) -> None:
    """Be alive while waiting to lead."""
    while True:
        heartbeat.beat()
        await asyncio.sleep(_RETRY_SECONDS[1])


async def _lead(
    client: AsyncClient,
    events: OperatorEvents,
    metrics: OperatorMetrics,
    settings: OperatorSettings,
    state: _State,
) -> None:
    """Keep the installation in place until cancelled."""
    metrics.leader.set(1)
    cluster, changed = ObjectClient(client), asyncio.Event()
    await _patiently(ensure_driver_kind, cluster)
    platform = await _patiently(find_platform, client)
    await events.find_deployment(client)
    async with asyncio.TaskGroup() as tasks:
        cache = ObjectCache(client, settings.namespace, tasks, changed.set)
        cache.start()
        await cache.ready.wait()
        state.ready = True
        log.info("cluster-read", platform=str(platform), driver=cache.driver is not None)
        reconciler = Reconciler(cluster, cache, events, metrics, settings, platform)
        await _look_for_ever(
            reconciler,
            changed,
            settings.resync_seconds,
            state.heartbeat,
            before_each_resync=lambda: ensure_monitoring(cluster, settings, platform, events.uid),
        )


async def _look_for_ever(
    reconciler: Reconciler,
    changed: asyncio.Event,
    resync_seconds: float,
    heartbeat: Heartbeat,
    *,
    before_each_resync: Callable[[], Awaitable[None]],
) -> None:
    """Look whenever something has changed, when the last look has asked for it, and regularly."""
    resync_at = time.monotonic()
    retry = _RETRY_SECONDS[0]
    while True:
        heartbeat.beat()
        thoroughly = time.monotonic() >= resync_at
        if thoroughly:
            resync_at = time.monotonic() + resync_seconds
            await before_each_resync()
        changed.clear()
        try:
            seconds = await reconciler.look(thoroughly=thoroughly)
            retry = _RETRY_SECONDS[0]
        except KubeError as error:
            log.warning("look-failed", reason=str(error), retry_seconds=retry)
            seconds, retry = retry, min(retry * 2, _RETRY_SECONDS[1])
        except Exception:
            # A fault in one look must not keep the next ones from correcting the rest.
            log.exception("look-failed", retry_seconds=_RETRY_SECONDS[1])
            seconds = _RETRY_SECONDS[1]
        await _pause(changed, seconds)


async def _pause(changed: asyncio.Event, seconds: float) -> None:
    """Wait for a change, for so long at most, and a moment for what comes with it."""
    try:
        async with asyncio.timeout(seconds):
            await changed.wait()
    except TimeoutError:
        return
    await asyncio.sleep(_SETTLE_SECONDS)


async def find_platform(client: AsyncClient) -> Platform:
    """OpenShift, if the cluster knows SecurityContextConstraints; raises KubeError."""
    try:
        with translated("kinds of OpenShift"):
            async for _ in client.list(SecurityContextConstraints):
                break
    except KubeNotFound:
        return Platform.KUBERNETES
    return Platform.OPENSHIFT


async def _patiently(work: Any, *arguments: Any) -> Any:  # noqa: ANN401 - any coroutine function
    """The answer, once there is one."""
    while True:
        try:
            return await work(*arguments)
        except KubeError as error:
            log.warning("cluster-not-ready", reason=str(error), retry_seconds=_RETRY_SECONDS[0])
            await asyncio.sleep(_RETRY_SECONDS[0])


async def _while_leading(leadership: Leadership, work: Coroutine[Any, Any, None]) -> None:
    """Do the work until cancelled; raises KubeUnavailable as soon as the lead is lost."""
    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(work)
        await leadership.keep()
        working.cancel()
    remedy = "the pod restarts and waits to lead again"
    raise KubeUnavailable("was lost", field="leadership", value=LEASE, remedy=remedy)


def _lease_terms(settings: OperatorSettings) -> LeaseTerms:
    return LeaseTerms(namespace=settings.namespace, name=LEASE, identity=settings.identity)
