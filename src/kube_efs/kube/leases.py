"""Leadership by a Lease, with the semantics of client-go's leader election.

Time is measured with the monotonic clock of this process, from the moment it saw a change of the Lease. It
never compares the clocks of two machines. A leader that cannot renew stops before another candidate can take
over, so two never work at the same time. For this, the three times must grow in this order: retry period,
renew deadline, duration. The leader counts its deadline from before it sent its last renewal; others count
the duration from when they saw it, which is later.

Requests do not stop with their leader. The API server may carry out one that was sent before, after the next
leader has begun. So a leader releases its Lease at the end only if no such request can do harm; otherwise it
leaves the Lease to expire. A candidate that finds a holder in an expired Lease ``follows_a_crash``, and must
wait with everything that a late request could spoil.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Final

import structlog
from lightkube import AsyncClient
from lightkube.models.coordination_v1 import LeaseSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.coordination_v1 import Lease

from kube_efs.kube.lease_objects import LeaseObject, LockKind
from kube_efs.model.errors import KubeAlreadyExists, KubeConflict, KubeError, KubeNotFound

log = structlog.get_logger(__name__)

# The annotation of a Lease with what its holder serves, separated by blanks.
SERVES: Final = "efs-stunnel.gnuthought.com/serves"
# A terminating process has little time left.
_RELEASE_SECONDS = 2.0
_NO_ANSWER = "no answer in time"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTerms:
    """The Lease, the candidate, and the times of client-go (all in seconds).

    ``duration`` is how long others wait after the last renewal they saw, ``renew_deadline`` how long
    the leader tries to renew, ``retry_period`` the time between two attempts. ``kind`` is the kind of object
    that stores the Lease. ``serves`` are the provisioners that the leader serves, for the candidates of other
    Leases.
    """

    namespace: str
    name: str
    identity: str
    kind: LockKind = LockKind.LEASE
    duration_seconds: float = 15.0
    renew_deadline_seconds: float = 10.0
    retry_period_seconds: float = 2.0
    serves: frozenset[str] = frozenset()


class _Outcome(Enum):
    HELD = auto()
    HELD_BY_ANOTHER = auto()
    UNKNOWN = auto()


class Leadership:
    """One candidate's view of one Lease."""

    def __init__(self, client: AsyncClient, terms: LeaseTerms, clock: Callable[[], float]) -> None:
        self._object = LeaseObject(client=client, kind=terms.kind, namespace=terms.namespace, name=terms.name)
        self._terms = terms
        self._clock = clock
        self._seen_version = ""
        self._seen_at = clock()
        self._renewed_at = clock()
        # As the last renewal has left it. The next one then needs one request, not two, so that an API server
        # under load answers in time. A Lease that has changed since is read first.
        self._held: Lease | None = None
        self.is_leader = False
        # False if the former leader has released the Lease. Otherwise, for example after a crash or a
        # deletion of the Lease, the API server may still carry out requests of that leader. Without leader
        # election, nobody knows.
        self.follows_a_crash = True
        self._is_released = True

    async def acquire(self) -> None:
        """Wait until this candidate leads; a leader of the same identity is this candidate before a restart.

        After a crash, the Lease is not released at the end unless ``release_at_end`` is called: the next
        leader must know of the requests of the crashed one, too.
        """
        while await self._try() is not _Outcome.HELD:
            # Candidates must not repeat their attempts at the same moments.
            pause = self._terms.retry_period_seconds * random.uniform(1.0, 1.2)  # noqa: S311
            await asyncio.sleep(pause)
        self.is_leader, self._is_released = True, not self.follows_a_crash
        log.info("leadership-acquired", lease=self._terms.name, identity=self._terms.identity)

    async def keep(self) -> None:
        """Renew the Lease; returns when renewals have failed for the deadline, or another candidate leads."""
        outcome = _Outcome.HELD
        while outcome is not _Outcome.HELD_BY_ANOTHER:
            await asyncio.sleep(self._terms.retry_period_seconds)
            remaining = self._renewed_at + self._terms.renew_deadline_seconds - self._clock()
            try:
                async with asyncio.timeout(remaining):
                    outcome = await self._try()
            except TimeoutError:
                break
        self.is_leader = False
        log.error("leadership-lost", lease=self._terms.name, identity=self._terms.identity)

    def leave_to_expire(self) -> None:
        """Do not release the Lease at the end: a request of this leader can still take effect."""
        self._is_released = False

    def expect_late_requests(self) -> None:
        """Treat the former leader as crashed: requests of another process can still take effect."""
        self.follows_a_crash, self._is_released = True, False

    def release_at_end(self) -> None:
        """Release the Lease at the end: no request of an earlier leader can still take effect."""
        self._is_released = True

    async def release(self) -> None:
        """Let the next candidate take over at once; after a failure, it waits for the Lease to expire."""
        self.is_leader = False
        if not self._is_released:
            log.info("lease-not-released", lease=self._terms.name, reason="late requests are possible")
            return
        await self._give_back(self._terms.serves)

    async def withdraw(self) -> None:
        """Give the Lease back before any work: this candidate serves nothing.

        The next leader of the Lease still waits for the late requests of one that has crashed.
        """
        self.is_leader = False
        await self._give_back(frozenset())

    async def _give_back(self, serves: frozenset[str]) -> None:
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                lease = await self._object.get()
                if lease.spec and lease.spec.holderIdentity == self._terms.identity:
                    if self._is_released:
                        lease.spec.holderIdentity = ""
                        # As client-go does: the API server refuses 0.
                        lease.spec.leaseDurationSeconds = 1
                    _say(lease, serves)
                    await self._object.replace(lease)
        except (KubeError, TimeoutError) as error:
            log.info("lease-not-released", lease=self._terms.name, reason=str(error) or _NO_ANSWER)

    async def _try(self) -> _Outcome:
        # Others measure from when they saw the renewal, which may be long before its answer arrives here.
        started = self._clock()
        try:
            # If a connection is silently broken, time must remain for an attempt on another one.
            async with asyncio.timeout(self._terms.renew_deadline_seconds / 2):
                outcome = await self._create_or_take()
        except (KubeConflict, KubeAlreadyExists):
            # Usual, so without a warning: another candidate was faster. The next attempt reads the Lease.
            return _Outcome.UNKNOWN
        except (KubeError, TimeoutError) as error:
            log.warning("lease-not-reachable", lease=self._terms.name, reason=str(error) or _NO_ANSWER)
            return _Outcome.UNKNOWN
        if outcome is _Outcome.HELD:
            self._renewed_at = started
        return outcome

    async def _create_or_take(self) -> _Outcome:
        if await self._renew():
            return _Outcome.HELD
        try:
            lease = await self._object.get()
        except KubeNotFound:
            await self._object.create(self._new())
            if not self.is_leader:
                # Perhaps somebody has deleted the Lease of a leader.
                self.follows_a_crash = True
            return _Outcome.HELD
        spec = lease.spec = lease.spec or LeaseSpec()
        version = (lease.metadata and lease.metadata.resourceVersion) or ""
        # Any change of the object is a sign of life. The times in it are from the clock of another machine.
        if version != self._seen_version:
            self._seen_version, self._seen_at = version, self._clock()
        if not self._may_take(spec):
            return _Outcome.HELD_BY_ANOTHER
        former = spec.holderIdentity
        now = datetime.now(UTC)
        if spec.holderIdentity != self._terms.identity:
            spec.leaseTransitions = (spec.leaseTransitions or 0) + 1
            spec.acquireTime = now
        spec.holderIdentity = self._terms.identity
        spec.leaseDurationSeconds = round(self._terms.duration_seconds)
        spec.renewTime = now
        _say(lease, self._terms.serves)
        self._held = await self._object.replace(lease)
        if not self.is_leader:
            # While it leads, the holder is this candidate itself.
            self.follows_a_crash = bool(former)
        return _Outcome.HELD

    async def _renew(self) -> bool:
        """Renew the Lease as this candidate has last written it; False if it must be read first."""
        # Forgotten until the answer: after a lost one, its version is unknown.
        lease, self._held = self._held, None
        if lease is None or lease.spec is None:
            return False
        lease.spec.renewTime = datetime.now(UTC)
        try:
            self._held = await self._object.replace(lease)
        except (KubeConflict, KubeNotFound):
            return False
        return True

    def _may_take(self, spec: LeaseSpec) -> bool:
        if not spec.holderIdentity or spec.holderIdentity == self._terms.identity:
            return True
        granted = float(spec.leaseDurationSeconds or self._terms.duration_seconds)
        return self._clock() - self._seen_at > granted

    def _new(self) -> Lease:
        now = datetime.now(UTC)
        spec = LeaseSpec(
            holderIdentity=self._terms.identity,
            leaseDurationSeconds=round(self._terms.duration_seconds),
            acquireTime=now,
            renewTime=now,
            leaseTransitions=0,
        )
        lease = Lease(metadata=ObjectMeta(namespace=self._terms.namespace, name=self._terms.name), spec=spec)
        _say(lease, self._terms.serves)
        return lease


def _say(lease: Lease, serves: frozenset[str]) -> None:
    """Write what the holder of the Lease serves; nothing if it is the Lease of another kind of process."""
    metadata = lease.metadata = lease.metadata or ObjectMeta()
    annotations = metadata.annotations or {}
    if serves or SERVES in annotations:
        metadata.annotations = {**annotations, SERVES: " ".join(sorted(serves))}
