"""Access points of volumes: each creation and each removal is one call to AWS.

This process lists the access points of a file system once and then keeps them: their group IDs, their
directories and their number. Others create and delete access points too. So a removal depends only on
answers of AWS to calls that began after the removal.

A creation with a lost answer may have succeeded, or can still succeed. It is recorded with its file system.
Its repetitions use the same file system, token and IDs until AWS reports the outcome. So a volume never gets
two access points. AWS can carry out the lost creation late, even long after it has answered a repetition.
While an access point with the token exists, this creates no other one. So the access point is kept that long.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, TypeAlias

import structlog

from kube_efs.model.csi.access_point_tags import DEFAULT_TAGS, TagPolicy
from kube_efs.model.csi.access_points import (
    AccessPoint,
    AccessPointRequest,
    PosixUser,
    VolumeRequest,
    access_point_request,
    check_existing,
    client_token,
    known_tokens,
    own_token,
)
from kube_efs.model.csi.errors import VolumePending
from kube_efs.model.csi.volume_handles import AccessPointId, VolumeHandle
from kube_efs.model.efs.directories import Directory
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.errors import (
    AwsAlreadyExists,
    AwsError,
    AwsLimitReached,
    AwsNotFound,
    AwsThrottled,
    AwsUnavailable,
    GidRangeFull,
    KubeEfsError,
    NotYet,
    RemovalRefused,
)
from kube_efs.model.gids import GidRange
from kube_efs.model.volumes import Location
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.single_flight import SingleFlight

log = structlog.get_logger(__name__)

# Errors after which the access point may exist.
_UNCLEAR = (AwsUnavailable, AwsThrottled)

# The prefix of a holder of an ID that is the user ID of an access point.
USER_OF: Final = "user of "

# AWS no longer carries out a creation this long after a lost answer.
_LATE_SECONDS: Final = 300.0
# The duration of the Lease of csi-provisioner: after it, the former leader makes no more calls.
_FRESH_SECONDS: Final = 15.0
# A full file system is tried again after this time, because others delete access points too.
_FULL_SECONDS: Final = 60.0


# Receives a text for the user of the claim.
Notice: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Creation:
    """The request, the file systems that may serve it, and the receiver of texts for its user."""

    request: VolumeRequest
    candidates: Sequence[FileSystemId]
    notice: Notice


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unclear:
    """A creation with an unknown outcome; ``ended`` is None while an attempt runs."""

    file_system_id: FileSystemId
    token: str
    ended: float | None = None


class AccessPointCalls(Protocol):
    """The calls about access points of one kind of file systems; each may raise AwsError."""

    async def list(self, file_system_id: FileSystemId, /) -> Sequence[AccessPoint]:
        """All access points of a file system; those of S3 Files without tokens and tags."""

    async def get(self, access_point_id: AccessPointId, file_system_id: FileSystemId, /) -> AccessPoint:
        """That access point; raises AwsNotFound. Only S3 Files may have to look on the file system."""

    async def create(self, request: AccessPointRequest, /) -> AccessPoint:
        """A new one; raises AwsAlreadyExists if one with the token exists, or gives that one."""

    async def delete(self, access_point_id: AccessPointId, /) -> None:
        """Delete it; raises AwsNotFound."""


class _TokenElsewhere(Exception):
    """The token belongs to an access point of a file system that is not a candidate."""


@dataclass(slots=True, kw_only=True)
class _Listing:
    """A running list call: the access points known at its start, and those deleted here since."""

    began: float
    before: frozenset[AccessPointId]
    deleted: set[AccessPointId] = field(default_factory=set)


class AccessPoints:
    """The last known access points of one account, on file systems of one kind.

    Without ``is_alone``, another replica may create some when its csi-provisioner begins to lead.
    """

    def __init__(
        self,
        api: AccessPointCalls,
        index: VolumeIndex,
        *,
        quota: int,
        kind: FileSystemKind = FileSystemKind.EFS,
        tags: TagPolicy = DEFAULT_TAGS,
        is_alone: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._kind = kind
        self._is_alone = is_alone
        self._index = index
        self._quota = quota
        self._tags = tags
        self._known: dict[FileSystemId, dict[AccessPointId, AccessPoint]] = {}
        self._by_token: dict[tuple[FileSystemId, str], AccessPointId] = {}
        self._clock = clock
        # The time from which each full file system is tried again.
        self._full: dict[FileSystemId, float] = {}
        # By the name of the volume.
        self._unclear: dict[str, _Unclear] = {}
        # By token, the time until which AWS can carry out a creation that it did not answer.
        self._late_until: dict[tuple[FileSystemId, str], float] = {}
        # Deleted access points whose directories may still have their IDs.
        self._retired: set[AccessPointId] = set()
        self._listed_at: dict[FileSystemId, float] = {}
        self._listings: dict[FileSystemId, _Listing] = {}
        self._listers: dict[FileSystemId, SingleFlight[None]] = {}

    @property
    def counts(self) -> Mapping[FileSystemId, int]:
        """The number of access points of each file system that was listed."""
        return {file_system_id: len(found) for file_system_id, found in self._known.items()}

    async def create(
        self,
        request: VolumeRequest,
        candidates: Sequence[FileSystemId],
        notice: Notice = lambda _: None,
    ) -> AccessPoint:
        """The access point of the volume, on the first file system with room; repetitions give the same one.

        ``notice`` is called before a new one is created although the class reuses access points. An attempt
        that raises an error with ``outcome_unknown`` may have succeeded, or can still succeed. It must be
        repeated until its outcome is known. Raises ExistingVolumeDiffers, VolumePending, GidRangeFull,
        AwsLimitReached when no file system has room, and AwsError.
        """
        unclear = self._unclear.get(request.name)
        places = list(candidates) if unclear is None else [unclear.file_system_id, *candidates]
        for file_system_id in places:
            await self.loaded(file_system_id)
        made = await self._made_before(request, places)
        wanted = _Creation(request=request, candidates=candidates, notice=notice)
        if made is None and unclear is not None:
            made = await self._try(wanted, unclear.file_system_id)
        elif made is None and request.parameters.reuses_access_point:
            name, searched = request.origin.claim_name, ", ".join(candidates)
            notice(f"No access point of an earlier claim {name} is on {searched}; a new one is created")
        if made is None:
            made = await self._first_with_room(wanted)
        if made is None and await self._look_for_room(candidates):
            made = await self._first_with_room(wanted)
        if made is not None:
            return made
        raise AwsLimitReached(
            f"have no room for another access point (at most {self._quota} each)",
            field="file systems",
            value=", ".join(candidates),
            remedy="delete volumes, add a file system to the class, or use provisioningMode: efs-dir",
        )

    async def delete(self, handle: VolumeHandle, *, is_directory_gone: bool) -> None:
        """Delete the access point of a volume; a missing one is not an error.

        Returns when AWS has accepted the deletion or reports that the access point does not exist. After any
        other answer the call must be repeated. If the directory is kept, the IDs of the access point are
        reassigned only when the range has no other free IDs. Raises RemovalRefused when the access point
        belongs to another file system than the handle, and AwsError.
        """
        if handle.access_point_id is None:
            return
        # An access point never changes its file system, so an older list is sufficient here.
        found = self._known.get(handle.file_system_id, {}).get(handle.access_point_id)
        if found is None:
            found = await self.find(handle)
        if found is None:
            return
        if not found.leaving:
            try:
                await self._api.delete(found.access_point_id)
            except AwsNotFound:
                log.info("access-point-gone", access_point=found.access_point_id)
        if is_directory_gone:
            self._drop(found)
            self._release(found.access_point_id)
        else:
            self._retire(found)

    async def find(self, handle: VolumeHandle) -> AccessPoint | None:
        """The access point of the handle, read from AWS; None when it does not exist.

        Raises RemovalRefused when it belongs to another file system, and AwsError.
        """
        if handle.access_point_id is None:
            return None
        found = await self._get(handle.access_point_id, handle.file_system_id)
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

    def check_stays_gone(self, found: AccessPoint) -> None:
        """Raise NotYet while a lost creation could create the access point again after its deletion."""
        if seconds := self._late_seconds(found.file_system_id, found.client_token):
            raise NotYet(
                "may be created again by an earlier call to AWS",
                field="access point",
                value=found.access_point_id,
                remedy=f"it is removed in {seconds:.0f} s",
            )

    async def location(self, handle: VolumeHandle) -> Location | None:
        """The location of a volume with an access point; None if that does not exist. Raises AwsError.

        The answer comes from the last list, so no removal may depend on it.
        """
        if handle.access_point_id is None:
            return None
        await self.loaded(handle.file_system_id)
        found = self._known[handle.file_system_id].get(handle.access_point_id)
        if found is None:
            return None
        directory = Directory((*found.directory.parts, *handle.directory.parts))
        return Location(file_system_id=handle.file_system_id, directory=directory, kind=self._kind)

    async def sharers(self, found: AccessPoint) -> tuple[AccessPoint, ...]:
        """The other access points of the directory of this one, above it and below it, from a new list.

        Raises AwsError.
        """
        await self._list_again(found.file_system_id)
        place = self._location(found)
        return tuple(
            other
            for other in self._known[found.file_system_id].values()
            if other.access_point_id != found.access_point_id
            and (
                other.directory == found.directory
                or place.is_below(self._location(other))
                or self._location(other).is_below(place)
            )
        )

    async def roots(self, file_system_id: FileSystemId) -> tuple[AccessPoint, ...]:
        """The access points of the file system except those being deleted; raises AwsError.

        They come from a list that begins after this call. All calls during a list share the next one.
        """
        await self._list_again(file_system_id)
        return tuple(one for one in self._known[file_system_id].values() if not one.leaving)

    async def refresh(self, file_system_ids: Iterable[FileSystemId]) -> None:
        """List these again, because others create access points too; raises AwsError."""
        for file_system_id in file_system_ids:
            await self._list_again(file_system_id)

    async def refresh_known(self) -> None:
        """List the access points of every file system in use again; raises AwsError."""
        for file_system_id in list(self._known):
            try:
                await self._list_again(file_system_id)
            except AwsNotFound:
                self.forget(file_system_id)

    def forget(self, file_system_id: FileSystemId) -> None:
        """Forget a deleted file system with its access points, whose IDs are free."""
        for gone in list(self._known.pop(file_system_id, {}).values()):
            self._drop(gone)
            self._release(gone.access_point_id)

    async def _first_with_room(self, wanted: _Creation) -> AccessPoint | None:
        for file_system_id in wanted.candidates:
            if self._has_room(file_system_id) and (made := await self._try(wanted, file_system_id)):
                return made
        return None

    async def _look_for_room(self, candidates: Sequence[FileSystemId]) -> bool:
        """List again what was not listed for a while, because others delete too; whether any has room."""
        for file_system_id in candidates:
            if self._clock() - self._listed_at[file_system_id] >= _FULL_SECONDS:
                await self._list_again(file_system_id)
        return any(map(self._has_room, candidates))

    async def made_before(self, request: VolumeRequest, file_system_id: FileSystemId) -> AccessPoint | None:
        """The access point of this request on the file system, as far as is known; raises AwsError."""
        await self.loaded(file_system_id)
        for token in known_tokens(request, file_system_id):
            if access_point_id := self._by_token.get((file_system_id, token)):
                return self._known[file_system_id].get(access_point_id)
        return None

    async def _made_before(
        self, request: VolumeRequest, places: Sequence[FileSystemId]
    ) -> AccessPoint | None:
        """The access point that an earlier attempt has created, on any of the file systems."""
        # The best token of every file system comes before the second one of any.
        by_rank = zip(*(known_tokens(request, one) for one in places), strict=True)
        for file_system_id, token in (place for rank in by_rank for place in zip(places, rank, strict=True)):
            access_point_id = self._by_token.get((file_system_id, token))
            if access_point_id is None:
                continue
            found = await self._get(access_point_id, file_system_id)
            if found is None:
                # Another task may have forgotten it during the call.
                if known := self._known[file_system_id].get(access_point_id):
                    self._retire(known)
                continue
            _check(found, request)
            self._keep(found)
            self._settle(request.name)
            return found
        return None

    async def _try(self, wanted: _Creation, file_system_id: FileSystemId) -> AccessPoint | None:
        """The access point on this file system; None when it has no room."""
        request, unclear = wanted.request, self._unclear.get(wanted.request.name)
        is_begun = unclear is not None and unclear.file_system_id == file_system_id
        token = unclear.token if unclear is not None and is_begun else client_token(request)
        try:
            try:
                return await self._create_on(wanted, file_system_id, token)
            except _TokenElsewhere as elsewhere:
                wanted.notice(f"{elsewhere}, so another one is created on {file_system_id}")
                return await self._create_on(wanted, file_system_id, own_token(request, file_system_id))
        except AwsLimitReached as error:
            self._full[file_system_id] = self._clock() + _FULL_SECONDS
            log.warning("file-system-full", file_system=file_system_id, reason=str(error))
            if error.outcome_unknown:
                raise
            return None

    async def _create_on(self, creation: _Creation, file_system_id: FileSystemId, token: str) -> AccessPoint:
        request, user = creation.request, self._user(creation.request)
        wanted = replace(access_point_request(request, file_system_id, user, self._tags), client_token=token)
        is_repeated = request.name in self._unclear
        # A cancelled call may have succeeded, too.
        unclear = _Unclear(file_system_id=file_system_id, token=token)
        self._unclear[request.name] = unclear
        try:
            made = await self._made(wanted, creation, is_repeated=is_repeated)
        except _TokenElsewhere:
            self._settle(request.name)
            raise
        except KubeEfsError as error:
            # A refusal of this attempt says nothing about an earlier one that can still take effect.
            late_seconds = self._late_seconds(file_system_id, wanted.client_token)
            error.outcome_unknown = isinstance(error, _UNCLEAR) or late_seconds > 0
            if not error.outcome_unknown:
                self._settle(request.name)
            raise
        finally:
            if request.name in self._unclear:
                self._unclear[request.name] = replace(unclear, ended=self._clock())
        self._keep(made)
        self._settle(request.name)
        return made

    async def _made(
        self, wanted: AccessPointRequest, creation: _Creation, *, is_repeated: bool
    ) -> AccessPoint:
        try:
            return await self._api.create(wanted)
        except AwsAlreadyExists as error:
            found = await self._existing(error, wanted)
            token = client_token(creation.request)
            is_shared = creation.request.parameters.reuses_access_point and wanted.client_token == token
            if is_shared and found.file_system_id not in {wanted.file_system_id, *creation.candidates}:
                other = f"Access point {found.access_point_id} of an earlier claim of this name"
                raise _TokenElsewhere(f"{other} is on {found.file_system_id}") from error
        except (AwsUnavailable, asyncio.CancelledError):
            place = (wanted.file_system_id, wanted.client_token)
            self._late_until[place] = self._clock() + _LATE_SECONDS
            raise
        except AwsThrottled:
            raise
        except AwsError:
            # The answer to this attempt says nothing about the earlier one.
            earlier = await self._listed(wanted) if is_repeated else None
            if earlier is None:
                raise
            found = earlier
        _check(found, creation.request)
        # Without its token, nothing would show that a late creation can create it again.
        return found if found.client_token else replace(found, client_token=wanted.client_token)

    async def _existing(self, error: AwsAlreadyExists, wanted: AccessPointRequest) -> AccessPoint:
        """The access point that was created with the request's token before."""
        if error.existing:
            found = await self._get(AccessPointId(error.existing), wanted.file_system_id)
            if found is None:
                raise _pending("was deleted in the meantime", error.existing)
            return found
        found = await self._listed(wanted)
        if found is None:
            raise error
        return found

    async def _listed(self, wanted: AccessPointRequest) -> AccessPoint | None:
        """The access point with that token, if a new list contains it."""
        await self._list_again(wanted.file_system_id)
        known = self._known[wanted.file_system_id]
        access_point_id = self._by_token.get((wanted.file_system_id, wanted.client_token))
        return known.get(access_point_id) if access_point_id else await self._find_by_directory(wanted)

    async def _find_by_directory(self, wanted: AccessPointRequest) -> AccessPoint | None:
        """The access point of the request among those that were listed without a token.

        If the token cannot be read either, it is that of the directory that no other volume uses.
        """
        for one in list(self._known[wanted.file_system_id].values()):
            if one.client_token or one.directory != wanted.directory:
                continue
            found = await self._get(one.access_point_id, wanted.file_system_id)
            if found is None:
                continue
            # A token is the name of a volume, except with ``reuseAccessPoint``, which S3 Files does not have.
            others = self._index.volumes_through(one.access_point_id) - {wanted.client_token}
            if found.client_token == wanted.client_token or not (found.client_token or others):
                return found
        return None

    async def _get(self, access_point_id: AccessPointId, file_system_id: FileSystemId) -> AccessPoint | None:
        try:
            return self._with_token(await self._api.get(access_point_id, file_system_id))
        except AwsNotFound:
            return None

    def _with_token(self, found: AccessPoint) -> AccessPoint:
        """The access point with the token and the tags that are known from its creation."""
        known = self._known.get(found.file_system_id, {}).get(found.access_point_id)
        if found.client_token or known is None:
            return found
        return replace(found, client_token=known.client_token, tags=known.tags)

    def _settle(self, volume: str) -> None:
        """Note that the outcome of the creation is known: its IDs are free, or the access point has them."""
        self._unclear.pop(volume, None)
        self._index.gids.release(volume)

    def _late_seconds(self, file_system_id: FileSystemId, token: str) -> float:
        """For how long AWS can still carry out a creation that it did not answer."""
        until = self._late_until.get((file_system_id, token), self._clock())
        return max(0.0, until - self._clock())

    def _user(self, request: VolumeRequest) -> PosixUser:
        parameters = request.parameters
        uid, gid = parameters.uid, parameters.gid
        if uid is not None and gid is not None:
            return PosixUser(uid=uid, gid=gid)
        # An earlier attempt that can still take effect determines the ID, even if another volume has it now.
        kept = self._index.gids.of(request.name) if request.name in self._unclear else None
        taken = kept if kept is not None else self.take_id(parameters.gids, request.name)
        if taken is None:
            raise GidRangeFull(
                "has no free ID",
                field="gidRangeStart-gidRangeEnd",
                value=str(parameters.gids),
                remedy="delete a volume, or create a class with a wider range",
            )
        return PosixUser(uid=taken if uid is None else uid, gid=taken if gid is None else gid)

    def take_id(self, within: GidRange, holder: str, *, start: int | None = None) -> int | None:
        """An ID of the range for the holder, from ``start`` on if possible; None when all are in use.

        IDs of deleted access points whose directories may exist come last.
        """
        taken = self._index.gids.take(within, holder, start=start)
        if taken is None and self._retired:
            for access_point_id in self._retired:
                self._release(access_point_id)
            self._retired.clear()
            taken = self._index.gids.take(within, holder, start=start)
        return taken

    def _has_room(self, file_system_id: FileSystemId) -> bool:
        is_full = self._full.get(file_system_id, 0.0) > self._clock()
        return not is_full and len(self._known[file_system_id]) < self._quota

    async def loaded(self, file_system_id: FileSystemId) -> None:
        """Wait until the access points of the file system are known; raises AwsError."""
        if file_system_id not in self._known:
            await self._lister(file_system_id).any_answer()
        elif not self._is_alone and self._clock() >= self._listed_at[file_system_id] + _FRESH_SECONDS:
            await self._list_again(file_system_id)

    async def _list_again(self, file_system_id: FileSystemId) -> None:
        """Wait for a list that begins after this call; raises AwsError."""
        await self._lister(file_system_id)()

    def _lister(self, file_system_id: FileSystemId) -> SingleFlight[None]:
        if file_system_id not in self._listers:
            self._listers[file_system_id] = SingleFlight(lambda: self._list(file_system_id))
        return self._listers[file_system_id]

    async def _list(self, file_system_id: FileSystemId) -> None:
        known = frozenset(self._known.get(file_system_id, ()))
        listing = _Listing(began=self._clock(), before=known)
        self._listings[file_system_id] = listing
        try:
            self._note(file_system_id, await self._api.list(file_system_id), listing)
        finally:
            del self._listings[file_system_id]

    def _note(self, file_system_id: FileSystemId, found: Sequence[AccessPoint], listing: _Listing) -> None:
        known = self._known.setdefault(file_system_id, {})
        for gone in listing.before & known.keys() - {one.access_point_id for one in found}:
            self._retire(known[gone])
        for one in found:
            if one.access_point_id not in listing.deleted:
                self._keep(one)
        self._full.pop(file_system_id, None)
        self._listed_at[file_system_id] = listing.began
        self._late_until = {
            place: until for place, until in self._late_until.items() if until > listing.began
        }
        for volume, unclear in list(self._unclear.items()):
            # The creation was not repeated: this list contains its access point, or it will never exist.
            is_over = unclear.ended is not None and unclear.ended + _LATE_SECONDS <= listing.began
            if unclear.file_system_id == file_system_id and is_over:
                self._settle(volume)

    def _keep(self, found: AccessPoint) -> None:
        found = self._with_token(found)
        self._known.setdefault(found.file_system_id, {})[found.access_point_id] = found
        if found.client_token:
            self._by_token[found.file_system_id, found.client_token] = found.access_point_id
        if found.user is None:
            return
        root = self._location(found)
        self._index.gids.hold(found.user.gid, found.access_point_id, at=root)
        if found.user.uid != found.user.gid:
            # The allocated ID of a volume with a fixed gid is its uid.
            self._index.gids.hold(found.user.uid, _user_of(found.access_point_id), at=root)

    def _retire(self, gone: AccessPoint) -> None:
        self._drop(gone)
        self._retired.add(gone.access_point_id)

    def _drop(self, gone: AccessPoint) -> None:
        self._known.get(gone.file_system_id, {}).pop(gone.access_point_id, None)
        if self._by_token.get((gone.file_system_id, gone.client_token)) == gone.access_point_id:
            del self._by_token[gone.file_system_id, gone.client_token]
        if listing := self._listings.get(gone.file_system_id):
            listing.deleted.add(gone.access_point_id)
        self._full.pop(gone.file_system_id, None)

    def _location(self, found: AccessPoint) -> Location:
        return Location(file_system_id=found.file_system_id, directory=found.directory, kind=self._kind)

    def _release(self, access_point_id: AccessPointId) -> None:
        for holder in (access_point_id, _user_of(access_point_id)):
            self._index.gids.release(holder)


def _user_of(access_point_id: AccessPointId) -> str:
    """The holder of the access point's user ID, if its group ID differs."""
    return f"{USER_OF}{access_point_id}"


def _check(found: AccessPoint, request: VolumeRequest) -> None:
    """Raise VolumePending or ExistingVolumeDiffers unless the volume can use the access point."""
    if found.leaving:
        raise _pending("is being deleted", found.access_point_id)
    check_existing(found, request)


def _pending(problem: str, access_point_id: str) -> VolumePending:
    return VolumePending(problem, field="access point", value=access_point_id, remedy="it is retried")
