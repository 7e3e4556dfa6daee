"""The work of the leader: it reads the complete state of the cluster, then serves claims and volumes.

An earlier leader may have been killed at any moment, and its requests can still take effect. The order of
these steps makes this safe:

1. The ports in the ConfigMap are read. Without them, volumes would be located on other file systems.
2. Volumes, classes and claims are listed. No claim is served before all volumes are known: it could get a
   second one.
3. File systems are discovered and base directories are read. The leader waits for this, but only briefly: a
   claim that is served earlier gets a false error event, and is retried.
4. Claims are served.
5. Volumes are removed, after the API server can no longer create volumes that an earlier leader requested:
   the removal could delete the data of such a volume. If the earlier leader released the Lease, there are
   none: a leader releases it only after it has received all answers, and has waited for the late volumes of
   the leader before it.

Leaders hand over no state. A leader that loses the Lease ends, and its successor reads everything again.

A controller without tunnel volumes omits their parts: it discovers no file systems, and writes no ConfigMap.
One that creates only directory volumes needs only the permissions of efs-provisioner.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial

import structlog
from lightkube import AsyncClient

from kube_efs.aws.catalogue import Catalogue
from kube_efs.controllers.claims import ClaimController, watch_claims, watch_classes
from kube_efs.controllers.csi import (
    Aws,
    CsiService,
    copies_of,
    csi_backend,
    csi_service,
    data_sources,
    file_systems_of,
    guards_of,
    open_accounts,
    worker_pool,
)
from kube_efs.controllers.directory_backends import DirectoryService, directory_backend
from kube_efs.controllers.events import ProvisioningEvents
from kube_efs.controllers.expansions import ExpansionController
from kube_efs.controllers.group_ids import SharedGids, watch_gid_ranges
from kube_efs.controllers.root_volumes import RootVolumes
from kube_efs.controllers.s3_files import S3FilesDiscovery
from kube_efs.controllers.shared_volumes import serve_shared_volumes
from kube_efs.controllers.snapshots import serve_snapshots
from kube_efs.controllers.targets_size import TargetsSize
from kube_efs.controllers.trash_rounds import trash_rounds
from kube_efs.controllers.tunnel_targets import TargetsReports, TunnelTargetsController, UnknownPorts
from kube_efs.controllers.unfinished_file_systems import UnfinishedFileSystems
from kube_efs.controllers.usage import (
    AccessPointPlaces,
    UsageParts,
    UsageRounds,
    measuring_terms,
    meters,
    nowhere,
)
from kube_efs.controllers.volumes import VolumeController, watch_volumes
from kube_efs.controllers.worker_volumes import WorkerVolumes
from kube_efs.kube.claims import ClaimStore
from kube_efs.kube.events import CONTROLLER, EventRecorder
from kube_efs.kube.leases import Leadership
from kube_efs.kube.snapshots import SnapshotStore
from kube_efs.kube.usage_store import UsageStore
from kube_efs.kube.volumes import VolumeStore
from kube_efs.model.efs.ids import VpcId
from kube_efs.model.errors import KubeError
from kube_efs.provisioning.backends.directory import DirectoryBackend
from kube_efs.provisioning.backends.tunnel import TunnelBackend
from kube_efs.provisioning.copies import Copies
from kube_efs.provisioning.engine import Backend, Engine
from kube_efs.provisioning.expansion import Expansions
from kube_efs.provisioning.snapshots import Snapshots
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.provisioning.workers.pool import WorkerPool
from kube_efs.settings.controller import ControllerSettings
from kube_efs.settings.directories import BackendName
from kube_efs.telemetry.duties import Duties
from kube_efs.telemetry.metrics import ControllerMetrics, SharedVolumeMetrics, UsageMetrics

log = structlog.get_logger(__name__)

_RETRY_SECONDS = 2.0
# Claims seen before the file systems and their directories would get an event for an error that does not
# exist.
_FIRST_SCAN_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderContext:
    """The parts of a replica before it leads; ``loaded`` is called when the cluster's state has been read.

    ``own_vpcs`` are the VPCs of this process, empty if they are unknown.
    """

    settings: ControllerSettings
    client: AsyncClient
    aws: Aws
    catalogue: Catalogue
    directories: tuple[DirectoryService, ...]
    metrics: ControllerMetrics
    shared_volume_metrics: SharedVolumeMetrics
    usage_metrics: UsageMetrics
    duties: Duties
    leadership: Leadership
    loaded: Callable[[], None]
    own_vpcs: Awaitable[frozenset[VpcId]]


async def lead(context: LeaderContext) -> None:
    """Serve claims and volumes until cancelled."""
    settings, client = context.settings, context.client
    index = VolumeIndex(
        {one.provisioner.server: one.provisioner.file_system_id for one in context.directories}
    )
    async with AsyncExitStack() as stack:
        # First, so that it is called last, when no task can create a volume any more.
        stack.callback(_keep_lease_if_unclear, index, context.leadership)
        recorder = EventRecorder(client, component=CONTROLLER, host=settings.identity)
        claim_store = ClaimStore(client)
        events = ProvisioningEvents(claim_store, await stack.enter_async_context(recorder))
        pool = csi = None
        file_systems = file_systems_of(settings, client, context.aws, events.creating_file_system)
        if settings.has_workers:
            pool = await stack.enter_async_context(
                worker_pool(settings, client, context.metrics, file_systems)
            )
        store = VolumeStore(client)
        accounts = await open_accounts(stack, settings, context.aws, index)
        guards = guards_of(settings, index, store, accounts)
        sources = data_sources(client, index, accounts)
        copies = copies_of(client, sources, guards, events.copying)
        directories, backends = _nfs_backends(context, index, pool, copies, claim_store)
        if BackendName.CSI in settings.backends and settings.csi_endpoint is None:
            csi = csi_service(
                settings,
                index,
                pool,
                accounts=accounts,
                guards=guards,
                copies=copies,
                file_systems=file_systems,
            )
            backends.append(csi_backend(settings, client, csi, copies, events.not_reused))
        engine = Engine(
            index=index,
            backends=backends,
            store=store,
            guards=guards,
            former_names=lambda: _former_names(index, settings),
            finalizes=not settings.older_permissions,
        )
        begin, begin_removals = asyncio.Event(), asyncio.Event()
        claims = await stack.enter_async_context(
            ClaimController(
                engine=engine,
                index=index,
                events=events,
                metrics=context.metrics,
                backoff_seconds=settings.provision_backoff_seconds,
                duties=context.duties,
                begin=begin,
            )
        )
        volumes = await stack.enter_async_context(
            VolumeController(
                engine=engine,
                index=index,
                events=events,
                metrics=context.metrics,
                backoff_seconds=settings.provision_backoff_seconds,
                duties=context.duties,
                begin=begin_removals,
            )
        )
        expansions = await stack.enter_async_context(
            ExpansionController(
                expansions=Expansions(claims=claim_store, volumes=store, serves=engine.serves),
                events=events,
                backoff_seconds=settings.provision_backoff_seconds,
                duties=context.duties,
                begin=begin,
            )
        )
        index.gids.on_free = claims.gid_released
        context.metrics.gids_in_use.set_function(lambda: len(index.gids))
        giving_gids = {one.provisioner for one in backends} - {settings.provisioner_name}
        watch_gid_ranges(context.metrics, index, giving_gids)
        # The index calls it, so it needs no name here.
        SharedGids(index, recorder, context.metrics, giving_gids)
        has_tunnels = pool is not None and BackendName.TUNNEL in settings.backends
        targets = _targets(context, index, pool, claims, events, recorder) if pool and has_tunnels else None
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        for name, duty in _duties(context, index, recorder, pool=pool, csi=csi):
            tasks.create_task(context.duties.keep(name, duty))
        if BackendName.CSI in settings.backends:
            unfinished = UnfinishedFileSystems(
                file_systems, guards, claim_store, index, context.aws.metrics, directories=pool
            )
            tasks.create_task(context.duties.keep("unfinished file systems", unfinished.run))
        if csi and pool:
            snapshots = Snapshots(
                store=SnapshotStore(client),
                sources=sources,
                copies=copies,
                directories=pool,
                guards=guards,
                check_stays=file_systems.check_stays,
            )
            serve = partial(serve_snapshots, client, settings, snapshots, recorder, context.duties)
            tasks.create_task(context.duties.keep("snapshots", serve))
        controllers = Controllers(
            claims=claims,
            expansions=expansions,
            volumes=volumes,
            targets=targets,
            directories=directories,
            usage=_usage(context, index, recorder, pool, csi),
        )
        await _serve(context, tasks, controllers, index)
        emptiers = (pool, *(one.mounted for one in context.directories))
        trash = trash_rounds(settings, client, index, recorder, context.metrics, context.duties, emptiers)
        tasks.create_task(trash.run())
        await _begin(context.leadership, claims, begin, begin_removals)


def _duties(
    context: LeaderContext,
    index: VolumeIndex,
    recorder: EventRecorder,
    *,
    pool: WorkerPool | None,
    csi: CsiService | None,
) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
    """The names and functions of the duties that need none of the leader's other controllers."""
    settings, client = context.settings, context.client
    if pool:
        # Also those that an earlier leader with other settings left.
        yield "volumes of worker pods", WorkerVolumes(client, index, namespace=settings.namespace).run
    if csi:
        yield "access points", csi.refresh_regularly
    if settings.shared_volumes:
        yield (
            "shared volumes",
            partial(
                serve_shared_volumes,
                client,
                settings,
                recorder,
                context.shared_volume_metrics,
                context.duties,
            ),
        )


def _nfs_backends(
    context: LeaderContext, index: VolumeIndex, pool: WorkerPool | None, copies: Copies, claims: ClaimStore
) -> tuple[list[DirectoryBackend], list[Backend]]:
    """The backends of directory volumes, and all backends whose volumes are NFS volumes."""
    workers = pool if BackendName.TUNNEL in context.settings.backends else None
    directories = [
        directory_backend(one, index=index, workers=workers, copies=copies, metrics=context.metrics)
        for one in context.directories
    ]
    if workers is None:
        return directories, [*directories]
    tunnel = TunnelBackend(
        provisioner=context.settings.provisioner_name,
        index=index,
        directories=workers,
        copies=copies,
        record_choice=claims.record_file_system,
    )
    return directories, [tunnel, *directories]


def _former_names(index: VolumeIndex, settings: ControllerSettings) -> set[str]:
    """Earlier names of the provisioner of tunnel volumes: the root volumes of this namespace keep them."""
    ours = (one for one in index.roots.values() if one.claim and one.claim.namespace == settings.namespace)
    return {one.provisioned_by for one in ours if one.provisioned_by} - {settings.provisioner_name}


async def _begin(
    leadership: Leadership, claims: ClaimController, begin: asyncio.Event, begin_removals: asyncio.Event
) -> None:
    """Begin to serve claims; begin to remove volumes when no volume can appear late."""
    if leadership.follows_a_crash:
        claims.expect_late_volumes()
    begin.set()
    await claims.outlast_late_volumes()
    leadership.release_at_end()
    begin_removals.set()


def _keep_lease_if_unclear(index: VolumeIndex, leadership: Leadership) -> None:
    """Keep the Lease if a volume can still be created: only then the next leader waits for it."""
    if index.expects_volumes:
        leadership.leave_to_expire()


@dataclass(frozen=True, slots=True, kw_only=True)
class Controllers:
    """The controllers that handle watch events; ``targets`` is None without tunnel volumes.

    ``usage`` is None if volumes are not measured.
    """

    claims: ClaimController
    expansions: ExpansionController
    volumes: VolumeController
    targets: TunnelTargetsController | None
    directories: list[DirectoryBackend]
    usage: UsageRounds | None = None

    def root_changed(self) -> None:
        """A root claim or volume was deleted."""
        if self.targets:
            self.targets.reconcile_soon()


async def _serve(
    context: LeaderContext, tasks: asyncio.TaskGroup, controllers: Controllers, index: VolumeIndex
) -> None:
    """Read the state of the cluster and watch it; returns when claims may be served.

    No claim is served before all volumes are known: it could get a second volume.
    """
    client, targets = context.client, controllers.targets
    if targets:
        await _load_targets(targets)
    listed = [asyncio.Event() for _ in range(3)]
    # These are not duties: without a working watch, the controller must neither create nor remove anything.
    for watch in (
        watch_volumes(client, controllers.volumes, controllers.root_changed, listed[0]),
        watch_classes(client, index, controllers.claims, listed[1]),
        watch_claims(client, controllers.claims, controllers.expansions, controllers.root_changed, listed[2]),
    ):
        tasks.create_task(watch)
    for one in listed:
        await one.wait()
    context.loaded()
    log.info("cluster-read", volumes=len(index.volumes), classes=len(index.classes))
    keep = context.duties.keep
    if targets:
        index.own_vpcs = await context.own_vpcs
        context.catalogue.expected = targets.expected
        tasks.create_task(keep("tunnel targets", targets.run))
        tasks.create_task(keep("discovery", context.catalogue.run))
        tasks.create_task(keep("changes of file systems", partial(_follow, context.catalogue, targets)))
        s3_files = S3FilesDiscovery(
            context.aws.gateway,
            index,
            targets.found_s3_files,
            interval_seconds=context.settings.polling_interval_seconds,
        )
        tasks.create_task(keep("mount targets of S3 Files", s3_files.run))
    for backend in controllers.directories:
        tasks.create_task(keep("directories", partial(_scan, backend, controllers)))
    with suppress(TimeoutError):
        async with asyncio.timeout(_FIRST_SCAN_SECONDS):
            if targets:
                await targets.settled.wait()
            for backend in controllers.directories:
                await backend.scanned.wait()
    if controllers.usage:
        tasks.create_task(keep("usage", controllers.usage.run))


async def _scan(backend: DirectoryBackend, controllers: Controllers) -> None:
    """Scan the directories when the necessary tunnels exist."""
    if controllers.targets:
        await controllers.targets.settled.wait()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(backend.run())
        await backend.scanned.wait()
        controllers.claims.file_systems_changed()


def _usage(
    context: LeaderContext,
    index: VolumeIndex,
    recorder: EventRecorder,
    pool: WorkerPool | None,
    csi: CsiService | None,
) -> UsageRounds | None:
    if not context.settings.usage_interval_seconds:
        return None
    parts = UsageParts(
        client=context.client,
        store=UsageStore(context.client, context.settings.namespace),
        index=index,
        recorder=recorder,
        metrics=context.usage_metrics,
        meter_for=meters(
            [one.mounted for one in context.directories],
            index,
            pool,
            discovers=BackendName.TUNNEL in context.settings.backends,
            uses_driver=context.settings.workers_use_driver,
        ),
        locate=AccessPointPlaces(csi.accounts).locate if csi else nowhere,
    )
    interval = context.settings.usage_interval_seconds
    terms = measuring_terms(context.settings)
    return UsageRounds(parts, terms, interval_seconds=interval, duties=context.duties)


def _targets(
    context: LeaderContext,
    index: VolumeIndex,
    pool: WorkerPool,
    claims: ClaimController,
    events: ProvisioningEvents,
    recorder: EventRecorder,
) -> TunnelTargetsController:
    settings = context.settings
    roots = RootVolumes(
        context.client,
        index,
        namespace=settings.namespace,
        provisioner=settings.provisioner_name,
        release=pool.forget,
        wanted=not settings.workers_use_driver,
    )
    return TunnelTargetsController(
        context.client,
        index,
        roots,
        names=settings.names,
        base_port=settings.base_stunnel_port,
        changed=claims.file_systems_changed,
        reports=TargetsReports(
            unknown_ports=UnknownPorts(events, context.metrics).update,
            check_size=TargetsSize(recorder, context.metrics, namespace=settings.namespace).check,
        ),
    )


async def _load_targets(targets: TunnelTargetsController) -> None:
    """Read the current ports; without them, volumes would be located on other file systems."""
    while True:
        try:
            return await targets.load()
        except KubeError as error:
            log.warning("targets-not-read", reason=str(error), retry_seconds=_RETRY_SECONDS)
            await asyncio.sleep(_RETRY_SECONDS)


async def _follow(catalogue: Catalogue, targets: TunnelTargetsController) -> None:
    async for discovery in catalogue.changes():
        targets.discovered(discovery)
