"""What this process knows of the cluster's volumes and classes, kept up by the watches.

Every question asked while a claim is served is answered from here in constant time, so that one more
volume costs the same however many there are.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

import structlog

from kube_efs.model.claims import StorageClass
from kube_efs.model.errors import InvalidValue
from kube_efs.model.file_systems import Discovery
from kube_efs.model.gids import GidRange
from kube_efs.model.ids import ClaimUid, FileSystemId
from kube_efs.model.targets import TunnelTargets
from kube_efs.model.tunnel_volumes import ROOT_CLASS
from kube_efs.model.volume_handles import AccessPointId, parse_volume_handle
from kube_efs.model.volumes import LOOPBACK, Location, Volume, locate
from kube_efs.provisioning.gids import GidIndex

log = structlog.get_logger(__name__)


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

    def neighbours(self, location: Location) -> frozenset[str]:
        """Volumes of a directory above, and one for those below, if there are any."""
        above = {name for place in _above(location) for name in self._users.get(place, ())}
        return frozenset(above | ({self._example_below(location)} if self._below[location] > 0 else set()))

    def _example_below(self, location: Location) -> str:
        return next(
            name
            for place, names in self._users.items()
            for name in names
            if place.file_system_id == location.file_system_id
            and location.directory in place.directory.ancestors
        )


def _above(location: Location) -> list[Location]:
    return [
        Location(file_system_id=location.file_system_id, directory=ancestor)
        for ancestor in location.directory.ancestors
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lingering:
    """A directory with a group id of its own and no volume; ``since`` counts the scans begun before."""

    location: Location
    since: int


class Inventory:
    """Volumes, classes, file systems, ports and group ids as last seen.

    ``servers`` are names of file systems that do not tell which one they are of.
    """

    def __init__(self, servers: Mapping[str, FileSystemId] = MappingProxyType({})) -> None:
        self.classes: dict[str, StorageClass] = {}
        self.discovery = Discovery()
        self.directories = DirectoryIndex()
        self.gids = GidIndex()
        self._servers = servers
        self._targets = TunnelTargets()
        self._volumes: dict[str, Volume] = {}
        self._by_claim: dict[ClaimUid, str] = {}
        self._locations: dict[str, Location] = {}
        self._entrances: dict[str, AccessPointId] = {}
        # By the name that the volume would have.
        self._lingering: dict[str, _Lingering] = {}
        self._taking: set[str] = set()
        self._scans = 0
        self._through: defaultdict[AccessPointId, set[str]] = defaultdict(set)
        self._gone: set[str] = set()
        self._expected: set[str] = set()

    @property
    def targets(self) -> TunnelTargets:
        """The ports of the file systems."""
        return self._targets

    @targets.setter
    def targets(self, targets: TunnelTargets) -> None:
        self._targets = targets
        # Volumes without our annotation are known by port or address only, which may mean another one now.
        for volume in [volume for volume in self._volumes.values() if not volume.file_system_id]:
            self._note(volume)

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

    def staying(self, volumes: Iterable[str]) -> list[str]:
        """Those of the volumes whose data is to stay, as far as is known."""
        known = self._volumes
        return sorted(name for name in volumes if not (name in known and known[name].to_be_reclaimed))

    def location_of(self, volume: str) -> Location | None:
        """Where that volume's data lies, if it lies on EFS."""
        return self._locations.get(volume)

    def replace_volumes(self, volumes: Iterable[Volume]) -> None:
        """Start anew from a full list."""
        listed = {volume.name: volume for volume in volumes}
        for name in self._volumes.keys() - listed.keys() - self._expected:
            self.drop_volume(self._volumes[name])
        # Of the others no watch will tell any more.
        self._gone &= {volume.uid for volume in listed.values()}
        for volume in listed.values():
            self.put_volume(volume)

    def put_volume(self, volume: Volume) -> None:
        """Note a volume that is new or has changed, as watches show it."""
        self._expected.discard(volume.name)
        if volume.uid not in self._gone:
            self._note(volume)

    def expect_volume(self, volume: Volume) -> None:
        """Note a volume that is about to be made: its directory counts as used until watches show it.

        Whatever happens meanwhile: the answer may get lost, and a list may be older than the volume.
        """
        self._expected.add(volume.name)
        if volume.name not in self._volumes:
            self._locate(volume)

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

    def forget_volume(self, name: str) -> None:
        """Note that there is no volume of that name, though no watch has told so."""
        self._expected.discard(name)
        self._vanished(name)

    def removed_volume(self, volume: Volume, *, with_directory: bool) -> None:
        """Note that this process has deleted the volume, though watches may show it for a moment more.

        Its group is free if its directory went with it.
        """
        if with_directory:
            self._unlink(volume.name)
            self._release_gid(volume.name)
        self.forget_volume(volume.name)
        self._gone.add(volume.uid)

    @contextmanager
    def taking_gid(self, within: GidRange, name: str, location: Location) -> Iterator[int | None]:
        """A group id for the directory of a volume to come, None when the range is full.

        When the block fails, it is free again unless the directory had one before.
        """
        # A scan sees nothing of a directory that is being made, so its group is not to be freed by one.
        before = self._lingering.pop(name, None)
        self._taking.add(name)
        try:
            yield self.gids.take(within, name)
        except BaseException:
            if before is not None:
                self._lingering[name] = before
            elif name not in self._volumes:
                self.gids.release(name)
            raise
        finally:
            self._taking.discard(name)
        if name not in self._volumes:
            self._linger(name, location)

    def begin_scan(self) -> int:
        """The number of a scan whose findings are read from now on."""
        self._scans += 1
        return self._scans

    def found_directories(
        self, scan: int, base: Location, found: Mapping[str, tuple[Location, int]]
    ) -> set[str]:
        """Note which directories are below ``base``, with their groups, by the names of their volumes.

        Gives the names of those that no volume leads to, whatever its name. Groups of directories that were
        there before the scan and are gone are free again.
        """
        holders = {*found, *self._taking}
        for name, (location, gid) in found.items():
            is_known = name in self._volumes or self.gids.of(name) is not None
            if is_known and self.gids.of(name) == gid:
                continue
            # Somebody has given the directory another group than its volume tells.
            holder = str(location) if is_known else name
            holders.add(holder)
            self.gids.hold(gid, holder)
            self._linger(holder, location)
        for name, one in list(self._lingering.items()):
            if one.since < scan and name not in holders and one.location.is_child_of(base):
                self._release_gid(name)
        unnamed = found.keys() - self._volumes.keys()
        return {name for name in unnamed if not self.directories.sharers(found[name][0], "")}

    def _vanished(self, name: str) -> None:
        location = self._locations.get(name)
        self._unlink(name)
        if location is not None and self.gids.of(name) is not None:
            self._linger(name, location)
        elif name not in self._lingering:
            self.gids.release(name)

    def _linger(self, name: str, location: Location) -> None:
        self._lingering[name] = _Lingering(location=location, since=self._scans)

    def _release_gid(self, name: str) -> None:
        self._lingering.pop(name, None)
        self.gids.release(name)

    def ports_in_use(self) -> dict[int, FileSystemId]:
        """Loopback ports that volumes carry in their mount options, with their file systems."""
        return {
            volume.port: location.file_system_id
            for name, volume in self._volumes.items()
            if volume.port
            and volume.nfs
            and volume.nfs.server == LOOPBACK
            and (location := self._locations.get(name))
        }

    def _note(self, volume: Volume) -> None:
        self._unlink(volume.name)
        self._volumes[volume.name] = volume
        if volume.claim and volume.claim.uid:
            self._by_claim[volume.claim.uid] = volume.name
        self._locate(volume)
        self._lingering.pop(volume.name, None)
        if volume.gid is not None:
            self._hold_gid(volume.gid, volume.name)

    def _hold_gid(self, gid: int, name: str) -> None:
        if self.gids.of(name) != gid:
            self.gids.hold(gid, name)
            others = self.gids.holders(gid) - {name}
            if others:
                log.warning("gid-shared", volume=name, gid=gid, others=sorted(others))

    def _locate(self, volume: Volume) -> None:
        self._unlocate(volume.name)
        # A root volume is above everything by nature and owns nothing.
        location = (
            None if volume.storage_class == ROOT_CLASS else locate(volume, self._targets, self._servers)
        )
        if location is not None:
            self._locations[volume.name] = location
            self.directories.add(location, volume.name)
        access_point_id = _access_point_of(volume)
        if access_point_id is not None:
            self._entrances[volume.name] = access_point_id
            self._through[access_point_id].add(volume.name)

    def _unlink(self, name: str) -> None:
        volume = self._volumes.pop(name, None)
        claim = volume.claim.uid if volume and volume.claim else None
        if claim and self._by_claim.get(claim) == name:
            del self._by_claim[claim]
        self._unlocate(name)

    def _unlocate(self, name: str) -> None:
        location = self._locations.pop(name, None)
        if location is not None:
            self.directories.discard(location, name)
        access_point_id = self._entrances.pop(name, None)
        if access_point_id is not None:
            self._through[access_point_id].discard(name)
            if not self._through[access_point_id]:
                del self._through[access_point_id]


def _access_point_of(volume: Volume) -> AccessPointId | None:
    try:
        return parse_volume_handle(volume.csi.handle).access_point_id if volume.csi else None
    except InvalidValue:
        return None
