"""The process ``kube-efs controller``: its parts, put together.

One replica leads and works, the others wait. Whoever gains the lead reads the cluster's whole state before
it decides anything; whoever loses it ends, and its successor in the pod starts from nothing.
"""

import asyncio
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import structlog
from lightkube import AsyncClient
from lightkube.config.kubeconfig import SingleConfig
from lightkube.resources.core_v1 import PersistentVolume
from lightkube.resources.storage_v1 import StorageClass as StorageClassResource

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
from kube_efs.controllers.watches import watch
from kube_efs.kube.client import connect, load_config
from kube_efs.kube.errors import translated
from kube_efs.kube.events import EventRecorder
from kube_efs.kube.leases import Leadership, LeaseTerms
from kube_efs.kube.reading import read_storage_class, read_volume
from kube_efs.kube.volumes import VolumeStore
from kube_efs.model.claims import Claim, StorageClass
from kube_efs.model.errors import KubeError, KubeUnavailable
from kube_efs.model.ids import Region
from kube_efs.model.tunnel_volumes import ROOT_CLASS
from kube_efs.model.volumes import Volume
from kube_efs.provisioning.engine import Engine
from kube_efs.provisioning.inventory import Inventory
from kube_efs.provisioning.tunnel import TunnelBackend
from kube_efs.provisioning.workers import WorkerOptions, WorkerPool
from kube_efs.settings import ControllerSettings
from kube_efs.telemetry.health import Health, HealthServer
from kube_efs.telemetry.metrics import AwsMetrics, ControllerMetrics, new_registry

log = structlog.get_logger(__name__)

LEASE_NAME = "kube-efs-controller"
_COMPONENT = "kube-efs-controller"
_RETRY_SECONDS = 2.0


@dataclass(slots=True)
class _State:
    """How far the process has come, for ``/readyz``: a replica that waits to lead is ready."""

    waiting_to_lead: bool = False
    loaded: bool = False

    def readiness(self) -> Health:
        if self.waiting_to_lead or self.loaded:
            return Health(ok=True)
        return Health.failing("the cluster's state has not been read yet")


@dataclass(frozen=True, slots=True)
class _Router:
    """Takes what the watches see to whom it concerns."""

    claims: ClaimController
    volumes: VolumeController
    targets: TunnelTargetsController
    inventory: Inventory

    def claim_seen(self, claim: Claim) -> None:
        self.claims.seen(claim)

    def claim_gone(self, claim: Claim) -> None:
        self.claims.gone(claim)
        if claim.storage_class == ROOT_CLASS:
            self.targets.poke()

    def volume_seen(self, volume: Volume) -> None:
        self.volumes.seen(volume)

    def volume_gone(self, volume: Volume) -> None:
        self.volumes.gone(volume)
        if volume.storage_class == ROOT_CLASS:
            self.targets.poke()

    def class_seen(self, storage_class: StorageClass) -> None:
        self.inventory.classes[storage_class.name] = storage_class
        self.claims.class_changed(storage_class.name)

    def class_gone(self, storage_class: StorageClass) -> None:
        self.inventory.classes.pop(storage_class.name, None)


async def run_controller(settings: ControllerSettings) -> None:
    """Run until told to stop; raises InvalidSetting, and KubeUnavailable when the lead is lost."""
    registry, state = new_registry(), _State()
    metrics = ControllerMetrics(registry)
    config = load_config(settings.kubeconfig)
    async with AsyncExitStack() as stack:
        region = await _region(settings)
        client = await stack.enter_async_context(connect(config))
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
        work = _work(settings, config, client, catalogue, metrics, state)
        await (_while_leading(leadership, work) if settings.leader_election else work)


async def _while_leading(leadership: Leadership, work: Coroutine[Any, Any, None]) -> None:
    """Do the work until it ends; raises KubeUnavailable as soon as the lead is lost."""
    working, leading = asyncio.create_task(work), asyncio.create_task(leadership.keep())
    try:
        await asyncio.wait([working, leading], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            remedy = "the pod restarts and waits to lead again"
            raise KubeUnavailable("was lost", field="leadership", value=LEASE_NAME, remedy=remedy)
        working.result()
    finally:
        for task in (working, leading):
            task.cancel()
        await asyncio.gather(working, leading, return_exceptions=True)


async def _work(
    settings: ControllerSettings,
    config: SingleConfig,
    client: AsyncClient,
    catalogue: Catalogue,
    metrics: ControllerMetrics,
    state: _State,
) -> None:
    """Everything that only the leader does; returns when the process is told to stop."""
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
            client, inventory, namespace=settings.namespace, provisioner=settings.provisioner_name
        )
        targets = TunnelTargetsController(
            client,
            inventory,
            roots,
            namespace=settings.namespace,
            base_port=settings.base_stunnel_port,
            changed=claims.world_changed,
        )
        await _load(client, inventory, targets)
        volumes.start()
        state.loaded = True
        router = _Router(claims=claims, volumes=volumes, targets=targets, inventory=inventory)
        await _until_first_ends(
            watch(router, config), targets.run(), catalogue.run(), _follow(catalogue, targets)
        )


async def _load(client: AsyncClient, inventory: Inventory, targets: TunnelTargetsController) -> None:
    """Read everything that decisions depend on before the first one is made."""
    while True:
        try:
            await targets.load()
            with translated("storage classes"):
                found = [item async for item in client.list(StorageClassResource)]
            inventory.classes = {
                one.name: one for one in (read_storage_class(item.to_dict()) for item in found)
            }
            with translated("volumes"):
                inventory.replace_volumes(
                    [read_volume(item.to_dict()) async for item in client.list(PersistentVolume)]
                )
        except KubeError as error:
            log.warning("cluster-not-read", reason=str(error), retry_seconds=_RETRY_SECONDS)
            await asyncio.sleep(_RETRY_SECONDS)
        else:
            log.info("cluster-read", volumes=len(inventory.volumes), classes=len(inventory.classes))
            return


async def _follow(catalogue: Catalogue, targets: TunnelTargetsController) -> None:
    async for discovery in catalogue.changes():
        targets.discovered(discovery)


async def _until_first_ends(*parts: Coroutine[Any, Any, None]) -> None:
    """Run the parts together; when one ends, by itself or by an error, all end."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


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
