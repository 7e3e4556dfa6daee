"""Pending claims: each is planned and served, and checked again when its inputs change.

The claim and the existing volumes decide whether the claim gets a volume (``Engine.plan``). The state of this
process never does, so a restart loses nothing. This is the state of the controller, by the claim's uid:

* ``_pending``: each claim that needs a volume, as last shown by the watch. If a uid is in the queue but not
  in here, the claim was deleted or has its volume.
* ``_begun``: plans of failed attempts that may have created something. If such a claim is deleted, its plan
  is completed nevertheless. Kubernetes then releases the volume, and it is removed normally with everything
  that was created for it. The entry is removed when the claim has its volume.
* ``_leaving``: deleted claims with such a plan that still exist, because of a finalizer. Their data sources
  count until they are gone. A plan that is refused meanwhile is completed after that.
* ``_refusals``: the published reason of each refusal. The annotation contains it too, but watches show it
  later.
* ``_short_of_gids``: claims of classes without a free group ID; they are retried when an ID is free.
* ``_pauses``: how long the next change of a claim with a failed attempt waits at least. Its author could
  otherwise cause any number of calls to AWS, whose rate limits apply to the whole account. Each change that
  is followed doubles the pause. Other changes, such as those of the class, cause an attempt at once.
* ``_waiting_since``: the start of each claim's wait, only for metrics.

``VolumeIndex.maybe_begun`` contains the claims whose volume an earlier leader may have requested: those that
were pending when this process began to lead. A claim leaves the set when it gets its volume or is deleted.
The set is cleared when the API server can no longer carry out late requests. Until it is empty, no volume is
removed. A file system that was chosen and recorded for one of these claims is not changed meanwhile.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

import structlog
from lightkube import AsyncClient
from lightkube.resources.core_v1 import PersistentVolumeClaim
from lightkube.resources.storage_v1 import StorageClass as StorageClassResource

from kube_efs.controllers.events import ProvisioningEvents
from kube_efs.controllers.expansions import ExpansionController
from kube_efs.controllers.queue import FAULT_DELAY_SECONDS, Controller
from kube_efs.kube.reading import read_claim, read_storage_class
from kube_efs.kube.watching import Applied, Change, Deleted, Listed, follow
from kube_efs.model.claims import Claim
from kube_efs.model.csi.errors import InvalidArgument
from kube_efs.model.efs.ids import ClaimUid
from kube_efs.model.errors import (
    ClaimRefused,
    GidRangeFull,
    KubeEfsError,
    LeftAlone,
    StorageClassMissing,
    WorkerDenied,
)
from kube_efs.model.tunnel_volumes import ROOT_CLASS
from kube_efs.provisioning.engine import Engine, Plan
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.telemetry.duties import Duties
from kube_efs.telemetry.metrics import ControllerMetrics, Outcome
from kube_efs.telemetry.traces import Span, trace

log = structlog.get_logger(__name__)

# The work for a deleted claim is completed unless it fails this often with a clear outcome.
_ATTEMPTS_FOR_A_GONE_CLAIM: Final = 8
_LONGEST_PAUSE_SECONDS: Final = 300.0
# So much later than a claim, its class is seen at the latest.
_LATE_CLASS_SECONDS: Final = 2.0
# Later, requests of an earlier leader have no effect: the API server drops them after a minute.
_LATE_SECONDS: Final = 90.0


class ClaimController(Controller[ClaimUid]):
    """Serves pending claims, after ``begin`` is set if given; use as ``async with``."""

    def __init__(
        self,
        *,
        engine: Engine,
        index: VolumeIndex,
        events: ProvisioningEvents,
        metrics: ControllerMetrics,
        backoff_seconds: float,
        duties: Duties,
        begin: asyncio.Event | None = None,
    ) -> None:
        super().__init__("claims", self._handle, duties)
        self._begin = begin
        self._engine = engine
        self._index = index
        self._events = events
        self._metrics = metrics
        self._backoff_seconds = backoff_seconds
        self._pending: dict[ClaimUid, Claim] = {}
        self._waiting_since: dict[ClaimUid, float] = {}
        self._refusals: dict[ClaimUid, str] = {}
        self._short_of_gids: set[ClaimUid] = set()
        self._begun: dict[ClaimUid, Plan] = {}
        self._leaving: dict[ClaimUid, Claim] = {}
        self._pauses: dict[ClaimUid, float] = {}
        self._outlasted = asyncio.Event()
        index.on_volume_gone = self._volume_gone

    def listed(self, claims: Sequence[Claim]) -> None:
        """Replace the known claims with a full list."""
        listed = {claim.uid for claim in claims}
        known = {**self._pending, **self._leaving}
        for claim in [one for uid, one in known.items() if uid not in listed]:
            self.gone(claim)
        for claim in claims:
            self.seen(claim)

    def seen(self, claim: Claim) -> None:
        """A claim is new or has changed."""
        if not claim.wants_volume:
            is_begun = claim.uid in self._begun or claim.uid in self._leaving
            self.gone(claim)
            if claim.deleting and is_begun:
                self._leaving[claim.uid] = claim
            return
        known = self._pending.get(claim.uid)
        self._pending[claim.uid] = claim
        is_cleared = known is not None and known.rejection is not None and claim.rejection is None
        if is_cleared:
            self._refusals.pop(claim.uid, None)
        if known is None or is_cleared or _inputs(known) != _inputs(claim):
            self._follow_change(claim.uid)

    def _follow_change(self, uid: ClaimUid) -> None:
        pause = self._pauses.get(uid, 0.0)
        if self._queue.add(uid, after_seconds=pause) and uid in self._pauses:
            self._pauses[uid] = min(max(1.0, 2 * pause), self._backoff_seconds)

    def gone(self, claim: Claim) -> None:
        """A claim was deleted, or no longer needs a volume."""
        self._pending.pop(claim.uid, None)
        self._leaving.pop(claim.uid, None)
        self._has_all_volumes(claim.uid)
        self._refusals.pop(claim.uid, None)
        self._short_of_gids.discard(claim.uid)
        self._pauses.pop(claim.uid, None)
        self._stop_waiting(claim.uid)
        if claim.uid in self._begun:
            self._queue.add(claim.uid)

    def _volume_gone(self, uid: ClaimUid) -> None:
        """The volume of the claim was deleted, or has another claim now."""
        if uid in self._pending:
            self._queue.add(uid)

    def class_changed(self, name: str) -> None:
        """A storage class is new or has changed."""
        for claim in self._pending.values():
            if claim.storage_class == name:
                self._queue.add(claim.uid)

    def file_systems_changed(self) -> None:
        """File systems or their ports have changed."""
        for uid in self._pending:
            self._queue.add(uid)

    def expect_late_volumes(self) -> None:
        """Assume that an earlier leader requested volumes for the claims that are pending now."""
        pending = self._pending.items()
        begun = {uid: claim for uid, claim in pending if self._engine.may_have_begun(claim)}
        self._index.maybe_begun = begun

    async def outlast_late_volumes(self) -> None:
        """Return when the API server can no longer create a volume that an earlier leader requested.

        A late volume is harmless if its claim was deleted, or if a volume of its name exists.
        """
        begun = self._index.maybe_begun
        with suppress(TimeoutError):
            async with asyncio.timeout(_LATE_SECONDS):
                while begun:
                    self._outlasted.clear()
                    await self._outlasted.wait()
        begun.clear()
        self.file_systems_changed()

    def _has_all_volumes(self, uid: ClaimUid) -> None:
        self._index.maybe_begun.pop(uid, None)
        self._outlasted.set()

    def gid_released(self) -> None:
        """A group ID is free."""
        short_of_gids, self._short_of_gids = self._short_of_gids, set()
        for uid in short_of_gids & self._pending.keys():
            self._queue.add(uid)

    async def _handle(self, uid: ClaimUid) -> float | None:
        if self._begin is not None:
            await self._begin.wait()
        claim = self._pending.get(uid)
        if claim is None:
            await self._finish(uid)
            return None
        with trace("claim.provision", claim=claim.key, storage_class=claim.storage_class or "") as traced:
            return await self._attempt(claim, traced)

    async def _attempt(self, claim: Claim, traced: Span) -> float | None:
        try:
            plan = self._engine.plan(claim)
            if plan is not None and await self._accept(claim):
                # The state may have changed during the write.
                plan = self._engine.plan(claim)
            if plan is None:
                traced.drop()
                return None
            await self._serve(plan, traced)
            traced.note(outcome=Outcome.SUCCEEDED)
        except ClaimRefused as error:
            _trace_failure(traced, error, Outcome.REFUSED)
            return await self._refuse(claim, error, traced)
        except LeftAlone as error:
            _trace_failure(traced, error, Outcome.REFUSED)
            self._stop_waiting(claim.uid)
            self._events.left_alone(claim, error)
        except KubeEfsError as error:
            if isinstance(error, StorageClassMissing) and claim.uid not in self._waiting_since:
                # Two watches are not in step: a class that is older than the claim may be seen after it.
                self._waits(claim.uid)
                traced.drop()
                return _LATE_CLASS_SECONDS
            if isinstance(error, GidRangeFull):
                self._short_of_gids.add(claim.uid)
                self._metrics.gid_range_full.labels(claim.storage_class).inc()
            self._waits(claim.uid)
            if claim.uid in self._pending:
                self._pauses.setdefault(claim.uid, 0.0)
            self._events.failed(claim, error, retry_seconds=self._backoff_seconds)
            # Only a person can change the policy of a file system; an alert would not end.
            outcome = Outcome.REFUSED if isinstance(error, WorkerDenied) else Outcome.RETRIED
            _trace_failure(traced, error, outcome)
            self._count(claim, outcome)
            return self._backoff_seconds
        return None

    def _report_fault(self, uid: ClaimUid, error: Exception) -> None:
        if claim := self._pending.get(uid):
            self._waits(uid)
            self._pauses.setdefault(uid, 0.0)
            self._events.failed(claim, error, retry_seconds=FAULT_DELAY_SECONDS)

    async def _accept(self, claim: Claim) -> bool:
        """Withdraw the refusal of the claim; returns whether its annotations were written."""
        is_refused = claim.rejection is not None or claim.uid in self._refusals
        is_marked = is_refused and self._engine.marks_refused(claim)
        if is_marked:
            await self._events.accepted(claim)
        self._refusals.pop(claim.uid, None)
        return is_marked

    async def _serve(self, plan: Plan, traced: Span) -> None:
        started = self._waits(plan.claim.uid)
        self._events.provisioning(plan)
        volume = await self._engine.provision(plan, again=self._persistence(plan))
        traced.note(volume=volume.name)
        self._begun.pop(plan.claim.uid, None)
        self._has_all_volumes(plan.claim.uid)
        self._events.provisioned(plan, volume)
        self._stop_waiting(plan.claim.uid)
        self._count(plan.claim, Outcome.SUCCEEDED)
        self._metrics.provisioning_seconds.labels(self._provisioner(plan.claim)).observe(
            time.monotonic() - started
        )

    def _persistence(self, plan: Plan) -> Callable[[KubeEfsError, bool], Awaitable[bool]]:
        """Decides whether an attempt continues after a failure; returns true after a pause.

        It continues only while its outcome is unclear, because another plan could give the claim a second
        volume. Its directory stays reserved during the pause. After any other failure, the directory must be
        free: the attempt may wait for a removal, which may wait for the directory.
        """
        claim, pause = plan.claim, self._backoff_seconds

        async def again(error: KubeEfsError, is_unclear: bool) -> bool:
            nonlocal pause
            self._begun[claim.uid] = plan
            if not is_unclear:
                return False
            is_gone = claim.uid not in self._pending
            await self._failed(claim, error, pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS) if is_gone else self._backoff_seconds
            return True

        return again

    async def _failed(self, claim: Claim, error: KubeEfsError, pause_seconds: float) -> None:
        """Report the failure of an attempt that is repeated after a pause, and wait for that long."""
        self._events.failed(claim, error, retry_seconds=pause_seconds)
        self._count(claim, Outcome.RETRIED)
        await asyncio.sleep(pause_seconds)

    async def _finish(self, uid: ClaimUid) -> None:
        """Create the volume of a deleted claim, if an attempt has begun.

        Work in progress is completed, so that the volume is then removed with everything that was created for
        it. After some failures, it is left unfinished.
        """
        plan = self._begun.pop(uid, None)
        if plan is None or self._index.volume_of(uid):
            return
        log.info("claim-gone", claim=plan.claim.key, reason="work in progress is completed, then undone")
        again, was_there, is_done = self._persistence(plan), uid in self._leaving, True
        pause, left = self._backoff_seconds, _ATTEMPTS_FOR_A_GONE_CLAIM
        try:
            while True:
                try:
                    await self._engine.provision(plan, again=again, is_begun=True)
                except KubeEfsError as error:
                    if not isinstance(error, ClaimRefused | InvalidArgument) and left:
                        await self._failed(plan.claim, error, pause)
                        pause, left = min(2 * pause, _LONGEST_PAUSE_SECONDS), left - 1
                        continue
                    log.warning("claim-left-unfinished", claim=plan.claim.key, reason=str(error))
                    is_done = False
                return
        finally:
            self._begun.pop(uid, None)
            if was_there and not is_done:
                # As long as the claim exists, its data source counts. So this is tried again without it.
                self._begun[uid] = plan
                if uid not in self._leaving:
                    self._queue.add(uid)

    async def _refuse(self, claim: Claim, error: ClaimRefused, traced: Span) -> float | None:
        self._stop_waiting(claim.uid)
        reason = str(error)
        if reason == self._refusals.get(claim.uid, claim.rejection):
            traced.drop()
            return None
        try:
            await self._events.refused(claim, reason, marked=self._engine.marks_refused(claim))
        except KubeEfsError as failure:
            self._events.failed(claim, failure, retry_seconds=self._backoff_seconds)
            return self._backoff_seconds
        self._refusals[claim.uid] = reason
        self._count(claim, Outcome.REFUSED)
        return None

    def _waits(self, uid: ClaimUid) -> float:
        """The time since which the claim has waited for its volume."""
        since = self._waiting_since.setdefault(uid, time.monotonic())
        self._metrics.claims_waiting.set(len(self._waiting_since))
        return since

    def _stop_waiting(self, uid: ClaimUid) -> None:
        self._waiting_since.pop(uid, None)
        self._metrics.claims_waiting.set(len(self._waiting_since))

    def _count(self, claim: Claim, outcome: Outcome) -> None:
        self._metrics.provisionings.labels(self._provisioner(claim), outcome).inc()

    def _provisioner(self, claim: Claim) -> str:
        storage_class = self._index.classes.get(claim.storage_class or "")
        return storage_class.provisioner if storage_class else ""


async def watch_claims(
    client: AsyncClient,
    claims: ClaimController,
    expansions: ExpansionController,
    root_changed: Callable[[], None],
    listed: asyncio.Event,
) -> None:
    """Pass every claim to the controllers, until cancelled; ``listed`` is set when all are known.

    ``root_changed`` is called when a root claim was deleted.
    """
    async for change in follow(
        client, PersistentVolumeClaim, read=lambda found: read_claim(found.to_dict()), namespace="*"
    ):
        _apply((claims, expansions), change, root_changed)
        listed.set()
        # Release the list: nearly all of its claims have volumes, and nothing else references them.
        del change


def _apply(
    controllers: tuple[ClaimController, ExpansionController],
    change: Change[Claim],
    root_changed: Callable[[], None],
) -> None:
    match change:
        case Listed(objects):
            for one in controllers:
                one.listed(objects)
        case Applied(claim):
            for one in controllers:
                one.seen(claim)
        case Deleted(claim):
            for one in controllers:
                one.gone(claim)
            if claim.storage_class == ROOT_CLASS:
                root_changed()


async def watch_classes(
    client: AsyncClient, index: VolumeIndex, claims: ClaimController, listed: asyncio.Event
) -> None:
    """Update the index's classes, until cancelled; ``listed`` is set when all are known."""
    async for change in follow(
        client, StorageClassResource, read=lambda found: read_storage_class(found.to_dict())
    ):
        match change:
            case Listed(objects):
                found_now = {one.name: one for one in objects}
                changed = {name for name, one in found_now.items() if index.classes.get(name) != one}
                index.classes = found_now
                listed.set()
            case Applied(one):
                index.classes[one.name] = one
                changed = {one.name}
            case Deleted(one):
                index.classes.pop(one.name, None)
                changed = set()
        for name in changed:
            claims.class_changed(name)


def _trace_failure(traced: Span, error: KubeEfsError, outcome: Outcome) -> None:
    traced.fail(error)
    traced.note(outcome=outcome)


def _inputs(claim: Claim) -> tuple[object, ...]:
    """The fields that can change the outcome; a change of other fields causes no retry."""
    return (
        claim.storage_class,
        claim.match_labels,
        claim.access_modes,
        claim.requested_storage,
        claim.selected_node,
        claim.storage_provisioner,
        claim.labels,
        claim.annotations,
    )
