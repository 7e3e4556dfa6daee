"""The CSI Controller service on a socket, for the csi-provisioner in the same pod.

Every replica serves it, not only the leader: csi-provisioner has its own Lease, and its leader calls the
driver in its own pod.
"""

import asyncio
from contextlib import AsyncExitStack

import structlog
from lightkube import AsyncClient
from lightkube.resources.core_v1 import PersistentVolume
from prometheus_client import CollectorRegistry

from kube_efs.controllers.csi import (
    Aws,
    copies_of,
    csi_service,
    data_sources,
    file_systems_of,
    guards_of,
    open_accounts,
    worker_pool,
)
from kube_efs.controllers.events import ProvisioningEvents
from kube_efs.controllers.volumes import read_volume_object
from kube_efs.csi.controller import ControllerService, controller_service
from kube_efs.csi.identity import identity_service
from kube_efs.csi.interceptors import CallInterceptor
from kube_efs.csi.server import parse_endpoint, serving
from kube_efs.kube.claims import ClaimStore
from kube_efs.kube.events import CONTROLLER, EventRecorder
from kube_efs.kube.snapshots import SnapshotStore
from kube_efs.kube.volumes import VolumeStore
from kube_efs.kube.watching import Applied, Deleted, Listed, follow
from kube_efs.provisioning.snapshots import Snapshots
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.settings.controller import ControllerSettings
from kube_efs.telemetry.duties import Duties
from kube_efs.telemetry.metrics import ControllerMetrics, CsiMetrics

log = structlog.get_logger(__name__)


async def serve_csi(
    endpoint: str,
    settings: ControllerSettings,
    client: AsyncClient,
    aws: Aws,
    metrics: ControllerMetrics,
    registry: CollectorRegistry,
    duties: Duties,
) -> None:
    """Serve until cancelled; raises InvalidSetting when the endpoint cannot be bound."""
    async with AsyncExitStack() as stack:
        controller = await open_controller(stack, settings, client, aws, metrics, duties)
        services = (identity_service(), controller_service(controller))
        interceptors = [CallInterceptor(CsiMetrics(registry))]
        await stack.enter_async_context(
            serving(parse_endpoint(endpoint), *services, interceptors=interceptors)
        )
        log.info("csi-served", endpoint=endpoint)
        await asyncio.Event().wait()


async def open_controller(
    stack: AsyncExitStack,
    settings: ControllerSettings,
    client: AsyncClient,
    aws: Aws,
    metrics: ControllerMetrics,
    duties: Duties,
) -> ControllerService:
    """The calls of the service, when all volumes are known; they work while the stack is open."""
    index, listed = VolumeIndex(), asyncio.Event()
    recorder = EventRecorder(client, component=CONTROLLER, host=settings.identity)
    events = ProvisioningEvents(ClaimStore(client), await stack.enter_async_context(recorder))
    file_systems = file_systems_of(settings, client, aws, events.creating_file_system)
    workers = None
    if settings.has_workers:
        pool = worker_pool(settings, client, metrics, file_systems, name=f"csi-{settings.identity}")
        workers = await stack.enter_async_context(pool)
    accounts = await open_accounts(stack, settings, aws, index)
    guards = guards_of(settings, index, VolumeStore(client), accounts)
    sources = data_sources(client, index, accounts)
    copies = copies_of(client, sources, guards, events.copying, for_csi_provisioner=True)
    service = csi_service(
        settings,
        index,
        workers,
        accounts=accounts,
        guards=guards,
        copies=copies,
        file_systems=file_systems,
    )
    snapshots = None
    if workers is not None:
        snapshots = Snapshots(
            store=SnapshotStore(client),
            sources=sources,
            copies=copies,
            directories=workers,
            guards=guards,
            check_stays=file_systems.check_stays,
        )
    tasks = await stack.enter_async_context(asyncio.TaskGroup())
    # The stack cancels these before it closes the group, which would otherwise wait for them without end.
    stack.callback(tasks.create_task(_follow_volumes(client, index, listed)).cancel)
    stack.callback(tasks.create_task(duties.keep("access points", service.refresh_regularly)).cancel)
    # The guards of removal need all volumes.
    await listed.wait()
    return ControllerService(
        service.volumes,
        ClaimStore(client).get,
        sources,
        snapshots,
        has_driver_tags=bool(settings.access_point_tags),
    )


async def _follow_volumes(client: AsyncClient, index: VolumeIndex, listed: asyncio.Event) -> None:
    async for change in follow(client, PersistentVolume, read=read_volume_object):
        match change:
            case Listed(objects):
                index.replace_volumes(objects)
                listed.set()
            case Applied(volume):
                index.put_volume(volume)
            case Deleted(volume):
                index.drop_volume(volume)
