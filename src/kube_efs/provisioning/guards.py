"""The only place that decides whether a directory or an access point may be removed with its volume.

The guards are the same for every kind of volume. They check each removal twice: before it begins, and at the
last reversible moment, after every queue and wait. They check live objects: the volume as the API server
has it, every volume of the cluster, and the access points as AWS lists them at that moment.

Why the second check misses no volume: the engine deletes the volume object first. It is then Terminating,
and our finalizer holds it. A watch shows the changes of a kind of object in the order in which the API server
accepted them. When our watch has shown the volume Terminating, it has also shown every volume that was
accepted before, and the index of volumes contains all of them. This process cannot delete the volume objects
of csi-provisioner; for these, the guards list all volumes again instead.

Meanwhile, reservations (``reservations.py``) separate the operations of this process. The gates of worker
pods (``workers/pods.py``) exclude other processes.

A file system that was created for claims is removed with its last volume. Any other use of it refuses this.

Another volume or access point with the same directory keeps the data; the volume object may be deleted. One
below the directory refuses the removal. One above, such as a volume of the whole file system for backups,
changes nothing.
"""

import asyncio
import hashlib
import time
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from kube_efs.kube.volumes import VolumeStore
from kube_efs.model.csi.access_points import AccessPoint
from kube_efs.model.csi.cross_account import CrossAccountRole
from kube_efs.model.csi.file_system_templates import Scope
from kube_efs.model.csi.made_file_systems import MadeFileSystem
from kube_efs.model.csi.volume_handles import AccessPointId, VolumeHandle
from kube_efs.model.efs.directories import Directory, Relation, read_directory
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import (
    AwsNoCredentialsYet,
    AwsNotFound,
    AwsNotPermitted,
    KubeNotFound,
    NotYet,
    RemovalRefused,
)
from kube_efs.model.tunnel_volumes import FILE_SYSTEM_ID
from kube_efs.model.volumes import DRIVER, Location, Volume
from kube_efs.provisioning.awaited_volumes import AwaitedVolumes
from kube_efs.provisioning.reservations import DirectoryReservations
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.single_flight import SingleFlight

log = structlog.get_logger(__name__)

# A watch that is later than this is broken; the removal is retried.
_BARRIER_SECONDS: Final = 20.0
# An older answer may be outdated.
# ``CALL_SECONDS`` of the backend ``csi`` contains this time.
_ANSWER_SECONDS: Final = 30.0
# Two namespaces with the same text only share their turn for copies, and when the trash is emptied.
_TENANT_LENGTH: Final = 8
_SAME_OR_BELOW: Final = frozenset({Relation.SAME, Relation.BELOW})
# The most users of a directory that a message names.
_NAMED_MAX: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovableDirectory:
    """A directory that is removed with its contents, but only if it is strictly below ``base``.

    Its file system is in the account of ``role``. ``is_copy``: kube-efs alone creates such directories.
    """

    location: Location
    base: Directory = field(default_factory=Directory)
    role: CrossAccountRole | None = None
    is_copy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovableAccessPoint:
    """An access point in the account of ``role``.

    ``root`` is the directory that it leads to, or None if the access point does not exist any more.
    """

    handle: VolumeHandle
    role: CrossAccountRole | None = None
    root: Location | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What is removed with a volume: a directory, an access point, both, or neither.

    ``file_system`` was created for the volume or for its namespace, and goes with its last volume. ``tenant``
    identifies the namespace of the volume's claim.
    """

    directory: RemovableDirectory | None = None
    access_point: RemovableAccessPoint | None = None
    file_system: MadeFileSystem | None = None
    tenant: str = ""

    @property
    def is_only_directory(self) -> bool:
        """Whether nothing remains to be removed when the directory is kept."""
        return self.access_point is None and self.file_system is None

    @property
    def leaves_directory(self) -> bool:
        """Whether the access point is removed, and the directory that it leads to stays."""
        return bool(self.access_point and self.access_point.root and not self.directory)

    @property
    def reserved(self) -> tuple[Location, ...]:
        """The directories that no other task may change meanwhile."""
        if self.file_system:
            return (Location(file_system_id=self.file_system.file_system_id, directory=Directory()),)
        if self.directory:
            return (self.directory.location,)
        return (self.access_point.root,) if self.access_point and self.access_point.root else ()


def tenant_of(volume: Volume) -> str:
    """A short text that identifies the namespace of the volume's claim; empty without a claim."""
    return tenant_of_namespace(volume.claim.namespace) if volume.claim else ""


def tenant_of_namespace(namespace: str) -> str:
    """The same for a namespace; empty for an unknown one."""
    return hashlib.sha256(namespace.encode()).hexdigest()[:_TENANT_LENGTH] if namespace else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Permit:
    """The removal may continue.

    ``keeps`` is the reason to keep the directory: the other users of it. It is empty if the directory may be
    removed. ``keeps_file_system`` is the same for the file system of a namespace. ``above`` are volumes that
    contain the directory.
    """

    keeps: str = ""
    keeps_file_system: str = ""
    above: tuple[str, ...] = ()


class DataKept(RemovalRefused):
    """Others use the directory, so it is kept; the volume object may be deleted."""


class RemovalOrder:
    """A removal that the guards have permitted; it must be confirmed at the last reversible moment.

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
        """Raise KubeEfsError unless the removal is still permitted, and NotYet when the answer took too long.

        A process that was stopped for a while must not act on an outdated answer.
        """
        began = self._clock()
        self.permit = await self._ask()
        if self._clock() - began > _ANSWER_SECONDS:
            raise NotYet("took too long", field="last check before a removal", remedy="it is retried")

    async def confirm_directory(self) -> None:
        """Confirm the removal of the directory; raises DataKept when only the directory must be kept."""
        await self.confirm()
        if self.permit.keeps:
            remedy = "delete the other volumes first, or set the reclaim policy of this volume to Retain"
            raise DataKept(self.permit.keeps, field="directory", remedy=remedy)


class AccessPointRoots(Protocol):
    """Lists the access points of the location's file system in AWS; raises AwsError."""

    async def __call__(
        self, location: Location, role: CrossAccountRole | None, named: Collection[AccessPointId]
    ) -> Sequence[AccessPoint]:
        """All access points; ``role`` belongs to the account of the file system.

        Each of ``named`` is missing only if AWS says that it does not exist.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class _Users:
    """The users of a directory and of related ones: names of volumes, and access points."""

    same: frozenset[str]
    below: frozenset[str]
    above: frozenset[str]


class Guards:
    """Checks whether data may be removed; ``roots`` is None if access points cannot exist.

    ``addresses`` reads those of the mount targets of a file system that was created for claims.
    ``reservations`` only separate the operations of this process. ``awaited`` are the volumes that it has
    promised to csi-provisioner. ``is_of_worker`` says of a volume whether it was created for a worker pod;
    removals wait for these pods, so their volumes do not count.
    """

    def __init__(
        self,
        *,
        index: VolumeIndex,
        store: VolumeStore,
        roots: AccessPointRoots | None = None,
        addresses: Callable[[FileSystemId], Awaitable[Collection[str]]] | None = None,
        is_of_worker: Callable[[Volume], bool] = lambda _: False,
    ) -> None:
        self._index = index
        self._store = store
        self._roots = roots
        self._addresses = addresses
        self._is_of_worker = is_of_worker
        self.reservations = DirectoryReservations()
        self.awaited = AwaitedVolumes(index)
        self._fresh = SingleFlight(self._list_volumes)

    async def check(self, removal: Removal, volume: Volume) -> Permit:
        """Permit the removal with that volume; raises RemovalRefused, NotYet, AwsError, KubeError."""
        with self._awaiting_no_others(removal, volume.name):
            return await self._check(removal, frozenset({volume.name}), self._index)

    async def check_last(self, removal: Removal, volume: Volume) -> Permit:
        """Check again at the last reversible moment, for a volume that is Terminating.

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
        with self._awaiting_no_others(removal, volume.name):
            return await self._check(removal, frozenset({volume.name}), self._index)

    async def check_listed(self, removal: Removal, volume: Volume) -> Permit:
        """The same for a volume without our finalizer, which is not Terminating: it lists all volumes."""
        with self._awaiting_no_others(removal, volume.name):
            return await self._check(removal, frozenset({volume.name}), await self._fresh())

    async def check_without_volume(self, removal: Removal) -> Permit:
        """Check the removal of a directory that belongs to no volume, such as a snapshot's.

        This lists all volumes. Raises RemovalRefused, NotYet, AwsError, KubeError.
        """
        with self._awaiting_no_others(removal):
            return await self._check(removal, frozenset(), await self._fresh())

    async def is_leaving(self, file_system_id: FileSystemId) -> bool:
        """Whether a volume of the file system must be removed; this lists all volumes. Raises KubeError."""
        view = await self._fresh()
        return any(view.volumes[name].to_be_reclaimed for name in view.volumes_on(file_system_id))

    async def volumes_of(self, handle: VolumeHandle) -> frozenset[str]:
        """The uids of the volumes with this handle, however it is written; raises KubeError.

        They come from the watch, which may be late, and from a new list.
        """
        known = tuple(self._index.volumes.values())
        view = await self._fresh()
        return frozenset(one.uid for one in _with_handle(handle, (*known, *view.volumes.values())))

    async def check_handle(self, removal: Removal, handle: VolumeHandle, asked_for: frozenset[str]) -> Permit:
        """Check the removal for a caller that knows only the volume's handle (csi-provisioner).

        This lists all volumes. The removed volume is any with this handle that is Released and has the
        reclaim policy Delete. ``asked_for`` are the volumes with the handle when the caller requested the
        removal. Raises NotYet if one of them was deleted since: it may have been set to Retain before.
        """
        # Without a volume of this handle, the caller can discard one that it did not create.
        with self._awaiting_no_others(removal, discarded=None if asked_for else handle):
            view = await self._fresh()
            if asked_for - {one.uid for one in view.volumes.values()}:
                raise _deleted_since(handle)
            named = _with_handle(handle, view.volumes.values())
            itself = frozenset(one.name for one in named if one.to_be_reclaimed)
            permit = await self._check(removal, itself, view)
            if len(itself) < len(named) and not permit.keeps:
                # A volume that must be kept was in the list, but was deleted before it was read.
                raise _deleted_since(handle)
            return permit

    @contextmanager
    def _awaiting_no_others(
        self, removal: Removal, name: str = "", *, discarded: VolumeHandle | None = None
    ) -> Iterator[None]:
        """Raise NotYet at the end if volumes that do not exist yet need what is removed.

        They are read at the beginning: the volumes that are read later contain each that has appeared since.
        The volume of that name does not count, nor does one with the handle that is ``discarded``.
        """
        point = removal.access_point.handle.access_point_id if removal.access_point else None
        place = removal.directory.location if removal.directory else None
        if removal.file_system is not None:
            place = Location(file_system_id=removal.file_system.file_system_id, directory=Directory())
        awaited = self.awaited.using(point, place)
        others = sorted(awaited.keys() - {name})
        if own := [one for one in others if awaited[one] == discarded]:
            others.remove(own[0])
        yield
        if others:
            raise NotYet(
                f"is about to be used by volume {', '.join(others)}",
                field="access point" if removal.access_point else "directory",
                value=point or str(place),
                remedy="the removal waits for that volume; if its claim is gone, restart the controller",
            )

    async def _check(self, removal: Removal, itself: frozenset[str], view: VolumeIndex) -> Permit:
        point = removal.access_point
        if point and point.handle.access_point_id is not None:
            await self._check_access_point(point.handle.access_point_id, itself, view)
        keeps_file_system, mounting = "", dict[str, Directory]()
        if removal.file_system is not None:
            mounting = await self._mounting(removal.file_system, view)
            on_it = mounting.keys() | view.volumes_on(removal.file_system.file_system_id)
            keeps_file_system = await self._check_file_system(
                removal.file_system, point, on_it - itself, itself, view
            )
            if not keeps_file_system:  # Nothing else uses the directory either.
                return Permit()
        if removal.directory is None:
            return Permit(keeps_file_system=keeps_file_system)
        location = removal.directory.location
        await self._check_unlocated(location, itself, view)
        users = await self._users(removal.directory, point, itself, view, mounting)
        # An access point can be removed without its directory, which then stays with all that is below it.
        if users.below and point is None:
            volumes = frozenset(one for one in users.below if " " not in one)
            below = ", ".join(f"volume {one}" if one in volumes else one for one in sorted(users.below))
            raise RemovalRefused(
                f"contains the directory of {below}",
                field="directory",
                value=str(location),
                remedy="delete those first, or set the reclaim policy of this volume to Retain",
                volumes=volumes,
            )
        keeps = users.same | users.below
        return Permit(
            keeps=f"{location} is also used by {', '.join(sorted(keeps))}" if keeps else "",
            keeps_file_system=keeps_file_system,
            above=tuple(sorted(users.above)[:_NAMED_MAX]),
        )

    async def _check_file_system(
        self,
        found: MadeFileSystem,
        point: RemovableAccessPoint | None,
        users: Collection[str],
        itself: frozenset[str],
        view: VolumeIndex,
    ) -> str:
        """The volumes that keep the file system of their namespace, as a reason; empty if it may be removed.

        ``users`` are all other volumes on it. Each of ours removes it later, if it is the last. Raises
        RemovalRefused if anything else uses it.
        """
        location = Location(file_system_id=found.file_system_id, directory=Directory())
        # A volume of an unknown address uses another one: all addresses of this one are known.
        await self._check_unlocated(location, itself, view, only_loopback=True)
        named = self._named(found.file_system_id, view)
        roots = await self._roots(location, None, named) if self._roots else ()
        others = {one.access_point_id for one in roots}
        if point is not None:
            others.discard(point.handle.access_point_id or AccessPointId(""))
        staying: dict[str, bool] = {}
        for name in sorted(users):
            live, entrance = await self._live(name), view.access_point_of(name)
            if live is None or live.is_finalized or self._is_of_worker(live):
                continue
            if live.to_be_reclaimed and entrance is not None and entrance not in others:
                # csi-provisioner deletes the object of a volume after its access point.
                continue
            others.discard(entrance or AccessPointId(""))
            staying[name] = live.handle is not None and live.provisioned_by == DRIVER
        is_shared = found.owner.scope is Scope.NAMESPACE
        ours = [name for name, is_ours in staying.items() if is_ours]
        if (others or staying) and not (is_shared and ours):
            named_users = [f"volume {one}" for one in staying]
            named_users += [f"access point {one}" for one in sorted(others)]
            raise RemovalRefused(
                f"is also used by {', '.join(named_users[:_NAMED_MAX])}",
                field="file system",
                value=found.file_system_id,
                remedy="delete those first, or set the reclaim policy of this volume to Retain",
                volumes=frozenset([*staying][:_NAMED_MAX]),
            )
        return f"is also used by volume {', '.join(ours[:_NAMED_MAX])}" if ours else ""

    async def _mounting(self, found: MadeFileSystem, view: VolumeIndex) -> dict[str, Directory]:
        """The volumes that nodes mount from an address of the file system, and their directories.

        Tunnels do not know the addresses of each file system. So the location of such a volume may be
        unknown, or be another file system that its annotation names by mistake. People may have created a
        mount target since the removal began, so the addresses are read after the volumes; and those that the
        removal has deleted since still count.
        """
        sources = {name: one.mounted_nfs for name, one in view.volumes.items()}
        addresses = set(found.addresses)
        if self._addresses is not None:
            addresses.update(await self._addresses(found.file_system_id))
        return {
            name: read_directory(nfs.path)
            for name, nfs in sources.items()
            if nfs is not None and nfs.address in addresses
        }

    async def _check_unlocated(
        self,
        location: Location,
        itself: frozenset[str],
        view: VolumeIndex,
        *,
        only_loopback: bool = False,
    ) -> None:
        """Raise NotYet when a volume of an unknown file system may use the directory.

        With ``only_loopback``, volumes that are mounted from an address do not count.
        """
        # A copy, because a lookup removes missing volumes from the index.
        for name, directory in list(view.unlocated.items()):
            if name in itself or directory.relation_to(location.directory) not in _SAME_OR_BELOW:
                continue
            volume = view.volumes.get(name)
            if only_loopback and not (volume and volume.is_behind_port):
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
        # Released volumes with Delete do not count. Otherwise two of them would be refused for each other.
        staying = [
            name
            for name in sorted(others)
            if (live := await self._live(name)) is not None and not live.to_be_reclaimed
        ]
        if staying:
            named = staying[:_NAMED_MAX]
            raise RemovalRefused(
                f"also leads to the data of volume {', '.join(named)}",
                field="access point",
                value=access_point_id,
                remedy="delete the other volumes first, or set the reclaim policy of this volume to Retain",
                volumes=frozenset(named),
            )

    async def _users(
        self,
        removed: RemovableDirectory,
        point: RemovableAccessPoint | None,
        itself: frozenset[str],
        view: VolumeIndex,
        mounting: Mapping[str, Directory],
    ) -> _Users:
        """The users of the directory; ``mounting`` are further volumes of its file system."""
        location = removed.location
        candidates: dict[Relation, set[str]] = {
            relation: set(volumes - itself) for relation, volumes in view.users_of(location).items()
        }
        for name in mounting.keys() - itself:
            candidates.setdefault(mounting[name].relation_to(location.directory), set()).add(name)
        blocking: dict[Relation, set[str]] = {Relation.SAME: set(), Relation.BELOW: set()}
        for found in await self._access_points(removed, view):
            if point and found.access_point_id == point.handle.access_point_id:
                continue
            relation = found.directory.relation_to(location.directory)
            if relation in blocking:
                blocking[relation].add(f"access point {found.access_point_id}")
            elif relation is Relation.ABOVE:
                # The access point alone blocks nothing, but a volume may use it for a directory below.
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

    async def _access_points(self, removed: RemovableDirectory, view: VolumeIndex) -> Sequence[AccessPoint]:
        """The access points of the file system, listed by AWS after this call."""
        if self._roots is None:
            return ()
        file_system_id = removed.location.file_system_id
        try:
            return await self._roots(removed.location, removed.role, self._named(file_system_id, view))
        except (AwsNotFound, AwsNotPermitted) as error:
            # The IAM policies of the older provisioners do not allow this call. They never made it, and it is
            # not necessary as long as no volume of the cluster uses an access point. A file system that AWS
            # does not find may also belong to another account or region.
            is_necessary = isinstance(error, AwsNotPermitted) or not removed.is_copy
            is_early = isinstance(error, AwsNoCredentialsYet)
            if is_early or (is_necessary and view.has_access_points(file_system_id)):
                raise
            log.info("access-points-not-listed", file_system=file_system_id, reason=str(error))
            return ()

    def _named(self, file_system_id: FileSystemId, view: VolumeIndex) -> frozenset[AccessPointId]:
        """The access points of the file system that volumes name, also awaited ones."""
        # An awaited volume that watches have shown since the view was listed is only in the index.
        in_use = (one.access_points_in_use(file_system_id) for one in (view, self._index))
        return self.awaited.access_points(file_system_id).union(*in_use)

    async def _list_volumes(self) -> VolumeIndex:
        view = self._index.empty_copy()
        view.replace_volumes(await self._store.list())
        return view

    async def _some_existing(self, names: Iterable[str]) -> set[str]:
        """Some of the volumes that exist; watches may miss a deletion, so each is looked up.

        A volume that is Terminating without our finalizer does not count. Otherwise, if two volumes of one
        directory are removed, each could keep the data for the other.
        """
        found: set[str] = set()
        for name in sorted(names):
            live = await self._live(name)
            if live is not None and not live.is_finalized:
                found.add(name)
            if len(found) == _NAMED_MAX:
                break
        return found

    async def _live(self, name: str) -> Volume | None:
        try:
            return await self._store.get(name)
        except KubeNotFound:
            self._index.forget_volume(name)
            return None


def _with_handle(handle: VolumeHandle, volumes: Iterable[Volume]) -> list[Volume]:
    """The volumes of the driver for which csi-provisioner calls with this handle.

    It calls with the text in the volume, which has several forms: ``FSID::APID`` is ``efs:FSID::APID``. Mount
    options do not count, because they are not in the call.
    """
    # Each form contains this text. To look for it takes a fraction of the time that parsing needs, and there
    # may be thousands of volumes.
    own = handle.access_point_id or (handle.directory.parts or (handle.file_system_id,))[-1]
    sources = ((one, one.csi) for one in volumes)
    return [
        one
        for one, csi in sources
        if csi and csi.driver == DRIVER and own in csi.handle and csi.volume_handle == handle
    ]


def _deleted_since(handle: VolumeHandle) -> NotYet:
    return NotYet(
        "was deleted after its removal was requested",
        field="volume",
        value=str(handle),
        remedy="its data is kept unless the removal is requested again",
    )


def _inside(found: AccessPoint, volume: Volume | None) -> Directory:
    """The directory of a volume that uses this access point."""
    handle = volume.entrance if volume else None
    return Directory((*found.directory.parts, *handle.directory.parts)) if handle else found.directory
