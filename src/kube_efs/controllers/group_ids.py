"""Group IDs in metrics and events: the use of each range, and IDs that other data has, too.

kube-efs assigns no ID twice, as far as it knows. But others also assign IDs, on the same file system or to
other volumes of the cluster, and users change the groups of directories.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

import structlog

from kube_efs.kube.events import EventRecorder, EventType, Subject
from kube_efs.model.claims import StorageClass
from kube_efs.model.csi.parameters import parse_parameters
from kube_efs.model.csi.volume_handles import AccessPointId, parse_access_point_id
from kube_efs.model.directory_classes import parse_class
from kube_efs.model.efs.directories import parse_directory
from kube_efs.model.efs.ids import parse_file_system_id
from kube_efs.model.errors import InvalidValue, KubeEfsError
from kube_efs.model.gids import GidRange
from kube_efs.model.volumes import DRIVER, Location, Volume
from kube_efs.provisioning.backends.csi.known_access_points import USER_OF
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.telemetry.metrics import ControllerMetrics

log = structlog.get_logger(__name__)

# The first list of a cluster can find thousands of IDs.
_GATHERING_SECONDS: Final = 1.0


def watch_gid_ranges(metrics: ControllerMetrics, index: VolumeIndex, provisioners: Collection[str]) -> None:
    """Make the metrics report every class of these provisioners whenever they are read."""

    def ranges() -> Iterator[tuple[str, GidRange]]:
        for name, one in sorted(index.classes.items()):
            gids = gid_range(one) if one.provisioner in provisioners else None
            if gids is not None:
                yield name, gids

    gids = index.gids
    metrics.gid_range_size.read = lambda: [([name], within.size) for name, within in ranges()]
    metrics.gid_range_used.read = lambda: [([name], gids.count(within)) for name, within in ranges()]


def gid_range(storage_class: StorageClass) -> GidRange | None:
    """The range of group IDs of the class; None for a class without one, or an invalid class."""
    try:
        if storage_class.provisioner != DRIVER:
            return parse_class(storage_class).gids
        parameters = parse_parameters(storage_class.parameters)
    except KubeEfsError:
        return None
    return parameters.gids if parameters.uid is None or parameters.gid is None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedGid:
    """A volume of ours that shares its group ID with other data."""

    volume: Volume
    gid: int
    others: tuple[str, ...]

    def __str__(self) -> str:
        others = ", ".join(self.others)
        return (
            f"Group ID {self.gid} is also used by {others}: users of one can change the data of the other "
            "if they can mount it; give one of them another group ID"
        )


class SharedGids:
    """Publishes one event for each volume of the provisioners that shares its group ID."""

    def __init__(
        self,
        index: VolumeIndex,
        recorder: EventRecorder,
        metrics: ControllerMetrics,
        provisioners: Collection[str],
        *,
        gathering_seconds: float = _GATHERING_SECONDS,
    ) -> None:
        self._index = index
        self._recorder = recorder
        self._provisioners = provisioners
        self._gathering_seconds = gathering_seconds
        self._gathering: asyncio.TimerHandle | None = None
        self._published: set[tuple[str, str]] = set()
        index.gids.on_shared = self._found
        metrics.gids_shared.set_function(lambda: len({one.gid for one in shared_gids(index, provisioners)}))

    def _found(self, _: int) -> None:
        if self._gathering is None:
            loop = asyncio.get_running_loop()
            self._gathering = loop.call_later(self._gathering_seconds, self._publish)

    def _publish(self) -> None:
        self._gathering = None
        found = {(one.volume.uid, str(one)): one for one in shared_gids(self._index, self._provisioners)}
        for key, one in sorted(found.items(), key=lambda item: (item[1].gid, item[1].volume.name)):
            if key in self._published:
                continue
            log.warning("gid-shared", volume=one.volume.name, gid=one.gid, others=list(one.others))
            for subject in _subjects(one.volume):
                self._recorder.publish(subject, EventType.WARNING, "GroupIdShared", str(one))
        self._published = set(found)


def shared_gids(index: VolumeIndex, provisioners: Collection[str]) -> Iterator[SharedGid]:
    """The volumes of these provisioners that share an ID from a range with other data.

    Volumes of one directory or access point always share its ID, so they do not count.
    """
    for gid in sorted(index.gids.shared):
        places: defaultdict[str, set[str]] = defaultdict(set)
        holders = index.gids.known_holders(gid)
        access_points = {holder for holder in holders if _access_point_of(holder) is not None}
        roots = {index.gids.place_of(holder) for holder in access_points} - {None}
        for holder in holders:
            # A scan of a base directory also finds the root directories of access points in it.
            if holder in access_points or index.gids.place_of(holder) not in roots:
                place, volumes = _place(index, holder)
                places[place] |= volumes
        for place, names in places.items():
            others = tuple(sorted(places.keys() - {place}))
            for volume in (index.volumes[name] for name in names if name in index.volumes):
                if others and volume.provisioned_by in provisioners and _was_assigned(index, volume, gid):
                    yield SharedGid(volume=volume, gid=gid, others=others)


def _place(index: VolumeIndex, holder: str) -> tuple[str, frozenset[str]]:
    """The location of the data of a holder, as text, and the volumes that use it."""
    if holder in index.volumes:
        return str(index.location_of(holder) or f"volume {holder}"), frozenset({holder})
    access_point_id = _access_point_of(holder)
    if access_point_id is not None:
        return f"access point {access_point_id}", index.volumes_through(access_point_id)
    try:
        file_system_id, _, path = holder.partition(":")
        location = Location(
            file_system_id=parse_file_system_id(file_system_id), directory=parse_directory(path)
        )
        return holder, index.directories.users(location)
    except InvalidValue:
        return holder, frozenset()


def _access_point_of(holder: str) -> AccessPointId | None:
    try:
        return parse_access_point_id(holder.removeprefix(USER_OF), field="holder")
    except InvalidValue:
        return None


def _was_assigned(index: VolumeIndex, volume: Volume, gid: int) -> bool:
    """Whether the ID is from the range of the volume's class; a class can also set one ID for all."""
    storage_class = index.classes.get(volume.storage_class)
    if storage_class is None:
        return volume.gid == gid
    within = gid_range(storage_class)
    return within is not None and gid in within


def _subjects(volume: Volume) -> Iterator[Subject]:
    yield Subject(api_version="v1", kind="PersistentVolume", name=volume.name, uid=volume.uid)
    if volume.claim and volume.claim.uid:
        yield Subject(
            api_version="v1",
            kind="PersistentVolumeClaim",
            namespace=volume.claim.namespace,
            name=volume.claim.name,
            uid=volume.claim.uid,
        )
