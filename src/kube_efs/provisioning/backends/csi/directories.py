"""Directories as volumes of ``efs.csi.aws.com`` (``provisioningMode: efs-dir``), each with its own ID.

The ID is the owner and group of the directory. The file system contains it, and also the annotation of the
volume if this controller creates the volume object. With csi-provisioner only the file system contains it.
So IDs are claimed by marks on the file system (``gid_marks.py``), as for directory volumes.

Access points get IDs of the same ranges, and AWS sees no marks. So the directories are read before a new
access point gets an ID, too (``learn_ids``), and if its range is full (``free_ids``).
"""

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final
from weakref import WeakValueDictionary

import structlog

from kube_efs.model.claims import Claim, StorageClass
from kube_efs.model.copies import Copied, CopySource
from kube_efs.model.csi.access_points import PosixUser, VolumeRequest
from kube_efs.model.csi.parameters import ProvisioningMode, VolumeParameters, parse_parameters
from kube_efs.model.csi.snapshots import BASE as SNAPSHOTS_BASE
from kube_efs.model.csi.volume_handles import VolumeHandle
from kube_efs.model.efs.directories import Directory, FoundDirectory, Permissions
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.errors import (
    AwsNoCredentialsYet,
    AwsNotPermitted,
    GidRangeFull,
    GidTaken,
    InvalidValue,
    KubeDenied,
    KubeInvalid,
    RemovalRefused,
    WorkerRefused,
)
from kube_efs.model.gids import GidRange
from kube_efs.model.volumes import DRIVER, Location
from kube_efs.provisioning.backends.csi.accounts import Account
from kube_efs.provisioning.copies import Copies, Recipient
from kube_efs.provisioning.guards import Removal, RemovalOrder
from kube_efs.provisioning.reservations import DirectoryReservations
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.provisioning.workers.contract import Directories, remove_directory
from kube_efs.single_flight import SingleFlight

log = structlog.get_logger(__name__)

_SCAN_AGAIN_SECONDS: Final = 60.0
# An older listing of snapshots may be from before a removal that another process has given up.
_FRESH_SECONDS: Final = 60.0
# Each attempt may need a worker pod. After so many, the request is retried as after any failure.
_IDS_TRIED: Final = 16


class CsiDirectories:
    """Creates and removes directories with ``directories``.

    Without ``is_alone``, other replicas create volumes too, and nothing reports the IDs of their directories.
    """

    def __init__(
        self,
        directories: Directories,
        *,
        copies: Copies,
        index: VolumeIndex,
        reservations: DirectoryReservations,
        is_alone: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directories = directories
        self._copies = copies
        self._index = index
        self._reservations = reservations
        self._is_alone = is_alone
        self._clock = clock
        # The time of the last scan of each base directory.
        self._scanned: dict[Location, float] = {}
        self._readers: dict[Location, SingleFlight[None]] = {}
        # The listings of snapshots whose callers did not wait for the end, and when they began.
        self._snapshot_readers: dict[
            FileSystemId, tuple[float, asyncio.Future[Sequence[FoundDirectory]]]
        ] = {}
        # Directories for which an attempt chooses an ID, or which it creates.
        self._choosing: WeakValueDictionary[Location, asyncio.Lock] = WeakValueDictionary()
        # Directories that were created; their volumes may not be known yet.
        self._made: set[Location] = set()
        # The bases of classes, and the classes from which they were read.
        self._bases: frozenset[Location] = frozenset()
        self._classes: dict[str, StorageClass] = {}
        # The time of the last scan of each directory that should free IDs.
        self._freed: dict[Location, float] = {}
        # The names of unfinished volumes whose directories exist, or may exist.
        self._begun: set[str] = set()

    async def make(
        self, request: VolumeRequest, place: Location, account: Account
    ) -> tuple[VolumeHandle, int | None]:
        """The volume, and the ID that was allocated for its owners.

        Raises GidRangeFull, AwsError, KubeError, WorkerFailed.
        """
        parameters = request.parameters
        # The reservation includes the choice of the ID: the removal of another volume would free it.
        async with self._reservations.making(place):
            if parameters.uid is None or parameters.gid is None:
                taken = await self._make_with_some_id(request, place, account)
            else:
                taken = None
                await self._make_at(place, request, parameters.uid, parameters.gid)
        log.info("directory-made", volume=request.name, location=str(place))
        handle = VolumeHandle(
            file_system_id=place.file_system_id, directory=place.directory, base=parameters.base
        )
        return handle, taken

    def may_have(self, volume: str) -> bool:
        """Whether a directory of that unfinished volume exists or can still appear."""
        return volume in self._begun

    def finished(self, volume: str) -> None:
        """Note that the volume is complete."""
        self._begun.discard(volume)

    async def make_root(self, place: Location, mode: int, user: PosixUser) -> None:
        """Create the root directory of an access point, as EFS does at the first mount.

        Raises WorkerFailed, KubeError.
        """
        await self._directories.make(place, Permissions(mode=mode, uid=user.uid, gid=user.gid))

    async def await_earlier_copy(self, place: Location, claim: Claim | None) -> None:
        """Return when no worker of an earlier leader copies to the directory."""
        await self._copies.await_earlier(self._directories, place, claim)

    async def fill(
        self,
        source: CopySource,
        place: Location,
        recipient: Recipient,
        *,
        key: str,
        maps_owner: bool,
    ) -> Copied | None:
        """Copy the source into the directory; see ``Copies.fill``."""
        return await self._copies.fill(
            self._directories, source, place, recipient, key=key, maps_owner=maps_owner
        )

    async def remove(self, removal: Removal, order: RemovalOrder) -> None:
        """Remove the directory after confirmation of the order; raises KubeEfsError."""
        await remove_directory(self._directories, removal, order)
        if removal.directory:
            self._made.discard(removal.directory.location)

    async def settled(self, location: Location) -> None:
        """Return when no earlier order can change the directory any more; raises WorkerFailed, KubeError."""
        await self._directories.settled(location)

    async def unused(self, file_system_id: FileSystemId) -> None:
        """Return when no worker uses the file system, whose removal has begun; see ``Directories``."""
        await self._directories.unused(file_system_id)

    def forget_snapshots(self, file_system_id: FileSystemId) -> None:
        """Note that snapshots could be created since an earlier attempt to remove the file system."""
        self._snapshot_readers.pop(file_system_id, None)

    async def check_without_snapshots(self, file_system_id: FileSystemId) -> None:
        """Raise RemovalRefused if the file system contains snapshots, also those that Kubernetes forgot.

        If the pod takes longer than a call of csi-provisioner, the next call gets the answer of the same pod.
        Raises KubeError, WorkerFailed.
        """
        began, reader = self._snapshot_readers.pop(file_system_id, (-math.inf, None))
        if reader is None or self._clock() > began + _FRESH_SECONDS:
            place = Location(file_system_id=file_system_id, directory=SNAPSHOTS_BASE)
            began, reader = self._clock(), asyncio.ensure_future(self._directories.children(place))
        try:
            found = await asyncio.shield(reader)
        except asyncio.CancelledError:
            self._snapshot_readers[file_system_id] = began, reader
            raise
        if found:
            raise RemovalRefused(
                f"contains {len(found)} snapshots in {SNAPSHOTS_BASE}",
                field="file system",
                value=file_system_id,
                remedy="delete those first, or set the reclaim policy of this volume to Retain",
            )

    async def learn_ids(self, file_system_ids: Collection[FileSystemId]) -> None:
        """Scan the directories on the file systems whose IDs no known volume contains.

        The volumes of an earlier leader's directories may be deleted, or not created yet. Volumes of other
        replicas do not contain the ID. Raises KubeError, WorkerFailed.
        """
        for base in sorted(self._bases_of_classes(), key=str):
            if base.file_system_id in file_system_ids:
                await self._scan(base)
        await self._learn_ids_of_others(file_system_ids)

    async def free_ids(self, file_system_ids: Collection[FileSystemId], gids: GidRange) -> bool:
        """Free IDs of directories that others have removed, such as another replica; whether this has looked.

        A range that stays full does not cause continuous scans: this makes one a minute. If it takes longer
        than a call of csi-provisioner, the next call uses its result. Raises KubeError, WorkerFailed.
        """
        now = self._clock()
        if now < max(self._freed.values(), default=-math.inf) + _SCAN_AGAIN_SECONDS:
            return False
        folders = {
            _parent_of(place)
            for place, gid in self._index.gids.directories()
            if gid in gids and place.file_system_id in file_system_ids and not self._index.volumes_at(place)
        }
        due = [one for one in folders if now >= self._scanned.get(one, -math.inf) + _SCAN_AGAIN_SECONDS]
        if not due:
            return False
        oldest = min(due, key=lambda one: (self._freed.get(one, -math.inf), str(one)))
        # Before the scan: one that fails is not repeated at once either, and delays no other one.
        self._freed[oldest] = now
        await self._reader(oldest).any_answer()
        return True

    def _bases_of_classes(self) -> frozenset[Location]:
        """The base directories whose directories get IDs from a range, as far as classes name them."""
        if self._classes != self._index.classes:
            self._classes = dict(self._index.classes)
            self._bases = frozenset(_bases(self._classes.values()))
        return self._bases

    async def _learn_ids_of_others(self, file_system_ids: Collection[FileSystemId]) -> None:
        """Scan the directories in which other replicas have created volumes since the last scan."""
        if self._is_alone:
            return
        while folders := [
            folder
            for folder in map(_parent_of, self._index.without_id.values())
            if folder.file_system_id in file_system_ids
        ]:
            # A running scan may have begun before the last of them was created.
            await self._reader(folders[0]).any_answer()

    async def _make_with_some_id(self, request: VolumeRequest, place: Location, account: Account) -> int:
        try:
            # The IDs of access points are in use, too.
            await account.access_points[FileSystemKind.EFS].known.loaded(place.file_system_id)
        except AwsNotPermitted as error:
            # Without permission to list access points, none is created here.
            if isinstance(error, AwsNoCredentialsYet):
                raise
        base = _base_of(request.parameters, place)
        await self._scan(base)
        if self._index.volumes_at(place) and self._index.gids.of(str(place)) is None:
            await self._scan(_parent_of(place))
        start = None
        # Of two volumes of one directory, the second gets the ID of the first.
        async with self._choosing.setdefault(place, asyncio.Lock()):
            for attempt in range(1, _IDS_TRIED):
                with suppress(GidTaken):
                    return await self._make_with_id(request, place, account, start)
                start = request.parameters.gids.elsewhere(f"{attempt} {place}")
            return await self._make_with_id(request, place, account, start)

    async def _make_with_id(
        self, request: VolumeRequest, place: Location, account: Account, start: int | None
    ) -> int:
        """Create the directory with an ID of the range that no other directory has.

        Raises GidTaken if another directory has the chosen ID; the ID is then held for that directory.
        """
        parameters = request.parameters
        points = account.access_points[FileSystemKind.EFS].known
        taken = self._id_of_others_in(place, parameters.gids)
        if taken is None:
            taken = points.take_id(parameters.gids, str(place), start=start)
        if taken is None and await self.free_ids([place.file_system_id], parameters.gids):
            taken = points.take_id(parameters.gids, str(place), start=start)
        if taken is None:
            raise GidRangeFull(
                "has no free ID",
                field="gidRangeStart-gidRangeEnd",
                value=str(parameters.gids),
                remedy="delete a volume, or create a class with a wider range",
            )
        # The place shows which scan can free the ID.
        self._index.gids.hold(taken, str(place), at=place)
        uid = taken if parameters.uid is None else parameters.uid
        gid = taken if parameters.gid is None else parameters.gid
        # Existing volumes of the directory keep its ID, even if another directory was created with it.
        own_group = gid == taken and not self._has_volumes(place)
        try:
            await self._make_at(place, request, uid, gid, own_group=own_group)
        except GidTaken:
            log.info("gid-taken", location=str(place), gid=taken)
            # No directory has this name, so the next scan that should free IDs frees this one.
            other = _child(_base_of(parameters, place), f"of another directory, {taken}")
            self._index.gids.hold(taken, str(other), at=other, is_known=False)
            self._release(place, taken)
            raise
        except WorkerRefused:
            # The directory does not exist. After any other error it may exist, so the ID stays taken.
            self._release(place, taken)
            raise
        self._made.add(place)
        return taken

    def _release(self, place: Location, taken: int) -> None:
        """Free the ID of a directory that was not created, unless volumes use it."""
        if self._index.gids.of(str(place)) == taken and not self._has_volumes(place):
            self._index.gids.release(str(place))

    async def _make_at(
        self, place: Location, request: VolumeRequest, uid: int, gid: int, *, own_group: bool = False
    ) -> None:
        mode = request.parameters.mode
        permissions = Permissions(mode=mode, uid=uid, gid=gid, enforced=True, own_group=own_group)
        was_begun = request.name in self._begun
        # Before the call, which can be cancelled.
        self._begun.add(request.name)
        try:
            await self._directories.make(place, permissions)
        except (WorkerRefused, GidTaken, KubeDenied, KubeInvalid) as error:
            # This attempt has created nothing: a pod was not created, or has said so.
            if not was_begun or isinstance(error, WorkerRefused):
                self._begun.discard(request.name)
            raise

    def _id_of_others_in(self, place: Location, gids: GidRange) -> int | None:
        """The ID of a directory that other volumes use or are about to use, if it is in the range.

        The directory keeps this ID even if another directory has it: with a new ID, those volumes could no
        longer use the directory.
        """
        taken = self._index.gids.of(str(place))
        return taken if taken is not None and taken in gids and self._has_volumes(place) else None

    def _has_volumes(self, place: Location) -> bool:
        """Whether volumes use that directory, or will when their objects are created."""
        return place in self._made or bool(self._index.volumes_at(place))

    async def _scan(self, base: Location) -> None:
        """Read the IDs of the directories there once: volumes do not contain them."""
        if base not in self._scanned:
            await self._reader(base).any_answer()

    def _reader(self, base: Location) -> SingleFlight[None]:
        """A shared scan; if it takes longer than a call of csi-provisioner, the next call uses its result."""
        if base not in self._readers:
            self._readers[base] = SingleFlight(lambda: self._read_ids(base))
        return self._readers[base]

    async def _read_ids(self, base: Location) -> None:
        """Note the IDs of the directories there, and free those of directories that do not exist any more."""
        without_id, gids = self._index.without_id, self._index.gids
        # Read before the scan, which may miss the directories of later volumes, and those being created.
        unknown = [name for name, place in without_id.items() if _parent_of(place) == base]
        held = [one for one, _ in gids.directories() if _parent_of(one) == base and one not in self._choosing]
        try:
            children = await self._directories.children(base)
        except WorkerRefused as error:
            # A link or file is in its place. A user of the file system must not block others with one.
            log.warning("directories-not-read", base=str(base), reason=str(error))
            children, held = (), []
        found = {_child(base, child.name): child.gid for child in children}
        for place, gid in found.items():
            if gids.of(str(place)) is None:
                gids.hold(gid, str(place), at=place)
        for place in held:
            if place not in found and place not in self._choosing and not self._index.volumes_at(place):
                self._made.discard(place)
                gids.release(str(place))
        self._scanned[base] = self._clock()
        # Volumes without a directory are not scanned for again.
        for name in unknown:
            without_id.pop(name, None)


def _bases(classes: Iterable[StorageClass]) -> Iterator[Location]:
    for one in classes:
        # The claims of an invalid class are refused with the reason.
        with suppress(InvalidValue):
            parameters = parse_parameters(one.parameters) if one.provisioner == DRIVER else None
            if (
                parameters is not None
                and parameters.provisioning is ProvisioningMode.DIRECTORY
                and parameters.gid is None
                and isinstance(parameters.file_systems, tuple)
            ):
                # Claims always get the first one.
                yield Location(file_system_id=parameters.file_systems[0], directory=parameters.base)


def _child(base: Location, name: str) -> Location:
    directory = Directory((*base.directory.parts, name))
    return Location(file_system_id=base.file_system_id, directory=directory)


def _base_of(parameters: VolumeParameters, place: Location) -> Location:
    return Location(file_system_id=place.file_system_id, directory=parameters.base)


def _parent_of(place: Location) -> Location:
    return Location(file_system_id=place.file_system_id, directory=Directory(place.directory.parts[:-1]))
