"""Tunnel volumes: NFS to the node's own loopback, where stunnel waits (openshift-efs-stunnel)."""

from dataclasses import dataclass

from kube_efs.model.claims import Claim, StorageClass
from kube_efs.model.errors import NotYet
from kube_efs.model.tunnel_volumes import (
    TunnelRequest,
    is_served,
    parse_request,
    removable_location,
    volume_for,
)
from kube_efs.model.volumes import Location, Volume
from kube_efs.provisioning.backends import Directories
from kube_efs.provisioning.inventory import Inventory


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelPlan:
    """A directory behind the tunnel at ``port``."""

    request: TunnelRequest
    port: int
    provisioner: str
    directories: Directories

    @property
    def claim(self) -> Claim:
        """The claim that is served."""
        return self.request.claim

    @property
    def location(self) -> Location:
        """Where its data will lie."""
        return self.request.location

    async def make(self) -> None:
        """Make the directory."""
        await self.directories.make(self.location)

    def volume(self, attempt: int) -> Volume:
        """The volume of that attempt."""
        return volume_for(self.request, port=self.port, provisioner=self.provisioner, attempt=attempt)


class TunnelBackend:
    """Serves the classes of one provisioner name."""

    def __init__(self, *, provisioner: str, inventory: Inventory, directories: Directories) -> None:
        self._provisioner = provisioner
        self._inventory = inventory
        self._directories = directories

    def serves(self, storage_class: StorageClass) -> bool:
        """Whether the class names this provisioner."""
        return storage_class.provisioner == self._provisioner

    def plan(self, claim: Claim, storage_class: StorageClass) -> TunnelPlan | None:
        """A directory and a port for the claim."""
        if not is_served(claim):
            return None
        request = parse_request(claim, storage_class, self._inventory.discovery)
        port = self._inventory.targets.port_of(request.location.file_system_id)
        if port is None:
            remedy = "it gets one with the next discovery"
            value = str(request.location.file_system_id)
            raise NotYet("has no tunnel port yet", field="file system", value=value, remedy=remedy)
        return TunnelPlan(
            request=request, port=port, provisioner=self._provisioner, directories=self._directories
        )

    def owns(self, volume: Volume) -> bool:
        """Whether this provisioner made the volume, by its annotation."""
        return volume.provisioned_by == self._provisioner

    def removable(self, volume: Volume) -> Location:
        """The directory of the volume."""
        return removable_location(volume)

    async def remove(self, location: Location) -> None:
        """Remove the directory; raises NotYet while the file system is out of reach."""
        if self._inventory.targets.port_of(location.file_system_id) is None:
            remedy = "delete the volume by hand if the file system is gone for good"
            value = str(location.file_system_id)
            raise NotYet("is not known (any more)", field="file system", value=value, remedy=remedy)
        await self._directories.remove(location)
