"""Directories as volumes of ``efs.csi.aws.com`` (``provisioningMode: efs-dir``), each with an id of its own.

The number is that of the directory's owner and group. It is known from the file system, and the volume's
annotation where this controller makes the volume object; with csi-provisioner only from the file system. So
numbers are claimed by marks on the file system (``gid_marks.py``), as those of directory volumes are.
"""

import asyncio
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final
from weakref import WeakValueDictionary

import structlog

from kube_efs.model.csi.access_points import VolumeRequest
from kube_efs.model.csi.parameters import VolumeParameters
from kube_efs.model.csi.volume_handles import VolumeHandle
from kube_efs.model.efs.directories import Directory, Permissions
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import AwsDenied, GidRangeFull, GidTaken, WorkerRefused
from kube_efs.model.gids import GidRange
from kube_efs.model.volumes import Location
from kube_efs.provisioning.backends.csi.accounts import Account
from kube_efs.provisioning.guards import Order, Removal, Reservations
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.provisioning.workers.contract import Directories, remove_directory
from kube_efs.single_flight import SingleFlight

log = structlog.get_logger(__name__)

_SCAN_AGAIN_SECONDS: Final = 60.0
# Each attempt may cost a worker pod; a request that was not lucky by then is retried.
_IDS_TRIED: Final = 16


class CsiDirectories:
    """Makes and removes them by ``directories``.

    Without ``is_alone`` other replicas make volumes too, and nothing reports the IDs of their directories.
    """

    def __init__(
        self,
        directories: Directories,
        *,
        index: VolumeIndex,
        reservations: Reservations,
        is_alone: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directories = directories
        self._index = index
        self._reservations = reservations
        self._is_alone = is_alone
        self._clock = clock
        # When the directories there were read last.
        self._scanned: dict[Location, float] = {}
        self._readers: dict[Location, SingleFlight[None]] = {}
        # Directories for which an attempt chooses an ID, or makes them with it.
        self._choosing: WeakValueDictionary[Location, asyncio.Lock] = WeakValueDictionary()
        # Those that were made; their volumes may not be known yet.
        self._made: set[Location] = set()

    async def make(
        self, request: VolumeRequest, place: Location, account: Account
    ) -> tuple[VolumeHandle, int | None]:
        """The volume, and the number that was allocated for its owners.

        Raises GidRangeFull, AwsError, KubeError, WorkerFailed.
        """
        parameters = request.parameters
        # Also while a number is chosen: the removal of another volume of the directory frees the number.
        async with self._reservations.making(place):
            if parameters.uid is None or parameters.gid is None:
                taken = await self._make_with_some_id(parameters, place, account)
            else:
                taken = None
                await self._make_at(place, parameters, parameters.uid, parameters.gid)
        log.info("directory-made", volume=request.name, location=str(place))
        handle = VolumeHandle(
            file_system_id=place.file_system_id, directory=place.directory, base=parameters.base
        )
        return handle, taken

    async def remove(self, removal: Removal, order: Order) -> None:
        """Remove the directory once the order is confirmed; raises KubeEfsError."""
        await remove_directory(self._directories, removal, order)
        if removal.location is not None:
            self._made.discard(removal.location)

    async def settled(self, location: Location) -> None:
        """Return when no earlier order can change the directory any more; raises WorkerFailed, KubeError."""
        await self._directories.settled(location)

    async def learn_ids_of_others(self, file_system_ids: Collection[FileSystemId]) -> None:
        """Read the directories there in which other replicas have made volumes since they were read last.

        Raises KubeError, WorkerFailed.
        """
        if self._is_alone:
            return
        while folders := [
            folder
            for folder in map(_parent_of, self._index.without_id.values())
            if folder.file_system_id in file_system_ids
        ]:
            # Reading that is under way may have begun before the last of them came.
            await self._reader(folders[0]).any_answer()

    async def _make_with_some_id(
        self, parameters: VolumeParameters, place: Location, account: Account
    ) -> int:
        with suppress(AwsDenied):  # Where access points may not be listed, none is made here.
            # Their numbers are taken, too.
            await account.access_points.loaded(place.file_system_id)
        base = _base_of(parameters, place)
        await self._scan(base)
        if self._index.volumes_at(place) and self._index.gids.of(str(place)) is None:
            await self._scan(_parent_of(place))
        start = None
        # Of two volumes of one directory, the second gets what the first has got.
        async with self._choosing.setdefault(place, asyncio.Lock()):
            for attempt in range(1, _IDS_TRIED):
                with suppress(GidTaken):
                    return await self._make_with_id(parameters, place, account, start)
                start = parameters.gids.elsewhere(f"{attempt} {place}")
            return await self._make_with_id(parameters, place, account, start)

    async def _make_with_id(
        self, parameters: VolumeParameters, place: Location, account: Account, start: int | None
    ) -> int:
        """Make the directory with a number of the range, which others cannot have by the time it has it.

        A number that turns out to be another directory's is kept from others; raises GidTaken then.
        """
        base = _base_of(parameters, place)
        taken = self._id_of_others_in(place, parameters.gids)
        if taken is None:
            taken = account.access_points.take_id(parameters.gids, str(place), start=start)
        if taken is None and await self._free_ids(base, parameters.gids):
            taken = account.access_points.take_id(parameters.gids, str(place), start=start)
        if taken is None:
            raise GidRangeFull(
                "has no free ID",
                field="gidRangeStart-gidRangeEnd",
                value=str(parameters.gids),
                remedy="delete a volume, or create a class with a wider range",
            )
        uid = taken if parameters.uid is None else parameters.uid
        gid = taken if parameters.gid is None else parameters.gid
        # What volumes have there already stays theirs, also when another directory was made with it.
        own_group = gid == taken and not self._has_volumes(place)
        try:
            await self._make_at(place, parameters, uid, gid, own_group=own_group)
        except GidTaken:
            log.info("gid-taken", location=str(place), gid=taken)
            self._index.gids.hold(taken, f"{_inside(base)}of another directory, {taken}", is_known=False)
            self._release(place, taken)
            raise
        except WorkerRefused:  # so that there is no directory
            self._release(place, taken)
            raise
        self._made.add(place)
        return taken

    def _release(self, place: Location, taken: int) -> None:
        """Free the id of a directory that was not made, unless there are volumes all the same."""
        if self._index.gids.of(str(place)) == taken and not self._has_volumes(place):
            self._index.gids.release(str(place))

    async def _make_at(
        self, place: Location, parameters: VolumeParameters, uid: int, gid: int, *, own_group: bool = False
    ) -> None:
        permissions = Permissions(mode=parameters.mode, uid=uid, gid=gid, enforced=True, own_group=own_group)
        await self._directories.make(place, permissions)

    def _id_of_others_in(self, place: Location, gids: GidRange) -> int | None:
        """The id of a directory that other volumes have, or are about to have, if it is one of the class's.

        It stays even when another directory has it: another one would take the directory from those volumes.
        """
        taken = self._index.gids.of(str(place))
        return taken if taken is not None and taken in gids and self._has_volumes(place) else None

    def _has_volumes(self, place: Location) -> bool:
        """Whether volumes have that directory, or get it as soon as their objects are made."""
        return place in self._made or bool(self._index.volumes_at(place))

    async def _scan(self, base: Location) -> None:
        """Learn once which IDs the directories there have: volumes do not contain them."""
        if base not in self._scanned:
            await self._reader(base).any_answer()

    def _reader(self, base: Location) -> SingleFlight[None]:
        """Reading may take longer than a call of csi-provisioner; the next call then finds the answer."""
        if base not in self._readers:
            self._readers[base] = SingleFlight(lambda: self._read_ids(base))
        return self._readers[base]

    async def _read_ids(self, base: Location) -> None:
        without_id = self._index.without_id
        unknown = [name for name, place in without_id.items() if _parent_of(place) == base]
        try:
            children = await self._directories.children(base)
        except WorkerRefused as error:
            # A link or file is there. Users of the file system can make one, and must hinder no others by it.
            log.warning("directories-not-read", base=str(base), reason=str(error))
            children = ()
        for child in children:
            directory = Directory((*base.directory.parts, child.name))
            place = Location(file_system_id=base.file_system_id, directory=directory)
            if self._index.gids.of(str(place)) is None:
                self._index.gids.hold(child.gid, str(place))
        self._scanned[base] = self._clock()
        # Those that are not there, and have no id, are not looked for again.
        for name in unknown:
            without_id.pop(name, None)

    async def _free_ids(self, base: Location, gids: GidRange) -> bool:
        """Free the ids of directories that others have removed, such as pods of an earlier leader.

        A range that stays full is no reason to read the directories again and again.
        """
        if self._clock() < self._scanned[base] + _SCAN_AGAIN_SECONDS:
            return False
        # Asked first: what is made in the meantime is not among them.
        held = self._index.gids.holders_within(gids)
        self._scanned[base] = self._clock()
        there = {child.name for child in await self._directories.children(base)}
        prefix = _inside(base)
        for holder in held:
            name = holder.removeprefix(prefix)
            if name == holder or "/" in name or name in there:
                continue
            directory = Directory((*base.directory.parts, name))
            place = Location(file_system_id=base.file_system_id, directory=directory)
            if place not in self._choosing and not self._index.volumes_at(place):
                self._made.discard(place)
                self._index.gids.release(holder)
        return True


def _inside(base: Location) -> str:
    """What the names of the directories in there begin with."""
    return f"{base}".rstrip("/") + "/"


def _base_of(parameters: VolumeParameters, place: Location) -> Location:
    return Location(file_system_id=place.file_system_id, directory=parameters.base)


def _parent_of(place: Location) -> Location:
    return Location(file_system_id=place.file_system_id, directory=Directory(place.directory.parts[:-1]))
