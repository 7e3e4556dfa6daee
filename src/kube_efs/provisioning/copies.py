"""Fills the directory of a new volume with a copy, before its volume object exists.

A copy may take hours. Meanwhile its claim gets events about the progress, and the source is reserved: this
process does not remove its volume. The pod that copies is a lock for all other processes
(``workers/pods.py``).

If the claim is deleted, the copy stops and is discarded, and the volume is created without data. Kubernetes
releases that volume at once, because its claim does not exist, so it is removed with everything else that
was created for it. A volume without its data is therefore never bound: the API server itself has said that
the claim is gone, and no other claim has its uid.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias, TypeVar

import structlog

from kube_efs.model.claims import Claim
from kube_efs.model.copies import Copied, CopyProgress, CopySource, CopyTerms
from kube_efs.model.csi.errors import InvalidArgument
from kube_efs.model.efs.directories import Relation
from kube_efs.model.errors import CopyDiffers, KubeEfsError, NotYet, WorkerFailed
from kube_efs.model.sizes import format_size
from kube_efs.model.volumes import Location
from kube_efs.provisioning.data_sources import DataSources
from kube_efs.provisioning.guards import tenant_of_namespace
from kube_efs.provisioning.reservations import DirectoryReservations
from kube_efs.provisioning.workers.contract import Directories, Protection

log = structlog.get_logger(__name__)

# The pauses between two looks at a copy; the progress is reported at each.
_FIRST_LOOK_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 300.0
# After a failed attempt; without it, there are no pauses.
FIRST_PAUSE_SECONDS = 15.0

T = TypeVar("T")

# Receives a claim and a text for its user.
Notice: TypeAlias = Callable[[Claim, str], None]
# Whether the claim exists no more, as the API server answers now.
IsGone: TypeAlias = Callable[[Claim], Awaitable[bool]]


def volume_key(claim: Claim) -> str:
    """The key of the copy for a claim, the same for every kind of volume."""
    return f"pvc-{claim.uid}"


def check_copy(source: CopySource, target: Location, *, enforces_identity: bool) -> None:
    """Raise InvalidArgument unless the source may be copied to the target.

    Both must be on one file system, and neither may contain the other. Clients of a volume with an identity
    cannot read the files of others in it, so its copy must enforce an identity, too. This is checked before
    anything is created for the copy: an invalid claim must leave nothing behind.
    """
    if source.owner is not None and not enforces_identity:
        raise InvalidArgument(
            "is a volume whose access point enforces an identity, and the new volume would have none",
            field="data source",
            value=str(source.location),
            remedy="use a class with provisioningMode: efs-ap, without posixUser: none",
        )
    if source.location.file_system_id != target.file_system_id:
        raise InvalidArgument(
            f"is on {source.location.file_system_id}, but the new volume is on {target.file_system_id}",
            field="data source",
            value=str(source.location),
            remedy="use a class on the file system of the source",
        )
    if source.location.directory.relation_to(target.directory) is not Relation.APART:
        raise InvalidArgument(
            f"is, contains or is inside the directory of the copy, {target.directory}",
            field="data source",
            value=str(source.location),
            remedy="copy a volume that is not the whole file system, into a class with another base",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Follower:
    """What follows a copy: ``report`` gets the progress, and the copy stops when ``is_gone`` says so."""

    report: Callable[[str], None] | None = None
    is_gone: Callable[[], Awaitable[bool]] | None = None

    def tell(self, text: str) -> None:
        """Report the text, if anything follows the copy."""
        if self.report is not None:
            self.report(text)

    async def look(self, directories: Directories, target: Location) -> None:
        """Report the progress of the copy to the target, or stop it; errors are only logged."""
        try:
            if self.is_gone is not None and await self.is_gone():
                await directories.stop_copy(target)
            elif self.report is not None and (progress := await directories.copy_progress(target)):
                self.tell(f"Copying: {_counted(progress)} so far")
        except KubeEfsError as error:
            log.warning("copy-progress-unknown", location=str(target), reason=str(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipient:
    """For whom a copy is made.

    ``has_other_users`` says whether others use its directory, as far as this process knows now. Without a
    claim, ``follower`` follows the copy, and ``tenant`` is that of the source.
    """

    claim: Claim | None = None
    follower: Follower = field(default_factory=Follower)
    has_other_users: Callable[[], bool] = bool
    tenant: str = ""


class Copies:
    """Copies directories for new volumes; ``notice`` reports the progress to the user of a claim."""

    def __init__(
        self,
        *,
        sources: DataSources,
        reservations: DirectoryReservations,
        is_gone: IsGone,
        notice: Notice,
        first_look_seconds: float = _FIRST_LOOK_SECONDS,
        first_pause_seconds: float = FIRST_PAUSE_SECONDS,
        accepts_earlier_source: bool = True,
    ) -> None:
        self._sources = sources
        self._reservations = reservations
        self._is_gone = is_gone
        self._notice = notice
        self._first_look_seconds = first_look_seconds
        self._first_pause_seconds = first_pause_seconds
        self._accepts_earlier_source = accepts_earlier_source
        # By the key of the copy: the pause before its next attempt.
        self._pauses: dict[str, float] = {}

    async def source_for(self, claim: Claim, target: Location | None = None) -> CopySource | None:
        """What the claim's volume is a copy of; None without a copy.

        ``target`` is its directory, if the volume enforces no identity and the source must be checked here. A
        claim that is gone needs no copy: what was created for it is removed with its volume. Raises
        InvalidArgument when the source cannot be copied there, NotYet while it is not ready, AwsError and
        KubeError.
        """
        try:
            source = await self._sources.of_claim(claim)
            if source is not None and target is not None:
                check_copy(source, target, enforces_identity=False)
        except KubeEfsError:
            if await self._is_gone(claim):
                return None
            raise
        return source

    async def fill(
        self,
        directories: Directories,
        source: CopySource,
        target: Location,
        recipient: Recipient,
        *,
        key: str,
        maps_owner: bool,
    ) -> Copied | None:
        """Copy the source to the target; None when the claim is gone, or the copy was complete before.

        ``key`` and ``maps_owner`` are those of CopyTerms. Raises NotYet when the source is gone or another
        one, WorkerRefused if the target has contents or other users, VolumePending while the file system is
        being removed, WorkerFailed, AwsError and KubeError.
        """
        claim = recipient.claim
        terms = CopyTerms(
            key=key,
            source=source.location.directory,
            owner=source.owner,
            may_be_missing=source.may_be_missing,
            maps_owner=maps_owner,
        )
        if claim is not None:
            await self._pause(claim, key)
        protection = Protection(
            reserved=partial(self._reservations.making, source.location),
            confirm=partial(self._check_unchanged, source, claim),
        )
        # The removal of the source, if it comes now, waits for the end of the copy, also if this call ends
        # earlier: the copy has a reservation of its own.
        async with protection.reserved():
            if claim is not None and await self._is_gone(claim):
                await self._discard(claim, directories, target, key)
                return None
            # Before anything of the copy begins, and again directly before its worker does.
            await protection.confirm()
            terms = replace(terms, in_use=recipient.has_other_users())
            if claim is not None:
                return await self._fill_for(claim, directories, target, terms, protection)
            copied = directories.copy(target, terms, tenant=recipient.tenant, protection=protection)
            return await self._watched(copied, recipient.follower, directories, target)

    async def _check_unchanged(self, source: CopySource, claim: Claim | None) -> None:
        """Raise KubeEfsError unless the source still exists: until now, its volume could be removed.

        Its missing directory would count as that of an empty volume. The directory of the copy exists, and
        goes with its volume. So no refusal is final here: csi-provisioner would forget the volume.
        """
        try:
            await self._sources.check_unchanged(source, claim)
        except KubeEfsError as error:
            waiting = NotYet(error.problem, field=error.field, value=error.value, remedy=error.remedy)
            waiting.has_begun = True
            raise waiting from error

    async def _discard(self, claim: Claim, directories: Directories, target: Location, key: str) -> None:
        self._pauses.pop(key, None)
        log.info("copy-discarded", claim=claim.key, location=str(target))
        await directories.discard_copy(target, key)

    async def _fill_for(
        self,
        claim: Claim,
        directories: Directories,
        target: Location,
        terms: CopyTerms,
        protection: Protection,
    ) -> Copied | None:
        follower, tenant = self._follower(claim), tenant_of_namespace(claim.namespace)
        try:
            work = self._copied(directories, target, terms, tenant, protection)
            copied = await self._watched(work, follower, directories, target)
        except WorkerFailed:
            longer = 2 * self._pauses.get(terms.key, self._first_pause_seconds / 2)
            self._pauses[terms.key] = min(longer, _LONGEST_PAUSE_SECONDS)
            raise
        self._pauses.pop(terms.key, None)
        if copied is None:
            return None
        log.info("copied", claim=claim.key, location=str(target), entries=copied.progress.entries)
        follower.tell(f"Copied {_counted(copied.progress)} to {target}")
        return copied

    def _follower(self, claim: Claim | None) -> Follower:
        if claim is None:
            return Follower()
        return Follower(report=partial(self._notice, claim), is_gone=partial(self._is_gone, claim))

    async def _pause(self, claim: Claim, key: str) -> None:
        """Wait after a failed attempt, longer after each: another one reads the whole source again."""
        clock = asyncio.get_running_loop().time
        until = clock() + self._pauses.get(key, 0.0)
        while (left := until - clock()) > 0 and not await self._is_gone(claim):  # noqa: ASYNC110 - nothing wakes it
            await asyncio.sleep(min(left, self._first_pause_seconds))

    async def await_earlier(self, directories: Directories, target: Location, claim: Claim | None) -> None:
        """Return when the worker of an earlier leader no longer copies to the target.

        It blocks all other work there, and what it has finished is not copied again.
        """
        await self._watched(directories.copy_ended(target), self._follower(claim), directories, target)

    async def stop(self, directories: Directories, target: Location) -> None:
        """Stop the copy to the target, also one of an earlier leader, or one that waits for its turn.

        Its program may run for another moment; until its end, the worker refuses all other work there.
        """

        async def is_unwanted() -> bool:
            return True

        follower = Follower(is_gone=is_unwanted)
        # First: a copy that waits for its turn has no worker, whose end could be awaited.
        await follower.look(directories, target)
        await self._watched(directories.copy_ended(target), follower, directories, target)

    async def _watched(
        self,
        work: Coroutine[None, None, T],
        follower: Follower,
        directories: Directories,
        target: Location,
    ) -> T:
        """The result of work on a copy; meanwhile, its progress is reported, and it ends with its claim."""
        working = asyncio.ensure_future(work)
        pause_seconds = self._first_look_seconds
        try:
            while not (await asyncio.wait({working}, timeout=pause_seconds))[0]:
                await follower.look(directories, target)
                pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)
            return await working
        finally:
            working.cancel()

    async def _copied(
        self,
        directories: Directories,
        target: Location,
        terms: CopyTerms,
        tenant: str,
        protection: Protection,
    ) -> Copied | None:
        """The copy; None if it is complete, and of an earlier source: a claim of its name was deleted since.

        The claim has its copy then, because its volume object alone was missing. Raises CopyDiffers for a
        caller who names the source in each request: CSI requires an error when it is another one.
        """
        try:
            return await directories.copy(target, terms, tenant=tenant, protection=protection)
        except CopyDiffers as error:
            if not self._accepts_earlier_source:
                raise
            log.info("copy-of-an-earlier-source", location=str(target), reason=str(error))
            return None


def _counted(progress: CopyProgress) -> str:
    noun = "file or directory" if progress.entries == 1 else "files and directories"
    return f"{progress.entries} {noun} ({format_size(progress.copied_bytes)})"
