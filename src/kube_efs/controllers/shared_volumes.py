"""SharedVolumes: each is brought, step by step, to where its volume and claim are there, or gone."""

from collections.abc import Collection
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self

import structlog

from kube_efs.controllers.queue import WorkQueue
from kube_efs.controllers.shared_volume_events import SharedVolumeNews
from kube_efs.kube.shared_volume_store import SharedVolumeStore
from kube_efs.model.errors import KubeAlreadyExists, KubeConflict, KubeError, KubeNotFound
from kube_efs.model.shared_volume_plan import Found, decide, failed
from kube_efs.model.shared_volumes import Owner, SharedVolume, SharedVolumePhase, Status
from kube_efs.provisioning.shared_volumes import SharedVolumeSteps

log = structlog.get_logger(__name__)

# More than there are steps from nothing to Ready; more would be somebody else who undoes them.
_MOST_STEPS = 12
_SOON_SECONDS = 1.0
# Whoever uses a claim that is to go can change without any sign of it.
_LOOK_AGAIN_SECONDS = 10.0
_WAITING = frozenset({SharedVolumePhase.PENDING, SharedVolumePhase.DELETING})
# Somebody else has changed, made or deleted what a step is about.
_OVERTAKEN = (KubeConflict, KubeAlreadyExists, KubeNotFound)


class SharedVolumeController(AbstractAsyncContextManager["SharedVolumeController"]):
    """Serves SharedVolumes; use as ``async with``.

    It remembers names only: whatever is decided is decided by what the API has at that moment.
    """

    def __init__(
        self,
        store: SharedVolumeStore,
        steps: SharedVolumeSteps,
        news: SharedVolumeNews,
        *,
        backoff_seconds: float,
    ) -> None:
        self._store = store
        self._steps = steps
        self._news = news
        self._backoff_seconds = backoff_seconds
        self._known: set[Owner] = set()
        self._failed: set[Owner] = set()
        self._queue: WorkQueue[Owner] = WorkQueue(self._handle)

    async def __aenter__(self) -> Self:
        await self._queue.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._queue.__aexit__(kind, error, trace)

    def listed(self, owners: Collection[Owner]) -> None:
        """These are all the SharedVolumes there are."""
        for owner in self._known - set(owners):
            self.gone(owner)
        for owner in owners:
            self.seen(owner)

    def seen(self, owner: Owner) -> None:
        """A SharedVolume is new or has changed."""
        self._known.add(owner)
        self._queue.add(owner)

    def gone(self, owner: Owner) -> None:
        """A SharedVolume is gone."""
        self._known.discard(owner)
        self._failed.discard(owner)
        self._news.gone(owner)

    def touched(self, owner: Owner) -> None:
        """A volume or claim that may be this SharedVolume's is new, has changed or is gone."""
        if owner in self._known:
            self._queue.add(owner)

    def room_made(self) -> None:
        """A volume or claim is gone, which may have been in somebody's way."""
        for owner in self._failed:
            self._queue.add(owner)

    def limits_changed(self, namespace: str) -> None:
        """What a namespace may use is another."""
        for owner in self._known:
            if owner.namespace == namespace:
                self._queue.add(owner)

    def look_at_all(self) -> None:
        """Changes of volumes or claims may have been missed."""
        for owner in self._known:
            self._queue.add(owner)

    async def _handle(self, owner: Owner) -> float | None:
        try:
            shared = await self._store.get(owner)
            if shared is not None:
                return await self._bring_on(shared)
        except _OVERTAKEN:
            return _SOON_SECONDS
        except KubeError as error:
            log.warning(
                "shared-volume-not-served",
                shared_volume=str(owner),
                reason=str(error),
                retry_seconds=self._backoff_seconds,
            )
            return self._backoff_seconds
        self._news.gone(owner)
        return None

    async def _bring_on(self, shared: SharedVolume) -> float | None:
        outcome = await self._outcome(shared)
        return None if outcome is None else await self._settle(*outcome)

    async def _outcome(self, shared: SharedVolume) -> tuple[SharedVolume, Status] | None:
        """Take steps until nothing is left to do; None once the SharedVolume is on its own."""
        found = Found(shared=shared)
        try:
            found = await self._steps.look(shared)
            for _ in range(_MOST_STEPS):
                decision = decide(found)
                if isinstance(decision, Status):
                    return found.shared, decision
                after = await self._steps.take(decision, found)
                self._news.taken(decision, found)
                if after is None:
                    return None
                found = after
        except _OVERTAKEN:
            raise
        except KubeError as error:
            return found.shared, failed(found, str(error))
        return found.shared, failed(found, "somebody undoes what is written to its volume or claim")

    async def _settle(self, shared: SharedVolume, status: Status) -> float | None:
        """Show the status; the seconds until the next look, None when none is due."""
        owner = shared.owner
        is_failed = status.phase is SharedVolumePhase.FAILED
        (self._failed.add if is_failed else self._failed.discard)(owner)
        self._news.settled(shared, status)
        if status != shared.status:
            await self._store.write_status(shared, status)
        if is_failed:
            return self._backoff_seconds
        is_waiting = status.phase in _WAITING
        return min(_LOOK_AGAIN_SECONDS, self._backoff_seconds) if is_waiting else None
