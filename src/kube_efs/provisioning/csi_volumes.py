"""Volumes of ``efs.csi.aws.com``: an access point each, or a directory (``provisioningMode: efs-dir``).

Whoever asks, a claim here or csi-provisioner by the CSI protocol, gets the same volume for the same name.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from kube_efs.kube.references import References
from kube_efs.model.access_points import AccessPoint, VolumeRequest, check_reuse, volume_directory
from kube_efs.model.cross_account import (
    CrossAccountRole,
    TargetAddress,
    cross_account_attributes,
    needs_targets,
)
from kube_efs.model.csi_errors import VolumePending
from kube_efs.model.csi_parameters import (
    FileSystemReference,
    ProvisioningMode,
    VolumeParameters,
    parse_referenced,
)
from kube_efs.model.directories import Directory, Permissions
from kube_efs.model.errors import GidRangeFull, PlatformError, RemovalRefused
from kube_efs.model.file_systems import MountTarget
from kube_efs.model.ids import FileSystemId, ZoneName
from kube_efs.model.volume_attributes import VolumeAttributes
from kube_efs.model.volume_handles import VolumeHandle
from kube_efs.model.volumes import Location
from kube_efs.provisioning.accounts import Account, Accounts
from kube_efs.provisioning.backends import Directories
from kube_efs.provisioning.inventory import Inventory
from kube_efs.provisioning.reservations import Reservations

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CsiVolume:
    """What a volume is known by, and how nodes reach it; ``zone`` None is every zone."""

    handle: VolumeHandle
    attributes: VolumeAttributes = field(default_factory=VolumeAttributes)
    zone: ZoneName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reach:
    """How volumes on one file system are reached."""

    attributes: VolumeAttributes
    zone: ZoneName | None


class CsiVolumes:
    """Makes and removes volumes; the same request twice gives one volume.

    ``directories`` is None where nobody can make and remove directories, so that there are access points
    only. ``removes_directories`` tells whether an access point's directory goes with it.
    """

    def __init__(
        self,
        *,
        accounts: Accounts,
        references: References,
        directories: Directories | None,
        inventory: Inventory,
        reservations: Reservations,
        removes_directories: bool,
    ) -> None:
        self._accounts = accounts
        self._references = references
        self._directories = directories
        self._inventory = inventory
        self._reservations = reservations
        self._removes_directories = removes_directories
        self._scanned: set[Location] = set()

    async def create(self, request: VolumeRequest, role: CrossAccountRole | None = None) -> CsiVolume:
        """The volume of that name.

        Raises InvalidArgument, ExistingVolumeDiffers, NoMountTarget, GidRangeFull, AwsError, KubeError,
        WorkerFailed.
        """
        directory = volume_directory(request)
        check_reuse(request)
        candidates = await self._file_systems(request.parameters)
        account = await self._accounts.of(role)
        # Whatever can fail without leaving anything behind comes first.
        reach = {one: await self._reach(one, request.parameters, account, role) for one in candidates}
        if request.parameters.provisioning is ProvisioningMode.DIRECTORY:
            handle = await self._make_directory(request, candidates[0], directory)
        else:
            handle = await self._make_access_point(request, candidates, directory, account)
        on = reach[handle.file_system_id] if handle.file_system_id in reach else next(iter(reach.values()))
        return CsiVolume(handle=handle, attributes=on.attributes, zone=on.zone)

    async def delete(self, handle: VolumeHandle, role: CrossAccountRole | None = None) -> None:
        """Remove the volume; one that is gone, or was never made here, is no error.

        Raises RemovalRefused when its directory is another's too, AwsError, WorkerFailed.
        """
        if handle.base is not None:
            await self._remove_directory(handle, handle.base)
        elif handle.access_point_id is not None:
            await self._remove_access_point(handle, await self._accounts.of(role))

    async def exists(self, handle: VolumeHandle, role: CrossAccountRole | None = None) -> bool:
        """Whether the volume is there, as far as AWS can tell; raises AwsError."""
        if handle.access_point_id is None:
            return True
        account = await self._accounts.of(role)
        return await account.access_points.find(handle) is not None

    async def _file_systems(self, parameters: VolumeParameters) -> Sequence[FileSystemId]:
        named = parameters.file_systems
        if isinstance(named, FileSystemReference):
            return parse_referenced(await self._references.text(named), named)
        return named

    async def _reach(
        self,
        file_system_id: FileSystemId,
        parameters: VolumeParameters,
        account: Account,
        role: CrossAccountRole | None,
    ) -> _Reach:
        attributes, zone = VolumeAttributes(), None
        if role is not None:
            found = await account.gateway.mount_targets(file_system_id) if needs_targets(role) else ()
            targets = [_target(one) for one in found if one.state.usable]
            attributes = cross_account_attributes(role, parameters.zone, file_system_id, targets)
        if parameters.zone_affinity:
            zone = (await account.gateway.file_system(file_system_id)).zone
        return _Reach(attributes=attributes, zone=zone)

    async def _make_access_point(
        self,
        request: VolumeRequest,
        candidates: Sequence[FileSystemId],
        directory: Directory,
        account: Account,
    ) -> VolumeHandle:
        place = Location(file_system_id=candidates[0], directory=directory)
        async with self._reservations.making(place):
            made = await account.access_points.create(request, candidates)
        self._refuse_leaving(made)
        log.info("access-point-made", volume=request.name, access_point=made.access_point_id)
        return VolumeHandle(file_system_id=made.file_system_id, access_point_id=made.access_point_id)

    def _refuse_leaving(self, made: AccessPoint) -> None:
        """A reused access point must not go with the volume of an earlier claim of that name."""
        users = self._inventory.volumes_through(made.access_point_id)
        leaving = sorted(users - set(self._inventory.staying(users)))
        if leaving:
            raise VolumePending(
                f"is about to be removed with volume {', '.join(leaving)}",
                field="access point",
                value=made.access_point_id,
                remedy="it is tried again",
            )

    async def _make_directory(
        self, request: VolumeRequest, file_system_id: FileSystemId, directory: Directory
    ) -> VolumeHandle:
        parameters = request.parameters
        place = Location(file_system_id=file_system_id, directory=directory)
        uid, gid = parameters.uid, parameters.gid
        if uid is None or gid is None:
            await self._scan(Location(file_system_id=file_system_id, directory=parameters.base))
            taken = self._inventory.gids.take(parameters.gids, str(place))
            if taken is None:
                raise GidRangeFull(
                    "has no free id left",
                    field="gidRangeStart-gidRangeEnd",
                    value=str(parameters.gids),
                    remedy="delete a volume, or make a class with a wider range",
                )
            uid, gid = (taken if uid is None else uid), (taken if gid is None else gid)
        async with self._reservations.making(place):
            permissions = Permissions(mode=parameters.mode, uid=uid, gid=gid, enforced=True)
            await self._hands().make(place, permissions)
        log.info("directory-made", volume=request.name, location=str(place))
        return VolumeHandle(file_system_id=file_system_id, directory=directory, base=parameters.base)

    def _hands(self) -> Directories:
        if self._directories is None:
            raise PlatformError(
                "needs worker pods, which this controller does not run",
                field="provisioningMode",
                value=ProvisioningMode.DIRECTORY,
                remedy="put tunnel into the controller's KUBE_EFS_BACKENDS, or use efs-ap",
            )
        return self._directories

    async def _scan(self, base: Location) -> None:
        """Learn once which ids the directories there have: no volume tells those of directories."""
        if base in self._scanned:
            return
        for child in await self._hands().children(base):
            directory = Directory((*base.directory.parts, child.name))
            place = Location(file_system_id=base.file_system_id, directory=directory)
            if self._inventory.gids.of(str(place)) is None:
                self._inventory.gids.hold(child.gid, str(place))
        self._scanned.add(base)

    async def _remove_directory(self, handle: VolumeHandle, base: Directory) -> None:
        place = Location(file_system_id=handle.file_system_id, directory=handle.directory)
        async with self._reservations.removing(place):
            self._refuse_shared(place)
            await self._hands().remove(place, base)
        self._inventory.gids.release(str(place))

    def _refuse_shared(self, place: Location) -> None:
        users = self._others(self._inventory.directories.sharers(place, ""))
        neighbours = sorted(self._inventory.directories.neighbours(place))
        if users or neighbours:
            raise RemovalRefused(
                f"is, or lies above or below, the directory of {', '.join(users + neighbours)}",
                field="directory",
                value=str(place),
                remedy="delete the other volumes first, or set this one to Retain",
            )

    async def _remove_access_point(self, handle: VolumeHandle, account: Account) -> None:
        found = await account.access_points.find(handle)
        if found is None:
            return
        self._refuse_needed(found)
        if not self._removes_directories:
            await account.access_points.delete(handle, is_directory_gone=False)
            return
        place = Location(file_system_id=found.file_system_id, directory=found.directory)
        async with self._reservations.removing(place):
            is_its_own = await self._is_its_own(handle, found, place, account)
            if is_its_own:
                await self._hands().remove(place, Directory())
            await account.access_points.delete(handle, is_directory_gone=is_its_own)

    def _refuse_needed(self, found: AccessPoint) -> None:
        users = self._others(self._inventory.volumes_through(found.access_point_id))
        if users:
            raise RemovalRefused(
                f"leads to the data of volume {', '.join(users)} too",
                field="access point",
                value=found.access_point_id,
                remedy="delete the other volumes first, or set this one to Retain",
            )

    def _others(self, users: frozenset[str]) -> list[str]:
        """The volumes that would miss what is to be removed; one alone is the volume that is deleted."""
        return self._inventory.staying(users) if len(users) > 1 else []

    async def _is_its_own(
        self, handle: VolumeHandle, found: AccessPoint, place: Location, account: Account
    ) -> bool:
        """Whether nobody else's data can lie in the access point's directory."""
        others = [one.access_point_id for one in await account.access_points.sharers(found)]
        directories = self._inventory.directories
        volumes = directories.sharers(place, "") | directories.neighbours(place)
        if not found.directory.is_root and not others and not volumes:
            return True
        log.warning(
            "directory-kept",
            volume=str(handle),
            location=str(place),
            access_points=sorted(others),
            volumes=sorted(volumes),
        )
        return False


def _target(target: MountTarget) -> TargetAddress:
    zone = target.zone or ZoneName("")
    return TargetAddress(zone=zone, zone_id=target.zone_id or zone, address=target.address)
