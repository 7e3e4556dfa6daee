"""Tunnel volumes: NFS to a loopback port of the node, where stunnel listens (openshift-efs-stunnel)."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self, TypeAlias

from kube_efs.model.claims import Claim, StorageClass
from kube_efs.model.efs.directories import Relation
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import NotYet, RemovalRefused
from kube_efs.model.nfs_volumes import tunnel_port
from kube_efs.model.tunnel_volumes import (
    BASE,
    NAMES_TRIED,
    ClusterView,
    TunnelRequest,
    parse_request,
    removable_location,
    volume_for,
    volume_name,
)
from kube_efs.model.volumes import Location, Volume
from kube_efs.provisioning.copies import Copies, Recipient, volume_key
from kube_efs.provisioning.guards import RemovableDirectory, Removal, RemovalOrder, tenant_of
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.provisioning.workers.contract import Directories, remove_directory

# Records on the claim the file system that was chosen for it. Raises KubeError, and NotYet if somebody has
# changed the record since the claim was read.
RecordChoice: TypeAlias = Callable[[Claim, FileSystemId], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelPlan:
    """A directory behind the tunnel of its file system."""

    request: TunnelRequest
    provisioner: str
    index: VolumeIndex
    directories: Directories
    copies: Copies
    record_choice: RecordChoice

    @property
    def claim(self) -> Claim:
        """The claim that is served."""
        return self.request.claim

    async def locations(self) -> tuple[Location, ...]:
        """The location of its data."""
        return (self.request.location,)

    @property
    def place(self) -> str:
        """The directory."""
        return str(self.request.location)

    def place_of(self, volume: Volume) -> str:
        """The directory, as for ``place``."""
        return self.place

    @property
    def warnings(self) -> tuple[str, ...]:
        """This backend reports none."""
        return ()

    async def prepare(self) -> None:
        """Record the file system on the claim, if it was chosen by ``auto``."""
        if self.request.is_chosen:
            await self.record_choice(self.claim, self.request.location.file_system_id)

    async def make(self) -> Self:
        """Create the directory, and fill it if the claim asks for a copy."""
        source = await self.copies.source_for(self.claim, self.request.location)
        if source is not None:
            await self.copies.await_earlier(self.directories, self.request.location, self.claim)
        permissions = self.request.permissions
        if self._belongs_to_others:
            permissions = replace(permissions, enforced=False)
        await self.directories.make(self.request.location, permissions)
        if source is not None:
            # These volumes have no identity of their own: pods use the owners of the files.
            await self.copies.fill(
                self.directories,
                source,
                self.request.location,
                Recipient(claim=self.claim, has_other_users=self._has_other_users),
                key=volume_key(self.claim),
                maps_owner=False,
            )
        return self

    def _has_other_users(self) -> bool:
        """Whether volumes of other claims are in the directory, or in one below it."""
        own = {volume_name(self.request, attempt) for attempt in range(NAMES_TRIED)}
        related = self.index.users_of(self.request.location)
        return not (related[Relation.SAME] | related[Relation.BELOW]) <= own

    @property
    def _belongs_to_others(self) -> bool:
        """Whether a provisioner gave this directory, or one above it, to a claim of another namespace.

        A namespace can have the name of any directory at the top of the file system, such as the base of
        another provisioner, or a volume in it. It must not change the modes there. Static volumes of
        administrators do not count, such as those for backups.

        A volume whose port belongs to another file system than its annotation names counts on both, because
        its pods see the modes behind the port. Elsewhere only the annotated one counts: a claim gets the file
        system on which its data is, and IDs are held where the volume was created.
        """
        related = self.index.users_of(self.request.location)
        names = related[Relation.SAME] | related[Relation.ABOVE]
        volumes = [self.index.volumes[name] for name in names if name in self.index.volumes]
        return any(
            one.provisioned_by is not None
            and one.claim is not None
            and one.claim.namespace != self.claim.namespace
            for one in volumes
        )

    def volume(self, attempt: int) -> Volume:
        """The volume of that attempt, with the current port; raises NotYet.

        The file system may have been missing and have got another port since the plan was made.
        """
        port = tunnel_port(self.request.location.file_system_id, self.index.targets)
        return volume_for(self.request, port=port, provisioner=self.provisioner, attempt=attempt)

    async def adopt(self, found: Volume) -> None:
        """Nothing: the earlier attempt created the same directory."""


class TunnelBackend:
    """Serves the classes of one provisioner name."""

    def __init__(
        self,
        *,
        provisioner: str,
        index: VolumeIndex,
        directories: Directories,
        copies: Copies,
        record_choice: RecordChoice,
    ) -> None:
        self._provisioner = provisioner
        self._index = index
        self._directories = directories
        self._copies = copies
        self._record_choice = record_choice

    @property
    def provisioner(self) -> str:
        """The provisioner of its classes."""
        return self._provisioner

    @property
    def marks_refused_claims(self) -> bool:
        """Yes: users of the older system know these annotations."""
        return True

    @property
    def shares_directories(self) -> bool:
        """Yes: the claims of one namespace and ``volume_name`` do."""
        return True

    def plan(self, claim: Claim, storage_class: StorageClass) -> TunnelPlan:
        """A directory and a port for the claim."""
        known = self._index
        view = ClusterView(
            discovery=known.discovery,
            targets=known.targets,
            volumes_at=known.volumes_at,
            own_vpcs=known.own_vpcs,
            maybe_begun=known.maybe_begun,
        )
        request = parse_request(claim, storage_class, view)
        tunnel_port(request.location.file_system_id, known.targets)  # Without one, the claim waits.
        return TunnelPlan(
            request=request,
            provisioner=self._provisioner,
            index=known,
            directories=self._directories,
            copies=self._copies,
            record_choice=self._record_choice,
        )

    def owns(self, volume: Volume) -> bool:
        """Yes: all file systems of the region are its own."""
        return True

    async def removal(self, volume: Volume) -> Removal:
        """The directory of the volume; raises NotYet while the file system is unknown."""
        location = removable_location(volume)
        if self._index.targets.port_of(location.file_system_id) is None:
            remedy = "if the file system was deleted, delete the volume and remove its finalizer"
            value = str(location.file_system_id)
            raise NotYet("is not known", field="file system", value=value, remedy=remedy)
        return Removal(directory=RemovableDirectory(location=location, base=BASE), tenant=tenant_of(volume))

    async def settled(self, volume: Volume) -> None:
        """Return when no worker pod can remove the directory any more."""
        with suppress(RemovalRefused):  # No order was ever given for such a directory.
            await self._directories.settled(removable_location(volume))

    async def remove(self, removal: Removal, order: RemovalOrder) -> None:
        """Remove the directory."""
        await remove_directory(self._directories, removal, order)
