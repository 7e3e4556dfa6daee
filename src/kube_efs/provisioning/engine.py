"""Claims to volumes, released volumes to nothing, for every kind of volume alike.

A claim gets at most one volume whatever crashes or repeats: the volume's name is derived from the claim,
what it stands on is made idempotently, and the volume object comes last. An answer that got lost is asked for
again until it is known, also when the claim is gone in the meantime: Kubernetes then finds the new volume's
claim gone, and the volume is removed like any other.

A removal has a point of no return that is visible to everyone: the volume object becomes Terminating, on the
condition that it has not changed since the guards were asked. What was there before that moment, and what
an administrator set before it, is always respected; the guards are asked once more at the last reversible
moment (``guards.py``). The volume object goes when its data is dealt with.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

import structlog

from kube_efs.kube.volumes import VolumeStore
from kube_efs.model.claims import Claim, ReclaimPolicy, StorageClass
from kube_efs.model.efs.ids import ClaimUid
from kube_efs.model.errors import (
    AwsDenied,
    AwsLimitReached,
    AwsNotFound,
    InvalidValue,
    KubeAlreadyExists,
    KubeConflict,
    KubeEfsError,
    KubeNotFound,
    NotYet,
    RemovalRefused,
    WorkerRefused,
)
from kube_efs.model.tunnel_volumes import ROOT_CLASS
from kube_efs.model.volumes import FINALIZER, Location, Volume, VolumePhase
from kube_efs.provisioning.guards import DataKept, Guards, Order, Permit, Removal
from kube_efs.provisioning.volume_index import VolumeIndex

log = structlog.get_logger(__name__)

# A name is 5 characters of a hash long; that four claims of one directory share them will not happen.
_NAMES_TRIED = 4
# Errors after which nothing was made.
NOTHING_BEGUN = (AwsDenied, AwsLimitReached, AwsNotFound, InvalidValue, NotYet)
# How often a volume may change while its removal is decided on.
_CHANGES_FOLLOWED = 5
# So long after its answer got lost the API server no longer carries out a request: its own limit is a minute.
_LATE_SECONDS = 300.0


class Made(Protocol):
    """What the volume of a claim stands on, once it is there."""

    def volume(self, attempt: int) -> Volume:
        """The volume; ``attempt`` counts names that turned out to belong to other claims."""

    async def adopt(self, found: Volume) -> None:
        """Make this agree with the volume that the claim had got before; raises KubeEfsError."""


class Plan(Protocol):
    """Everything that is needed to make one volume for one claim."""

    @property
    def claim(self) -> Claim:
        """The claim that is served."""

    async def locations(self) -> Sequence[Location]:
        """Every place where its data may come to lie; raises KubeEfsError."""

    @property
    def place(self) -> str:
        """What will be created, for messages."""

    def place_of(self, volume: Volume) -> str:
        """Where the data of the volume lies that was made by this plan, for messages."""

    @property
    def oddities(self) -> Sequence[str]:
        """What in the claim or its class has no effect, for its author."""

    async def prepare(self) -> None:
        """What must precede the first attempt; nothing has begun if it fails. Raises KubeEfsError."""

    async def make(self) -> Made:
        """Make what the volume stands on; doing it again does no harm. Raises KubeEfsError."""


class Backend(Protocol):
    """One kind of volume."""

    @property
    def provisioner(self) -> str:
        """The provisioner that its classes name."""

    @property
    def marks_refused_claims(self) -> bool:
        """Whether refused claims are annotated, so that a restart does not repeat their events."""

    @property
    def shares_directories(self) -> bool:
        """Whether a claim may get a directory that another volume has, or had."""

    def plan(self, claim: Claim, storage_class: StorageClass) -> Plan | None:
        """How the claim would be served; None for a claim of another backend.

        Raises ClaimRefused when it cannot be, NotYet when something does not exist yet.
        """

    def owns(self, volume: Volume) -> bool:
        """Whether a volume with this provisioner's name is its own, and not that of a namesake elsewhere."""

    async def removal(self, volume: Volume) -> Removal:
        """What would go with the volume; raises RemovalRefused, NotYet, AwsError."""

    async def settled(self, volume: Volume) -> None:
        """Return when no earlier order to remove what the volume stands on can be carried out any more.

        Raises KubeEfsError while one may: the volume object must stay for as long.
        """

    async def remove(self, removal: Removal, order: Order) -> None:
        """Remove what the volume stands on, if it exists, once the order is confirmed.

        Returns only when it is known to be gone. Raises KubeEfsError, DataKept when the directory stays.
        """


class DataFate(StrEnum):
    """What became of the data of a volume that was deleted."""

    REMOVED = "removed"
    SHARED = "shared"
    KEPT = "kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaimed:
    """A volume that was deleted, and why its data is still there if it is.

    ``location`` is None if no directory had to be removed. ``above`` are the volumes in whose directories the
    removed one lay.
    """

    volume: Volume
    data: DataFate
    location: Location | None = None
    reason: str = ""
    above: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lost:
    """A request to make a volume whose answer got lost at that time."""

    volume: Volume
    at: float


class Engine:
    """Decides what to do for a claim or a volume, and does it in the right order."""

    def __init__(
        self,
        *,
        index: VolumeIndex,
        backends: Sequence[Backend],
        store: VolumeStore,
        guards: Guards,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._index = index
        self._backends = {backend.provisioner: backend for backend in backends}
        self._store = store
        self._guards = guards
        self._clock = clock
        # By the uid of the claim.
        self._lost: dict[ClaimUid, _Lost] = {}
        # By their uids, the volumes that this process has made Terminating.
        self._ordered: set[str] = set()

    def plan(self, claim: Claim) -> Plan | None:
        """How to serve the claim; None when there is nothing to do for it here and now.

        Raises ClaimRefused when it cannot be served, NotYet when something does not exist yet.
        """
        if not claim.wants_volume or self._index.volume_of(claim.uid):
            return None
        storage_class, backend = self._served_by(claim)
        # Kubernetes may not have assigned the claim to a provisioner yet.
        is_ours = backend is not None and claim.storage_provisioner in {None, backend.provisioner}
        if storage_class is None or backend is None or not is_ours:
            self._check_given_to_us(claim, storage_class)
            return None
        if storage_class.waits_for_consumer and not claim.selected_node:
            return None
        return backend.plan(claim, storage_class)

    def may_have_begun(self, claim: Claim) -> bool:
        """Whether an earlier process may have requested a volume in a directory that others can share.

        The class of the claim may be gone since.
        """
        if claim.storage_class in {None, "", ROOT_CLASS}:
            return False
        storage_class, backend = self._served_by(claim)
        return storage_class is None or (backend is not None and backend.shares_directories)

    def marks_refused(self, claim: Claim) -> bool:
        """Whether the refusal of that claim is written into its annotations."""
        _, backend = self._served_by(claim)
        return backend is not None and backend.marks_refused_claims

    def _served_by(self, claim: Claim) -> tuple[StorageClass | None, Backend | None]:
        """The class of the claim and the backend of that class, as far as they are there."""
        storage_class = self._index.classes.get(claim.storage_class or "")
        return storage_class, self._backends.get(storage_class.provisioner) if storage_class else None

    def _check_given_to_us(self, claim: Claim, storage_class: StorageClass | None) -> None:
        """Raise NotYet for a claim that Kubernetes assigned to us although its class is not ours."""
        if claim.storage_provisioner not in self._backends or claim.storage_class == ROOT_CLASS:
            return
        if storage_class is None:
            raise NotYet(
                "does not exist",
                field="spec.storageClassName",
                value=claim.storage_class or "",
                remedy="create the StorageClass",
            )
        raise NotYet(
            f"is not {claim.storage_provisioner}, which the claim was assigned to",
            field=f"StorageClass {storage_class.name} provisioner",
            value=storage_class.provisioner,
            remedy="delete the claim and create it again",
        )

    async def provision(
        self,
        plan: Plan,
        *,
        again: Callable[[KubeEfsError, bool], Awaitable[bool]] | None = None,
        is_begun: bool = False,
    ) -> Volume:
        """Make the volume; doing it again gives the same one. Raises KubeEfsError.

        After a failure ``again`` is asked whether to continue with this very plan, after a pause of its own.
        It is given the error and whether the outcome is unclear: then another plan could give the claim a
        second volume. The directory is reserved all the while. Unless an earlier attempt ``is_begun`` with
        the plan, NotYet is raised when the claim would lie elsewhere by the time that its directory is free.
        """
        locations = await plan.locations()
        async with self._guards.reservations.making(*locations) as has_waited:
            if has_waited and not is_begun:
                # Volumes of a directory decide where it is, and one of them has just gone.
                now = self.plan(plan.claim)
                if now is not None and set(await now.locations()) != set(locations):
                    raise NotYet(
                        "was chosen before a removal that has changed the choice",
                        field="directory",
                        value=plan.place,
                        remedy="it is chosen again",
                    )
            if not is_begun:
                await plan.prepare()
            try:
                while True:
                    if (volume := await self._attempt(plan, again)) is not None:
                        return volume
            finally:
                self._lost.pop(plan.claim.uid, None)

    async def _attempt(
        self, plan: Plan, again: Callable[[KubeEfsError, bool], Awaitable[bool]] | None
    ) -> Volume | None:
        """The volume; None when this failed and must be repeated."""
        uid = plan.claim.uid
        if uid in self._lost and (known := self._index.volume_of(uid)):
            return known
        try:
            volume = await self._create(plan, await plan.make())
        except KubeEfsError as error:
            # A clear refusal to make what the volume stands on settles what was unclear about that.
            is_unclear = await self._is_unclear(plan.claim) or error.outcome_unknown
            may_have_begun = is_unclear or not isinstance(error, NOTHING_BEGUN)
            if not (again and may_have_begun and await again(error, is_unclear)):
                raise
            return None
        self._index.made_volume(volume)
        return volume

    async def _is_unclear(self, claim: Claim) -> bool:
        """Whether a request for the claim's volume may have been, or may still be, carried out.

        This must come to an end although nothing is heard: what the volume stands on may be refused since
        another volume must be removed with it, whose removal waits for the directory that we hold.
        """
        lost = self._lost.get(claim.uid)
        if lost is None:
            return False
        if self._clock() < lost.at + _LATE_SECONDS:
            return True
        try:
            found = await self._store.get(lost.volume.name)
            if found.claim is not None and found.claim.uid == claim.uid:
                return True
        except KubeNotFound:
            pass
        except KubeEfsError as error:
            log.warning("volume-not-read", volume=lost.volume.name, claim=claim.key, reason=str(error))
            return True
        self._index.refused_volume(lost.volume)
        del self._lost[claim.uid]
        return False

    async def _create(self, plan: Plan, made: Made) -> Volume:
        for attempt in range(_NAMES_TRIED):
            # Nothing may come between the two: only now can no other volume get what this one has.
            wanted = replace(made.volume(attempt), finalizers=(FINALIZER,))
            self._index.expect_volume(wanted)
            try:
                return await self._store.create(wanted)
            except KubeAlreadyExists:
                if found := await self._claims_own(wanted, plan, made):
                    return found
                self._index.refused_volume(wanted)
                log.warning("volume-name-taken", volume=wanted.name, claim=plan.claim.key)
            except KubeEfsError as error:
                if error.outcome_unknown:
                    self._lose(wanted, plan)
                else:
                    self._index.refused_volume(wanted)
                raise
        raise KubeAlreadyExists(
            "belongs to another claim",
            field="volume",
            value=made.volume(0).name,
            remedy="delete unused volumes of that name",
        )

    async def _claims_own(self, wanted: Volume, plan: Plan, made: Made) -> Volume | None:
        """The volume of that name if an earlier attempt made it for this claim."""
        try:
            found = await self._store.get(wanted.name)
        except KubeEfsError as error:
            error.outcome_unknown = True
            self._lose(wanted, plan)
            raise
        if found.claim is None or found.claim.uid != plan.claim.uid:
            return None
        await made.adopt(found)
        return found

    def _lose(self, wanted: Volume, plan: Plan) -> None:
        self._lost[plan.claim.uid] = _Lost(volume=wanted, at=self._clock())

    async def reclaim(self, volume: Volume) -> Reclaimed | None:
        """Delete a released volume and its data; None when it is not to be deleted.

        Waits while the directory is in the hands of another claim or volume. Raises RemovalRefused when a
        guard says no, and whatever KubeEfsError keeps the backend or the API server from it.
        """
        backend = self._backends.get(volume.provisioned_by or "")
        if backend is None:
            return None
        if _is_let_go(volume) and backend.owns(volume):
            if volume.reclaim_policy is ReclaimPolicy.DELETE:
                reason = f"it was {volume.phase} when it was deleted, and not Released"
            else:
                reason = f"its reclaim policy is {volume.reclaim_policy}"
            return await self._let_go(volume, reason)
        if not _is_to_go(volume):
            return None
        try:
            return await self._remove(volume, backend)
        except (RemovalRefused, WorkerRefused) as error:
            if volume.uid in self._ordered:
                # It is Terminating by us, so that deleting it says nothing any more.
                look = error.remedy or "check it"
                error.remedy = (
                    f"{look}; or set the reclaim policy of this volume to Retain: the volume is deleted "
                    "and its data is kept"
                )
                raise
            if not (volume.deleting and backend.owns(volume)):
                raise
            # It was deleted manually, as users do with a volume that cannot be removed.
            return await self._let_go(volume, str(error))

    async def _let_go(self, volume: Volume, reason: str) -> Reclaimed | None:
        live = await self._live(volume)
        if live is None or (live.phase, live.reclaim_policy) != (volume.phase, volume.reclaim_policy):
            return None
        if self._index.may_be_ordered(volume):
            await self._backends[volume.provisioned_by or ""].settled(live)
        await self._store.release(live)
        return Reclaimed(volume=volume, data=DataFate.KEPT, reason=reason)

    async def _remove(self, volume: Volume, backend: Backend) -> Reclaimed | None:
        removal = await backend.removal(volume)
        async with self._guards.reservations.removing(*removal.reserved):
            terminating = await self._terminated(volume, removal)
            if terminating is None:
                return None
            live, permit = terminating
            order = Order(lambda: self._asked_again(removal, live), permit)
            keeps_all = bool(permit.keeps) and removal.access_point is None
            if not keeps_all:
                with suppress(DataKept):
                    await backend.remove(removal, order)
            if order.permit.keeps:
                # An order of an earlier leader must not be carried out once the volume is gone.
                await backend.settled(live)
            await self._store.release(live)
            self._ordered.discard(live.uid)
            keeps = order.permit.keeps
            self._index.removed_volume(volume, with_directory=removal.with_directory and not keeps)
        return Reclaimed(
            volume=volume,
            data=DataFate.SHARED if keeps else DataFate.REMOVED,
            location=removal.location if removal.with_directory else None,
            reason=keeps,
            above=order.permit.above,
        )

    async def _terminated(self, volume: Volume, removal: Removal) -> tuple[Volume, Permit] | None:
        """The volume once it is Terminating, and the guards' answer; None if it is not to go any more.

        It becomes so only as the very object that the guards were asked about: when it has changed
        in the meantime, they are asked again.
        """
        for _ in range(_CHANGES_FOLLOWED):
            live = await self._live(volume)
            if live is None or not _is_to_go(live):
                return None
            if FINALIZER not in live.finalizers:
                await self._store.protect(live)
                continue
            permit = await self._guards.check(removal, live)
            if live.deleting:
                return live, permit
            try:
                # Noted first: the answer may get lost.
                self._ordered.add(live.uid)
                await self._store.terminate(live)
                return replace(live, deleting=True), permit
            except KubeConflict:
                self._ordered.discard(live.uid)
            except KubeNotFound:
                return None
        raise KubeConflict("changed too often", field="volume", value=volume.name)

    async def _asked_again(self, removal: Removal, volume: Volume) -> Permit:
        """The guards' last answer; raises KubeEfsError unless the volume is still to be removed."""
        permit = await self._guards.check_last(removal, volume)
        live = await self._live(volume)
        if live is None or not live.deleting or not _is_to_go(live):
            remedy = "it is checked again"
            raise KubeConflict("must no longer be removed", field="volume", value=volume.name, remedy=remedy)
        return permit

    async def protect(self, volume: Volume) -> None:
        """See that a volume of ours is not gone before its directory is dealt with; raises KubeError."""
        if self.is_unprotected(volume):
            await self._store.protect(volume)

    def is_unprotected(self, volume: Volume) -> bool:
        """Whether the volume is ours, and deleting it now would leave its directory behind."""
        backend = self._backends.get(volume.provisioned_by or "")
        is_ours = backend is not None and backend.owns(volume) and volume.storage_class != ROOT_CLASS
        return is_ours and not volume.deleting and FINALIZER not in volume.finalizers

    async def _live(self, volume: Volume) -> Volume | None:
        """The volume as the API server has it, if it exists: data does not come back."""
        try:
            live = await self._store.get(volume.name)
        except KubeNotFound:
            self._index.forget_volume(volume.name)
            return None
        return live if live.uid == volume.uid else None


def _is_to_go(volume: Volume) -> bool:
    return (
        volume.to_be_reclaimed
        and volume.storage_class != ROOT_CLASS
        and (not volume.deleting or FINALIZER in volume.finalizers)
    )


def _is_let_go(volume: Volume) -> bool:
    """Whether the volume was deleted, its data must be kept, and only our finalizer holds it."""
    return (
        volume.deleting
        and FINALIZER in volume.finalizers
        and volume.phase is not VolumePhase.BOUND
        and not _is_to_go(volume)
    )
