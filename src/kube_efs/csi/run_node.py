"""The process ``kube-efs node``: the CSI driver of a node. It holds no tunnel and no mount.

While this process does not run, all mounts continue. The kubelet repeats the calls that had no answer.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
from lightkube import AsyncClient

from kube_efs.aws.metadata import InstanceMetadata
from kube_efs.csi.file_counts import FileCounts
from kube_efs.csi.identity import identity_service
from kube_efs.csi.interceptors import CallInterceptor
from kube_efs.csi.node import NodeOptions, NodeService, node_service
from kube_efs.csi.node_info import NodeInfo
from kube_efs.csi.node_volumes import NodeVolumes
from kube_efs.csi.publication import UnmountOptions
from kube_efs.csi.registration import (
    RegistrationService,
    keep_registering,
    registration_endpoint,
    registration_service,
)
from kube_efs.csi.server import parse_endpoint, serving
from kube_efs.csi.startup_taint import remove_startup_taint, wait_for_tunnels
from kube_efs.csi.statistics import Statistics
from kube_efs.kube.client import connect, load_config
from kube_efs.location import LocationSources, Part, find_location
from kube_efs.model.errors import InvalidSetting, KubeEfsError
from kube_efs.mounts.mount import Mounter, SystemMounter
from kube_efs.settings.node import NodeSettings
from kube_efs.signals import run_until_stopped
from kube_efs.telemetry.duties import Duties
from kube_efs.telemetry.health import Health, HealthServer, Heartbeat
from kube_efs.telemetry.metrics import ApiServerMetrics, CsiMetrics, new_registry
from kube_efs.telemetry.traces import tracing
from kube_efs.tunnels.api.client import TunnelClient, connect_tunnels

log = structlog.get_logger()

# The agent forgets a holder that is missing in two calls which are a minute apart.
_RECONCILE_SECONDS: Final = 70.0
_RETRY_SECONDS: Final = 5.0
_MAX_SILENT_SECONDS: Final = 600.0


@dataclass(slots=True)
class _HealthState:
    """The answers of the health endpoint, also before the node is identified."""

    heartbeat: Heartbeat | None = None
    registered: Callable[[], Health] | None = None

    def liveness(self) -> Health:
        return self.heartbeat.health() if self.heartbeat else Health()

    def readiness(self) -> Health:
        return self.registered() if self.registered else Health.failing("the node is not identified yet")


async def run_node(settings: NodeSettings, mounter: Mounter | None = None) -> None:
    """Run until SIGTERM or SIGINT; raises InvalidSetting at the start.

    ``mounter`` mounts volumes in another way than with the kernel's NFS client.
    """
    with tracing("kube-efs-node", node=settings.node_name):
        await run_until_stopped(_run(settings, mounter or SystemMounter()))
    log.info("node-stopped", node=settings.node_name)


async def _run(settings: NodeSettings, mounter: Mounter) -> None:
    registry = new_registry()
    duties = Duties(registry)
    async with AsyncExitStack() as stack:
        shown = _HealthState()
        health = HealthServer(
            settings.health_host,
            settings.health_port,
            registry,
            liveness=shown.liveness,
            readiness=shown.readiness,
        )
        # Before the node is identified, which may take long: the kubelet checks the health then too.
        await stack.enter_async_context(health)
        client = await stack.enter_async_context(_cluster(settings, ApiServerMetrics(registry)))
        node_info = await _identify(settings, client)
        tunnels = await stack.enter_async_context(connect_tunnels(settings.tunnel_socket))
        unmount_options = UnmountOptions(
            timeout_seconds=settings.unmount_timeout_seconds, force=settings.force_unmount
        )
        volumes = NodeVolumes(mounter, tunnels, node_info, unmount_options, client)
        statistics = Statistics(refresh_seconds=settings.volume_metrics_refresh_seconds)
        counts = None
        if settings.counts_files:
            counts = await stack.enter_async_context(
                FileCounts(
                    refresh_seconds=settings.file_count_refresh_seconds,
                    rate_limit=settings.file_count_rate_limit,
                )
            )
        node = NodeService(volumes, statistics, node_info, _options(settings), counts)
        heartbeat = Heartbeat("reconciliation", max_age_seconds=_MAX_SILENT_SECONDS)
        registration = RegistrationService(settings.kubelet_socket, withhold_zone=node.withhold_zone)
        shown.heartbeat = heartbeat
        shown.registered = registration.health if settings.registration_folder else Health
        interceptor = CallInterceptor(CsiMetrics(registry))
        endpoint = parse_endpoint(settings.csi_endpoint)
        services = identity_service(), node_service(node)
        # In this order: as soon as the kubelet sees the socket of the registration, it calls the driver's
        # own. They close in the reverse order, so the registration ends first.
        await stack.enter_async_context(serving(endpoint, *services, interceptors=[interceptor]))
        if settings.registration_folder:
            registering = registration_endpoint(settings.registration_folder)
            await stack.enter_async_context(serving(registering, registration_service(registration)))
        log.info("node-started", node=settings.node_name, node_id=node_info.node_id, zone=node_info.zone)
        async with asyncio.TaskGroup() as tasks:
            if settings.registration_folder:
                registering_again = partial(keep_registering, registration, settings.registration_folder)
                tasks.create_task(duties.keep("registration", registering_again))
            if client and settings.removes_startup_taint:
                removing = partial(_remove_taint, client, settings, registration, tunnels)
                tasks.create_task(duties.keep("startup taint", removing))
            reconciling = partial(_reconcile, volumes, heartbeat)
            tasks.create_task(duties.keep("reconciliation", reconciling, failed=heartbeat.beat))


async def _remove_taint(
    client: AsyncClient, settings: NodeSettings, registration: RegistrationService, tunnels: TunnelClient
) -> None:
    """Remove the startup taint when the driver is registered and the tunnel agent of this node serves."""
    if settings.registration_folder:
        await registration.registered.wait()
    await wait_for_tunnels(client, tunnels, settings.names)
    await remove_startup_taint(client, settings.node_name)


async def _reconcile(
    volumes: NodeVolumes, heartbeat: Heartbeat, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Periodically release tunnels whose mounts have disappeared."""
    while True:
        pause = _RECONCILE_SECONDS
        try:
            await volumes.reconcile()
        except KubeEfsError as error:
            log.warning("tunnels-not-reconciled", reason=str(error))
            pause = _RETRY_SECONDS
        heartbeat.beat()
        await sleep(pause)


@asynccontextmanager
async def _cluster(settings: NodeSettings, metrics: ApiServerMetrics) -> AsyncIterator[AsyncClient | None]:
    """A client of the cluster, None without credentials for it: mounts do not need it."""
    try:
        config = load_config(settings.kubeconfig)
    except InvalidSetting as error:
        log.info("cluster-not-used", reason=str(error))
        yield None
        return
    async with connect(config, metrics=metrics) as client:
        yield client


async def _identify(settings: NodeSettings, client: AsyncClient | None) -> NodeInfo:
    async with InstanceMetadata(settings.metadata_endpoint) as metadata:
        sources = LocationSources(
            settings=settings, node_name=settings.node_name, metadata=metadata, client=client
        )
        wanted = (Part.REGION, Part.ZONE, Part.ZONE_ID)
        found = await find_location(sources, required=Part.NODE_ID, also=wanted)
    return NodeInfo(
        node_id=found.node_id or settings.node_name,
        region=found.region,
        zone=found.zone,
        zone_id=found.zone_id,
        dns_suffix=settings.dns_suffix,
    )


def _options(settings: NodeSettings) -> NodeOptions:
    return NodeOptions(
        timeout_seconds=settings.mount_timeout_seconds,
        attach_limit=settings.attach_limit,
        max_inflight=settings.max_inflight_mounts or None,
        has_statistics=settings.has_volume_metrics,
    )
