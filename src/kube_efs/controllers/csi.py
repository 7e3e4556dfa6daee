"""Volumes of the CSI driver: served here, or through a socket by csi-provisioner."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

from lightkube import AsyncClient

from kube_efs.aws.connection import AwsOptions
from kube_efs.aws.gateway import AwsGateway
from kube_efs.kube.claims import ClaimStore
from kube_efs.kube.cluster_reader import ClusterReader
from kube_efs.kube.references import References
from kube_efs.kube.snapshots import SnapshotStore
from kube_efs.kube.volumes import VolumeStore
from kube_efs.model.csi.access_point_tags import TagPolicy
from kube_efs.model.csi.access_points import AccessPoint
from kube_efs.model.csi.cross_account import CrossAccountRole
from kube_efs.model.csi.volume_handles import AccessPointId, VolumeHandle
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.volumes import Location
from kube_efs.provisioning.backends.csi.access_points import AccessPoints
from kube_efs.provisioning.backends.csi.accounts import Accounts
from kube_efs.provisioning.backends.csi.claims import ClaimNotice, CsiBackend
from kube_efs.provisioning.backends.csi.directories import CsiDirectories
from kube_efs.provisioning.backends.csi.file_systems import FileSystems
from kube_efs.provisioning.backends.csi.known_access_points import AccessPointCalls
from kube_efs.provisioning.backends.csi.volumes import CsiVolumes
from kube_efs.provisioning.copies import FIRST_PAUSE_SECONDS, Copies
from kube_efs.provisioning.data_sources import DataSources
from kube_efs.provisioning.guards import Guards
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.provisioning.workers.contract import Directories
from kube_efs.provisioning.workers.pod_objects import LEADER, WorkerOptions
from kube_efs.provisioning.workers.pool import WorkerPool
from kube_efs.provisioning.workers.roots import is_root_of_pod
from kube_efs.settings.controller import ControllerSettings
from kube_efs.settings.directories import BackendName
from kube_efs.telemetry.metrics import AwsMetrics, ControllerMetrics

# How long an attempt to create a file system waits for AWS. csi-provisioner waits 15 s for an answer.
_OWN_PATIENCE_SECONDS: Final = 600.0
_CSI_PATIENCE_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Aws:
    """How this process calls AWS."""

    gateway: AwsGateway
    options: AwsOptions
    metrics: AwsMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class CsiService:
    """Creates the driver's volumes."""

    volumes: CsiVolumes
    accounts: Accounts
    refresh_seconds: float

    async def refresh_regularly(self) -> None:
        """List access points regularly, because others create some too, until cancelled."""
        while True:
            await asyncio.sleep(self.refresh_seconds)
            await self.accounts.refresh()


async def open_accounts(
    stack: AsyncExitStack, settings: ControllerSettings, aws: Aws, index: VolumeIndex
) -> Accounts:
    """EFS in every account in use, while the stack is open; makes no call to AWS."""

    def access_points_of(gateway: AwsGateway) -> Mapping[FileSystemKind, AccessPoints]:
        calls: Mapping[FileSystemKind, AccessPointCalls] = {
            FileSystemKind.EFS: gateway.access_points,
            FileSystemKind.S3_FILES: gateway.s3_files,
        }
        tags = TagPolicy(of_driver=settings.access_point_tags, describes_volume=settings.volume_tags)
        return {
            kind: AccessPoints(
                api,
                index,
                quota=settings.access_point_quota,
                kind=kind,
                tags=tags,
                is_alone=_is_alone(settings),
            )
            for kind, api in calls.items()
        }

    accounts = Accounts(aws.gateway, aws.options, aws.metrics, access_points_of)
    quota = settings.access_point_quota
    aws.metrics.access_points.read = lambda: [([name], count) for name, count in accounts.counts.items()]
    aws.metrics.access_point_quota.read = lambda: [([name], quota) for name in accounts.counts]
    return await stack.enter_async_context(accounts)


def data_sources(client: AsyncClient, index: VolumeIndex, accounts: Accounts) -> DataSources:
    """Finds what new volumes are copies of."""

    async def find(handle: VolumeHandle, role: CrossAccountRole | None) -> AccessPoint | None:
        async with accounts.of(role) as account:
            return await account.access_points[handle.kind].known.find(handle)

    return DataSources(
        claims=ClaimStore(client),
        volumes=VolumeStore(client),
        snapshots=SnapshotStore(client),
        references=References(client),
        find_access_point=find,
        index=index,
    )


def file_systems_of(
    settings: ControllerSettings, client: AsyncClient, aws: Aws, notice: ClaimNotice
) -> FileSystems:
    """Creates file systems for claims; ``notice`` publishes each step on a claim."""
    return FileSystems(
        aws.gateway,
        ClusterReader(client),
        References(client),
        tags=settings.access_point_tags,
        notice=notice,
        patience_seconds=_OWN_PATIENCE_SECONDS if _is_alone(settings) else _CSI_PATIENCE_SECONDS,
    )


def copies_of(
    client: AsyncClient,
    sources: DataSources,
    guards: Guards,
    notice: ClaimNotice,
    *,
    for_csi_provisioner: bool = False,
) -> Copies:
    """Fills new volumes with copies; ``notice`` publishes the progress on a claim.

    No call of csi-provisioner is long enough for a pause; it waits between its calls.
    """
    return Copies(
        sources=sources,
        reservations=guards.reservations,
        is_gone=ClaimStore(client).is_gone,
        notice=notice,
        first_pause_seconds=0.0 if for_csi_provisioner else FIRST_PAUSE_SECONDS,
        accepts_earlier_source=not for_csi_provisioner,
    )


def worker_pool(
    settings: ControllerSettings,
    client: AsyncClient,
    metrics: ControllerMetrics,
    file_systems: FileSystems,
    *,
    name: str = LEADER,
) -> WorkerPool:
    """The worker pods of the leader, or of the CSI socket of a replica."""
    creates_file_systems = BackendName.CSI in settings.backends
    return WorkerPool(
        client,
        WorkerOptions.from_settings(settings, pool=name),
        metrics,
        check_stays=file_systems.check_stays if creates_file_systems else None,
    )


def guards_of(
    settings: ControllerSettings, index: VolumeIndex, store: VolumeStore, accounts: Accounts
) -> Guards:
    """The guards of all removals of a process; at each check, they list access points and mount targets."""

    async def roots(
        location: Location, role: CrossAccountRole | None, named: Collection[AccessPointId]
    ) -> Sequence[AccessPoint]:
        async with accounts.of(role) as account:
            return await account.access_points[location.kind].known.roots(location.file_system_id, named)

    async def addresses(file_system_id: FileSystemId) -> Collection[str]:
        async with accounts.of(None) as account:
            return {one.address for one in await account.gateway.mount_targets(file_system_id)}

    return Guards(
        index=index,
        store=store,
        roots=roots,
        addresses=addresses,
        is_of_worker=partial(is_root_of_pod, namespace=settings.namespace),
    )


def csi_service(
    settings: ControllerSettings,
    index: VolumeIndex,
    directories: Directories | None,
    *,
    accounts: Accounts,
    guards: Guards,
    copies: Copies,
    file_systems: FileSystems,
) -> CsiService:
    """The service; ``directories`` is None without worker pods."""
    made = None
    if directories is not None:
        made = CsiDirectories(
            directories,
            copies=copies,
            index=index,
            reservations=guards.reservations,
            is_alone=_is_alone(settings),
        )
    # Worker pods reach file systems without a port only through the driver.
    mounted = [one for one in FileSystemKind if one.has_ports or settings.workers_use_driver]
    volumes = CsiVolumes(
        accounts=accounts,
        directories=made,
        file_systems=file_systems,
        index=index,
        guards=guards,
        removes_directories=mounted if settings.delete_access_point_root_dir else (),
    )
    return CsiService(
        volumes=volumes,
        accounts=accounts,
        refresh_seconds=settings.access_point_refresh_seconds,
    )


def csi_backend(
    settings: ControllerSettings,
    client: AsyncClient,
    service: CsiService,
    copies: Copies,
    notice: ClaimNotice,
) -> CsiBackend:
    """Serves claims with the volumes of the service; ``notice`` publishes a text on a claim."""
    return CsiBackend(
        volumes=service.volumes,
        copies=copies,
        references=References(client),
        notice=notice,
        has_driver_tags=bool(settings.access_point_tags),
    )


def _is_alone(settings: ControllerSettings) -> bool:
    """Whether no other replica creates volumes: csi-provisioner calls the replica in its leader's pod."""
    return settings.csi_endpoint is None
