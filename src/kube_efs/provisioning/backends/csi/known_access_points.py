"""What this process knows about the access points of file systems, and the IDs that they hold.

This process lists the access points of a file system once and then keeps them: their group IDs, their
directories and their number. Others create and delete access points too. So a removal depends only on
answers of AWS to calls that began after the removal (``find``, ``roots``).

The answer to a list may be outdated when it arrives. So it does not bring back an access point that was
deleted here since the list began, and does not remove one that was created here since. A list may also omit
a new access point. So one that this process has known for less than a minute stays known when a list omits
it, and a removal reads it by its ID (``roots``).

An access point holds its IDs until it is deleted. If its directory may still exist after that, its IDs are
reassigned only when the range has no other free IDs, first those of the access point that was deleted first,
or after the deletion of many further access points.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Final, Protocol
from weakref import WeakValueDictionary

import structlog

from kube_efs.model.csi.access_points import NEW_SECONDS, AccessPoint, AccessPointRequest
from kube_efs.model.csi.volume_handles import AccessPointId, VolumeHandle
from kube_efs.model.efs.directories import Directory
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.errors import AwsError, AwsNotFound, RemovalRefused
from kube_efs.model.gids import GidRange
from kube_efs.model.volumes import Location
from kube_efs.provisioning.backends.csi.omitted_access_points import OmittedAccessPoints
from kube_efs.provisioning.gid_ledger import GidIndex
from kube_efs.single_flight import SingleFlight

log = structlog.get_logger(__name__)

# The prefix of a holder of an ID that is the user ID of an access point.
USER_OF: Final = "user of "

# The duration of the Lease of csi-provisioner: after it, the former leader makes no more calls.
_FRESH_SECONDS: Final = 15.0
# For how many deleted access points IDs are held. Each needs 0.7 KB.
_MOST_RETIRED: Final = 10_000
# A full file system is tried again after this time, because others delete access points too.
_FULL_SECONDS: Final = 60.0


class AccessPointCalls(Protocol):
    """The calls about access points of one kind of file systems; each may raise AwsError."""

    async def list(self, file_system_id: FileSystemId, /) -> Sequence[AccessPoint]:
        """All access points of a file system; those of S3 Files without tokens and tags."""

    async def get(self, access_point_id: AccessPointId, file_system_id: FileSystemId, /) -> AccessPoint:
        """That access point; raises AwsNotFound.

        Only S3 Files may have to look on the file system; then, it raises AwsNotListed for a new one.
        """

    async def create(self, request: AccessPointRequest, /) -> AccessPoint:
        """A new one; raises AwsAlreadyExists if one with the token exists, or gives that one."""

    async def delete(self, access_point_id: AccessPointId, /) -> None:
        """Delete it; raises AwsNotFound."""


class KnownAccessPoints:
    """The last known access points of one account, on file systems of one kind.

    Without ``is_alone``, another replica may create some when its csi-provisioner begins to lead. Each list
    calls ``on_list``, before its callers continue, with the file system and the time at which it began. The
    time is infinite when the file system was deleted: no access point can appear later.
    """

    def __init__(
        self,
        api: AccessPointCalls,
        gids: GidIndex,
        *,
        quota: int,
        kind: FileSystemKind,
        is_alone: bool,
        clock: Callable[[], float],
        on_list: Callable[[FileSystemId, float], None],
    ) -> None:
        self.quota = quota
        self._api = api
        self._gids = gids
        self._kind = kind
        self._is_alone = is_alone
        self._clock = clock
        self._on_list = on_list
        self._known: dict[FileSystemId, dict[AccessPointId, AccessPoint]] = {}
        self._by_token: dict[tuple[FileSystemId, str], AccessPointId] = {}
        # Since when the new ones of each file system are known, and which of them the last list has omitted.
        self._new: dict[FileSystemId, dict[AccessPointId, float]] = {}
        self._unlisted: dict[FileSystemId, frozenset[AccessPointId]] = {}
        # The time from which each full file system is tried again.
        self._full: dict[FileSystemId, float] = {}
        # Deleted access points whose directories may still have their IDs, the last one at the end.
        self._retired: dict[AccessPointId, None] = {}
        # The beginning of the last answered list of each file system.
        self._listed_at: dict[FileSystemId, float] = {}
        # The access points that were deleted here since the running list of a file system began.
        self._deleted: dict[FileSystemId, set[AccessPointId]] = {}
        self._listers: WeakValueDictionary[FileSystemId, SingleFlight[None]] = WeakValueDictionary()
        self._omitted: dict[FileSystemId, OmittedAccessPoints] = {}

    @property
    def counts(self) -> Mapping[FileSystemId, int]:
        """The number of access points of each file system that was listed."""
        return {file_system_id: len(found) for file_system_id, found in self._known.items()}

    @property
    def is_blank(self) -> bool:
        """Whether no access point is known, and none was deleted whose IDs are still held."""
        return not any(self._known.values()) and not self._retired

    def on(self, file_system_id: FileSystemId) -> Mapping[AccessPointId, AccessPoint]:
        """The access points of a file system that was listed; none if it was forgotten since."""
        return self._known.get(file_system_id, {})

    def last(self, file_system_id: FileSystemId, access_point_id: AccessPointId) -> AccessPoint | None:
        """The access point as it was last seen; None if it is not known."""
        return self._known.get(file_system_id, {}).get(access_point_id)

    def with_token(self, file_system_id: FileSystemId, token: str) -> AccessPointId | None:
        """The ID of the access point with that token, as far as tokens are known."""
        return self._by_token.get((file_system_id, token))

    async def location(self, handle: VolumeHandle) -> Location | None:
        """The location of a volume with an access point; None if that does not exist. Raises AwsError.

        The answer comes from the last list, so no removal may depend on it.
        """
        if handle.access_point_id is None:
            return None
        await self.loaded(handle.file_system_id)
        found = self.last(handle.file_system_id, handle.access_point_id)
        if found is None:
            return None
        directory = Directory((*found.directory.parts, *handle.directory.parts))
        return Location(file_system_id=handle.file_system_id, directory=directory, kind=self._kind)

    async def get(self, access_point_id: AccessPointId, file_system_id: FileSystemId) -> AccessPoint | None:
        """The access point, read from AWS; None when it does not exist. Raises AwsError."""
        try:
            return self._with_token(await self._api.get(access_point_id, file_system_id))
        except AwsNotFound:
            return None

    async def find(self, handle: VolumeHandle) -> AccessPoint | None:
        """The access point of the handle, read from AWS; None when it does not exist.

        Raises RemovalRefused when it belongs to another file system, and AwsError.
        """
        if handle.access_point_id is None:
            return None
        found = await self.get(handle.access_point_id, handle.file_system_id)
        if found is None:
            return None
        if found.file_system_id != handle.file_system_id:
            raise RemovalRefused(
                f"belongs to {found.file_system_id}",
                field="access point",
                value=found.access_point_id,
                remedy=f"check the volume; its handle names {handle.file_system_id}",
            )
        return found

    async def roots(
        self, file_system_id: FileSystemId, named: Collection[AccessPointId] = ()
    ) -> tuple[AccessPoint, ...]:
        """The access points of the file system except those being deleted; raises AwsError.

        They come from a list that begins after this call. All calls during a list share the next one. A list
        may omit a new access point, so each that it omits is read by its ID, if it is one of ``named`` or is
        known here.
        """
        await self.refresh(file_system_id)
        if file_system_id not in self._listed_at:
            # Another task has forgotten it between the answer to the list and this line.
            raise AwsNotFound("was deleted", field="file system", value=file_system_id)
        unlisted = self._unlisted[file_system_id] & self._known[file_system_id].keys()
        listed = {key: one for key, one in self._known[file_system_id].items() if key not in unlisted}
        omitted = await self._omitted_from(file_system_id).read(frozenset(named) - listed.keys(), unlisted)
        of_file_system = (one for one in omitted if one.file_system_id == file_system_id)
        return tuple(one for one in (*listed.values(), *of_file_system) if not one.leaving)

    async def loaded(self, file_system_id: FileSystemId) -> None:
        """Wait until the access points of the file system are known; raises AwsError."""
        # One whose access point was only found by its token is known, and not listed.
        if file_system_id not in self._listed_at:
            await self._lister(file_system_id).any_answer()
        elif not self._is_alone and self._clock() >= self._listed_at[file_system_id] + _FRESH_SECONDS:
            await self.refresh(file_system_id)

    async def refresh(self, file_system_id: FileSystemId) -> None:
        """Wait for a list that begins after this call; raises AwsError."""
        await self._lister(file_system_id)()

    async def refresh_known(self) -> None:
        """List the access points of every file system in use again; a failure is only logged."""
        for file_system_id in list(self._known):
            try:
                await self.refresh(file_system_id)
            except AwsNotFound:
                self.forget(file_system_id)
            except AwsError as error:
                log.warning("access-points-not-read", file_system=file_system_id, reason=str(error))

    def _omitted_from(self, file_system_id: FileSystemId) -> OmittedAccessPoints:
        if file_system_id not in self._omitted:
            self._omitted[file_system_id] = OmittedAccessPoints(
                lambda one: self.get(one, file_system_id), self._clock
            )
        return self._omitted[file_system_id]

    def _lister(self, file_system_id: FileSystemId) -> SingleFlight[None]:
        lister = self._listers.get(file_system_id) or SingleFlight(lambda: self._list(file_system_id))
        return self._listers.setdefault(file_system_id, lister)

    async def _list(self, file_system_id: FileSystemId) -> None:
        # Before the list, which may not contain access points that are created meanwhile.
        before = frozenset(self._known.get(file_system_id, ()))
        began = self._clock()
        deleted: set[AccessPointId] = set()
        self._deleted[file_system_id] = deleted
        try:
            found = await self._api.list(file_system_id)
        finally:
            del self._deleted[file_system_id]
        # No await may separate these lines: nobody may see a part of the answer.
        known = self._known.setdefault(file_system_id, {})
        listed = frozenset(one.access_point_id for one in found)
        unlisted = before & known.keys() - listed
        known_since = self._new.get(file_system_id, {})
        new = {one: since for one, since in known_since.items() if began < since + NEW_SECONDS}
        self._new[file_system_id] = new
        self._unlisted[file_system_id] = unlisted & new.keys()
        for gone in unlisted - new.keys():
            self.retire(known[gone])
        for one in found:
            if one.access_point_id not in deleted:
                self.keep(one)
        self._full.pop(file_system_id, None)
        self._listed_at[file_system_id] = began
        self._on_list(file_system_id, began)

    def has_room(self, file_system_id: FileSystemId) -> bool:
        """Whether another access point can probably be created on the file system, which was listed."""
        is_full = self._full.get(file_system_id, 0.0) > self._clock()
        return not is_full and len(self.on(file_system_id)) < self.quota

    def note_full(self, file_system_id: FileSystemId) -> None:
        """Note that AWS has refused another access point because the file system has no room."""
        self._full[file_system_id] = self._clock() + _FULL_SECONDS

    async def look_for_room(self, candidates: Sequence[FileSystemId]) -> bool:
        """List again what was not listed for a while, because others delete too; whether any has room."""
        for file_system_id in candidates:
            if self._clock() - self._listed_at.get(file_system_id, -inf) >= _FULL_SECONDS:
                await self.refresh(file_system_id)
        return any(map(self.has_room, candidates))

    def keep(self, found: AccessPoint) -> None:
        """Note an access point that exists; it holds its IDs."""
        found = self._with_token(found)
        # A list may not have contained it for a while.
        self._retired.pop(found.access_point_id, None)
        known = self._known.setdefault(found.file_system_id, {})
        if found.access_point_id not in known:
            self._new.setdefault(found.file_system_id, {})[found.access_point_id] = self._clock()
        known[found.access_point_id] = found
        if found.client_token:
            self._by_token[found.file_system_id, found.client_token] = found.access_point_id
        if found.user is None:
            return
        root = Location(file_system_id=found.file_system_id, directory=found.directory, kind=self._kind)
        self._gids.hold(found.user.gid, found.access_point_id, at=root)
        if found.user.uid != found.user.gid:
            # The allocated ID of a volume with a fixed gid is its uid.
            self._gids.hold(found.user.uid, _user_of(found.access_point_id), at=root)

    def retire(self, gone: AccessPoint) -> None:
        """Note that the access point was deleted, and that its directory may still have its IDs."""
        self._drop(gone)
        self._retired[gone.access_point_id] = None
        if len(self._retired) > _MOST_RETIRED:
            oldest = next(iter(self._retired))
            del self._retired[oldest]
            self._release(oldest)

    def removed(self, gone: AccessPoint) -> None:
        """Note that the access point and its directory were removed, so that its IDs are free."""
        self._drop(gone)
        self._release(gone.access_point_id)

    def forget(self, file_system_id: FileSystemId) -> None:
        """Forget a deleted file system with its access points, whose IDs are free."""
        self._listed_at.pop(file_system_id, None)
        self._omitted.pop(file_system_id, None)
        self._new.pop(file_system_id, None)
        self._unlisted.pop(file_system_id, None)
        for gone in list(self._known.pop(file_system_id, {}).values()):
            self.removed(gone)
        self._full.pop(file_system_id, None)
        self._on_list(file_system_id, inf)

    def take_id(self, within: GidRange, holder: str, *, start: int | None = None) -> int | None:
        """An ID of the range for the holder, from ``start`` on if possible; None when all are in use.

        IDs of deleted access points whose directories may exist come last.
        """
        taken = self._gids.take(within, holder, start=start)
        for retired in list(self._retired) if taken is None else ():
            # No more IDs than necessary: later, and in other ranges, better ones may be free.
            if self._release_within(within, retired):
                taken = self._gids.take(within, holder, start=start)
                if taken is not None:
                    break
        return taken

    def _with_token(self, found: AccessPoint) -> AccessPoint:
        """The access point with the token and the tags that are known from its creation."""
        known = self.last(found.file_system_id, found.access_point_id)
        if found.client_token or known is None:
            return found
        return replace(found, client_token=known.client_token, tags=known.tags)

    def _drop(self, gone: AccessPoint) -> None:
        self._known.get(gone.file_system_id, {}).pop(gone.access_point_id, None)
        self._new.get(gone.file_system_id, {}).pop(gone.access_point_id, None)
        if self._by_token.get((gone.file_system_id, gone.client_token)) == gone.access_point_id:
            del self._by_token[gone.file_system_id, gone.client_token]
        if gone.file_system_id in self._deleted:
            self._deleted[gone.file_system_id].add(gone.access_point_id)
        self._full.pop(gone.file_system_id, None)

    def _release(self, access_point_id: AccessPointId) -> None:
        for holder in _holders(access_point_id):
            self._gids.release(holder)

    def _release_within(self, within: GidRange, retired: AccessPointId) -> bool:
        """Free the IDs of the range that a deleted access point holds; whether it held one."""
        held = {one: self._gids.of(one) for one in _holders(retired)}
        inside = [one for one, gid in held.items() if gid is not None and gid in within]
        for holder in inside:
            self._gids.release(holder)
            del held[holder]
        if inside and not any(gid is not None for gid in held.values()):
            del self._retired[retired]
        return bool(inside)


def _holders(access_point_id: AccessPointId) -> tuple[str, str]:
    return access_point_id, _user_of(access_point_id)


def _user_of(access_point_id: AccessPointId) -> str:
    """The holder of the access point's user ID, if its group ID differs."""
    return f"{USER_OF}{access_point_id}"
