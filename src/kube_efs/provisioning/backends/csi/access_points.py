"""Access points of volumes: each creation and each removal is one call to AWS.

A creation with a lost answer may have succeeded, or can still succeed. It is recorded with its file system.
Its repetitions use the same file system, token and IDs until AWS reports the outcome. So a volume never gets
two access points. AWS can carry out the lost creation late, even long after it has answered a repetition.
While an access point with the token exists, this creates no other one. So the access point is kept that long.

``known_access_points`` has what is known about existing access points. Its lists also decide the outcome of
a creation that is no longer repeated: a list that began long enough after it contains its access point, or
the access point will never exist.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from typing import Final, TypeAlias

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
from kube_efs.model.csi.root_directories import plain_name
from kube_efs.model.csi.volume_handles import AccessPointId, VolumeHandle
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
)
from kube_efs.provisioning.backends.csi.known_access_points import AccessPointCalls, KnownAccessPoints
from kube_efs.provisioning.volume_index import VolumeIndex

log = structlog.get_logger(__name__)

# Errors after which the access point may exist.
_UNCLEAR = (AwsUnavailable, AwsThrottled)

# AWS no longer carries out a creation this long after a lost answer.
_UNCLEAR_SECONDS: Final = 300.0


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


class _TokenElsewhere(Exception):
    """The token belongs to an access point of a file system that is not a candidate."""


class AccessPoints:
    """Creates and deletes access points in one account, on file systems of one kind.

    ``known`` has the known ones; see there for ``is_alone``.
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
        self._index = index
        self._tags = tags
        self._clock = clock
        self.known = KnownAccessPoints(
            api,
            index.gids,
            quota=quota,
            kind=kind,
            is_alone=is_alone,
            clock=clock,
            on_list=self._settle_late_creations,
        )
        # By the name of the volume.
        self._unclear: dict[str, _Unclear] = {}
        # By token, the time until which AWS can carry out a creation that it did not answer.
        self._late_until: dict[tuple[FileSystemId, str], float] = {}

    @property
    def is_blank(self) -> bool:
        """Whether no access point is known, and no outcome of a creation is unknown."""
        now = self._clock()
        is_settled = not self._unclear and all(until <= now for until in self._late_until.values())
        return is_settled and self.known.is_blank

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
        try:
            return await self._created(request, candidates, notice)
        except AwsError as error:
            # Such as a list that AWS denies: this does not decide the earlier attempt.
            error.outcome_unknown = error.outcome_unknown or request.name in self._unclear
            raise

    def may_have(self, volume: str) -> bool:
        """Whether an access point with the token of that volume is known, or can still appear.

        One that claims share by ``reuseAccessPoint`` has another token.
        """
        token = plain_name(volume)
        return volume in self._unclear or any(
            self.known.with_token(file_system_id, token) for file_system_id in self.known.counts
        )

    async def _created(
        self, request: VolumeRequest, candidates: Sequence[FileSystemId], notice: Notice
    ) -> AccessPoint:
        unclear = self._unclear.get(request.name)
        places = list(candidates) if unclear is None else [unclear.file_system_id, *candidates]
        for file_system_id in places:
            try:
                await self.known.loaded(file_system_id)
            except AwsNotFound:
                if unclear is not None and unclear.file_system_id == file_system_id:
                    # With its file system, the access point is gone, too.
                    self._settle(request.name)
                raise
        made = await self._made_before(request, places, candidates)
        wanted = _Creation(request=request, candidates=candidates, notice=notice)
        if made is None and unclear is not None:
            # Even if it is full by now: the earlier attempt may have succeeded there.
            made = await self._try(wanted, unclear.file_system_id)
        elif made is None and request.parameters.reuses_access_point:
            name, searched = request.origin.claim_name, ", ".join(candidates)
            notice(f"No access point of an earlier claim {name} is on {searched}; a new one is created")
        if made is None:
            made = await self._first_with_room(wanted)
        if made is None and await self.known.look_for_room(candidates):
            made = await self._first_with_room(wanted)
        if made is not None:
            return made
        raise AwsLimitReached(
            f"have no room for another access point (at most {self.known.quota} each)",
            field="file systems",
            value=", ".join(candidates),
            remedy="delete volumes, add a file system to the class, or use provisioningMode: efs-dir",
        )

    async def to_delete(self, handle: VolumeHandle) -> AccessPoint | None:
        """The access point of a volume, for ``delete``; None if it does not exist.

        This may ask AWS, which takes time, so it comes before the last confirmation of a removal. Raises
        RemovalRefused when the access point belongs to another file system than the handle, and AwsError.
        """
        if handle.access_point_id is None:
            return None
        # An access point never changes its file system, so an older list is sufficient here.
        known = self.known.last(handle.file_system_id, handle.access_point_id)
        return known or await self.known.find(handle)

    async def delete(self, found: AccessPoint | None, *, is_directory_gone: bool) -> None:
        """Delete the access point of a volume; a missing one is not an error.

        Returns when AWS has accepted the deletion or reports that the access point does not exist. After any
        other answer the call must be repeated. If the directory is kept, the IDs of the access point are
        reassigned only when the range has no other free IDs. Raises AwsError.
        """
        if found is None:
            return
        if not found.leaving:
            try:
                await self._api.delete(found.access_point_id)
            except AwsNotFound:
                log.info("access-point-gone", access_point=found.access_point_id)
        if is_directory_gone:
            self.known.removed(found)
        else:
            self.known.retire(found)

    def check_stays_gone(self, found: AccessPoint) -> None:
        """Raise NotYet while a lost creation could create the access point again after its deletion."""
        if seconds := self._late_seconds(found.file_system_id, found.client_token):
            raise NotYet(
                "may be created again by an earlier call to AWS",
                field="access point",
                value=found.access_point_id,
                remedy=f"it is removed in {seconds:.0f} s",
            )

    async def _first_with_room(self, wanted: _Creation) -> AccessPoint | None:
        for file_system_id in wanted.candidates:
            if self.known.has_room(file_system_id) and (made := await self._try(wanted, file_system_id)):
                return made
        return None

    async def made_before(self, request: VolumeRequest, file_system_id: FileSystemId) -> AccessPoint | None:
        """The access point of this request on the file system, as far as is known; raises AwsError."""
        await self.known.loaded(file_system_id)
        for token in known_tokens(request, file_system_id):
            if access_point_id := self.known.with_token(file_system_id, token):
                return self.known.on(file_system_id).get(access_point_id)
        return None

    async def _made_before(
        self, request: VolumeRequest, places: Sequence[FileSystemId], candidates: Sequence[FileSystemId]
    ) -> AccessPoint | None:
        """The access point that an earlier attempt has created, on any of the file systems."""
        # The best token of every file system comes before the second one of any.
        by_rank = zip(*(known_tokens(request, one) for one in places), strict=True)
        for file_system_id, token in (place for rank in by_rank for place in zip(places, rank, strict=True)):
            access_point_id = self.known.with_token(file_system_id, token)
            if access_point_id is None:
                continue
            found = await self.known.get(access_point_id, file_system_id)
            if found is None:
                # Another task may have forgotten it during the call.
                if known := self.known.on(file_system_id).get(access_point_id):
                    self.known.retire(known)
                continue
            _check(found, request, candidates)
            self.known.keep(found)
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
            self.known.note_full(file_system_id)
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
            is_unclear = error.outcome_unknown or isinstance(error, _UNCLEAR)
            error.outcome_unknown = is_unclear or late_seconds > 0
            if not error.outcome_unknown:
                self._settle(request.name)
            raise
        finally:
            if request.name in self._unclear:
                self._unclear[request.name] = replace(unclear, ended=self._clock())
        self.known.keep(made)
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
        except asyncio.CancelledError:
            self._expect_late(wanted)
            raise
        except AwsError as error:
            # The library repeats a request without an answer, and the first one can still take effect, unless
            # the file system is missing or full.
            is_lost = isinstance(error, AwsUnavailable) or error.is_unclear
            if is_lost and not isinstance(error, (AwsNotFound, AwsLimitReached)):
                self._expect_late(wanted)
                raise
            if isinstance(error, AwsThrottled):
                raise
            # The answer to this attempt says nothing about the earlier one.
            with _undecided():
                earlier = await self._listed(wanted) if is_repeated else None
            if earlier is None:
                raise
            found = earlier
        _check(found, creation.request, creation.candidates)
        # Without its token, nothing would show that a late creation can create it again.
        return found if found.client_token else replace(found, client_token=wanted.client_token)

    async def _existing(self, error: AwsAlreadyExists, wanted: AccessPointRequest) -> AccessPoint:
        """The access point that was created with the request's token before."""
        if error.existing:
            with _undecided():
                found = await self.known.get(AccessPointId(error.existing), wanted.file_system_id)
            if found is None:
                raise _pending("was deleted in the meantime", error.existing)
            return found
        with _undecided():
            found = await self._listed(wanted)
        if found is None:
            raise error
        return found

    async def _listed(self, wanted: AccessPointRequest) -> AccessPoint | None:
        """The access point with that token, if a new list contains it.

        Without tokens in the list, it is one of the directory with this token. If the token cannot be read
        either, it is that of the directory that no other volume uses.
        """
        place = wanted.file_system_id
        await self.known.refresh(place)
        if access_point_id := self.known.with_token(place, wanted.client_token):
            return self.known.on(place).get(access_point_id)
        for one in list(self.known.on(place).values()):
            if one.client_token or one.directory != wanted.directory:
                continue
            found = await self.known.get(one.access_point_id, place)
            if found is None:
                continue
            # A token is the name of a volume, except with ``reuseAccessPoint``, which S3 Files does not have.
            others = self._index.volumes_through(one.access_point_id) - {wanted.client_token}
            if found.client_token == wanted.client_token or not (found.client_token or others):
                return found
        return None

    def _settle(self, volume: str) -> None:
        """Note that the outcome of the creation is known: its IDs are free, or the access point has them."""
        self._unclear.pop(volume, None)
        self._index.gids.release(volume)

    def _settle_late_creations(self, file_system_id: FileSystemId, began: float) -> None:
        """Settle the creations whose outcome is known from a list of the file system that began then."""
        now = self._clock()
        self._late_until = {
            (on, token): until
            for (on, token), until in self._late_until.items()
            if until > (began if on == file_system_id else now)
        }
        for volume, unclear in list(self._unclear.items()):
            # The creation was not repeated: this list contains its access point, or it will never exist. One
            # that still runs cannot succeed after the deletion of its file system either.
            has_ended = unclear.ended is not None and unclear.ended + _UNCLEAR_SECONDS <= began
            is_over = has_ended or began == inf
            if unclear.file_system_id == file_system_id and is_over:
                self._settle(volume)

    def _expect_late(self, wanted: AccessPointRequest) -> None:
        """Note that AWS can still carry out this creation, which it did not answer."""
        place = (wanted.file_system_id, wanted.client_token)
        self._late_until[place] = self._clock() + _UNCLEAR_SECONDS

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
        taken = kept if kept is not None else self.known.take_id(parameters.gids, request.name)
        if taken is None:
            raise GidRangeFull(
                "has no free ID",
                field="gidRangeStart-gidRangeEnd",
                value=str(parameters.gids),
                remedy="delete a volume, or create a class with a wider range",
            )
        return PosixUser(uid=taken if uid is None else uid, gid=taken if gid is None else gid)


@contextmanager
def _undecided() -> Iterator[None]:
    """Mark errors of a look for what a creation has made: they do not say that it has made nothing.

    Only a missing file system says so.
    """
    try:
        yield
    except AwsNotFound:
        raise
    except AwsError as error:
        error.outcome_unknown = True
        raise


def _check(found: AccessPoint, request: VolumeRequest, candidates: Sequence[FileSystemId]) -> None:
    """Raise VolumePending or ExistingVolumeDiffers unless the volume can use the access point."""
    if found.leaving:
        raise _pending("is being deleted", found.access_point_id)
    check_existing(found, request, candidates)


def _pending(problem: str, access_point_id: str) -> VolumePending:
    return VolumePending(problem, field="access point", value=access_point_id, remedy="it is retried")
