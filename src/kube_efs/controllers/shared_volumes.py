"""Reconciles SharedVolumes: creates or deletes the volume and the claim of each, step by step."""

import asyncio
from collections import defaultdict
from collections.abc import Collection
from contextlib import AsyncExitStack
from dataclasses import replace

import structlog
from lightkube import AsyncClient
from lightkube.resources.core_v1 import Namespace, PersistentVolume, PersistentVolumeClaim

from kube_efs.controllers.queue import Controller
from kube_efs.controllers.shared_volume_events import SharedVolumeEvents
from kube_efs.kube.events import EventRecorder
from kube_efs.kube.reading import Json
from kube_efs.kube.shared_volume_store import SharedVolumeStore
from kube_efs.kube.shared_volumes import (
    Inputs,
    SharedVolumeResource,
    read_inputs,
    read_marked_volume,
    read_owner,
    read_status,
)
from kube_efs.kube.watching import Applied, Deleted, Listed, follow
from kube_efs.model.errors import KubeAlreadyExists, KubeConflict, KubeError, KubeNotFound
from kube_efs.model.shared_volumes.limits import ANNOTATION
from kube_efs.model.shared_volumes.plan import Found, decide, failed
from kube_efs.model.shared_volumes.shared_volume import (
    OWNED,
    Owner,
    SharedVolume,
    SharedVolumePhase,
    Status,
    owner_of_claim,
)
from kube_efs.provisioning.shared_volumes import SharedVolumeSteps
from kube_efs.settings.controller import ControllerSettings
from kube_efs.telemetry.duties import Duties
from kube_efs.telemetry.metrics import SharedVolumeMetrics

log = structlog.get_logger(__name__)

# More than the steps to Ready; if they are not sufficient, another client reverts them.
_STEPS_MAX = 12
_SOON_SECONDS = 1.0
# The users of a claim that is being deleted can change without an event.
_CHECK_AGAIN_SECONDS = 10.0
_LONGEST_PAUSE_SECONDS = 300.0
_WAITING = frozenset({SharedVolumePhase.PENDING, SharedVolumePhase.DELETING})
# Another client has changed, created or deleted the object of a step.
_OVERTAKEN = (KubeConflict, KubeAlreadyExists, KubeNotFound)


_LABELS = {OWNED: "true"}


class SharedVolumeController(Controller[Owner]):
    """Serves SharedVolumes; use as ``async with``.

    It stores only names; every decision uses the current objects in the API.
    """

    def __init__(
        self,
        store: SharedVolumeStore,
        steps: SharedVolumeSteps,
        events: SharedVolumeEvents,
        *,
        backoff_seconds: float,
        duties: Duties,
    ) -> None:
        super().__init__("shared volumes", self._handle, duties)
        self._store = store
        self._steps = steps
        self._events = events
        self._backoff_seconds = backoff_seconds
        self._known: set[Owner] = set()
        # Of each one, the status that was read or written last.
        self._statuses: dict[Owner, Status] = {}
        # By the names of their volumes: two of different namespaces can have the same one.
        self._failed: defaultdict[str, set[Owner]] = defaultdict(set)
        # Why each one waits or has failed, and since when.
        self._waiting: dict[Owner, tuple[str, float]] = {}

    def listed(self, owners: Collection[Owner]) -> None:
        """Replace the known SharedVolumes with a full list."""
        for owner in self._known - set(owners):
            self.gone(owner)
        for owner in owners:
            self.seen(owner)

    def seen(self, owner: Owner) -> None:
        """A SharedVolume is new or has changed."""
        self._known.add(owner)
        self._queue.add(owner)

    def status_seen(self, owner: Owner, status: Status) -> None:
        """Only the status has changed; another one than the last known may be that of a late request.

        Its text alone is no reason to try again. An error whose text is another one each time would be
        retried without a pause, and what has failed is retried anyway.
        """
        known = self._statuses.get(owner)
        if known is None or replace(known, message="") != replace(status, message=""):
            self._queue.add(owner)

    def gone(self, owner: Owner) -> None:
        """A SharedVolume was deleted."""
        self._known.discard(owner)
        self._forget(owner)

    def touched(self, owner: Owner) -> None:
        """A volume or claim that may belong to this SharedVolume is new, has changed or was deleted."""
        if owner in self._known:
            self._queue.add(owner)

    def name_freed(self, volume: str) -> None:
        """A volume was deleted; its name may have blocked a SharedVolume of another namespace.

        All others are not checked again: users can delete as many volumes and claims as they want.
        """
        for owner in self._failed.get(volume, ()):
            self._queue.add(owner)

    def limits_changed(self, namespace: str) -> None:
        """The limits of a namespace changed."""
        for owner in self._known:
            if owner.namespace == namespace:
                self._queue.add(owner)

    def reconcile_all(self) -> None:
        """Reconcile all: changes of volumes or claims may have been missed."""
        for owner in self._known:
            self._queue.add(owner)

    async def _handle(self, owner: Owner) -> float | None:
        try:
            shared = await self._store.get(owner)
            if shared is not None:
                self._statuses[owner] = shared.status
                outcome = await self._outcome(shared)
                return None if outcome is None else await self._settle(*outcome)
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
        self._forget(owner)
        return None

    async def _outcome(self, shared: SharedVolume) -> tuple[SharedVolume, Status] | None:
        """Run steps until nothing is left to do; None without our finalizer on one that is deleted."""
        found = Found(shared=shared)
        try:
            found = await self._steps.look(shared)
            for _ in range(_STEPS_MAX):
                decision = decide(found)
                if decision is None:
                    return None
                if isinstance(decision, Status):
                    return found.shared, decision
                after = await self._steps.take(decision, found)
                self._events.taken(decision, found)
                if after is None:
                    return None
                found = after
                self._statuses[shared.owner] = found.shared.status
        except _OVERTAKEN:
            raise
        except KubeError as error:
            return found.shared, failed(found, str(error))
        return found.shared, failed(found, "another client reverts the changes to its volume or claim")

    async def _settle(self, shared: SharedVolume, status: Status) -> float | None:
        """Write the status; returns the seconds until the next check, None without one."""
        owner = shared.owner
        is_failed = status.phase is SharedVolumePhase.FAILED
        if is_failed:
            self._failed[owner.volume_name].add(owner)
        else:
            self._has_not_failed(owner)
        # One that was deleted meanwhile is handled once more, and then forgotten.
        is_final = status.is_lasting and owner in self._known
        if is_final or not (is_failed or status.is_waiting):
            self._waiting.pop(owner, None)
        self._events.settled(shared, status)
        if status != shared.status:
            # Before the write, because the watch may show it before its answer arrives.
            self._statuses[owner] = status
            await self._store.write_status(shared, status)
        if is_failed:
            # Without its text, which can be another one each time.
            return None if is_final else self._growing_pause(owner, str(status.phase), self._backoff_seconds)
        pause = min(_CHECK_AGAIN_SECONDS, self._backoff_seconds)
        if status.is_waiting:
            # For the message only: watches show when the claim or the volume is gone.
            return self._growing_pause(owner, status.message, pause)
        return pause if status.phase in _WAITING else None

    def _growing_pause(self, owner: Owner, reason: str, shortest: float) -> float:
        """The time that the reason has lasted, from ``shortest`` to five minutes.

        A wait or a failure may never end: users can add finalizers to their claims, or have a quota.
        """
        now = asyncio.get_running_loop().time()
        before, since = self._waiting.get(owner, ("", now))
        if before != reason:
            since = now
        self._waiting[owner] = reason, since
        return max(shortest, min(now - since, _LONGEST_PAUSE_SECONDS))

    def _forget(self, owner: Owner) -> None:
        self._has_not_failed(owner)
        self._waiting.pop(owner, None)
        self._statuses.pop(owner, None)
        self._events.gone(owner)

    def _has_not_failed(self, owner: Owner) -> None:
        owners = self._failed.get(owner.volume_name, set())
        owners.discard(owner)
        if not owners:
            self._failed.pop(owner.volume_name, None)


async def serve_shared_volumes(
    client: AsyncClient,
    settings: ControllerSettings,
    recorder: EventRecorder,
    metrics: SharedVolumeMetrics,
    duties: Duties,
) -> None:
    """Serve SharedVolumes until cancelled."""
    store = SharedVolumeStore(client)
    async with AsyncExitStack() as stack:
        controller = SharedVolumeController(
            store,
            SharedVolumeSteps(store, settings.shared_volume_limits),
            SharedVolumeEvents(recorder, metrics),
            backoff_seconds=settings.provision_backoff_seconds,
            duties=duties,
        )
        await stack.enter_async_context(controller)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        tasks.create_task(_watch_shared_volumes(client, controller))
        tasks.create_task(_watch_volumes(client, controller))
        tasks.create_task(_watch_claims(client, controller))
        tasks.create_task(watch_limits(client, controller))


async def _watch_shared_volumes(client: AsyncClient, controller: SharedVolumeController) -> None:
    handled: dict[Owner, Inputs] = {}
    # Each object is converted at once, because one of a tenant may have more than a megabyte.
    async for change in follow(client, SharedVolumeResource, read=_read_seen, namespace="*"):
        match change:
            case Listed(objects):
                handled = {owner: inputs for owner, inputs, _ in objects}
                controller.listed(handled)
            case Applied((owner, inputs, status)):
                if handled.get(owner) != inputs:
                    controller.seen(owner)
                else:
                    controller.status_seen(owner, status)
                handled[owner] = inputs
            case Deleted((owner, _, _)):
                handled.pop(owner, None)
                controller.gone(owner)


def _read_seen(found: Json) -> tuple[Owner, Inputs, Status]:
    return read_owner(found), read_inputs(found), read_status(found)


async def _watch_volumes(client: AsyncClient, controller: SharedVolumeController) -> None:
    async for change in follow(client, PersistentVolume, labels=_LABELS):
        match change:
            case Listed():
                controller.reconcile_all()
            case Applied(found):
                _touch(controller, _owner_of_volume(found))
            case Deleted(found):
                _touch(controller, _owner_of_volume(found))
                controller.name_freed((found.metadata and found.metadata.name) or "")


async def _watch_claims(client: AsyncClient, controller: SharedVolumeController) -> None:
    async for change in follow(
        client, PersistentVolumeClaim, read=_read_owner_of_claim, namespace="*", labels=_LABELS
    ):
        match change:
            case Listed():
                controller.reconcile_all()
            case Applied(owner):
                _touch(controller, owner)
            case Deleted(owner):
                # Its name belongs to one SharedVolume only.
                _touch(controller, owner)


async def watch_limits(client: AsyncClient, controller: SharedVolumeController) -> None:
    """Pass each namespace with a changed limit annotation to the controller, until cancelled."""
    limits: dict[str, str | None] = {}

    def compare(namespace: Namespace) -> None:
        name, limit = _limit(namespace)
        if limits.get(name, limit) != limit:
            controller.limits_changed(name)
        limits[name] = limit

    async for change in follow(client, Namespace):
        match change:
            case Listed(objects):
                for one in objects:
                    compare(one)
            case Applied(found):
                compare(found)
            case Deleted(found):
                limits.pop(_limit(found)[0], None)


def _limit(namespace: Namespace) -> tuple[str, str | None]:
    metadata = namespace.metadata
    name = (metadata and metadata.name) or ""
    return name, ((metadata and metadata.annotations) or {}).get(ANNOTATION)


def _touch(controller: SharedVolumeController, owner: Owner | None) -> None:
    if owner:
        controller.touched(owner)


def _owner_of_volume(volume: PersistentVolume) -> Owner | None:
    """The owner of the volume: by its claim reference, or without one, by its labels."""
    body: Json = volume.to_dict()
    reference: Json | None = (body.get("spec") or {}).get("claimRef")
    return _owner_in(reference) if reference else read_marked_volume(body).marks.owner


def _read_owner_of_claim(found: PersistentVolumeClaim) -> Owner | None:
    return _owner_in(found.to_dict()["metadata"])


def _owner_in(name: Json) -> Owner | None:
    return owner_of_claim(name.get("namespace", ""), name.get("name", ""))
