"""Directory volumes: each is a directory of a file system with its own group ID (efs-provisioner)."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NoReturn, Self

import structlog

from kube_efs.model.claims import Claim, StorageClass
from kube_efs.model.directory_classes import class_warnings
from kube_efs.model.directory_volumes import (
    DirectoryProvisioner,
    DirectoryRequest,
    is_conventional,
    is_served_by,
    parse_request,
    permissions_for,
    removable_location,
    volume_for,
    volume_name,
    volume_of_directory,
)
from kube_efs.model.efs.directories import Directory
from kube_efs.model.errors import (
    GidRangeFull,
    GidTaken,
    KubeAlreadyExists,
    KubeEfsError,
    NotYet,
    RemovalRefused,
)
from kube_efs.model.gids import GidRange
from kube_efs.model.nfs_volumes import tunnel_port
from kube_efs.model.volumes import Location, Volume
from kube_efs.provisioning.copies import Copies, Recipient, volume_key
from kube_efs.provisioning.guards import RemovableDirectory, Removal, RemovalOrder, tenant_of
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.provisioning.workers.contract import Directories, remove_directory
from kube_efs.telemetry.metrics import ControllerMetrics

log = structlog.get_logger(__name__)

# Each attempt may need a worker pod. After so many, the claim is retried as after any failure.
_IDS_TRIED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryPlan:
    """A directory and, depending on the class, a group ID."""

    request: DirectoryRequest
    index: VolumeIndex
    directories: Directories
    copies: Copies

    @property
    def claim(self) -> Claim:
        """The claim that is served."""
        return self.request.claim

    @property
    def location(self) -> Location:
        """The location of its data."""
        return self.request.location

    async def locations(self) -> tuple[Location, ...]:
        """The location, for a reservation."""
        return (self.request.location,)

    @property
    def place(self) -> str:
        """The directory."""
        return str(self.location)

    def place_of(self, volume: Volume) -> str:
        """The directory, as for ``place``."""
        return self.place

    @property
    def warnings(self) -> tuple[str, ...]:
        """This backend reports none."""
        return ()

    async def prepare(self) -> None:
        """Nothing."""

    async def make(self) -> Self:
        """Take a group ID and create the directory, and fill it if the claim asks for a copy."""
        source = await self.copies.source_for(self.claim, self.location)
        if source is not None:
            await self.copies.await_earlier(self.directories, self.location, self.claim)
        gids = self.request.gids
        if gids is None:
            await self.directories.make(self.location, permissions_for(None))
        else:
            await self._make_with_some_group(gids)
        if source is not None:
            await self.copies.fill(
                self.directories,
                source,
                self.location,
                Recipient(claim=self.claim),
                key=volume_key(self.claim),
                maps_owner=gids is not None,
            )
        return self

    async def _make_with_some_group(self, gids: GidRange) -> None:
        """Create the directory with a free group ID; after a failure, the group ID is released.

        If another directory has the ID, the ID is held, so that other claims do not get it, and the next one
        is tried. The ledger keeps the ID for the volume.
        """
        start = None
        for attempt in range(1, _IDS_TRIED):
            with suppress(GidTaken):
                return await self._make_with_group(gids, start)
            start = gids.elsewhere(f"{attempt} {volume_name(self.claim)}")
        return await self._make_with_group(gids, start)

    async def _make_with_group(self, gids: GidRange, start: int | None) -> None:
        name, ledger = volume_name(self.claim), self.index.gid_ledger
        # An earlier request for the volume determines its ID, and can still take effect.
        is_kept = start is None and self.index.is_expected(name)
        with ledger.taking(gids, name, self.location, start=start, is_kept=is_kept) as gid:
            if gid is None:
                _refuse_full(self.request)
            try:
                await self.directories.make(self.location, permissions_for(gid, own_group=True))
            except GidTaken as error:
                log.info("gid-taken", location=str(self.location), reason=str(error))
                ledger.taken_by_another(gid, self.location)
                raise

    def volume(self, attempt: int) -> Volume:
        """The volume, always with the same name: it contains the uid of the claim."""
        gid = self.index.gids.of(volume_name(self.claim)) if self.request.gids else None
        request = self.request
        if request.port is not None:
            # The file system may have been missing and have got another port since the plan was made.
            port = tunnel_port(request.location.file_system_id, self.index.targets)
            request = replace(request, port=port)
        return volume_for(request, gid=gid)

    async def adopt(self, found: Volume) -> None:
        """Give the directory the group of the volume again; raises KubeAlreadyExists."""
        if found.nfs != self.volume(0).nfs:
            remedy = "check its server and path; they differ from what this provisioner sets"
            raise KubeAlreadyExists(
                "leads to another location", field="volume", value=found.name, remedy=remedy
            )
        # The directory may have another group: a watch may have shown the volume after its creation.
        await self.directories.make(self.location, permissions_for(found.gid))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanPace:
    """How often directories are scanned: the delay after a failure, and the limits after a success."""

    retry_seconds: float = 5.0
    least_seconds: float = 60.0
    most_seconds: float = 900.0


class DirectoryBackend:
    """Serves the classes of one provisioner name from one file system."""

    def __init__(
        self,
        provisioner: DirectoryProvisioner,
        *,
        index: VolumeIndex,
        directories: Directories,
        copies: Copies,
        metrics: ControllerMetrics,
        has_tunnels: bool = True,
        pace: ScanPace | None = None,
    ) -> None:
        self._provisioner = provisioner
        self._index = index
        self._directories = directories
        self._copies = copies
        self._has_tunnels = has_tunnels
        self._pace = pace or ScanPace()
        self._alone: frozenset[str] = frozenset()
        metrics.directories_without_volume.labels(provisioner.name).set_function(
            lambda: len(self._alone - index.volumes.keys())
        )
        self._base = Location(file_system_id=provisioner.file_system_id, directory=provisioner.base)
        index.gid_ledger.add_base(self._base)
        self._scan_wanted = asyncio.Event()
        self._warned: set[tuple[str, str]] = set()
        self.scanned = asyncio.Event()

    @property
    def provisioner(self) -> str:
        """The provisioner of its classes."""
        return self._provisioner.name

    @property
    def marks_refused_claims(self) -> bool:
        """No: this provisioner has never annotated claims."""
        return False

    @property
    def shares_directories(self) -> bool:
        """No: the name of each contains the uid of its claim."""
        return False

    async def run(self) -> None:
        """Read the group IDs of directories: at the start, when a range is full, and regularly.

        Other clients create directories too, and change their groups. Runs until cancelled.
        """
        while True:
            # Before the scan: a request that comes during it causes another one.
            self._scan_wanted.clear()
            try:
                await self._scan()
            except KubeEfsError as error:
                log.warning(
                    "directories-not-read",
                    provisioner=self.provisioner,
                    file_system=self._provisioner.file_system_id,
                    reason=str(error),
                    retry_seconds=self._pace.retry_seconds,
                )
                await asyncio.sleep(self._pace.retry_seconds)
                continue
            self.scanned.set()
            await asyncio.sleep(self._pace.least_seconds)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pace.most_seconds - self._pace.least_seconds):
                    await self._scan_wanted.wait()

    def plan(self, claim: Claim, storage_class: StorageClass) -> DirectoryPlan:
        """A directory for the claim; raises ClaimRefused, GidRangeFull, NotYet."""
        targets = self._index.targets if self._has_tunnels else None
        request = parse_request(claim, storage_class, self._provisioner, targets)
        self._log_warnings(storage_class)
        # Until then, IDs of directories without a volume are unknown, and a new volume could get one of them.
        if not self.scanned.is_set():
            raise NotYet(
                "has not been read yet",
                field="base directory",
                value=str(self._base),
                remedy="it is retried",
            )
        is_full = request.gids and self._index.gids.lowest_free(request.gids, volume_name(claim)) is None
        if is_full:
            self._scan_wanted.set()
            _refuse_full(request)
        return DirectoryPlan(
            request=request,
            index=self._index,
            directories=self._directories,
            copies=self._copies,
        )

    def owns(self, volume: Volume) -> bool:
        """Whether the volume is on its file system: others may use its provisioner name for another one."""
        return is_served_by(volume, self._provisioner)

    async def removal(self, volume: Volume) -> Removal:
        """The directory of the volume."""
        location = removable_location(volume, self._provisioner)
        if not is_conventional(volume):
            log.warning("directory-name-unexpected", volume=volume.name, location=str(location))
        return Removal(
            directory=RemovableDirectory(location=location, base=self._provisioner.base),
            tenant=tenant_of(volume),
        )

    async def settled(self, volume: Volume) -> None:
        """Return when no earlier order can remove the directory any more."""
        with suppress(RemovalRefused):  # No order was ever given for such a directory.
            await self._directories.settled(removable_location(volume, self._provisioner))

    async def remove(self, removal: Removal, order: RemovalOrder) -> None:
        """Remove the directory."""
        await remove_directory(self._directories, removal, order)

    async def _scan(self) -> None:
        found, made_for_volumes = {}, set()
        # Before the list: it says nothing about directories that are created meanwhile, and must not free
        # their IDs.
        scan = self._index.gid_ledger.begin_scan()
        for child in await self._directories.children(self._base):
            # Users of the file system can choose any names, so these are not parsed further.
            directory = Directory((*self._base.directory.parts, child.name))
            location = Location(file_system_id=self._base.file_system_id, directory=directory)
            volume = volume_of_directory(child.name)
            if volume:
                made_for_volumes.add(volume)
            is_first = volume is not None and volume not in found
            found[volume if volume and is_first else str(location)] = (location, child.gid)
        without_volume = self._index.found_directories(scan, self._base, found)
        self._alone = frozenset(made_for_volumes & without_volume)
        for name in sorted(self._alone):
            log.warning(
                "directory-without-volume", provisioner=self.provisioner, location=str(found[name][0])
            )

    def _log_warnings(self, storage_class: StorageClass) -> None:
        """Warn once of each problem of the class."""
        for warning in map(str, class_warnings(storage_class)):
            if (storage_class.name, warning) not in self._warned:
                self._warned.add((storage_class.name, warning))
                log.warning("storage-class-warning", storage_class=storage_class.name, reason=warning)


def _refuse_full(request: DirectoryRequest) -> NoReturn:
    raise GidRangeFull(
        "has no free group ID",
        field=f"StorageClass {request.claim.storage_class} parameters.gidMin-gidMax",
        value=str(request.gids),
        remedy="delete a volume, or create a class with a wider range",
    )
