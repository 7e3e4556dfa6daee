"""Access points made for volumes, and removed with them, at the cost of one call to AWS each.

What a file system has is listed once and then kept: which group ids its access points give, which
directories they lead to, and how many they are.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

import structlog

from kube_efs.aws.access_points import AwsAccessPoints
from kube_efs.model.access_point_tags import Tag
from kube_efs.model.access_points import (
    AccessPoint,
    PosixUser,
    VolumeRequest,
    access_point_request,
    check_existing,
)
from kube_efs.model.directories import Directory
from kube_efs.model.errors import (
    AwsAlreadyExists,
    AwsError,
    AwsLimitReached,
    AwsNotFound,
    AwsThrottled,
    AwsUnavailable,
    GidRangeFull,
    RemovalRefused,
)
from kube_efs.model.ids import FileSystemId
from kube_efs.model.volume_handles import AccessPointId, VolumeHandle
from kube_efs.model.volumes import Location
from kube_efs.provisioning.inventory import Inventory

log = structlog.get_logger(__name__)

# What leaves open whether the access point was made.
_UNCLEAR = (AwsUnavailable, AwsThrottled)


class AccessPoints:
    """The access points of one account, as this process has last seen them."""

    def __init__(
        self,
        api: AwsAccessPoints,
        inventory: Inventory,
        *,
        quota: int,
        tags: tuple[Tag, ...] = (),
    ) -> None:
        self._api = api
        self._inventory = inventory
        self._quota = quota
        self._tags = tags
        self._known: dict[FileSystemId, dict[AccessPointId, AccessPoint]] = {}
        self._full: set[FileSystemId] = set()
        # Access points that are gone while their directories may still belong to their ids.
        self._retired: set[AccessPointId] = set()
        self._loading: dict[FileSystemId, asyncio.Task[None]] = {}

    @property
    def counts(self) -> Mapping[FileSystemId, int]:
        """How many access points each file system has, of those that were looked at."""
        return {file_system_id: len(found) for file_system_id, found in self._known.items()}

    async def create(self, request: VolumeRequest, candidates: Sequence[FileSystemId]) -> AccessPoint:
        """The access point of the volume, on the first file system that has room; the same one if repeated.

        Raises ExistingVolumeDiffers, GidRangeFull, AwsLimitReached when no file system has room, AwsError.
        """
        for file_system_id in candidates:
            await self._loaded(file_system_id)
        for file_system_id in candidates:
            if self._has_room(file_system_id):
                try:
                    return await self._create_on(request, file_system_id)
                except AwsLimitReached as error:
                    self._full.add(file_system_id)
                    log.warning("file-system-full", file_system=file_system_id, reason=str(error))
        raise AwsLimitReached(
            f"have no room for another access point (at most {self._quota} each)",
            field="file systems",
            value=", ".join(candidates),
            remedy="delete volumes, add a file system to the class, or use provisioningMode: efs-dir",
        )

    async def delete(self, handle: VolumeHandle, *, is_directory_gone: bool) -> None:
        """Remove the access point of a volume; one that is gone is no error.

        Its ids go to others only when its directory is gone too, as long as there are free ones. Raises
        RemovalRefused when it belongs to another file system than the handle says, and AwsError.
        """
        found = await self.find(handle)
        if found is None:
            return
        try:
            await self._api.delete(found.access_point_id)
        except AwsNotFound:
            log.info("access-point-gone", access_point=found.access_point_id)
        if is_directory_gone:
            self._forget(found)
        else:
            self._retire(found)

    async def find(self, handle: VolumeHandle) -> AccessPoint | None:
        """The access point that the handle names; None when there is none (any more).

        Raises RemovalRefused when it belongs to another file system, and AwsError.
        """
        if handle.access_point_id is None:
            return None
        found = self._known.get(handle.file_system_id, {}).get(handle.access_point_id)
        if found is None:
            try:
                found = await self._api.get(handle.access_point_id)
            except AwsNotFound:
                return None
        if found.file_system_id != handle.file_system_id:
            raise RemovalRefused(
                f"belongs to {found.file_system_id}",
                field="access point",
                value=found.access_point_id,
                remedy=f"look at the volume; its handle says {handle.file_system_id}",
            )
        return found

    async def location(self, handle: VolumeHandle) -> Location | None:
        """Where the data of a volume lies that has an access point; None if that is gone. Raises AwsError.

        It is looked for among those of its file system, which are listed once.
        """
        if handle.access_point_id is None:
            return None
        await self._loaded(handle.file_system_id)
        found = self._known[handle.file_system_id].get(handle.access_point_id)
        if found is None:
            return None
        directory = Directory((*found.directory.parts, *handle.directory.parts))
        return Location(file_system_id=handle.file_system_id, directory=directory)

    async def sharers(self, found: AccessPoint) -> tuple[AccessPoint, ...]:
        """The other access points that lead into, or to something above, the directory of this one."""
        await self._loaded(found.file_system_id)
        place = _location(found)
        return tuple(
            other
            for other in self._known[found.file_system_id].values()
            if other.access_point_id != found.access_point_id
            and (
                other.directory == found.directory
                or place.is_below(_location(other))
                or _location(other).is_below(place)
            )
        )

    async def refresh(self, file_system_ids: Iterable[FileSystemId]) -> None:
        """List these anew, since others make access points too; raises AwsError."""
        for file_system_id in file_system_ids:
            self._note(file_system_id, await self._api.list(file_system_id))

    async def refresh_known(self) -> None:
        """List those of every file system in use anew; raises AwsError."""
        await self.refresh(list(self._known))

    async def _create_on(self, request: VolumeRequest, file_system_id: FileSystemId) -> AccessPoint:
        user = self._user(request)
        wanted = access_point_request(request, file_system_id, user, self._tags)
        try:
            made = await self._api.create(wanted)
        except AwsAlreadyExists as error:
            made = await self._existing(error, request, file_system_id)
        except AwsError as error:
            # A repeated attempt must find its group id again if the access point was made after all.
            if not isinstance(error, _UNCLEAR):
                self._inventory.gids.release(request.name)
            raise
        self._keep(made)
        self._inventory.gids.release(request.name)
        return made

    async def _existing(
        self, error: AwsAlreadyExists, request: VolumeRequest, file_system_id: FileSystemId
    ) -> AccessPoint:
        """The access point that was made with the request's token before, if it can be the volume's."""
        if error.existing:
            found = await self._api.get(AccessPointId(error.existing))
        else:
            token = access_point_request(request, file_system_id, PosixUser(uid=0, gid=0)).client_token
            await self.refresh([file_system_id])
            known = self._known[file_system_id].values()
            same = [one for one in known if one.client_token == token]
            if not same:
                raise error
            found = same[0]
        check_existing(found, request)
        return found

    def _user(self, request: VolumeRequest) -> PosixUser:
        parameters = request.parameters
        uid, gid = parameters.uid, parameters.gid
        if uid is not None and gid is not None:
            return PosixUser(uid=uid, gid=gid)
        taken = self._inventory.gids.take(parameters.gids, request.name)
        if taken is None and self._retired:
            self._release_retired()
            taken = self._inventory.gids.take(parameters.gids, request.name)
        if taken is None:
            raise GidRangeFull(
                "has no free id left",
                field="gidRangeStart-gidRangeEnd",
                value=str(parameters.gids),
                remedy="delete a volume, or make a class with a wider range",
            )
        return PosixUser(uid=taken if uid is None else uid, gid=taken if gid is None else gid)

    def _has_room(self, file_system_id: FileSystemId) -> bool:
        return file_system_id not in self._full and len(self._known[file_system_id]) < self._quota

    async def _loaded(self, file_system_id: FileSystemId) -> None:
        """Wait until the access points of the file system are known; raises AwsError."""
        if file_system_id in self._known:
            return
        task = self._loading.get(file_system_id)
        if task is None:
            task = asyncio.create_task(self.refresh([file_system_id]))
            self._loading[file_system_id] = task
            task.add_done_callback(lambda _: self._loading.pop(file_system_id))
        await asyncio.shield(task)

    def _note(self, file_system_id: FileSystemId, found: Sequence[AccessPoint]) -> None:
        before = self._known.setdefault(file_system_id, {})
        for gone in before.keys() - {one.access_point_id for one in found}:
            self._retire(before[gone])
        for one in found:
            self._keep(one)
        self._full.discard(file_system_id)

    def _keep(self, found: AccessPoint) -> None:
        self._known.setdefault(found.file_system_id, {})[found.access_point_id] = found
        if found.user is not None:
            self._inventory.gids.hold(found.user.gid, found.access_point_id)
            # The number of a volume with a fixed gid is its uid.
            self._inventory.gids.hold(found.user.uid, _user_of(found.access_point_id))

    def _forget(self, gone: AccessPoint) -> None:
        self._drop(gone)
        self._release(gone.access_point_id)

    def _retire(self, gone: AccessPoint) -> None:
        self._drop(gone)
        self._retired.add(gone.access_point_id)

    def _drop(self, gone: AccessPoint) -> None:
        self._known.get(gone.file_system_id, {}).pop(gone.access_point_id, None)
        self._full.discard(gone.file_system_id)

    def _release_retired(self) -> None:
        for access_point_id in self._retired:
            self._release(access_point_id)
        self._retired.clear()

    def _release(self, access_point_id: AccessPointId) -> None:
        for holder in (access_point_id, _user_of(access_point_id)):
            self._inventory.gids.release(holder)


def _user_of(access_point_id: AccessPointId) -> str:
    """Who holds the number that is the access point's user id."""
    return f"user of {access_point_id}"


def _location(found: AccessPoint) -> Location:
    return Location(file_system_id=found.file_system_id, directory=found.directory)
