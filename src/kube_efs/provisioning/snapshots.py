"""Snapshots of volumes: copies of their directories on the same file system.

A snapshot is ready when it is complete, and not before: its source must not change until then, if the
snapshot must be consistent. It has its own directory, so the volume can be deleted afterwards.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import structlog

from kube_efs.kube.snapshots import SnapshotStore
from kube_efs.model.csi.cross_account import CrossAccountRole
from kube_efs.model.csi.errors import SourceRefused, VolumeMissing, VolumePending
from kube_efs.model.csi.root_directories import plain_name
from kube_efs.model.csi.snapshots import BASE, parse_snapshot_id, render_snapshot_id, snapshot_location
from kube_efs.model.csi.volume_handles import VolumeHandle, parse_volume_handle
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.errors import (
    AwsError,
    AwsNotFound,
    InvalidValue,
    KubeDenied,
    KubeEfsError,
    KubeError,
    KubeInvalid,
    NotYet,
    RemovalRefused,
    WorkerRefused,
)
from kube_efs.model.snapshots import SnapshotContent
from kube_efs.model.volumes import DRIVER, Location
from kube_efs.provisioning.copies import Copies, Follower, Recipient, check_copy
from kube_efs.provisioning.data_sources import DataSources
from kube_efs.provisioning.guards import Guards, Permit, RemovableDirectory, Removal, RemovalOrder
from kube_efs.provisioning.reservations import CALLER_PATIENCE_SECONDS
from kube_efs.provisioning.workers.contract import Directories, remove_directory
from kube_efs.provisioning.workers.pods import Busy
from kube_efs.single_flight import SingleFlight

log = structlog.get_logger(__name__)

# Volumes that are copies have keys of their own.
_KEY: Final = "snapshot."
# Errors of an attempt that no pod has carried out.
_NOTHING_COPIED: Final = (AwsError, KubeDenied, KubeInvalid, NotYet)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A complete snapshot; ``created`` is in seconds since 1970."""

    snapshot_id: str
    created: float


class Snapshots:
    """Creates and removes snapshots with ``directories``.

    ``check_stays`` raises VolumePending if a file system is being removed with everything in it.
    """

    def __init__(
        self,
        *,
        store: SnapshotStore,
        sources: DataSources,
        copies: Copies,
        directories: Directories,
        guards: Guards,
        check_stays: Callable[[FileSystemId], Awaitable[None]],
    ) -> None:
        self._check_stays = check_stays
        self._store = store
        self._sources = sources
        self._copies = copies
        self._directories = directories
        self._guards = guards
        # A removal needs a list that has begun after it; concurrent ones share it.
        self._needed = SingleFlight(self._list_needed)
        # The directories of snapshots that were begun, until they are removed: the answer can get lost.
        self._begun: set[Location] = set()

    async def create(
        self,
        name: str,
        handle: VolumeHandle,
        role: CrossAccountRole | None,
        follower: Follower | None = None,
    ) -> Snapshot:
        """The snapshot of that name; a repeated call gives the same one, and continues its copy.

        Raises VolumeMissing, InvalidArgument, SourceRefused, CopyDiffers when the name belongs to a snapshot
        of another directory, AwsError, KubeError, WorkerFailed, also when ``follower`` has stopped the copy.
        The latter three have ``has_begun`` if something may have been copied. A refusal and AwsNotFound have
        not: they may never end, and csi-snapshotter deletes no VolumeSnapshot whose creation may have begun.
        """
        place = snapshot_location(handle.file_system_id, name)
        try:
            return await self._create(name, handle, role, follower)
        except (InvalidValue, AwsNotFound):
            raise
        except KubeEfsError as error:
            error.has_begun = error.has_begun or place in self._begun
            raise

    async def _create(
        self, name: str, handle: VolumeHandle, role: CrossAccountRole | None, follower: Follower | None
    ) -> Snapshot:
        source = await self._sources.of_handle(handle, role)
        target = snapshot_location(source.location.file_system_id, name)
        # Only root can enter the directory of snapshots, and the ID keeps the owner for the next copy.
        check_copy(source, target, enforces_identity=True)
        key = _KEY + plain_name(name)
        recipient = Recipient(follower=follower or Follower(), tenant=self._sources.tenant_of(handle))
        was_begun = target in self._begun
        # Before the copy, which continues after the call.
        self._begun.add(target)
        try:
            copied = await self._copies.fill(
                self._directories, source, target, recipient, key=key, maps_owner=False
            )
        except _NOTHING_COPIED:
            if not was_begun:
                self._begun.discard(target)
            raise
        except WorkerRefused as error:
            self._begun.discard(target)
            raise SourceRefused(
                error.problem, field=error.field, value=error.value, remedy=error.remedy
            ) from error
        if copied is None:
            raise VolumePending("was not copied", field="snapshot", value=name, remedy="it is retried")
        # After the copy: a removal of the file system looks for snapshots after it has recorded that it
        # begins.
        with suppress(AwsNotFound):  # It belongs to another account.
            await self._check_stays(target.file_system_id)
        snapshot_id = render_snapshot_id(replace(source, location=target))
        return Snapshot(snapshot_id=snapshot_id, created=copied.finished)

    async def delete(self, snapshot_id: str, confirm: Callable[[], Awaitable[None]] | None = None) -> None:
        """Remove the data of the snapshot; a missing one is not an error.

        ``confirm`` raises KubeEfsError if the data must stay; it is called at the last reversible moment.
        Raises VolumeMissing for the ID of another driver, RemovalRefused when a volume or another
        VolumeSnapshotContent uses the directory, NotYet while the snapshot is copied, AwsError, KubeError,
        WorkerFailed.
        """
        location = parse_snapshot_id(snapshot_id).location
        removal = Removal(directory=RemovableDirectory(location=location, base=BASE, is_copy=True))

        async def ask() -> Permit:
            permit = await self._guards.check_without_volume(removal)
            if confirm is not None:
                await confirm()
            await self._check_contents(location)
            return permit

        async with self._guards.reservations.removing(location, patience_seconds=CALLER_PATIENCE_SECONDS):
            order = RemovalOrder(ask)
            await remove_directory(self._directories, removal, order)
            # Otherwise a later snapshot of the name would find the record of this one.
            await self._directories.discard_copy(location, _KEY + location.directory.parts[-1])
            self._begun.discard(location)

    async def discard(
        self, name: str, handle: VolumeHandle, confirm: Callable[[], Awaitable[None]] | None
    ) -> None:
        """Stop the copy for the snapshot of that name, and remove what was copied, also if it is complete.

        Without ``confirm``, which is that of ``delete``, a complete snapshot stays, and no file system keeps
        its VolumeSnapshotContent by being unreachable: what remains of a copy gets into the trash after
        a week. Raises RemovalRefused when another VolumeSnapshotContent has this snapshot, AwsError,
        KubeError, WorkerFailed; also while the pod of the copy has not ended.
        """
        if handle.kind is not FileSystemKind.EFS:  # Nothing was copied.
            return
        target = snapshot_location(handle.file_system_id, name)
        await self._check_contents(target)
        await self._copies.stop(self._directories, target)
        self._begun.discard(target)
        if confirm is not None:
            await self.delete(str(target), confirm)
            return
        try:
            await self._directories.discard_copy(target, _KEY + plain_name(name))
        except (Busy, KubeError):
            raise
        except KubeEfsError as error:
            log.warning("copy-not-discarded", snapshot=name, location=str(target), reason=str(error))

    async def _check_contents(self, location: Location) -> None:
        """Raise RemovalRefused if an object of Kubernetes needs the snapshot, such as one with Retain.

        An administrator can create any number of VolumeSnapshotContents with the ID of one snapshot, or with
        the uid of one VolumeSnapshot.
        """
        if name := (await self._needed()).get(location):
            raise RemovalRefused(
                f"is also used by VolumeSnapshotContent {name}",
                field="directory",
                value=str(location),
                remedy="delete that first, or set deletionPolicy to Retain",
            )

    async def _list_needed(self) -> Mapping[Location, str]:
        """The directories that contents of the cluster need, and the name of such a content."""
        contents = await self._store.contents(DRIVER)
        return {place: one.name for one in contents if one.needs_data and (place := _place(one))}


def _place(content: SnapshotContent) -> Location | None:
    """The directory that the content has, or will have as soon as its copy is complete."""
    snapshot_id = content.handle or content.given_handle
    with suppress(VolumeMissing, InvalidValue):
        if snapshot_id:
            return parse_snapshot_id(snapshot_id).location
        if content.to_be_created:
            file_system_id = parse_volume_handle(content.volume_handle).file_system_id
            return snapshot_location(file_system_id, content.request_name)
    return None
