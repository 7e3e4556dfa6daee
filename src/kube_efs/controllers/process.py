"""The process ``kube-efs controller``: builds and runs its parts.

One replica leads and works, the others wait. A new leader reads the complete state of the cluster before it
decides anything. A process that loses the Lease ends; the restarted container has no state.
"""

import asyncio
import gc
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import structlog
from lightkube import AsyncClient
from prometheus_client import CollectorRegistry

from kube_efs.aws.catalogue import Catalogue
from kube_efs.aws.connection import AwsOptions
from kube_efs.aws.gateway import AwsGateway
from kube_efs.aws.metadata import InstanceMetadata
from kube_efs.controllers.csi import Aws
from kube_efs.controllers.directory_backends import check_file_system, directory_services
from kube_efs.controllers.leading import LeaderContext, lead
from kube_efs.controllers.sole_leader import TUNNELS, SoleLeader
from kube_efs.kube.client import connect, load_config
from kube_efs.kube.events import CONTROLLER, EventRecorder
from kube_efs.kube.lease_objects import LockKind
from kube_efs.kube.leases import Leadership, LeaseTerms
from kube_efs.location import LocationSources, Part, find_location, find_vpcs
from kube_efs.model.efs.ids import Region, VpcId
from kube_efs.model.errors import KubeUnavailable
from kube_efs.report.reading import read_cluster
from kube_efs.settings.controller import ControllerSettings
from kube_efs.settings.directories import BackendName
from kube_efs.signals import run_until_stopped
from kube_efs.telemetry.duties import Duties
from kube_efs.telemetry.health import Health, HealthServer, combine
from kube_efs.telemetry.metrics import (
    ApiServerMetrics,
    AwsDriverMetrics,
    AwsMetrics,
    ControllerMetrics,
    SharedVolumeMetrics,
    UsageMetrics,
    new_registry,
)
from kube_efs.telemetry.secure_metrics import SecureMetrics, TlsTerms
from kube_efs.telemetry.traces import tracing
from kube_efs.web.server import Sources, StatusPage

log = structlog.get_logger(__name__)

# Python's own 700 (2,000 since 3.13) cost a burst of claims up to a twelfth of its CPU time. With more, the
# garbage that waits takes more memory: with 10,000 some ten megabytes after a hundred broken lists.
_OBJECTS_BETWEEN_SEARCHES: Final = 10_000


@dataclass(slots=True)
class _State:
    """How far the process has come, for ``/readyz``.

    A replica that waits to lead is ready; the one that leads is when it has read all claims and volumes.
    """

    catalogue: Catalogue | None = None
    waiting_to_lead: bool = False
    leading: bool = False
    loaded: bool = False

    def has_loaded(self) -> None:
        self.loaded = True
        # Nearly all that exists now stays, so later searches for cyclic garbage pass over it.
        gc.collect()
        gc.freeze()
        gc.set_threshold(_OBJECTS_BETWEEN_SEARCHES)

    def liveness(self) -> Health:
        return self.catalogue.health() if self.catalogue else Health()

    def readiness(self) -> Health:
        if self.waiting_to_lead or self.loaded:
            return Health(ok=True)
        return Health.failing("the cluster's state has not been read yet")


async def run_controller(settings: ControllerSettings) -> None:
    """Run until SIGTERM or SIGINT; raises InvalidSetting, and KubeUnavailable when the lead is lost."""
    with tracing("kube-efs-controller", pod=settings.identity):
        await run_until_stopped(_run(settings))
    log.info("controller-stopped")


async def _run(settings: ControllerSettings) -> None:
    registry, state = new_registry(), _State()
    metrics, duties = ControllerMetrics(registry), Duties(registry)
    async with AsyncExitStack() as stack:
        health = HealthServer(
            settings.health_host,
            settings.health_port,
            registry,
            liveness=state.liveness,
            readiness=state.readiness,
        )
        # The kubelet checks it also while the region is requested, which takes until a source has it.
        await stack.enter_async_context(health)
        config, api_metrics = load_config(settings.kubeconfig), ApiServerMetrics(registry)
        client = await stack.enter_async_context(connect(config, metrics=api_metrics))
        region = await _region(settings, client)
        mounts = await stack.enter_async_context(AsyncExitStack())
        directories = await mounts.enter_async_context(directory_services(settings, region))
        aws_metrics = AwsMetrics(
            registry, AwsDriverMetrics(registry) if settings.aws_driver_metrics else None
        )
        gateway = await stack.enter_async_context(AwsGateway(_aws_options(settings, region), aws_metrics))
        catalogue = Catalogue(gateway, settings.polling_interval_seconds, metrics=aws_metrics)
        state.catalogue = catalogue
        if settings.metrics_certificate_folder is not None:
            secure = _secure_metrics(settings, settings.metrics_certificate_folder, registry)
            await stack.enter_async_context(secure)
        if settings.status_page:
            await stack.enter_async_context(_status_page(settings, client, catalogue, state))
        log.info("controller-started", region=region, health_port=health.port, identity=settings.identity)
        aws = Aws(gateway=gateway, options=_aws_options(settings, region), metrics=aws_metrics)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        vpcs = tasks.create_task(_own_vpcs(settings))
        if BackendName.CSI in settings.backends and settings.csi_endpoint is not None:
            # gRPC needs 14 MB of memory, and only installations with csi-provisioner need it.
            from kube_efs.controllers.csi_socket import serve_csi  # noqa: PLC0415

            tasks.create_task(
                serve_csi(settings.csi_endpoint, settings, client, aws, metrics, registry, duties)
            )
        # A separate client: requests for the Lease must not wait behind thousands of claims.
        lease_client = await stack.enter_async_context(connect(config, metrics=api_metrics))
        terms = _lease_terms(settings)
        leadership = Leadership(lease_client, terms, time.monotonic)
        if settings.leader_election:
            state.waiting_to_lead = True
            recorder = EventRecorder(lease_client, component=CONTROLLER, host=settings.identity)
            await stack.enter_async_context(recorder)
            await SoleLeader(lease_client, leadership, terms, recorder, time.monotonic).acquire()
            state.waiting_to_lead = False
            # Called after the end of ``lead``: from the release on, another replica may lead.
            stack.push_async_callback(leadership.release)
            # Before it: the threads of this process must not copy beside those of the next leader.
            stack.push_async_callback(mounts.aclose)
        metrics.leader.set(1)
        state.leading = True
        for one in directories:
            checking = partial(check_file_system, gateway, one.provisioner)
            tasks.create_task(duties.keep("file system check", checking))
        work = lead(
            LeaderContext(
                settings=settings,
                client=client,
                aws=aws,
                catalogue=catalogue,
                directories=directories,
                metrics=metrics,
                shared_volume_metrics=SharedVolumeMetrics(registry),
                usage_metrics=UsageMetrics(registry),
                duties=duties,
                leadership=leadership,
                loaded=state.has_loaded,
                own_vpcs=vpcs,
            )
        )
        await (_while_leading(leadership, work, settings.lease_name) if settings.leader_election else work)


def _secure_metrics(settings: ControllerSettings, folder: Path, registry: CollectorRegistry) -> SecureMetrics:
    terms = TlsTerms(version=settings.metrics_tls_version, ciphers=settings.metrics_tls_ciphers)
    return SecureMetrics(settings.health_host, settings.metrics_port, folder, registry, terms)


def _status_page(
    settings: ControllerSettings, client: AsyncClient, catalogue: Catalogue, state: _State
) -> StatusPage:
    sources = Sources(
        read=lambda: read_cluster(client, settings.names, with_pods=True),
        health=lambda: combine(catalogue.health(), state.readiness()),
        leading=lambda: state.leading,
    )
    return StatusPage(settings.status_page_host, settings.status_page_port, sources)


async def _while_leading(leadership: Leadership, work: Coroutine[Any, Any, None], lease: str) -> None:
    """Do the work until cancelled; raises KubeUnavailable when this process no longer leads."""
    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(work)
        await leadership.keep()
        working.cancel()
    remedy = "the pod restarts and waits to lead again"
    raise KubeUnavailable("was lost", field="leadership", value=lease, remedy=remedy)


async def _region(settings: ControllerSettings, client: AsyncClient) -> Region:
    async with InstanceMetadata(settings.metadata_endpoint) as metadata:
        sources = LocationSources(
            settings=settings, node_name=settings.node_name, metadata=metadata, client=client
        )
        location = await find_location(sources, required=Part.REGION)
    # find_location() returns nothing without the required part.
    return cast("Region", location.region)


async def _own_vpcs(settings: ControllerSettings) -> frozenset[VpcId]:
    if BackendName.TUNNEL not in settings.backends:
        return frozenset()
    async with InstanceMetadata(settings.metadata_endpoint) as metadata:
        return await find_vpcs(metadata)


def _aws_options(settings: ControllerSettings, region: Region) -> AwsOptions:
    return AwsOptions(
        region=region, endpoint_url=settings.endpoint_url, max_concurrency=settings.aws_concurrency
    )


def _lease_terms(settings: ControllerSettings) -> LeaseTerms:
    tunnels = {TUNNELS} if BackendName.TUNNEL in settings.backends else set()
    return LeaseTerms(
        namespace=settings.namespace,
        name=settings.lease_name,
        identity=settings.identity,
        kind=LockKind.ENDPOINTS if settings.older_permissions else LockKind.LEASE,
        duration_seconds=settings.lease_duration_seconds,
        renew_deadline_seconds=settings.lease_renew_seconds,
        retry_period_seconds=settings.lease_retry_seconds,
        serves=frozenset({*settings.served_provisioners, *tunnels}),
    )
