"""What this process knows of the cluster's volumes, kept up by the watch of volumes.

Every question asked while a claim is served is answered from here in constant time, so that one more
volume costs the same however many there are. Beside volumes the index has what claims are planned with:
classes, file systems and their ports, and group ids (``gid_ledger.py``).

Watches are late, and answers get lost. So the index errs on one side: what may be there counts as there.

* A volume that is about to be made is *expected* (``expect_volume``): its directory counts as used before the
  request is sent, and no list that is older than the request takes it away. Watches show it, or the API
  server refuses it (``refused_volume``).
* A volume that this process has removed is *gone* by its uid (``removed_volume``): a watch that is behind
  does not bring it back.
* Who needs to know that a volume does not exist does not ask the index alone: the guards wait until the watch
  has come far enough (``seen_terminating``), and look up what is in the way.

A volume is found by its name, by its claim, by its directory, by its access point and by its port. All of
these are kept by ``_locate`` and ``_unlocate`` alone.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from kube_efs.model.claims import Claim, ReclaimPolicy, StorageClass
from kube_efs.model.csi.claims import DRIVER
from kube_efs.model.csi.volume_handles import AccessPointId, VolumeHandle, parse_volume_handle
from kube_efs.model.efs.directories import Directory, Relation
from kube_efs.model.efs.file_systems import Discovery
from kube_efs.model.efs.ids import ClaimUid, FileSystemId, VpcId
from kube_efs.model.efs.targets import PortUse, TunnelTargets
from kube_efs.model.errors import InvalidValue
from kube_efs.model.loopback import is_loopback
from kube_efs.model.tunnel_volumes import ROOT_CLASS
from kube_efs.model.volumes import Location, Volume, locate, unlocated_directory
from kube_efs.provisioning.gid_ledger import GidLedger

# What an NFS mount without the option port connects to.
_NFS_PORT = 2049


class DirectoryIndex:
    """Which volumes use which directory, and how many lie below it."""

    def __init__(self) -> None:
        self._users: defaultdict[Location, set[str]] = defaultdict(set)
        self._below: Counter[Location] = Counter()

    def add(self, location: Location, volume: str) -> None:
        """Note that the volume uses that directory."""
        if volume not in self._users[location]:
            self._users[location].add(volume)
            self._below.update(_above(location))

    def discard(self, location: Location, volume: str) -> None:
        """Forget that the volume uses that directory."""
        users = self._users.get(location, set())
        if volume in users:
            users.remove(volume)
            self._below.subtract(_above(location))
            if not users:
                del self._users[location]

    def sharers(self, location: Location, volume: str) -> frozenset[str]:
        """The other volumes of exactly that directory."""
        return frozenset(self._users.get(location, set()) - {volume})

    def related(self, location: Location) -> Mapping[Relation, frozenset[str]]:
        """The volumes of that directory, of those above it and of those below it."""
        above = {name for place in _above(location) for name in self._users.get(place, ())}
        below: set[str] = set()
        if self._below[location] > 0:  # which is rare, so that looking through all costs little
            below = {
                name
                for place, names in self._users.items()
                if place.file_system_id == location.file_system_id
                and location.directory in place.directory.ancestors
                for name in names
            }
        return {
            Relation.SAME: frozenset(self._users.get(location, ())),
            Relation.ABOVE: frozenset(above),
            Relation.BELOW: frozenset(below),
        }


def _above(location: Location) -> list[Location]:
    return [
        Location(file_system_id=location.file_system_id, directory=ancestor)
        for ancestor in location.directory.ancestors
    ]


class VolumeIndex:
    """Volumes as last seen, with the classes, file systems, ports and group ids of the cluster.

    ``servers`` are names of file systems that do not tell which one they are of.
    """

    def __init__(self, servers: Mapping[str, FileSystemId] = MappingProxyType({})) -> None:
        self.classes: dict[str, StorageClass] = {}
        self.discovery = Discovery()
        self.own_vpcs: frozenset[VpcId] = frozenset()
        # Claims whose volume an earlier leader may have asked for, so that it may be made at any moment.
        self.maybe_begun: dict[ClaimUid, Claim] = {}
        self.directories = DirectoryIndex()
        self._servers = servers
        self._targets = TunnelTargets()
        self._volumes: dict[str, Volume] = {}
        self.gid_ledger = GidLedger(self._volumes)
        self.gids = self.gid_ledger.gids
        self._by_claim: dict[ClaimUid, str] = {}
        self._locations: dict[str, Location] = {}
        # NFS volumes that may lie on any file system, with the directories that they lead to.
        self.unlocated: dict[str, Directory] = {}
        # By the volume's name, directories of the CSI driver that others have created: nothing reports their
        # IDs.
        self.without_id: dict[str, Location] = {}
        # Those that are mounted from the node's own loopback, also while they are being made.
        self._behind_ports: dict[str, Volume] = {}
        # By the volume's name, the access point that it leads through; and the other way round.
        self._entrances: dict[str, AccessPointId] = {}
        self._through: defaultdict[AccessPointId, set[str]] = defaultdict(set)
        # By their uids, those that this process has removed while watches may still show them.
        self._gone: set[str] = set()
        # By their names, those that were asked for and that no watch has shown.
        self._expected: set[str] = set()
        # By their uids, those that had the policy Retain when they were last seen and not Terminating.
        self._retained: set[str] = set()
        self._changed = asyncio.Event()

    @property
    def targets(self) -> TunnelTargets:
        """The ports of the file systems."""
        return self._targets

    @targets.setter
    def targets(self, targets: TunnelTargets) -> None:
        self._targets = targets
        # Volumes without our annotation are known by port or address only, which may mean another one now.
        for volume in [volume for volume in self._volumes.values() if volume.annotated is None]:
            self._locate(volume)

    @property
    def volumes(self) -> Mapping[str, Volume]:
        """Every volume of the cluster by name."""
        return self._volumes

    def volume_of(self, claim: ClaimUid) -> Volume | None:
        """The volume that was made for this claim, whatever has become of it."""
        name = self._by_claim.get(claim)
        return self._volumes.get(name) if name else None

    def volumes_through(self, access_point_id: AccessPointId) -> frozenset[str]:
        """Every volume that leads through that access point, however its handle is written."""
        return frozenset(self._through.get(access_point_id, ()))

    def has_access_points(self, file_system_id: FileSystemId) -> bool:
        """Whether any volume leads through an access point of the file system; it looks at all of them."""
        names = [name for names in self._through.values() for name in names]
        handles = (_handle_of(self._volumes[name]) for name in names if name in self._volumes)
        return any(handle is not None and handle.file_system_id == file_system_id for handle in handles)

    def empty_copy(self) -> "VolumeIndex":
        """One that reads volumes as this one does, and has none yet."""
        copy = VolumeIndex(self._servers)
        copy.targets = self._targets
        return copy

    async def seen_terminating(self, volume: Volume) -> None:
        """Return once watches have shown that the volume is being deleted, or that it is gone."""
        while True:
            shown = self._volumes.get(volume.name)
            if shown is None or shown.uid != volume.uid or shown.deleting:
                return
            await self._changed.wait()

    def location_of(self, volume: str) -> Location | None:
        """Where that volume's data lies, if it lies on EFS."""
        return self._locations.get(volume)

    def replace_volumes(self, volumes: Iterable[Volume]) -> None:
        """Start again from a full list."""
        listed = {volume.name: volume for volume in volumes}
        for name in self._volumes.keys() - listed.keys() - self._expected:
            self.drop_volume(self._volumes[name])
        # Of the others no watch will tell any more.
        self._gone &= {volume.uid for volume in listed.values()}
        for volume in listed.values():
            self.put_volume(volume)
        self._wake()

    def put_volume(self, volume: Volume) -> None:
        """Note a volume that is new or has changed, as watches show it."""
        self._expected.discard(volume.name)
        if volume.uid not in self._gone:
            self._note(volume)
        self._wake()

    def expect_volume(self, volume: Volume) -> None:
        """Note a volume that is about to be made: its directory counts as used until watches show it.

        Whatever happens in the meantime: the answer may get lost, and a list may be older than the volume.
        """
        self._expected.add(volume.name)
        if volume.name not in self._volumes:
            self._locate(volume)

    @property
    def expects_volumes(self) -> bool:
        """Whether a volume that was asked for may be made, or was and watches have not shown it."""
        return bool(self._expected)

    def is_expected(self, name: str) -> bool:
        """Whether a request to make that volume may have been, or may yet be, carried out unseen."""
        return name in self._expected

    def refused_volume(self, volume: Volume) -> None:
        """Note that the API server has refused to make an expected volume; one of that name may be there."""
        self._expected.discard(volume.name)
        if volume.name not in self._volumes:
            self._unlocate(volume.name)

    def made_volume(self, volume: Volume) -> None:
        """Note a volume as it was when it was made, unless watches have shown what became of it."""
        current = self._volumes.get(volume.name)
        if current is None or current.uid != volume.uid:
            self._note(volume)

    def drop_volume(self, volume: Volume) -> None:
        """Note that a volume is gone; its group stays in use unless its directory went with it."""
        current = self._volumes.get(volume.name)
        if current is not None and current.uid == volume.uid:
            self._vanished(volume.name)
        self._gone.discard(volume.uid)
        self._retained.discard(volume.uid)
        self._wake()

    def forget_volume(self, name: str) -> None:
        """Note that there is no volume of that name, although no watch has reported that."""
        self._expected.discard(name)
        self._vanished(name)

    def removed_volume(self, volume: Volume, *, with_directory: bool) -> None:
        """Note that this process has deleted the volume, though watches may show it for a moment more.

        Its group is free if its directory went with it.
        """
        if with_directory:
            self._unlink(volume.name)
            self.gid_ledger.removed(volume.name)
        self.forget_volume(volume.name)
        self._gone.add(volume.uid)

    def found_directories(
        self, look: int, base: Location, found: Mapping[str, tuple[Location, int]]
    ) -> set[str]:
        """Note which directories are below ``base``, with their groups, by the names of their volumes.

        Gives the names of those that no volume leads to, whatever its name.
        """
        self.gid_ledger.found(look, base, found)
        unnamed = found.keys() - self._volumes.keys()
        return {name for name in unnamed if not self.directories.sharers(found[name][0], "")}

    def _vanished(self, name: str) -> None:
        location = self._locations.get(name)
        self.without_id.pop(name, None)
        self._unlink(name)
        self.gid_ledger.vanished(name, location)

    def ports_in_use(self) -> dict[int, PortUse]:
        """Every port at which a volume is mounted from the node's own loopback, and who carries it.

        Any volume counts: of every phase, kind and author, and those that are being made.
        """
        carriers: defaultdict[int, list[Volume]] = defaultdict(list)
        for volume in self._behind_ports.values():
            for port in volume.loopback_ports or {_NFS_PORT}:
                carriers[port].append(volume)
        return {port: _port_use(volumes) for port, volumes in carriers.items()}

    def volumes_of_unknown_port(self) -> list[Volume]:
        """Volumes whose port belongs to no file system, so that the port is not assigned."""
        in_use = self.ports_in_use()
        return [
            volume
            for volume in self._behind_ports.values()
            if any(
                not in_use[port].owners and self._targets.file_system_at(port) is None
                for port in volume.loopback_ports
            )
        ]

    def volumes_at(self, location: Location) -> list[Volume]:
        """The volumes of exactly that directory."""
        names = self.directories.sharers(location, "")
        return [self._volumes[name] for name in names if name in self._volumes]

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def may_be_ordered(self, volume: Volume) -> bool:
        """Whether an earlier leader may have ordered the removal of what the volume stands on.

        That is done once it is Terminating, with the policy Delete. One that had to be retained before it was
        Terminating was deleted manually.
        """
        return volume.uid not in self._retained or volume.to_be_reclaimed

    def _note(self, volume: Volume) -> None:
        if not volume.deleting:
            is_retained = volume.reclaim_policy is ReclaimPolicy.RETAIN
            (self._retained.add if is_retained else self._retained.discard)(volume.uid)
        is_new = volume.name not in self._volumes
        self._unlink(volume.name)
        self._volumes[volume.name] = volume
        if volume.claim and volume.claim.uid:
            self._by_claim[volume.claim.uid] = volume.name
        self._locate(volume)
        self.gid_ledger.hold(volume.name, volume.gid)
        location = self._locations.get(volume.name)
        if volume.directory_id is not None and location is not None:
            # The directory holds it, until it is removed.
            self.gids.hold(volume.directory_id, str(location))
        elif is_new and location and _is_directory(volume) and self.gids.of(str(location)) is None:
            self.without_id[volume.name] = location

    def _locate(self, volume: Volume) -> None:
        self._unlocate(volume.name)
        if volume.nfs is not None and is_loopback(volume.nfs.server):
            self._behind_ports[volume.name] = volume
        # A root volume is above everything by nature and owns nothing.
        location = (
            None if volume.storage_class == ROOT_CLASS else locate(volume, self._targets, self._servers)
        )
        if location is not None:
            self._locations[volume.name] = location
            self.directories.add(location, volume.name)
        elif volume.storage_class != ROOT_CLASS and (directory := unlocated_directory(volume)) is not None:
            self.unlocated[volume.name] = directory
        handle = _handle_of(volume)
        if handle is not None and handle.access_point_id is not None:
            self._entrances[volume.name] = handle.access_point_id
            self._through[handle.access_point_id].add(volume.name)

    def _unlink(self, name: str) -> None:
        volume = self._volumes.pop(name, None)
        claim = volume.claim.uid if volume and volume.claim else None
        if claim and self._by_claim.get(claim) == name:
            del self._by_claim[claim]
        self._unlocate(name)

    def _unlocate(self, name: str) -> None:
        self._behind_ports.pop(name, None)
        self.unlocated.pop(name, None)
        location = self._locations.pop(name, None)
        if location is not None:
            self.directories.discard(location, name)
        access_point_id = self._entrances.pop(name, None)
        if access_point_id is not None:
            self._through[access_point_id].discard(name)
            if not self._through[access_point_id]:
                del self._through[access_point_id]


def _port_use(volumes: Iterable[Volume]) -> PortUse:
    owners = {volume.annotated for volume in volumes}
    return PortUse(
        owners=frozenset(owner for owner in owners if owner is not None),
        unnamed=None in owners,
        root=any(volume.storage_class == ROOT_CLASS for volume in volumes),
    )


def _handle_of(volume: Volume) -> VolumeHandle | None:
    """The parts of a CSI volume's handle; None for one that cannot be read."""
    try:
        return parse_volume_handle(volume.csi.handle) if volume.csi else None
    except InvalidValue:
        return None


def _is_directory(volume: Volume) -> bool:
    """Whether it is a directory of the CSI driver that was made for it, without an access point."""
    handle = _handle_of(volume) if volume.csi and volume.csi.driver == DRIVER else None
    return handle is not None and handle.base is not None
