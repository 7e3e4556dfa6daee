"""Creates volumes for claims and removes released volumes, in the same way for every kind of volume.

A claim gets at most one volume, despite crashes and repetitions: the volume's name is derived from the claim,
its storage is created idempotently, and the volume object is created last. After a lost answer, the request
is repeated until its outcome is known, even if the claim was deleted meanwhile. In that case Kubernetes
releases the new volume, and it is removed like any other.

A removal has a commit point that every client can see: the volume object becomes Terminating, on the
condition that it has not changed since the guards checked it. The removal respects everything that existed
before, and everything that an administrator set before. The guards check again at the last reversible moment
(``guards.py``). The volume object is deleted after its data.
"""

import time
from collections.abc import Awaitable, Callable, Collection, Sequence
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
    AwsRefused,
    InvalidValue,
    KubeAlreadyExists,
    KubeConflict,
    KubeEfsError,
    KubeNotFound,
    NotYet,
    RemovalRefused,
    StorageClassMissing,
    WorkerRefused,
)
from kube_efs.model.left_alone import check_claim, check_volume
from kube_efs.model.tunnel_volumes import NAMES_TRIED, ROOT_CLASS
from kube_efs.model.volumes import FINALIZER, Location, Volume, VolumePhase
from kube_efs.provisioning.guards import DataKept, Guards, Permit, Removal, RemovalOrder
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.telemetry.traces import span

log = structlog.get_logger(__name__)

# Errors after which nothing was created.
NOTHING_BEGUN = (AwsDenied, AwsLimitReached, AwsNotFound, AwsRefused, InvalidValue, NotYet)
# How often a volume may change during the decision on its removal.
_CHANGES_FOLLOWED = 5
# The API server no longer carries out a request this long after a lost answer; its own limit is a minute.
_UNCLEAR_SECONDS = 300.0


class Made(Protocol):
    """The storage of a claim's volume, after its creation."""

    def volume(self, attempt: int) -> Volume:
        """The volume; ``attempt`` counts the names that other claims already have."""

    async def adopt(self, found: Volume) -> None:
        """Adapt the storage to the claim's existing volume; raises KubeEfsError."""


class Plan(Protocol):
    """Everything that is necessary to create the volume of a claim."""

    @property
    def claim(self) -> Claim:
        """The claim that is served."""

    async def locations(self) -> Sequence[Location]:
        """Every possible location of its data; raises KubeEfsError."""

    @property
    def place(self) -> str:
        """A text for what will be created, for messages."""

    def place_of(self, volume: Volume) -> str:
        """A text for the location of the created volume's data, for messages."""

    @property
    def warnings(self) -> Sequence[str]:
        """Settings of the claim or its class that have no effect, as messages for their author."""

    async def prepare(self) -> None:
        """Prepare the first attempt; creates nothing if it fails. Raises KubeEfsError."""

    async def make(self) -> Made:
        """Create the storage of the volume, idempotently. Raises KubeEfsError."""


class Backend(Protocol):
    """One kind of volume."""

    @property
    def provisioner(self) -> str:
        """The provisioner of its classes."""

    @property
    def marks_refused_claims(self) -> bool:
        """Whether refused claims are annotated, so that a restart does not repeat their events."""

    @property
    def shares_directories(self) -> bool:
        """Whether a claim may get the directory of another or of a former volume."""

    def plan(self, claim: Claim, storage_class: StorageClass) -> Plan:
        """The plan for the claim.

        Raises ClaimRefused or LeftAlone when the claim cannot be served, NotYet when something does not exist
        yet.
        """

    def owns(self, volume: Volume) -> bool:
        """Whether this backend owns the volume; another provisioner elsewhere may have the same name."""

    async def removal(self, volume: Volume) -> Removal:
        """What is removed with the volume; raises RemovalRefused, NotYet, AwsError."""

    async def settled(self, volume: Volume) -> None:
        """Return when no earlier order to remove the volume's storage can still take effect.

        Raises KubeEfsError while one can: the volume object must be kept until then.
        """

    async def remove(self, removal: Removal, order: RemovalOrder) -> None:
        """Remove the storage of the volume, if it exists, after confirmation of the order.

        Returns only when it no longer exists. Raises KubeEfsError, and DataKept when the directory is kept.
        """


class DataFate(StrEnum):
    """What happened to the data of a deleted volume."""

    REMOVED = "removed"
    SHARED = "shared"
    KEPT = "kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaimed:
    """A deleted volume, and the reason if its data was kept.

    ``location`` is that of the removed directory, if it had one. ``above`` are the volumes that contain it.
    """

    volume: Volume
    data: DataFate
    location: Location | None = None
    reason: str = ""
    above: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lost:
    """A request to create a volume, and the time at which its answer was lost."""

    volume: Volume
    at: float


class Engine:
    """Plans, creates and removes volumes.

    ``former_names`` gives earlier names of the provisioner of tunnel volumes. Without ``finalizes``, new
    volumes get no finalizer: the permissions of efs-provisioner do not allow its removal. The removal of a
    volume without a finalizer has no visible commit point. The guards list all volumes instead, and the
    object is deleted after its data.
    """

    def __init__(
        self,
        *,
        index: VolumeIndex,
        backends: Sequence[Backend],
        store: VolumeStore,
        guards: Guards,
        former_names: Callable[[], Collection[str]] = frozenset,
        finalizes: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._index = index
        self._former_names = former_names
        self._finalizes = finalizes
        self._backends = {backend.provisioner: backend for backend in backends}
        self._store = store
        self._guards = guards
        self._clock = clock
        # By the uid of the claim.
        self._lost: dict[ClaimUid, _Lost] = {}
        # The uids of the volumes that this process has deleted.
        self._ordered: set[str] = set()

    def plan(self, claim: Claim) -> Plan | None:
        """The plan for the claim; None when this process must not serve it now.

        Raises ClaimRefused or LeftAlone when the claim cannot be served, NotYet when something does not exist
        yet.
        """
        is_root = claim.storage_class == ROOT_CLASS
        if is_root or not claim.wants_volume or self._index.volume_of(claim.uid):
            return None
        storage_class, backend = self._served_by(claim)
        # Kubernetes assigns a claim to a provisioner only if no existing volume fits. Before, a new one could
        # take the place of one with data: of a retained one, or of one that people have made.
        is_ours = backend is not None and claim.storage_provisioner == backend.provisioner
        if storage_class is None or backend is None or not is_ours:
            self._check_assigned_to_us(claim, storage_class)
            return None
        if storage_class.waits_for_consumer and not claim.selected_node:
            return None
        return backend.plan(claim, storage_class)

    def may_have_begun(self, claim: Claim) -> bool:
        """Whether an earlier process may have requested a volume in a directory that others may use.

        The class of the claim may have been deleted since.
        """
        if claim.storage_class in {None, "", ROOT_CLASS}:
            return False
        storage_class, backend = self._served_by(claim)
        return storage_class is None or (backend is not None and backend.shares_directories)

    def marks_refused(self, claim: Claim) -> bool:
        """Whether the refusal of that claim is recorded in its annotations."""
        _, backend = self._served_by(claim)
        return backend is not None and backend.marks_refused_claims

    def _served_by(self, claim: Claim) -> tuple[StorageClass | None, Backend | None]:
        """The class of the claim and the backend of that class, None for each that does not exist."""
        storage_class = self._index.classes.get(claim.storage_class or "")
        return storage_class, self._backends.get(storage_class.provisioner) if storage_class else None

    def _check_assigned_to_us(self, claim: Claim, storage_class: StorageClass | None) -> None:
        """Raise NotYet for a claim that Kubernetes assigned to us although its class is not ours.

        Raises LeftAlone when a provisioner has another name now.
        """
        if storage_class is not None:
            check_claim(claim, storage_class, self._backends, self._former_names())
        if claim.storage_provisioner not in self._backends:
            return
        if storage_class is None:
            raise StorageClassMissing(
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
        """Create the volume, idempotently. Raises KubeEfsError.

        After a failure ``again`` waits and decides whether to repeat the same plan. Its arguments are the
        error and whether the outcome is unclear: in that case another plan could give the claim a second
        volume. The directory stays reserved. ``is_begun`` means that an earlier attempt has begun with the
        plan. Otherwise NotYet is raised if the location changed while this call waited for the directory.
        """
        locations = await plan.locations()
        async with self._guards.reservations.making(*locations) as has_waited:
            if has_waited and not is_begun:
                # The volumes of a directory determine its file system, and one of them was just removed.
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
        """The volume; None when the attempt failed and must be repeated."""
        uid = plan.claim.uid
        if uid in self._lost and (known := self._index.volume_of(uid)):
            return known
        try:
            volume = await self._create(plan, await plan.make())
        except KubeEfsError as error:
            # A clear refusal to create the storage also decides earlier unclear attempts to create it.
            is_unclear = await self._is_unclear(plan.claim) or error.outcome_unknown
            may_have_begun = is_unclear or error.has_begun or not isinstance(error, NOTHING_BEGUN)
            if not (again and may_have_begun and await again(error, is_unclear)):
                raise
            return None
        self._index.made_volume(volume)
        return volume

    async def _is_unclear(self, claim: Claim) -> bool:
        """Whether an earlier request for the claim's volume may have taken or can still take effect.

        This must end after a time even without an answer. Otherwise there can be a deadlock: the storage is
        refused until the removal of another volume, and that removal waits for the directory reserved here.
        """
        lost = self._lost.get(claim.uid)
        if lost is None:
            return False
        if self._clock() < lost.at + _UNCLEAR_SECONDS:
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
        for attempt in range(NAMES_TRIED):
            # No await may separate these lines: from here on, no other volume can get the same storage.
            wanted = replace(made.volume(attempt), finalizers=(FINALIZER,) if self._finalizes else ())
            self._index.expect_volume(wanted)
            try:
                with span("volume.create", volume=wanted.name):
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
        """The volume of that name if an earlier attempt created it for this claim."""
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
        """Delete a released volume and its data; None when it must not be deleted.

        Waits while another task has reserved the directory. Raises RemovalRefused when a guard refuses,
        LeftAlone when its user may expect the removal, and KubeEfsError when the backend or the API server
        fails.
        """
        backend = self._backends.get(volume.provisioned_by or "")
        if volume.storage_class != ROOT_CLASS and (backend is None or backend.owns(volume)):
            check_volume(volume, self._backends, self._former_names())
        if backend is None:
            return None
        if _is_held_with_data_kept(volume) and backend.owns(volume):
            if volume.reclaim_policy is ReclaimPolicy.DELETE:
                reason = f"it was {volume.phase} when it was deleted, and not Released"
            else:
                reason = f"its reclaim policy is {volume.reclaim_policy}"
            return await self._release_and_keep_data(volume, reason)
        if not _is_removable(volume):
            return None
        try:
            return await self._remove(volume, backend)
        except (RemovalRefused, WorkerRefused) as error:
            if volume.uid in self._ordered:
                # This process has deleted the volume object, so deleting it manually would change nothing.
                remedy = error.remedy or "check it"
                error.remedy = (
                    f"{remedy}; or set the reclaim policy of this volume to Retain: the volume is deleted "
                    "and its data is kept"
                )
                raise
            if not (volume.deleting and backend.owns(volume)):
                raise
            # A user has deleted the volume, as users do with a volume that cannot be removed. The remedy is
            # how to get rid of the volume, which is then gone.
            error.remedy = ""
            return await self._release_and_keep_data(volume, str(error))

    async def _release_and_keep_data(self, volume: Volume, reason: str) -> Reclaimed | None:
        live = await self._live(volume)
        # The decision is from what watches have shown. If the volume has changed since, its data may have to
        # go.
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
            order = RemovalOrder(lambda: self._check_last(removal, live), permit)
            keeps_all = bool(permit.keeps) and removal.is_only_directory
            if not keeps_all:
                with suppress(DataKept):
                    await backend.remove(removal, order)
            if order.permit.keeps:
                # No order of an earlier leader may take effect after the deletion of the volume.
                await backend.settled(live)
            # Last: as long as the object exists, the next attempt, also of another leader, repeats the rest.
            await self._store.delete(live)
            self._ordered.discard(live.uid)
            keeps = order.permit.keeps
            self._index.removed_volume(volume, with_directory=not (removal.leaves_directory or keeps))
        return Reclaimed(
            volume=volume,
            data=DataFate.SHARED if keeps else DataFate.REMOVED,
            location=removal.directory.location if removal.directory else None,
            reason=keeps,
            above=order.permit.above,
        )

    async def _terminated(self, volume: Volume, removal: Removal) -> tuple[Volume, Permit] | None:
        """The Terminating volume and the guards' answer; None if it must no longer be removed.

        The deletion succeeds only if the object has not changed since the guards checked it. If it has
        changed, they check it again.
        """
        for _ in range(_CHANGES_FOLLOWED):
            live = await self._live(volume)
            if live is None or not _is_removable(live):
                return None
            if FINALIZER not in live.finalizers and self._finalizes:
                await self._store.protect(live)
                continue
            permit = await self._guards.check(removal, live)
            if live.deleting or FINALIZER not in live.finalizers:
                return live, permit
            try:
                # Recorded before the call, because its answer can be lost.
                self._ordered.add(live.uid)
                await self._store.terminate(live)
                return replace(live, deleting=True), permit
            except KubeConflict:
                self._ordered.discard(live.uid)
            except KubeNotFound:
                return None
        raise KubeConflict("changed too often", field="volume", value=volume.name, remedy="it is retried")

    async def _check_last(self, removal: Removal, volume: Volume) -> Permit:
        """The guards' last answer; raises KubeEfsError if the volume must no longer be removed."""
        is_committed = FINALIZER in volume.finalizers
        check = self._guards.check_last if is_committed else self._guards.check_listed
        permit = await check(removal, volume)
        # After the guards, which take time: a user may have changed the reclaim policy meanwhile.
        live = await self._live(volume)
        if live is None or live.deleting is not is_committed or not _is_removable(live):
            remedy = "it is checked again"
            raise KubeConflict("must no longer be removed", field="volume", value=volume.name, remedy=remedy)
        return permit

    def serves(self, volume: Volume) -> bool:
        """Whether the volume was created here for the claim of a user."""
        backend = self._backends.get(volume.provisioned_by or "")
        return backend is not None and backend.owns(volume) and volume.storage_class != ROOT_CLASS

    async def protect(self, volume: Volume) -> None:
        """Add our finalizer to a volume of ours, so that its directory is handled first; raises KubeError."""
        if self.is_unprotected(volume):
            await self._store.protect(volume)

    def is_unprotected(self, volume: Volume) -> bool:
        """Whether the volume is ours and has no finalizer, so that its deletion would keep the directory."""
        return (
            self._finalizes
            and self.serves(volume)
            and not volume.deleting
            and FINALIZER not in volume.finalizers
        )

    async def _live(self, volume: Volume) -> Volume | None:
        """The current object of the volume in the API server; None if it was deleted."""
        try:
            live = await self._store.get(volume.name)
        except KubeNotFound:
            self._index.forget_volume(volume.name)
            return None
        return live if live.uid == volume.uid else None


def _is_removable(volume: Volume) -> bool:
    return (
        volume.to_be_reclaimed
        and volume.storage_class != ROOT_CLASS
        and (not volume.deleting or FINALIZER in volume.finalizers)
    )


def _is_held_with_data_kept(volume: Volume) -> bool:
    """Whether the volume was deleted, its data must be kept, and our finalizer holds it."""
    return (
        volume.deleting
        and FINALIZER in volume.finalizers
        and volume.phase is not VolumePhase.BOUND
        and not _is_removable(volume)
    )
