"""The provisioners of directory volumes in the settings, and the workers of each."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import structlog

from kube_efs.aws.gateway import AwsGateway
from kube_efs.model.directory_volumes import DirectoryProvisioner
from kube_efs.model.efs.directories import Directory
from kube_efs.model.efs.file_systems import dns_name
from kube_efs.model.efs.ids import Region
from kube_efs.model.errors import KubeEfsError, PlatformError
from kube_efs.provisioning.backends.directory import DirectoryBackend, ScanPace
from kube_efs.provisioning.copies import Copies
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.provisioning.workers.contract import Directories
from kube_efs.provisioning.workers.mounted import Mounted, MountedDirectories, find_mounted
from kube_efs.settings.controller import ControllerSettings
from kube_efs.settings.directories import BackendName, DirectoryProvisionerSettings
from kube_efs.telemetry.metrics import ControllerMetrics

log = structlog.get_logger(__name__)

_CHECK_SECONDS = 30.0
# Scans of a mounted file system need no worker pod.
_MOUNTED_PACE = ScanPace(least_seconds=10.0, most_seconds=60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryService:
    """A provisioner, and its file system if mounted in this pod; otherwise worker pods do the work."""

    provisioner: DirectoryProvisioner
    mounted: Directories | None


@asynccontextmanager
async def directory_services(
    settings: ControllerSettings, region: Region
) -> AsyncIterator[tuple[DirectoryService, ...]]:
    """Every provisioner of the settings.

    Raises PlatformError when a file system is neither mounted in this pod nor available through worker pods,
    and WorkerFailed when a mounted file system does not answer.
    """
    async with AsyncExitStack() as stack:
        services = []
        for one in settings.directory_provisioners:
            mounted = await _find(one, settings, _server(one, settings, region))
            base = _base(one, mounted)
            directories = None
            if mounted:
                directories = await stack.enter_async_context(
                    MountedDirectories([mounted], timeout_seconds=settings.mount_timeout_seconds)
                )
            services.append(
                DirectoryService(
                    provisioner=DirectoryProvisioner(
                        name=one.name,
                        file_system_id=one.file_system_id,
                        server=_server(one, settings, region),
                        base=base,
                    ),
                    mounted=directories,
                )
            )
            log.info(
                "directory-provisioner",
                provisioner=one.name,
                file_system=one.file_system_id,
                base=str(base),
                mounted_at=str(mounted.mount_point) if mounted else None,
            )
        yield tuple(services)


def directory_backend(
    service: DirectoryService,
    *,
    index: VolumeIndex,
    workers: Directories | None,
    copies: Copies,
    metrics: ControllerMetrics,
) -> DirectoryBackend:
    """The backend of that provisioner; without a mount, ``workers`` do the work."""
    directories = service.mounted or workers
    if directories is None:
        remedy = "mount it as an NFS volume of the pod, or put tunnel into KUBE_EFS_BACKENDS"
        server = service.provisioner.server
        raise PlatformError("is not mounted in this pod", field="server", value=server, remedy=remedy)
    return DirectoryBackend(
        service.provisioner,
        index=index,
        directories=directories,
        copies=copies,
        metrics=metrics,
        has_tunnels=workers is not None,
        pace=ScanPace() if service.mounted is None else _MOUNTED_PACE,
    )


def _server(one: DirectoryProvisionerSettings, settings: ControllerSettings, region: Region) -> str:
    return one.dns_name or dns_name(one.file_system_id, region, settings.dns_suffix)


def _base(one: DirectoryProvisionerSettings, mounted: Mounted | None) -> Directory:
    """The base in the settings; with a configured mount point, the directory that is mounted there."""
    if mounted and (one.mount or one.base is None):
        return mounted.base
    return one.base or Directory()


async def _find(
    one: DirectoryProvisionerSettings, settings: ControllerSettings, server: str
) -> Mounted | None:
    try:
        return await find_mounted(
            one.file_system_id,
            server=server,
            mount_point=one.mount,
            base=one.base,
            timeout_seconds=settings.mount_timeout_seconds,
        )
    except PlatformError as error:
        if one.mount is None and BackendName.TUNNEL in settings.backends:
            log.info("worker-pods-make-directories", provisioner=one.name, reason=str(error))
            return None
        raise


async def check_file_system(
    gateway: AwsGateway, provisioner: DirectoryProvisioner, *, timeout_seconds: float = _CHECK_SECONDS
) -> None:
    """Log whether the file system exists; nothing depends on the answer."""
    subject = {"provisioner": provisioner.name, "file_system": provisioner.file_system_id}
    try:
        async with asyncio.timeout(timeout_seconds):
            found = await gateway.file_system(provisioner.file_system_id)
    except TimeoutError:
        log.warning(
            "file-system-not-checked", reason=f"AWS did not answer in {timeout_seconds:g} s", **subject
        )
    except KubeEfsError as error:
        log.warning("file-system-not-checked", reason=str(error), **subject)
    else:
        log.info("file-system-checked", state=str(found.state), **subject)
