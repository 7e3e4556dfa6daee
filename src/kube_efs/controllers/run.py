"""The process ``kube-efs controller``: its parts, put together.

One replica leads and works, the others wait. Whoever gains the lead reads the cluster's whole state before
it decides anything; whoever loses it ends, and its successor in the pod starts from nothing.
"""

import asyncio
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any

import structlog
from lightkube import AsyncClient

from kube_efs.aws.catalogue import Catalogue
from kube_efs.aws.connection import AwsOptions
from kube_efs.aws.gateway import AwsGateway
from kube_efs.aws.location import resolve_region
from kube_efs.aws.metadata import InstanceMetadata
from kube_efs.controllers.announcing import Announcer
from kube_efs.controllers.claims import ClaimController
from kube_efs.controllers.root_volumes import RootVolumes
from kube_efs.controllers.service import Service
from kube_efs.controllers.tunnel_targets import TunnelTargetsController
from kube_efs.controllers.volumes import VolumeController
from kube_efs.controllers.watches import watch_claims, watch_classes, watch_volumes
from kube_efs.kube.client import connect, load_config
from kube_efs.kube.events import EventRecorder
from kube_efs.kube.leases import Leadership, LeaseTerms
from kube_efs.kube.volumes import VolumeStore
from kube_efs.model.errors import KubeError, KubeUnavailable
from kube_efs.model.ids import Region
from kube_efs.provisioning.engine import Engine
from kube_efs.provisioning.inventory import Inventory
from kube_efs.provisioning.tunnel import TunnelBackend
from kube_efs.provisioning.worker_pods import WorkerOptions
from kube_efs.provisioning.workers import WorkerPool
from kube_efs.settings import ControllerSettings
from kube_efs.signals import run_until_told_to_stop
from kube_efs.telemetry.health import Health, HealthServer
from kube_efs.telemetry.metrics import AwsMetrics, ControllerMetrics, new_registry

log = structlog.get_logger(__name__)

LEASE_NAME = "kube-efs-controller"
_COMPONENT = "kube-efs-controller"
_RETRY_SECONDS = 2.0
_FIRST_DISCOVERY_SECONDS = 10.0


@dataclass(slots=True)
class _State:
    """How far the process has come, for ``/readyz``: a replica that waits to lead is ready."""

    waiting_to_lead: bool = False
    loaded: bool = False

    def readiness(self) -> Health:
        if self.waiting_to_lead or self.loaded:
            return Health(ok=True)
        return Health.failing("the cluster's state has not been read yet")


async def run_controller(settings: ControllerSettings) -> None:
    """Run until SIGTERM or SIGINT; raises InvalidSetting, and KubeUnavailable when the lead is lost."""
    await run_until_told_to_stop(_run(settings))
    log.info("controller-stopped")


async def _run(settings: ControllerSettings) -> None:
    registry, state = new_registry(), _State()
    metrics = ControllerMetrics(registry)
    async with AsyncExitStack() as stack:
        region = await _region(settings)
        client = await stack.enter_async_context(connect(load_config(settings.kubeconfig)))
        aws_metrics = AwsMetrics(registry)
        gateway = await stack.enter_async_context(AwsGateway(_aws_options(settings, region), aws_metrics))
        catalogue = Catalogue(gateway, settings.polling_interval_seconds, metrics=aws_metrics)
        health = HealthServer(
            settings.health_host,
            settings.health_port,
            registry,
            liveness=catalogue.health,
            readiness=state.readiness,
        )
        await stack.enter_async_context(health)
        log.info("controller-started", region=region, health_port=health.port, identity=settings.identity)
        leadership = Leadership(client, _lease_terms(settings), time.monotonic)
        if settings.leader_election:
            state.waiting_to_lead = True
            await leadership.acquire()
            stack.push_async_callback(leadership.release)
        metrics.leader.set(1)
        work = _work(settings, client, catalogue, metrics, state)
        await (_while_leading(leadership, work) if settings.leader_election else work)


async def _while_leading(leadership: Leadership, work: Coroutine[Any, Any, None]) -> None:
    """Do the work until cancelled; raises KubeUnavailable as soon as the lead is lost."""
    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(work)
        await leadership.keep()
        working.cancel()
    remedy = "the pod restarts and waits to lead again"
    raise KubeUnavailable("was lost", field="leadership", value=LEASE_NAME, remedy=remedy)


async def _work(
    settings: ControllerSettings,
    client: AsyncClient,
    catalogue: Catalogue,
    metrics: ControllerMetrics,
    state: _State,
) -> None:
    """Everything that only the leader does, until cancelled."""
    inventory = Inventory()
    async with AsyncExitStack() as stack:
        recorder = EventRecorder(client, component=_COMPONENT, host=settings.identity)
        announcer = Announcer(client, await stack.enter_async_context(recorder))
        pool = await stack.enter_async_context(WorkerPool(client, _worker_options(settings), metrics))
        backend = TunnelBackend(provisioner=settings.provisioner_name, inventory=inventory, directories=pool)
        engine = Engine(inventory=inventory, backends=[backend], store=VolumeStore(client))
        service = Service(
            engine=engine,
            inventory=inventory,
            announcer=announcer,
            metrics=metrics,
            backoff_seconds=settings.provision_backoff_seconds,
        )
        claims = await stack.enter_async_context(ClaimController(service))
        volumes = await stack.enter_async_context(VolumeController(service))
        roots = RootVolumes(
            client,
            inventory,
            namespace=settings.namespace,
            provisioner=settings.provisioner_name,
            release=pool.forget,
        )
        targets = TunnelTargetsController(
            client,
            inventory,
            roots,
            namespace=settings.namespace,
            base_port=settings.base_stunnel_port,
            changed=claims.world_changed,
        )
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        await _load_targets(targets)
        volumes_listed, classes_listed = asyncio.Event(), asyncio.Event()
        tasks.create_task(watch_volumes(client, volumes, targets, volumes_listed))
        tasks.create_task(watch_classes(client, inventory, claims, classes_listed))
        # No claim is looked at before all volumes are known, or one could get a second volume.
        await volumes_listed.wait()
        await classes_listed.wait()
        state.loaded = True
        log.info("cluster-read", volumes=len(inventory.volumes), classes=len(inventory.classes))
        tasks.create_task(targets.run())
        tasks.create_task(catalogue.run())
        tasks.create_task(_follow(catalogue, targets))
        # Claims seen before the first discovery would be told of a fault that is none.
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_DISCOVERY_SECONDS):
                await targets.settled.wait()
        tasks.create_task(watch_claims(client, claims, targets))


async def _load_targets(targets: TunnelTargetsController) -> None:
    """Read the ports of now; without them, volumes would be taken for those of other file systems."""
    while True:
        try:
            return await targets.load()
        except KubeError as error:
            log.warning("targets-not-read", reason=str(error), retry_seconds=_RETRY_SECONDS)
            await asyncio.sleep(_RETRY_SECONDS)


async def _follow(catalogue: Catalogue, targets: TunnelTargetsController) -> None:
    async for discovery in catalogue.changes():
        targets.discovered(discovery)


async def _region(settings: ControllerSettings) -> Region:
    async with InstanceMetadata(settings.metadata_endpoint) as metadata:
        return await resolve_region(metadata, region=settings.region)


def _aws_options(settings: ControllerSettings, region: Region) -> AwsOptions:
    return AwsOptions(
        region=region, endpoint_url=settings.endpoint_url, max_concurrency=settings.aws_concurrency
    )


def _lease_terms(settings: ControllerSettings) -> LeaseTerms:
    return LeaseTerms(
        namespace=settings.namespace,
        name=LEASE_NAME,
        identity=settings.identity,
        duration_seconds=settings.lease_duration_seconds,
        renew_deadline_seconds=settings.lease_renew_seconds,
        retry_period_seconds=settings.lease_retry_seconds,
    )


def _worker_options(settings: ControllerSettings) -> WorkerOptions:
    return WorkerOptions(
        namespace=settings.namespace,
        image=settings.worker_image,
        service_account=settings.worker_service_account,
        timeout_seconds=round(settings.worker_timeout_seconds),
        batch_max=settings.worker_batch,
    )
