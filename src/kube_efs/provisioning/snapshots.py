"""Snapshots of volumes: copies of their directories on the same file system.

A snapshot is ready when it is complete, and not before: its source must not change until then, if the
snapshot must be consistent. It has its own directory, so the volume can be deleted afterwards.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from kube_efs.kube.snapshots import SnapshotStore
from kube_efs.model.csi.cross_account import CrossAccountRole
from kube_efs.model.csi.errors import SourceRefused, VolumeMissing, VolumePending
from kube_efs.model.csi.root_directories import plain_name
from kube_efs.model.csi.snapshots import BASE, parse_snapshot_id, render_snapshot_id, snapshot_location
from kube_efs.model.csi.volume_handles import VolumeHandle
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import AwsNotFound, RemovalRefused, WorkerRefused
from kube_efs.model.volumes import DRIVER, Location
from kube_efs.provisioning.copies import Copies, check_copy
from kube_efs.provisioning.data_sources import DataSources
from kube_efs.provisioning.guards import Guards, Permit, RemovableDirectory, Removal, RemovalOrder
from kube_efs.provisioning.workers.contract import Directories, remove_directory

# Volumes that are copies have keys of their own.
_KEY: Final = "snapshot."


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

    async def create(
        self,
        name: str,
        handle: VolumeHandle,
        role: CrossAccountRole | None,
        report: Callable[[str], None] | None = None,
    ) -> Snapshot:
        """The snapshot of that name; a repeated call gives the same one, and continues its copy.

        ``report`` receives the progress. Raises VolumeMissing, InvalidArgument, SourceRefused, CopyDiffers
        when the name belongs to a snapshot of another directory, AwsError, KubeError, WorkerFailed.
        """
        source = await self._sources.of_handle(handle, role)
        target = snapshot_location(source.location.file_system_id, name)
        # Only root can enter the directory of snapshots, and the ID keeps the owner for the next copy.
        check_copy(source, target, enforces_identity=True)
        key = _KEY + plain_name(name)
        try:
            copied = await self._copies.fill(
                self._directories, source, target, key=key, maps_owner=False, report=report
            )
        except WorkerRefused as error:
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
        VolumeSnapshotContent uses the directory, AwsError, KubeError, WorkerFailed.
        """
        location = parse_snapshot_id(snapshot_id).location
        removal = Removal(directory=RemovableDirectory(location=location, base=BASE, is_copy=True))

        async def ask() -> Permit:
            permit = await self._guards.check_without_volume(removal)
            if confirm is not None:
                await confirm()
            await self._check_contents(location)
            return permit

        async with self._guards.reservations.removing(location):
            order = RemovalOrder(ask)
            await remove_directory(self._directories, removal, order)
            # Otherwise a later snapshot of the name would find the record of this one.
            await self._directories.discard_copy(location, _KEY + location.directory.parts[-1])

    async def _check_contents(self, location: Location) -> None:
        """Raise RemovalRefused if an object of Kubernetes needs the snapshot, such as one with Retain.

        An administrator can create any number of VolumeSnapshotContents with the ID of one snapshot.
        """
        for content in await self._store.contents():
            snapshot_id = content.handle or content.given_handle
            if content.driver != DRIVER or not content.needs_data or not snapshot_id:
                continue
            with suppress(VolumeMissing):
                if parse_snapshot_id(snapshot_id).location == location:
                    raise RemovalRefused(
                        f"is also used by VolumeSnapshotContent {content.name}",
                        field="directory",
                        value=str(location),
                        remedy="delete that first, or set deletionPolicy to Retain",
                    )
