"""The one place that decides whether a directory or an access point may go with its volume.

It is asked for every kind of volume alike, twice for each removal: once before anything is done, and once
more at the last moment that can be taken back, after every queue and wait. Its answers come from live
objects: the volume itself as the API server has it, every volume of the cluster, and the access points as
AWS lists them at that moment.

Why the second answer misses no volume: the removed volume is deleted first, which makes it Terminating while
our finalizer holds it. A watch shows the changes of a kind of object in the order in which the API server
took them. So once our own watch has shown the volume Terminating, it has shown every volume that was taken
before, and the index of volumes has all of them. Where the volume object is not ours to delete
(csi-provisioner's), all volumes are listed again instead.

``Reservations`` keep operations of this process out of each other's way in the meantime. Other processes are
kept out by the gates of worker pods (``workers/pods.py``).

What lies at the same directory keeps the data; the volume object may go. What lies below refuses the removal.
What lies above, such as a volume of the whole file system for backups, is no obstacle.
"""

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from kube_efs.kube.volumes import VolumeStore
from kube_efs.model.csi.access_points import AccessPoint
from kube_efs.model.csi.cross_account import CrossAccountRole
from kube_efs.model.csi.volume_handles import AccessPointId, VolumeHandle, parse_volume_handle
from kube_efs.model.efs.directories import Directory, Relation
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import (
    AwsDenied,
    AwsNotFound,
    InvalidValue,
    KubeNotFound,
    NotYet,
    RemovalRefused,
)
from kube_efs.model.tunnel_volumes import FILE_SYSTEM_ID
from kube_efs.model.volumes import Location, Volume
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.single_flight import SingleFlight

log = structlog.get_logger(__name__)

# A watch that is behind by this much is broken; the removal is retried later.
_BARRIER_SECONDS: Final = 20.0
# What was true longer ago may be true no more.
_ANSWER_SECONDS: Final = 30.0
# Two namespaces that share a text share their turn when the trash is emptied, and nothing else.
_TENANT_LENGTH: Final = 8
_SAME_OR_BELOW: Final = frozenset({Relation.SAME, Relation.BELOW})
# How many of those in the way a message names.
_NAMED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What would go with a volume.

    ``location`` is where its data lies, None where that is not known (any more); the directory goes with the
    volume if ``with_directory`` says so and it is strictly below ``base``. ``access_point`` is in the account
    that ``role`` leads to. ``tenant`` stands for the namespace whose claim had the volume.
    """

    location: Location | None = None
    with_directory: bool = True
    base: Directory = field(default_factory=Directory)
    access_point: VolumeHandle | None = None
    role: CrossAccountRole | None = None
    tenant: str = ""

    @property
    def reserved(self) -> tuple[Location, ...]:
        """What no other task may work on in the meantime."""
        return () if self.location is None else (self.location,)


def tenant_of(volume: Volume) -> str:
    """A short text for the namespace of the volume's claim; empty when it has none."""
    if volume.claim is None:
        return ""
    return hashlib.sha256(volume.claim.namespace.encode()).hexdigest()[:_TENANT_LENGTH]


@dataclass(frozen=True, slots=True, kw_only=True)
class Permit:
    """The removal may continue.

    ``keeps`` says who uses the directory too, so that it stays while the rest goes; empty when all goes.
    ``above`` are the volumes in whose directories the removed one lies.
    """

    keeps: str = ""
    above: tuple[str, ...] = ()


class DataKept(RemovalRefused):
    """The directory stays since others use it; the volume object may go."""


class Order:
    """A removal that was decided on, to be confirmed at the last reversible moment.

    ``permit`` is the newest answer of the guards.
    """

    def __init__(
        self,
        ask: Callable[[], Awaitable[Permit]],
        permit: Permit | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._clock = clock
        self.permit = permit or Permit()

    async def confirm(self) -> None:
        """Raise KubeEfsError unless the removal still stands; NotYet when the answer is old already.

        A process that was stopped for a while must not act on what was true before.
        """
        began = self._clock()
        self.permit = await self._ask()
        if self._clock() - began > _ANSWER_SECONDS:
            raise NotYet("took too long", field="last check before a removal", remedy="it is retried")

    async def confirm_directory(self) -> None:
        """The same for the directory, which may have to stay though the rest goes: then raise DataKept."""
        await self.confirm()
        if self.permit.keeps:
            remedy = "delete the other volumes first, or set the reclaim policy of this volume to Retain"
            raise DataKept(self.permit.keeps, field="directory", remedy=remedy)


class AccessPointRoots(Protocol):
    """Where the access points of a file system lead to, as AWS says now; raises AwsError."""

    async def __call__(
        self, file_system_id: FileSystemId, role: CrossAccountRole | None
    ) -> Sequence[AccessPoint]:
        """All of them; ``role`` leads to the account of the file system."""


class Reservations:
    """Who is making or removing which directory right now, inside this process.

    Many claims may make one directory at a time, since they share it. A removal shares with no other task:
    not with a claim that is about to use the directory, nor with another removal that counts the same
    volumes.
    """

    def __init__(self) -> None:
        self._making: Counter[Location] = Counter()
        self._removing: set[Location] = set()
        self._let_go = asyncio.Event()

    @asynccontextmanager
    async def making(self, *locations: Location) -> AsyncIterator[bool]:
        """Hold the directories for a volume to come; waits while one of them or near it is being removed.

        Gives whether it has waited: what was known before may be no longer so.
        """
        has_waited = False
        while _near(locations, self._removing):
            has_waited = True
            await self._let_go.wait()
        self._making.update(locations)
        try:
            yield has_waited
        finally:
            self._making.subtract(locations)
            for location in locations:
                if not self._making[location]:
                    del self._making[location]
            self._wake()

    @asynccontextmanager
    async def removing(self, *locations: Location) -> AsyncIterator[None]:
        """Hold the directories alone; waits while another task holds one of them or near it."""
        while _near(locations, self._removing) or _near(locations, self._making):
            await self._let_go.wait()
        self._removing.update(locations)
        try:
            yield
        finally:
            self._removing.difference_update(locations)
            self._wake()

    def _wake(self) -> None:
        self._let_go.set()
        self._let_go = asyncio.Event()


def _near(locations: Iterable[Location], others: Collection[Location]) -> bool:
    return any(
        location.file_system_id == other.file_system_id
        and location.directory.relation_to(other.directory) is not Relation.APART
        for location in locations
        for other in others
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Users:
    """Who has to do with a directory: volumes by name, and access points."""

    same: frozenset[str]
    below: frozenset[str]
    above: frozenset[str]


class Guards:
    """Answers for one removal after the other; ``roots`` is None where access points cannot exist.

    ``reservations`` keep operations of this process out of each other's way, and nothing else.
    """

    def __init__(
        self, *, index: VolumeIndex, store: VolumeStore, roots: AccessPointRoots | None = None
    ) -> None:
        self._index = index
        self._store = store
        self._roots = roots
        self.reservations = Reservations()
        self._fresh = SingleFlight(self._list_volumes)

    async def check(self, removal: Removal, volume: Volume) -> Permit:
        """Whether this may go with that volume now; raises RemovalRefused, AwsError, KubeError."""
        return await self._check(removal, frozenset({volume.name}), self._index)

    async def check_last(self, removal: Removal, volume: Volume) -> Permit:
        """The same at the last reversible moment, for a volume that is Terminating.

        Raises NotYet when the watch does not show the volume Terminating in time.
        """
        try:
            async with asyncio.timeout(_BARRIER_SECONDS):
                await self._index.seen_terminating(volume)
        except TimeoutError:
            raise NotYet(
                "is not shown as Terminating by the watch of volumes",
                field="volume",
                value=volume.name,
                remedy="check that the API server answers; the removal is retried",
            ) from None
        return await self._check(removal, frozenset({volume.name}), self._index)

    async def volumes_of(self, handle: VolumeHandle) -> frozenset[str]:
        """The uids of the volumes that have exactly this handle; raises KubeError.

        As watches have shown them, which may be behind, and as they are listed now.
        """
        known = tuple(self._index.volumes.values())
        view = await self._fresh()
        volumes = (*known, *view.volumes.values())
        return frozenset(one.uid for one in volumes if one.csi and one.csi.handle == str(handle))

    async def check_handle(self, removal: Removal, handle: VolumeHandle, asked_for: frozenset[str]) -> Permit:
        """The same for a caller that gives only the volume's handle (csi-provisioner).

        The volume itself is any that has exactly this handle, is Released and has the reclaim policy Delete;
        all volumes are listed for the answer. Of those that had it when the removal was ``asked_for`` none
        may be gone: it may have been set to Retain and deleted since. Raises NotYet then.
        """
        view = await self._fresh()
        if asked_for - {one.uid for one in view.volumes.values()}:
            raise _deleted_since(handle)
        named = [one for one in view.volumes.values() if one.csi and one.csi.handle == str(handle)]
        itself = frozenset(one.name for one in named if one.to_be_reclaimed)
        permit = await self._check(removal, itself, view)
        if len(itself) < len(named) and not permit.keeps:
            # One that had to be kept when all were listed was deleted when it was read.
            raise _deleted_since(handle)
        return permit

    async def _check(self, removal: Removal, itself: frozenset[str], view: VolumeIndex) -> Permit:
        if removal.access_point is not None and removal.access_point.access_point_id is not None:
            await self._check_access_point(removal.access_point.access_point_id, itself, view)
        if removal.location is None or not removal.with_directory:
            return Permit()
        await self._check_unlocated(removal.location, itself, view)
        users = await self._users(removal, removal.location, itself, view)
        if users.below and removal.access_point is None:
            below = ", ".join(f"volume {one}" if " " not in one else one for one in sorted(users.below))
            raise RemovalRefused(
                f"contains the directory of {below}",
                field="directory",
                value=str(removal.location),
                remedy="delete those first, or set the reclaim policy of this volume to Retain",
            )
        keeps = users.same | users.below
        return Permit(
            keeps=f"{removal.location} is also used by {', '.join(sorted(keeps))}" if keeps else "",
            above=tuple(sorted(users.above)[:_NAMED]),
        )

    async def _check_unlocated(self, location: Location, itself: frozenset[str], view: VolumeIndex) -> None:
        """Raise NotYet when a volume whose file system is not known now may be there."""
        # A list, since what is looked up and not there is forgotten.
        for name, directory in list(view.unlocated.items()):
            if name in itself or directory.relation_to(location.directory) not in _SAME_OR_BELOW:
                continue
            if await self._live(name) is not None:
                raise NotYet(
                    f"may be used by volume {name}, whose file system is not known",
                    field="directory",
                    value=str(location),
                    remedy=f"annotate {name} with {FILE_SYSTEM_ID}, or delete it",
                )

    async def _check_access_point(
        self, access_point_id: AccessPointId, itself: frozenset[str], view: VolumeIndex
    ) -> None:
        others = view.volumes_through(access_point_id) - itself
        staying = [
            name
            for name in sorted(others)
            if (live := await self._live(name)) is not None and not live.to_be_reclaimed
        ]
        if staying:
            raise RemovalRefused(
                f"also leads to the data of volume {', '.join(staying)}",
                field="access point",
                value=access_point_id,
                remedy="delete the other volumes first, or set the reclaim policy of this volume to Retain",
            )

    async def _users(
        self, removal: Removal, location: Location, itself: frozenset[str], view: VolumeIndex
    ) -> _Users:
        candidates: dict[Relation, set[str]] = {
            relation: set(volumes - itself)
            for relation, volumes in view.directories.related(location).items()
        }
        blocking: dict[Relation, set[str]] = {Relation.SAME: set(), Relation.BELOW: set()}
        for found in await self._access_points(removal, location.file_system_id, view):
            if removal.access_point and found.access_point_id == removal.access_point.access_point_id:
                continue
            relation = found.directory.relation_to(location.directory)
            if relation in blocking:
                blocking[relation].add(f"access point {found.access_point_id}")
            elif relation is Relation.ABOVE:
                # The access point itself is no obstacle; a volume through it may lead further down.
                for name in view.volumes_through(found.access_point_id) - itself:
                    inside = _inside(found, view.volumes.get(name))
                    candidates.setdefault(inside.relation_to(location.directory), set()).add(name)
        for relation in blocking:
            blocking[relation] |= await self._some_existing(candidates.get(relation, set()))
        return _Users(
            same=frozenset(blocking[Relation.SAME]),
            below=frozenset(blocking[Relation.BELOW]),
            above=frozenset(candidates.get(Relation.ABOVE, set())),
        )

    async def _access_points(
        self, removal: Removal, file_system_id: FileSystemId, view: VolumeIndex
    ) -> Sequence[AccessPoint]:
        """Those of the file system, as AWS lists them after this call."""
        if self._roots is None:
            return ()
        try:
            return await self._roots(file_system_id, removal.role)
        except AwsNotFound:  # The file system is gone, and its access points with it.
            return ()
        except AwsDenied:
            # The policies of the older provisioners do not allow it. Where no volume of the cluster leads
            # through an access point, these provisioners lived without.
            if view.has_access_points(file_system_id):
                raise
            log.info("access-points-not-listed", file_system=file_system_id)
            return ()

    async def _list_volumes(self) -> VolumeIndex:
        view = self._index.empty_copy()
        view.replace_volumes(await self._store.list())
        return view

    async def _some_existing(self, names: Iterable[str]) -> set[str]:
        """A few of those that are there; watches may miss a deletion, so each is looked up.

        One that has been released because another had its directory, too, and is not gone yet, is not there:
        else of two that lie in one directory each leaves the data to the other.
        """
        found: set[str] = set()
        for name in sorted(names):
            live = await self._live(name)
            if live is not None and not live.is_finalized:
                found.add(name)
            if len(found) == _NAMED:
                break
        return found

    async def _live(self, name: str) -> Volume | None:
        try:
            return await self._store.get(name)
        except KubeNotFound:
            self._index.forget_volume(name)
            return None


def _deleted_since(handle: VolumeHandle) -> NotYet:
    return NotYet(
        "was deleted after its removal was requested",
        field="volume",
        value=str(handle),
        remedy="its data is kept unless the removal is requested again",
    )


def _inside(found: AccessPoint, volume: Volume | None) -> Directory:
    """The directory of a volume that leads through this access point."""
    try:
        handle = parse_volume_handle(volume.csi.handle if volume and volume.csi else "")
    except InvalidValue:
        return found.directory
    return Directory((*found.directory.parts, *handle.directory.parts))
