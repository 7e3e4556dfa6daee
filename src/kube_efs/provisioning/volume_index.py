"""The volumes of the cluster as this process knows them, updated by the watch of volumes.

The index answers every question about a claim in constant time, so the cost of a new volume does not depend
on the number of volumes. The index also contains the other objects that plans need: classes, file systems
and their ports, and group IDs (``gid_ledger.py``).

Watches can be late, and answers can be lost. So the index treats every volume that may exist as existing:

* A volume that is about to be created is *expected* (``expect_volume``). Its directory counts as used before
  the request is sent, and a list that is older than the request does not remove it. It is no longer expected
  when a watch shows it or the API server refuses it (``refused_volume``).
* A volume that this process has removed is *gone* by its uid (``removed_volume``): a late watch does not
  restore it.
* The index alone never proves that a volume does not exist. The guards wait until the watch has shown enough
  (``seen_terminating``), and look up the volumes that block a removal.

A volume is found by its name, claim, directory, access point and port. Only ``_locate`` and ``_unlocate``
maintain the last three.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from kube_efs.model.claims import Claim, ReclaimPolicy, StorageClass
from kube_efs.model.csi.volume_handles import AccessPointId, VolumeHandle
from kube_efs.model.efs.directories import Directory, Relation
from kube_efs.model.efs.file_systems import Discovery
from kube_efs.model.efs.ids import ClaimUid, FileSystemId, VpcId
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.efs.targets import PortUse, TunnelTargets
from kube_efs.model.tunnel_volumes import ROOT_CLASS
from kube_efs.model.volumes import Location, Volume, VolumePhase, locate, unlocated_directory
from kube_efs.provisioning.gid_ledger import GidLedger

# The port of an NFS mount without the option port.
_NFS_PORT = 2049


class DirectoryIndex:
    """The volumes of each directory, and how many are below it."""

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
            for place in _above(location):
                self._below[place] -= 1
                if not self._below[place]:
                    del self._below[place]
            if not users:
                del self._users[location]

    def users(self, location: Location) -> frozenset[str]:
        """The volumes of exactly that directory."""
        return frozenset(self._users.get(location, ()))

    def related(self, location: Location) -> Mapping[Relation, frozenset[str]]:
        """The volumes of that directory, of its parents, and of the directories below it."""
        above = {name for place in _above(location) for name in self._users.get(place, ())}
        below: set[str] = set()
        if self._below[location] > 0:  # This is rare, so a scan of all volumes is acceptable.
            below = {
                name
                for place, names in self._users.items()
                if place.file_system_id == location.file_system_id
                and location.directory in place.directory.ancestors
                for name in names
            }
        return {
            Relation.SAME: self.users(location),
            Relation.ABOVE: frozenset(above),
            Relation.BELOW: frozenset(below),
        }


def _above(location: Location) -> list[Location]:
    return [
        Location(file_system_id=location.file_system_id, directory=ancestor, kind=location.kind)
        for ancestor in location.directory.ancestors
    ]


class VolumeIndex:
    """The last known volumes, classes, file systems, ports and group IDs of the cluster.

    ``servers`` maps server names without a file system ID to their file systems.
    """

    def __init__(self, servers: Mapping[str, FileSystemId] = MappingProxyType({})) -> None:
        self.classes: dict[str, StorageClass] = {}
        self.discovery = Discovery()
        self.own_vpcs: frozenset[VpcId] = frozenset()
        # Claims whose volume an earlier leader may have requested, so it may be created at any moment.
        self.maybe_begun: dict[ClaimUid, Claim] = {}
        self.directories = DirectoryIndex()
        self._servers = servers
        self._targets = TunnelTargets()
        self._volumes: dict[str, Volume] = {}
        self.gid_ledger = GidLedger(self._volumes)
        self.gids = self.gid_ledger.gids
        # By name, the volumes of the roots of file systems.
        self.roots: dict[str, Volume] = {}
        self._by_claim: dict[ClaimUid, str] = {}
        # Called with each claim that no longer has its volume, and may exist.
        self.on_volume_gone: Callable[[ClaimUid], object] = lambda _: None
        self._locations: dict[str, Location] = {}
        # What nodes mount for volumes whose port belongs to another file system; and the users of that.
        self._misled: dict[str, Location] = {}
        self._misled_users = DirectoryIndex()
        # The directories of NFS volumes that may be on any file system.
        self.unlocated: dict[str, Directory] = {}
        # By the volume's name, directories of the CSI driver that others have created: nothing reports their
        # IDs.
        self.without_id: dict[str, Location] = {}
        # The volumes that nodes mount from their loopback address, also while they are being created.
        self._behind_ports: dict[str, Volume] = {}
        # Called with each of them that is new.
        self.on_port_used: Callable[[Volume], None] = lambda _: None
        # What nodes mount for each volume with an access point, by name; and the other way round.
        self._entrances: dict[str, VolumeHandle] = {}
        self._through: defaultdict[AccessPointId, set[str]] = defaultdict(set)
        # The file system of S3 Files of each volume by name.
        self._s3_files: dict[str, FileSystemId] = {}
        # Called when a volume has one that no other volume has.
        self.on_s3_file_system: Callable[[], None] = lambda: None
        # Called with the name of each volume that a watch shows.
        self.on_shown: Callable[[str], object] = lambda _: None
        # The uids of volumes that this process has removed and watches may still show.
        self._gone: set[str] = set()
        # The names of volumes that were requested and that no watch has shown.
        self._expected: set[str] = set()
        # The uids of volumes that had the policy Retain when they were last seen without being Terminating.
        self._retained: set[str] = set()
        self._changed = asyncio.Event()

    @property
    def targets(self) -> TunnelTargets:
        """The ports of the file systems."""
        return self._targets

    @targets.setter
    def targets(self, targets: TunnelTargets) -> None:
        moved = {port for _, port in targets.ports.items() ^ self._targets.ports.items()}
        self._targets = targets
        # Ports and addresses may now have another owner.
        at_ports = [one for one in self._behind_ports.values() if one.port in moved] if moved else []
        others = (one for name, one in self._volumes.items() if name not in self._behind_ports)
        for volume in (*at_ports, *(one for one in others if one.mounted_nfs is not None)):
            self._locate(volume)

    @property
    def volumes(self) -> Mapping[str, Volume]:
        """Every volume of the cluster by name."""
        return self._volumes

    def volume_of(self, claim: ClaimUid) -> Volume | None:
        """The volume that was created for this claim, in any phase."""
        name = self._by_claim.get(claim)
        return self._volumes.get(name) if name else None

    def volumes_through(self, access_point_id: AccessPointId) -> frozenset[str]:
        """Every volume that uses that access point, in any form of handle."""
        return frozenset(self._through.get(access_point_id, ()))

    def access_point_of(self, volume: str) -> AccessPointId | None:
        """The access point that nodes mount for that volume."""
        entrance = self._entrances.get(volume)
        return entrance.access_point_id if entrance else None

    def volumes_on(self, file_system_id: FileSystemId) -> frozenset[str]:
        """Every volume that is known to be on the file system, in any form; it reads all volumes."""
        handles = {name: one.entrance for name, one in self._volumes.items()}
        by_handle = {
            name for name, handle in handles.items() if handle and handle.file_system_id == file_system_id
        }
        places = (*self._locations.items(), *self._misled.items())
        located = {name for name, place in places if place.file_system_id == file_system_id}
        return frozenset(by_handle | located)

    def has_access_points(self, file_system_id: FileSystemId) -> bool:
        """Whether any volume uses an access point of the file system; it reads all volumes."""
        return any(one.file_system_id == file_system_id for one in self._entrances.values())

    def access_points_in_use(self, file_system_id: FileSystemId) -> frozenset[AccessPointId]:
        """The access points of the file system's volumes that must stay; it reads all volumes.

        This includes volumes that are being created.
        """
        return frozenset(
            one.access_point_id
            for name, one in self._entrances.items()
            if one.file_system_id == file_system_id
            and one.access_point_id is not None
            and not ((volume := self._volumes.get(name)) and volume.to_be_reclaimed)
        )

    def empty_copy(self) -> "VolumeIndex":
        """An empty index that locates volumes as this one does."""
        copy = VolumeIndex(self._servers)
        copy.targets = self._targets
        return copy

    async def seen_terminating(self, volume: Volume) -> None:
        """Return when watches have shown that the volume is Terminating or deleted."""
        while True:
            shown = self._volumes.get(volume.name)
            if shown is None or shown.uid != volume.uid or shown.deleting:
                return
            await self._changed.wait()

    def location_of(self, volume: str) -> Location | None:
        """The location of that volume's data, if it is on EFS."""
        return self._locations.get(volume)

    def replace_volumes(self, volumes: Iterable[Volume]) -> None:
        """Start again from a full list."""
        listed = {volume.name: volume for volume in volumes}
        for name in self._volumes.keys() - listed.keys() - self._expected:
            self.drop_volume(self._volumes[name])
        # No watch will show the others again.
        self._gone &= {volume.uid for volume in listed.values()}
        for volume in listed.values():
            self.put_volume(volume)
        self._wake()

    def put_volume(self, volume: Volume) -> None:
        """Note a new or changed volume that a watch shows."""
        self._expected.discard(volume.name)
        self.on_shown(volume.name)
        if volume.uid not in self._gone:
            self._note(volume)
        self._wake()

    def expect_volume(self, volume: Volume) -> None:
        """Note a volume that is about to be created: its directory counts as used until watches show it.

        This covers lost answers, and lists that are older than the volume.
        """
        self._expected.add(volume.name)
        if volume.name not in self._volumes:
            self._locate(volume)

    @property
    def expects_volumes(self) -> bool:
        """Whether a requested volume may be created, or was created and not yet shown by watches."""
        return bool(self._expected)

    def is_expected(self, name: str) -> bool:
        """Whether a request to create that volume may have taken or can still take effect."""
        return name in self._expected

    def refused_volume(self, volume: Volume) -> None:
        """Note that the API server has refused an expected volume; another of that name may exist."""
        self._expected.discard(volume.name)
        if volume.name not in self._volumes:
            self._unlocate(volume.name)

    def made_volume(self, volume: Volume) -> None:
        """Note a volume as it was created, unless watches have already shown a later state."""
        current = self._volumes.get(volume.name)
        if current is None or current.uid != volume.uid:
            self._note(volume)

    def drop_volume(self, volume: Volume) -> None:
        """Note that a volume was deleted; its group ID stays in use while its directory may exist."""
        current = self._volumes.get(volume.name)
        if current is not None and current.uid == volume.uid:
            self._vanished(volume.name)
        self._gone.discard(volume.uid)
        self._retained.discard(volume.uid)
        self._wake()

    def forget_volume(self, name: str) -> None:
        """Note that no volume of that name exists, although no watch has shown a deletion."""
        self._expected.discard(name)
        self._vanished(name)

    def removed_volume(self, volume: Volume, *, with_directory: bool) -> None:
        """Note that this process has deleted the volume; late watches may still show it.

        Its group ID is free if its directory was removed, too.
        """
        if with_directory:
            self._unlink(volume.name)
            self.gid_ledger.removed(volume.name)
        self.forget_volume(volume.name)
        self._gone.add(volume.uid)

    def found_directories(
        self, scan: int, base: Location, found: Mapping[str, tuple[Location, int]]
    ) -> set[str]:
        """Note the directories below ``base`` with their group IDs, by the names of their volumes.

        Gives the names of those that no volume uses.
        """
        self.gid_ledger.found(scan, base, found)
        unnamed = found.keys() - self._volumes.keys()
        return {name for name in unnamed if not self.directories.users(found[name][0])}

    def _vanished(self, name: str) -> None:
        location = self._locations.get(name)
        self.without_id.pop(name, None)
        self._unlink(name)
        self.gid_ledger.vanished(name, location)

    def ports_in_use(self) -> dict[int, PortUse]:
        """Every loopback port of a volume, and the file systems of its volumes.

        Volumes of every phase, kind and author count, also those that are being created.
        """
        carriers: defaultdict[int, list[Volume]] = defaultdict(list)
        for volume in self._behind_ports.values():
            for port in volume.loopback_ports or {_NFS_PORT}:
                carriers[port].append(volume)
        return {port: _port_use(volumes) for port, volumes in carriers.items()}

    def volumes_of_unknown_port(self) -> list[Volume]:
        """Volumes whose port belongs to no known file system, or to another than their annotation names.

        An unknown port is not assigned.
        """
        in_use = self.ports_in_use()
        return [
            volume
            for name, volume in self._behind_ports.items()
            if name in self._misled
            or any(
                not in_use[port].owners and self._targets.file_system_at(port) is None
                for port in volume.loopback_ports
            )
        ]

    @property
    def s3_file_systems(self) -> frozenset[FileSystemId]:
        """The file systems of S3 Files that volumes name."""
        return frozenset(self._s3_files.values())

    def volumes_at(self, location: Location) -> list[Volume]:
        """The volumes of exactly that directory."""
        names = self.directories.users(location)
        return [self._volumes[name] for name in names if name in self._volumes]

    def users_of(self, location: Location) -> Mapping[Relation, frozenset[str]]:
        """The volumes whose data a removal of that directory would affect, and those of its parents.

        If the port of a volume belongs to another file system than its location, it uses the directory on
        both.
        """
        misled = self._misled_users.related(location)
        return {how: names | misled[how] for how, names in self.directories.related(location).items()}

    def _wake(self) -> None:
        self._changed.set()
        # A new one: those who waited may have to wait for the next change, too.
        self._changed = asyncio.Event()

    def may_be_ordered(self, volume: Volume) -> bool:
        """Whether an earlier leader may have ordered the removal of the volume's storage.

        A leader orders the removal of Terminating volumes with the policy Delete. A volume with the policy
        Retain before it was Terminating was deleted manually.
        """
        return volume.uid not in self._retained or volume.to_be_reclaimed

    def _note(self, volume: Volume) -> None:
        if not volume.deleting:
            is_retained = volume.reclaim_policy is ReclaimPolicy.RETAIN
            (self._retained.add if is_retained else self._retained.discard)(volume.uid)
        is_new = volume.name not in self._volumes
        self._unlink(volume.name, successor=volume)
        self._volumes[volume.name] = volume
        if volume.storage_class == ROOT_CLASS:
            self.roots[volume.name] = volume
        if volume.claim and volume.claim.uid:
            self._by_claim[volume.claim.uid] = volume.name
        self._locate(volume)
        self.gid_ledger.hold(volume.name, volume.gid)
        location = self._locations.get(volume.name)
        if volume.directory_id is not None and location is not None:
            # The directory holds the ID until it is removed.
            self.gids.hold(volume.directory_id, str(location), at=location)
        elif is_new and location and _is_made_directory(volume) and self.gids.of(str(location)) is None:
            self.without_id[volume.name] = location

    def _locate(self, volume: Volume) -> None:
        was_behind_port = volume.name in self._behind_ports
        self._unlocate(volume.name)
        if volume.is_behind_port:
            self._behind_ports[volume.name] = volume
            if not was_behind_port:
                self.on_port_used(volume)
        # A root volume is above all directories and owns no data.
        location = (
            None if volume.storage_class == ROOT_CLASS else locate(volume, self._targets, self._servers)
        )
        if location is not None:
            self._locations[volume.name] = location
            self.directories.add(location, volume.name)
            port = volume.port if volume.is_behind_port else None
            behind = self._targets.file_system_at(port) if port else None
            if behind is not None and behind != location.file_system_id:
                self._misled[volume.name] = replace(location, file_system_id=behind)
                self._misled_users.add(self._misled[volume.name], volume.name)
        elif volume.storage_class != ROOT_CLASS and (directory := unlocated_directory(volume)) is not None:
            self.unlocated[volume.name] = directory
        # Also volumes of other drivers, if their handle reads as one of ours: they must not lose data.
        handle = volume.entrance
        if handle is not None and handle.kind is FileSystemKind.S3_FILES:
            is_new = handle.file_system_id not in self._s3_files.values()
            self._s3_files[volume.name] = handle.file_system_id
            if is_new:
                self.on_s3_file_system()
        if handle is not None and handle.access_point_id is not None:
            self._entrances[volume.name] = handle
            self._through[handle.access_point_id].add(volume.name)

    def _unlink(self, name: str, successor: Volume | None = None) -> None:
        volume = self._volumes.pop(name, None)
        self.roots.pop(name, None)
        claim = volume.claim.uid if volume and volume.claim else None
        if volume and claim and self._by_claim.get(claim) == name:
            del self._by_claim[claim]
            is_kept = successor is not None and successor.claim is not None and successor.claim.uid == claim
            # The claim of a Released volume is deleted, although watches may not show this yet.
            if not is_kept and volume.phase is not VolumePhase.RELEASED:
                self.on_volume_gone(claim)
        self._unlocate(name)

    def _unlocate(self, name: str) -> None:
        self._behind_ports.pop(name, None)
        self._s3_files.pop(name, None)
        self.unlocated.pop(name, None)
        location = self._locations.pop(name, None)
        if location is not None:
            self.directories.discard(location, name)
        misled = self._misled.pop(name, None)
        if misled is not None:
            self._misled_users.discard(misled, name)
        access_point_id = self.access_point_of(name)
        self._entrances.pop(name, None)
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


def _is_made_directory(volume: Volume) -> bool:
    """Whether the CSI driver created the volume as a directory, without an access point."""
    return volume.handle is not None and volume.handle.base is not None
