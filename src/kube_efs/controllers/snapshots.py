"""VolumeSnapshotContents of the driver: creates and deletes their snapshots, as csi-snapshotter does.

snapshot-controller, which is installed once in a cluster, creates a content for each VolumeSnapshot. The
annotation for a snapshot that is being created is written before the first call, and removed when the outcome
is known. While it is there, the content is not deleted, so that no copy remains without an object.

A copy may fail each time, for example because a file cannot be read. If the VolumeSnapshot is deleted before
it is ready, the copy is therefore not completed first, as csi-snapshotter does, but stopped and removed.
"""

import asyncio
from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Final

import structlog
from lightkube import AsyncClient

from kube_efs.controllers.queue import WorkQueue
from kube_efs.kube.errors import translated
from kube_efs.kube.events import EventRecorder, EventType, Subject
from kube_efs.kube.references import References
from kube_efs.kube.snapshots import SnapshotStore, VolumeSnapshotContent, read_content
from kube_efs.kube.watching import Applied, Deleted, Listed, follow
from kube_efs.model.claims import SNAPSHOT_GROUP, ReclaimPolicy
from kube_efs.model.csi.errors import VolumeMissing, VolumePending
from kube_efs.model.csi.snapshots import parse_snapshot_id
from kube_efs.model.csi.volume_handles import parse_volume_handle
from kube_efs.model.errors import CopyDiffers, InvalidValue, KubeConflict, KubeEfsError, KubeError
from kube_efs.model.snapshots import FINALIZER, SnapshotContent
from kube_efs.model.volumes import DRIVER, CsiSource
from kube_efs.provisioning.copies import Follower
from kube_efs.provisioning.snapshots import Snapshots
from kube_efs.settings.controller import ControllerSettings
from kube_efs.telemetry.duties import Duties

log = structlog.get_logger(__name__)

# Most clusters have no VolumeSnapshots, and a cluster can get them at any time.
_KIND_AGAIN_SECONDS: Final = 60.0
_LONGEST_PAUSE_SECONDS: Final = 300.0
_SOON_SECONDS: Final = 0.1


class SnapshotController:
    """Serves the contents of the driver while ``watch`` runs."""

    def __init__(
        self,
        client: AsyncClient,
        snapshots: Snapshots,
        recorder: EventRecorder,
        *,
        backoff_seconds: float,
        duties: Duties,
    ) -> None:
        self._client = client
        self._snapshots = snapshots
        self._recorder = recorder
        self._backoff_seconds = backoff_seconds
        self._store = SnapshotStore(client)
        # By the name of the content: what decides about it, and the pause after its next failure.
        self._known: dict[str, tuple[object, ...]] = {}
        self._pauses: dict[str, float] = {}
        self._references = References(client)
        self._queue: WorkQueue[str] = WorkQueue("snapshots", self._handle, duties)

    async def watch(self) -> None:
        """Serve contents until cancelled; waits until the cluster has this kind of objects."""
        await self._kind_exists()
        async with self._queue:
            async for change in follow(
                self._client, VolumeSnapshotContent, read=lambda found: read_content(found.to_dict())
            ):
                match change:
                    case Listed(contents):
                        self._listed(contents)
                    case Applied(content):
                        self._seen(content)
                    case Deleted(content):
                        self._forget(content.name)

    async def _kind_exists(self) -> None:
        reported = ""
        while True:
            try:
                with translated("list VolumeSnapshotContent"):
                    async for _ in self._client.list(VolumeSnapshotContent, chunk_size=1):
                        break
            except KubeError as error:
                if str(error) != reported:
                    log.info("snapshots-not-served", reason=str(error))
                    reported = str(error)
                await asyncio.sleep(_KIND_AGAIN_SECONDS)
            else:
                return

    def _listed(self, contents: Collection[SnapshotContent]) -> None:
        for name in self._known.keys() - {one.name for one in contents}:
            self._forget(name)
        for one in contents:
            self._seen(one)

    def _forget(self, name: str) -> None:
        self._known.pop(name, None)
        self._pauses.pop(name, None)

    def _seen(self, content: SnapshotContent) -> None:
        """Handle the content unless only what this controller writes has changed.

        A snapshot that is not ready any more is handled: a request of an earlier attempt may be late.
        """
        if content.driver != DRIVER or self._known.get(content.name) == content.inputs:
            return
        self._known[content.name] = content.inputs
        self._queue.add(content.name)

    async def _handle(self, name: str) -> float | None:
        try:
            content = await self._store.content(name)
        except KubeError as error:
            log.warning("snapshot-not-read", content=name, reason=str(error))
            return self._backoff_seconds
        if content is None:
            # What the watch has not shown as deleted may exist: a proxy before the API server may have
            # answered.
            return self._backoff_seconds if name in self._known else None
        if content.driver != DRIVER:
            return None
        try:
            is_unfinished = await self._serve(content)
        except KubeEfsError as error:
            await self._report(content, error)
            pause = self._pauses.get(name, self._backoff_seconds)
            self._pauses[name] = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            return pause
        self._pauses.pop(name, None)
        return _SOON_SECONDS if is_unfinished and content.deleting else None

    async def _serve(self, content: SnapshotContent) -> bool:
        """Give whether the content can be deleted only after this."""
        if content.to_be_deleted:
            await self._delete(content)
        elif content.to_be_discarded:
            await self._discard(content)
            return True
        elif content.to_be_created:
            await self._create(content)
            return True
        elif content.given_handle and not content.is_ready and not content.deleting:
            # As csi-snapshotter does with a driver that cannot list snapshots.
            parse_snapshot_id(content.given_handle)
            now = datetime.now(UTC).timestamp()
            await self._store.record_ready(content, content.given_handle, created=now)
        elif content.is_being_created and content.is_ready:
            await self._store.mark_being_created(content, is_being_created=False)
            return True
        return False

    async def _create(self, content: SnapshotContent) -> None:
        role = await self._references.role(content.secret)
        if not content.is_being_created:
            await self._store.mark_being_created(content, is_being_created=True)
        try:
            handle = parse_volume_handle(content.volume_handle)
            report = partial(self._publish, content, EventType.NORMAL, "Copying")
            follower = Follower(report=report, is_gone=partial(self._is_unwanted, content))
            created = await self._snapshots.create(content.request_name, handle, role, follower)
        except VolumePending:
            raise  # Its copy may be complete.
        except (InvalidValue, CopyDiffers) as error:
            # Nothing exists and no attempt runs, so the content can be deleted.
            if not error.outcome_unknown:
                await self._store.mark_being_created(content, is_being_created=False)
            raise
        await self._store.record_ready(content, created.snapshot_id, created=created.created)
        await self._store.mark_being_created(content, is_being_created=False)
        log.info("snapshot-created", content=content.name, snapshot=created.snapshot_id)
        self._publish(content, EventType.NORMAL, "SnapshotReady", f"{created.snapshot_id} is complete")

    async def _is_unwanted(self, content: SnapshotContent) -> bool:
        live = await self._store.content(content.name)
        return live is None or live.uid != content.uid or live.to_be_discarded

    async def _discard(self, content: SnapshotContent) -> None:
        """Remove the unfinished copy, and then what says that it exists.

        With the policy Retain, a copy that has become complete stays: only a part of the data has no use.
        """
        handle = CsiSource(handle=content.volume_handle).volume_handle
        if handle is not None:  # Of a volume with a malformed one, nothing was copied.
            is_kept = content.deletion_policy is not ReclaimPolicy.DELETE
            confirm = None if is_kept else partial(self._confirm_removal, content)
            await self._snapshots.discard(content.request_name, handle, confirm)
        await self._store.mark_being_created(content, is_being_created=False)
        log.info("snapshot-discarded", content=content.name, snapshot=content.request_name)

    async def _delete(self, content: SnapshotContent) -> None:
        if content.has_data:
            # With the ID of another driver, there is nothing that could be removed here.
            with suppress(VolumeMissing):
                await self._snapshots.delete(content.handle, partial(self._confirm_removal, content))
            await self._store.record_removed(content)
            log.info("snapshot-deleted", content=content.name, snapshot=content.handle)
        if FINALIZER in content.finalizers:
            # Read again: the record of the removal has changed the version, without which the release is
            # refused.
            live = await self._store.content(content.name)
            if live is not None and live.uid == content.uid:
                await self._store.release(live)

    async def _confirm_removal(self, content: SnapshotContent) -> None:
        """Raise KubeConflict if the data must stay now, such as with the policy Retain; raises KubeError."""
        live = await self._store.content(content.name)
        is_to_go = live and not live.needs_data and (live.has_data or live.to_be_discarded)
        if live is None or live.uid != content.uid or not is_to_go:
            raise KubeConflict(
                "must no longer be removed",
                field="snapshot",
                value=content.handle or content.request_name,
                remedy="it is checked again",
            )

    async def _report(self, content: SnapshotContent, error: KubeEfsError) -> None:
        reason = "SnapshotDeleteError" if _is_leaving(content) else "SnapshotCreationFailed"
        log.warning("snapshot-failed", content=content.name, reason=str(error))
        self._publish(content, EventType.WARNING, reason, str(error))
        if _is_leaving(content):
            return
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            # The attempt may have taken hours, and its snapshot may be ready by an earlier request.
            live = await self._store.content(content.name)
            if live is None or live.uid != content.uid or live.is_ready or _is_leaving(live):
                return
            if live.problem == str(error):
                return
            # snapshot-controller shows it at the VolumeSnapshot.
            await self._store.record_problem(live, str(error), now=now)
        except KubeError as failure:
            log.warning("snapshot-problem-not-recorded", content=content.name, reason=str(failure))

    def _publish(self, content: SnapshotContent, kind: EventType, reason: str, message: str) -> None:
        subject = Subject(
            api_version=f"{SNAPSHOT_GROUP}/v1",
            kind="VolumeSnapshotContent",
            name=content.name,
            uid=content.uid,
            resource_version=content.resource_version,
        )
        self._recorder.publish(subject, kind, reason, message)


def _is_leaving(content: SnapshotContent) -> bool:
    return content.to_be_deleted or content.to_be_discarded


async def serve_snapshots(
    client: AsyncClient,
    settings: ControllerSettings,
    snapshots: Snapshots,
    recorder: EventRecorder,
    duties: Duties,
) -> None:
    """Serve all contents of the driver until cancelled."""
    pause = settings.provision_backoff_seconds
    controller = SnapshotController(client, snapshots, recorder, backoff_seconds=pause, duties=duties)
    await controller.watch()
