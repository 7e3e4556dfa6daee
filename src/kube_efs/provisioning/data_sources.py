"""What a new volume is a copy of: the data of a claim's volume, of a volume handle, or of a snapshot."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias

from kube_efs.kube.claims import ClaimStore
from kube_efs.kube.references import References
from kube_efs.kube.snapshots import SnapshotStore
from kube_efs.kube.volumes import VolumeStore
from kube_efs.model.claims import Claim, ClaimPhase, DataSource, DataSourceKind
from kube_efs.model.copies import SNAPSHOTS, CopySource, FileOwner
from kube_efs.model.csi.access_points import AccessPoint
from kube_efs.model.csi.cross_account import CrossAccountRole
from kube_efs.model.csi.errors import InvalidArgument, VolumeMissing
from kube_efs.model.csi.snapshots import parse_snapshot_id
from kube_efs.model.csi.volume_handles import VolumeHandle, parse_volume_handle
from kube_efs.model.efs.directories import Directory
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.errors import KubeNotFound, NotYet
from kube_efs.model.volumes import DRIVER, Location, Volume
from kube_efs.provisioning.guards import tenant_of
from kube_efs.provisioning.volume_index import VolumeIndex

# The access point of a handle in the account of a role, read from AWS; None if it does not exist. Raises
# RemovalRefused when it belongs to another file system, and AwsError.
FindAccessPoint: TypeAlias = Callable[[VolumeHandle, CrossAccountRole | None], Awaitable[AccessPoint | None]]


class DataSources:
    """Finds the data of claims, handles and snapshots."""

    def __init__(
        self,
        *,
        claims: ClaimStore,
        volumes: VolumeStore,
        snapshots: SnapshotStore,
        references: References,
        find_access_point: FindAccessPoint,
        index: VolumeIndex,
    ) -> None:
        self._claims = claims
        self._volumes = volumes
        self._snapshots = snapshots
        self._references = references
        self._find_access_point = find_access_point
        self._index = index

    async def of_claim(self, claim: Claim) -> CopySource | None:
        """What the claim's volume is a copy of; None for a claim without a data source.

        Raises NotYet while the source does not exist or is not ready, InvalidArgument when it cannot be
        copied, AwsError and KubeError.
        """
        source = claim.data_source
        if source is None:
            return None
        if source.kind == DataSourceKind.SNAPSHOT:
            return parse_snapshot_id(
                await self._snapshots.handle(claim.namespace, source.name, driver=DRIVER)
            )
        found = await self._claims.get(claim.namespace, source.name)
        if found is None or found.phase is not ClaimPhase.BOUND:
            problem = "does not exist" if found is None else "is not bound yet"
            raise _not_yet(problem, claim, source)
        volume = await self._volumes.get(found.volume_name)
        # Only the volume says whose it is: a claim can name any volume, also one with the data of others.
        if volume.claim is None or volume.claim.uid != found.uid:
            raise _not_yet("is not bound to its volume yet", claim, source)
        return await self._of_volume(volume)

    async def check_unchanged(self, source: CopySource, claim: Claim | None) -> None:
        """Raise NotYet unless the source is still the data to copy, as the API server and AWS answer now.

        A volume that is being removed is not: its directory may be in the trash already. Also raises what the
        first search for it raises. A snapshot is not read again: its directory is never taken for that of an
        empty volume, so a worker refuses a missing one.
        """
        if source.location.directory.parts[:1] == (SNAPSHOTS,):
            return
        found: CopySource | None = source
        if source.handle is not None:
            await self._check_stays(source.handle)
            found = await self.of_handle(source.handle, source.role)
        elif claim is not None:
            found = await self.of_claim(claim)
        if found != source:
            raise NotYet(
                "is no longer the data to copy",
                field="data source",
                value=str(source.location),
                remedy="the next attempt copies the current data source",
            )

    async def _check_stays(self, handle: VolumeHandle) -> None:
        """Raise NotYet if the volume with that handle is being removed; its access point is the last of it.

        Its directory may be in the trash already, and would count as that of an empty volume. A removal keeps
        the data for another volume with the handle.
        """
        known = []
        for name in self._names(handle):
            with suppress(KubeNotFound):
                known.append(await self._volumes.get(name))
        if known and all(one.to_be_reclaimed for one in known):
            raise NotYet(
                "is being removed with its data",
                field="volume",
                value=known[0].name,
                remedy="delete the snapshot or the claim that would copy it; if the data must stay, set the "
                "reclaim policy of the volume to Retain",
            )

    async def _of_volume(self, volume: Volume) -> CopySource:
        if volume.csi is not None and volume.csi.driver == DRIVER:
            role = await self._references.role(volume.deletion_secret)
            return await self._of_entrance(volume.handle or parse_volume_handle(volume.csi.handle), role)
        location = self._index.location_of(volume.name)
        if location is None:
            raise NotYet(
                "has no known directory on EFS",
                field="volume",
                value=volume.name,
                remedy="use a claim with a volume on EFS",
            )
        return CopySource(location=location)

    async def of_handle(self, handle: VolumeHandle, role: CrossAccountRole | None) -> CopySource:
        """The data of the volume with that handle.

        Its access point may be in its mount options, which snapshots and csi-provisioner do not give. Raises
        VolumeMissing, InvalidArgument for S3 Files and if several access points are possible, and AwsError.
        """
        given = handle
        if handle.access_point_id is None and handle.base is None:
            sources = [(one, one.csi) for one in self._index.volumes.values() if one.csi is not None]
            entrances = {one.handle for one, csi in sources if csi.volume_handle == handle and one.handle}
            if len(entrances) > 1:
                raise InvalidArgument(
                    "is the handle of several volumes with different access points in their mount options",
                    field="data source",
                    value=str(handle),
                    remedy="create the volume again with the access point in its handle",
                )
            handle = entrances.pop() if entrances else handle
        return replace(await self._of_entrance(handle, role), handle=given, role=role)

    def tenant_of(self, handle: VolumeHandle) -> str:
        """The tenant of the volume with that handle; empty if it has no claim.

        A snapshot is in the namespace of the claim, but csi-snapshotter does not tell which one that is.
        """
        tenants = {tenant_of(self._index.volumes[name]) for name in self._names(handle)}
        return min(tenants - {""}, default="")

    def _names(self, handle: VolumeHandle) -> Sequence[str]:
        """The names of the known volumes with that handle."""
        volumes, point = self._index.volumes, handle.access_point_id
        names = volumes if point is None else self._index.volumes_through(point)
        known = (volumes[name] for name in names if name in volumes)
        return [one.name for one in known if one.csi and one.csi.volume_handle == handle]

    async def _of_entrance(self, handle: VolumeHandle, role: CrossAccountRole | None) -> CopySource:
        if handle.kind is not FileSystemKind.EFS:
            raise InvalidArgument(
                "is on S3 Files, whose directories are not copied",
                field="data source",
                value=str(handle),
                remedy="copy the objects of the bucket",
            )
        if handle.access_point_id is None:
            return CopySource(
                location=Location(file_system_id=handle.file_system_id, directory=handle.directory)
            )
        found = await self._find_access_point(handle, role)
        if found is None:
            raise VolumeMissing("no longer has an access point", field="data source", value=str(handle))
        directory = Directory((*found.directory.parts, *handle.directory.parts))
        return CopySource(
            location=Location(file_system_id=handle.file_system_id, directory=directory),
            owner=FileOwner(uid=found.user.uid, gid=found.user.gid) if found.user else None,
            may_be_missing=handle.directory.is_root,
        )


def _not_yet(problem: str, claim: Claim, source: DataSource) -> NotYet:
    return NotYet(
        problem, field="spec.dataSource", value=f"{claim.namespace}/{source.name}", remedy="it is waited for"
    )
