"""Volumes of ``efs.csi.aws.com``: each is an access point or a directory (``provisioningMode: efs-dir``).

The same name gives the same volume, both for claims served here and for csi-provisioner. A repeated request
first looks for what an earlier one has created, because its answer may have been lost.

A removal takes the steps from which it can still turn back first: it asks the guards, lets a worker move the
directory to the trash, and deletes the access point last, because a repeated removal finds the directory by
it. With csi-provisioner, the PersistentVolume still exists at that time and must not count as another user of
the directory, and volumes that were promised but not created yet must (``promise``).
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import structlog

from kube_efs.model.claims import Claim
from kube_efs.model.csi.access_points import (
    AccessPoint,
    VolumeRequest,
    check_reuse,
    is_reusable,
    volume_directory,
)
from kube_efs.model.csi.cross_account import (
    CrossAccountRole,
    TargetAddress,
    cross_account_attributes,
    needs_targets,
)
from kube_efs.model.csi.errors import InvalidArgument, VolumePending
from kube_efs.model.csi.file_system_templates import FileSystemTemplate, Scope
from kube_efs.model.csi.made_file_systems import MadeFileSystem, Stage
from kube_efs.model.csi.parameters import (
    ProvisioningMode,
    VolumeParameters,
)
from kube_efs.model.csi.root_directories import plain_name
from kube_efs.model.csi.volume_attributes import VolumeAttributes, is_of_another_account
from kube_efs.model.csi.volume_handles import VolumeHandle
from kube_efs.model.efs.directories import Relation
from kube_efs.model.efs.file_systems import MountTarget
from kube_efs.model.efs.ids import FileSystemId, ZoneName
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.errors import GidRangeFull, KubeEfsError, NotYet, PlatformError
from kube_efs.model.gids import GidRange
from kube_efs.model.volumes import DRIVER, Location, VolumePhase
from kube_efs.provisioning.backends.csi.access_points import AccessPoints, Notice
from kube_efs.provisioning.backends.csi.accounts import Account, Accounts
from kube_efs.provisioning.backends.csi.directories import CsiDirectories
from kube_efs.provisioning.backends.csi.file_systems import CALL_SECONDS, FileSystems
from kube_efs.provisioning.copies import Recipient, check_copy
from kube_efs.provisioning.guards import (
    DataKept,
    Guards,
    RemovableAccessPoint,
    RemovableDirectory,
    Removal,
    RemovalOrder,
)
from kube_efs.provisioning.reservations import CALLER_PATIENCE_SECONDS
from kube_efs.provisioning.volume_index import VolumeIndex

log = structlog.get_logger(__name__)

_SAME_OR_BELOW: Final = frozenset({Relation.SAME, Relation.BELOW})


@dataclass(frozen=True, slots=True, kw_only=True)
class CsiVolume:
    """The handle of a volume, and how nodes reach it; ``zone`` None means every zone.

    ``directory_id`` is the number that was allocated for the owners of its directory.
    """

    handle: VolumeHandle
    attributes: VolumeAttributes
    zone: ZoneName | None
    directory_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reach:
    """How volumes on one file system are reached."""

    attributes: VolumeAttributes
    zone: ZoneName | None


class CsiVolumes:
    """Creates and removes volumes; a repeated request gives the same volume.

    ``directories`` is None if no worker can create and remove directories; then only access points are
    supported. ``removes_directories`` are the kinds of file systems on which the directory of an access point
    is removed with it.
    """

    def __init__(
        self,
        *,
        accounts: Accounts,
        directories: CsiDirectories | None,
        file_systems: FileSystems,
        index: VolumeIndex,
        guards: Guards,
        removes_directories: Collection[FileSystemKind],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._accounts = accounts
        self._directories = directories
        self._file_systems = file_systems
        self._index = index
        self._guards = guards
        self._removes_directories = removes_directories
        self._clock = clock
        self._began = clock()
        # The end of the last call to delete an access point.
        self._ordered: dict[VolumeHandle, float] = {}
        # The access points of unfinished volumes, by the names of these.
        self._begun: dict[str, VolumeHandle] = {}

    async def create(
        self,
        request: VolumeRequest,
        role: CrossAccountRole | None = None,
        notice: Notice | None = None,
        *,
        claim: Claim | None = None,
    ) -> CsiVolume:
        """The volume of that name.

        ``notice`` is called before a new access point is created although the class reuses them. ``claim``
        gets the progress of a copy. Raises InvalidArgument, ExistingVolumeDiffers, NoMountTarget,
        GidRangeFull, AwsError, KubeError, WorkerFailed, with ``has_begun`` if a part of the volume exists.
        """
        try:
            created = await self._create(request, role, notice, claim)
        except KubeEfsError as error:
            error.has_begun = error.has_begun or self.may_have(request.name)
            if not error.has_begun:
                self._file_systems.finished(request.name)
            raise
        self._begun.pop(request.name, None)
        self._file_systems.finished(request.name)
        if self._directories is not None:
            self._directories.finished(request.name)
        return created

    def may_have(self, name: str) -> bool:
        """Whether something may exist for the volume of that name, without a volume object.

        This process knows only what it has begun itself, and what the access points that it has listed show.
        """
        return name not in self._index.volumes and (
            self._is_known(self._begun.get(name))
            or name in self._guards.awaited
            or (self._directories is not None and self._directories.may_have(name))
            or any(points.may_have(name) for points in self._all_points())
        )

    def _is_known(self, handle: VolumeHandle | None) -> bool:
        """Whether the access point exists, as far as is known: it may have gone with its file system."""
        if handle is None or handle.access_point_id is None:
            return False
        name, place = handle.access_point_id, handle.file_system_id
        return any(points.known.last(place, name) is not None for points in self._all_points())

    def _all_points(self) -> Iterator[AccessPoints]:
        for account in self._accounts.known():
            yield from account.access_points.values()

    async def _create(
        self,
        request: VolumeRequest,
        role: CrossAccountRole | None,
        notice: Notice | None,
        claim: Claim | None,
    ) -> CsiVolume:
        directory = volume_directory(request)
        check_reuse(request)
        template = request.parameters.template
        if template is None or request.source is not None:
            # With a template, this only checks the copy, before a file system is created for it.
            candidates = await self._candidates(request)
        if template is not None:
            candidates = (await self._own_file_system(request, template, role, claim),)
        kind = request.parameters.provisioning.kind
        if request.source is not None:
            place = Location(file_system_id=candidates[0], directory=directory)
            await self._required_directories().await_earlier_copy(place, claim)
        async with self._account(kind, role) as account:
            # Calls that create nothing come first, so that their failure leaves nothing behind.
            reach = {one: await self._reach(one, request.parameters, account, role) for one in candidates}
            needs_id = request.parameters.uid is None or request.parameters.gid is None
            if self._directories is not None and needs_id:
                await self._directories.learn_ids(candidates)
            if request.parameters.provisioning is ProvisioningMode.DIRECTORY:
                place = Location(file_system_id=candidates[0], directory=directory)
                handle, directory_id = await self._required_directories().make(request, place, account)
                recipient = Recipient(
                    claim=claim, has_other_users=partial(self._has_other_users, request, place, account)
                )
                await self._fill(request, place, recipient)
            else:
                make = partial(self._make_access_point, request, candidates, account, role, notice)
                try:
                    made = await make()
                except GidRangeFull:
                    if not await self._free_ids(candidates, request.parameters.gids):
                        raise
                    made = await make()
                handle, directory_id = _handle(made, kind), None
                await self._complete(request, made, claim, account)
        on = reach[handle.file_system_id] if handle.file_system_id in reach else next(iter(reach.values()))
        return CsiVolume(handle=handle, attributes=on.attributes, zone=on.zone, directory_id=directory_id)

    async def _free_ids(self, candidates: Sequence[FileSystemId], gids: GidRange) -> bool:
        return self._directories is not None and await self._directories.free_ids(candidates, gids)

    async def _complete(
        self, request: VolumeRequest, made: AccessPoint, claim: Claim | None, account: Account
    ) -> None:
        """Make the access point usable: its file system stays, and its directory has its contents."""
        parameters = request.parameters
        if parameters.template is not None:
            await self._file_systems.record_use(made.file_system_id)
        place = _root(made, parameters.provisioning.kind)
        if request.source is not None and made.user is not None:
            await self._required_directories().make_root(place, parameters.mode, made.user)
        recipient = Recipient(
            claim=claim, has_other_users=partial(self._has_other_users, request, place, account, made)
        )
        await self._fill(request, place, recipient, has_owner=made.user is not None)

    async def promise(
        self,
        request: VolumeRequest,
        role: CrossAccountRole | None = None,
        *,
        claim: Claim | None = None,
    ) -> CsiVolume:
        """The same for csi-provisioner, which creates its object later: removals wait for it."""
        created = await self.create(request, role, claim=claim)
        # Without a copy, nothing else can happen between the end of the reservation and this.
        self._guards.awaited.expect(request.name, created.handle)
        return created

    async def _fill(
        self, request: VolumeRequest, place: Location, recipient: Recipient, *, has_owner: bool = True
    ) -> None:
        """Copy the source of the request, if it has one, before anything can mount the volume."""
        if request.source is not None:
            key = plain_name(request.name)
            await self._required_directories().fill(
                request.source, place, recipient, key=key, maps_owner=has_owner
            )

    def _has_other_users(
        self, request: VolumeRequest, place: Location, account: Account, made: AccessPoint | None = None
    ) -> bool:
        """Whether other volumes or access points are in the directory, or in one below it.

        A class with ``ensureUniqueDirectory: "false"`` gives several volumes one directory.
        """
        related = self._index.users_of(place)
        volumes = related[Relation.SAME] | related[Relation.BELOW]
        volumes |= self._guards.awaited.using(None, place).keys()
        known = account.access_points[place.kind].known.on(place.file_system_id).values()
        own = made and made.access_point_id
        return bool(volumes - {request.name}) or any(
            one.directory.relation_to(place.directory) in _SAME_OR_BELOW
            for one in known
            if not one.leaving and one.access_point_id != own
        )

    async def places(
        self, request: VolumeRequest, role: CrossAccountRole | None = None
    ) -> tuple[Location, ...]:
        """Every possible location of the volume's data, as far as is known.

        An existing access point keeps its directory, also if its class or the labels of its claim have
        changed since. The search costs no call: a creation lists the same file systems.
        Raises InvalidArgument, KubeError, AwsError.
        """
        directory = volume_directory(request)
        candidates = await self._candidates(request)
        kind = request.parameters.provisioning.kind
        places = {Location(file_system_id=one, directory=directory, kind=kind) for one in candidates}
        if request.parameters.provisioning.makes_access_points:
            async with self._account(kind, role) as account:
                for one in candidates:
                    if made := await account.access_points[kind].made_before(request, one):
                        places.add(_root(made, kind))
        return tuple(places)

    async def delete(self, handle: VolumeHandle, role: CrossAccountRole | None = None) -> None:
        """Remove the volume for a caller that knows only its handle; a missing volume is not an error.

        Raises RemovalRefused when another volume uses its data, NotYet, AwsError, KubeError, WorkerFailed.
        """
        # First: a volume that is deleted from now on may have been set to Retain before.
        asked_for = await self._guards.volumes_of(handle)
        removal = await self.removal(handle, role)
        async with self._guards.reservations.removing(
            *removal.reserved, patience_seconds=CALLER_PATIENCE_SECONDS
        ):
            order = RemovalOrder(lambda: self._guards.check_handle(removal, handle, asked_for))
            await self.remove(removal, order)
            if not asked_for:
                self._guards.awaited.forget(handle)

    async def removal(
        self, handle: VolumeHandle, role: CrossAccountRole | None = None, *, tenant: str = ""
    ) -> Removal:
        """What is removed with the volume; nothing if it was not created here.

        Raises NotYet while an earlier call could create its access point again, RemovalRefused, AwsError.
        """
        role = role if handle.kind.has_roles else None
        if handle.base is not None:
            place = Location(file_system_id=handle.file_system_id, directory=handle.directory)
            directory = RemovableDirectory(location=place, base=handle.base, role=role)
            return Removal(directory=directory, tenant=tenant)
        if handle.access_point_id is None:
            return Removal()
        async with self._account(handle.kind, role) as account:
            points = account.access_points[handle.kind]
            found = await points.known.find(handle)
        file_system = await self._goes_along(handle, found) if role is None else None
        if found is None:
            self._check_account(handle, role)
            point = RemovableAccessPoint(handle=handle, role=role)
            return Removal(access_point=point, file_system=file_system, tenant=tenant)
        points.check_stays_gone(found)
        root = _root(found, handle.kind)
        # Another cluster may have a claim with a reused access point, whose data must stay.
        is_removed = (
            handle.kind in self._removes_directories
            and not found.directory.is_root
            and not is_reusable(found)
        )
        return Removal(
            directory=RemovableDirectory(location=root, role=role) if is_removed else None,
            access_point=RemovableAccessPoint(handle=handle, role=role, root=root),
            file_system=file_system,
            tenant=tenant,
        )

    def _check_account(self, handle: VolumeHandle, role: CrossAccountRole | None) -> None:
        """Raise NotYet if a missing access point may exist in another account than that of the role.

        As in the AWS driver, a provisioner Secret may be without a role. So only the attributes of the volume
        show that a role was removed from the Secret, or added.
        """
        if handle.access_point_id is None or not handle.kind.has_roles:
            return
        through = self._index.volumes_through(handle.access_point_id)
        known = [self._index.volumes[name] for name in sorted(through) if name in self._index.volumes]
        # People may give their own volumes of the access point any attributes, such as a mount target.
        ours = [one for one in known if one.provisioned_by == DRIVER and one.handle == handle]
        abroad = [one for one in ours if one.csi and is_of_another_account(one.csi.attributes)]
        if not ours or (role is not None) is bool(abroad):
            return
        problem = (
            "was created without the role that its provisioner Secret has now"
            if role is not None
            else "was created with a role, but its provisioner Secret has no awsRoleArn"
        )
        raise NotYet(
            f"{problem}, so its access point is not found",
            field="volume",
            value=(abroad or ours)[0].name,
            remedy="correct the Secret, or set the reclaim policy of the volume to Retain",
        )

    async def _goes_along(self, handle: VolumeHandle, point: AccessPoint | None) -> MadeFileSystem | None:
        """The file system that is removed with that volume, if it is the last one; None for any other.

        Its access point may be deleted: by people, and after a removal has begun. Raises AwsError.
        """
        if handle.kind is not FileSystemKind.EFS:
            return None
        found = await self._file_systems.to_be_removed(handle.file_system_id)
        if found is None:
            return None
        made = self._index.volumes.get(found.owner.name)
        is_own = made is not None and made.handle == handle and made.provisioned_by == DRIVER
        is_own = is_own or (point is not None and point.client_token == plain_name(found.owner.name))
        is_shared = found.owner.scope is Scope.NAMESPACE
        # A volume exists only after the use was recorded. AWS does not say how soon others see new tags.
        is_last = is_own or is_shared or found.stage is Stage.REMOVING
        return replace(found, is_used=True) if is_last else None

    async def settled(self, removal: Removal) -> None:
        """Return when no earlier order for this removal can still take effect; raises KubeEfsError.

        Worker pods can be listed, but calls to AWS cannot. So a volume with an existing access point is kept
        until every call of this process or an earlier leader has certainly ended.
        """
        if self._directories is not None:
            for location in removal.reserved:
                await self._directories.settled(location)
        point = removal.access_point
        if point is None or (point.root is None and removal.file_system is None):
            return
        last = self._ordered.get(point.handle, self._began)
        waited_seconds = self._clock() - last
        if waited_seconds < CALL_SECONDS:
            raise NotYet(
                "may still be deleted by an earlier call to AWS",
                field="volume",
                value=str(point.handle),
                remedy=f"the volume is released in {CALL_SECONDS - waited_seconds:.0f} s",
            )
        self._ordered.pop(point.handle, None)
        if removal.file_system is not None:
            await self._file_systems.reopen(removal.file_system)

    async def remove(self, removal: Removal, order: RemovalOrder) -> None:
        """Remove it after confirmation of the order, but keep a directory in use; raises KubeEfsError."""
        point = removal.access_point
        if point is None:
            if removal.directory:
                await self._required_directories().remove(removal, order)
                self._index.gids.release(str(removal.directory.location))
            return
        async with self._account(point.handle.kind, point.role) as account:
            points = account.access_points[point.handle.kind]
            await self._remove_access_point(point.handle, removal, order, points)

    async def _remove_access_point(
        self, handle: VolumeHandle, removal: Removal, order: RemovalOrder, points: AccessPoints
    ) -> None:
        if removal.file_system is not None:
            if self._directories is not None and removal.file_system.stage is not Stage.REMOVING:
                self._directories.forget_snapshots(removal.file_system.file_system_id)
            ending = await self._file_systems.begin_removal(removal.file_system, order, self._check_contents)
            if ending is not None:
                found = await points.to_delete(handle)
                with self._ordering(handle):
                    last = partial(points.delete, found, is_directory_gone=True)
                    await self._file_systems.remove(ending, order, last)
                points.known.forget(ending.file_system_id)
                return
        try:
            if removal.directory:
                await self._required_directories().remove(removal, order)
        except DataKept as kept:
            log.warning("directory-kept", volume=str(handle), reason=kept.problem)
        found = await points.to_delete(handle)
        # Once more: the directory's removal may have taken minutes, and the deletion of an access point
        # cannot be undone. ``CALL_SECONDS`` begins here, so no other call may follow before the deletion.
        await order.confirm()
        # If an earlier call has deleted the access point, perhaps without an answer, its directory may stay.
        is_directory_gone = removal.directory is not None and not order.permit.keeps
        with self._ordering(handle):
            await points.delete(found, is_directory_gone=is_directory_gone)

    @contextmanager
    def _ordering(self, handle: VolumeHandle) -> Iterator[None]:
        """Note until when the calls to AWS in this context can still take effect."""
        self._ordered[handle] = self._clock()
        try:
            yield
        except BaseException:
            self._ordered[handle] = self._clock()
            raise
        self._ordered.pop(handle, None)

    async def _check_contents(self, found: MadeFileSystem) -> None:
        """Raise RemovalRefused if it contains snapshots, NotYet and WorkerFailed while a worker uses it.

        Without workers, no snapshots are created.
        """
        if self._directories is not None:
            await self._directories.unused(found.file_system_id)
            await self._directories.check_without_snapshots(found.file_system_id)

    async def exists(self, handle: VolumeHandle, role: CrossAccountRole | None = None) -> bool:
        """Whether the volume exists; AWS knows only access points. Raises AwsError."""
        if handle.access_point_id is None:
            return True
        async with self._account(handle.kind, role) as account:
            return await account.access_points[handle.kind].known.find(handle) is not None

    def _account(
        self, kind: FileSystemKind, role: CrossAccountRole | None
    ) -> AbstractAsyncContextManager[Account]:
        """The account of the file systems."""
        return self._accounts.of(role if kind.has_roles else None)

    async def _own_file_system(
        self,
        request: VolumeRequest,
        template: FileSystemTemplate,
        role: CrossAccountRole | None,
        claim: Claim | None,
    ) -> FileSystemId:
        """The file system that is created for the volume, or for its namespace, ready to be mounted."""
        if role is not None:
            raise InvalidArgument(
                "is only supported in the account of the cluster",
                field="provisioningMode",
                value=str(request.parameters.provisioning),
                remedy="leave out the provisioner secret, or use an existing file system",
            )
        return await self._file_systems.ensure(request, template, claim, is_leaving=self._guards.is_leaving)

    async def _candidates(self, request: VolumeRequest) -> Sequence[FileSystemId]:
        """The existing file systems of the class; for a copy only that of its source.

        Raises InvalidArgument, AwsError, KubeError.
        """
        parameters, source = request.parameters, request.source
        named = await self._file_systems.existing(request)
        if source is None:
            return named
        self._check_copy(request)
        if source.location.file_system_id not in named:
            raise InvalidArgument(
                f"is not on a file system of the class ({', '.join(named) or 'a new one'})",
                field="data source",
                value=str(source.location),
                remedy="use a class on the file system of the source",
            )
        on = source.location.file_system_id
        check_copy(
            source,
            Location(file_system_id=on, directory=volume_directory(request)),
            enforces_identity=parameters.provisioning.makes_access_points and parameters.enforces_user,
        )
        return (on,)

    def _check_copy(self, request: VolumeRequest) -> None:
        """Raise InvalidArgument for a class whose volumes cannot be filled with a copy."""
        parameters = request.parameters
        if parameters.provisioning.kind is not FileSystemKind.EFS:
            field, value = "provisioningMode", str(parameters.provisioning)
            problem = "makes volumes on S3 Files, whose directories are not copied"
            raise InvalidArgument(problem, field=field, value=value, remedy="use a class on EFS")
        if parameters.reuses_access_point:
            problem = "may give a volume with data, into which nothing is copied"
            remedy = "use a class that gives each claim a directory of its own"
            raise InvalidArgument(problem, field="reuseAccessPoint", value="true", remedy=remedy)
        self._required_directories()

    async def _reach(
        self,
        file_system_id: FileSystemId,
        parameters: VolumeParameters,
        account: Account,
        role: CrossAccountRole | None,
    ) -> _Reach:
        attributes, zone = VolumeAttributes(), None
        is_efs = parameters.provisioning.kind is FileSystemKind.EFS
        if role is not None and is_efs:
            found = await account.gateway.mount_targets(file_system_id) if needs_targets(role) else ()
            targets = [_target(one) for one in found if one.state.usable]
            attributes = cross_account_attributes(role, parameters.zone, file_system_id, targets)
        # S3 Files has no file systems of one zone.
        if parameters.zone_affinity and is_efs:
            zone = (await account.gateway.file_system(file_system_id)).zone
        return _Reach(attributes=attributes, zone=zone)

    async def _make_access_point(
        self,
        request: VolumeRequest,
        candidates: Sequence[FileSystemId],
        account: Account,
        role: CrossAccountRole | None,
        notice: Notice | None,
    ) -> AccessPoint:
        def say(text: str) -> None:
            log.info("access-point-not-reused", volume=request.name, reason=text)
            if notice is not None:
                notice(text)

        kind = request.parameters.provisioning.kind
        # Only the creation of the access point shows which file system has room.
        places = await self.places(request, role)
        async with self._guards.reservations.making(*places):
            made = await account.access_points[kind].create(request, candidates, say)
            is_reserved = _root(made, kind) in places
            if is_reserved:
                self._refuse_leaving(made, request)
            # Another process may have completed other volumes, or removed their access points.
            self._begun = {name: one for name, one in self._begun.items() if self._is_known(one)}
            self._begun[request.name] = _handle(made, kind)
            if not is_reserved:
                # The access point is known now, so the next attempt also reserves its directory.
                raise _pending(f"leads to {made.directory}, which must be reserved first", made)
            if self._directories is not None:
                # Others can see the access point now. Orders from before must have ended.
                await self._directories.settled(_root(made, kind))
        log.info("access-point-made", volume=request.name, access_point=made.access_point_id)
        return made

    def _refuse_leaving(self, made: AccessPoint, request: VolumeRequest) -> None:
        """Refuse an access point that is being removed with the volume of an earlier claim.

        A volume of another claim that stays prevents this removal. If that claim is gone, people may have
        decided that the volume stays after the removal was ordered, perhaps by an earlier leader. So while a
        call can still take effect, only a volume with its claim prevents the removal.
        """
        # The volume itself may exist already, from an attempt with a lost answer.
        users = self._index.volumes_through(made.access_point_id) - {request.name}
        known = [self._index.volumes[name] for name in users if name in self._index.volumes]
        leaving = sorted(one.name for one in known if one.to_be_reclaimed or one.deleting)
        handle = _handle(made, request.parameters.provisioning.kind)
        is_ordered = self._clock() - self._ordered.get(handle, self._began) < CALL_SECONDS
        stays = [one for one in known if one.name not in leaving]
        if is_ordered:
            stays = [one for one in stays if one.phase is VolumePhase.BOUND]
        if leaving and not stays:
            raise _pending(f"is about to be removed with volume {', '.join(leaving)}", made)

    def _required_directories(self) -> CsiDirectories:
        if self._directories is None:
            raise PlatformError(
                "needs worker pods, which this controller does not run",
                field="volume",
                value="a directory or a copy",
                remedy="put tunnel into the controller's KUBE_EFS_BACKENDS, or use efs-ap without a copy",
            )
        return self._directories


def _root(found: AccessPoint, kind: FileSystemKind) -> Location:
    return Location(file_system_id=found.file_system_id, directory=found.directory, kind=kind)


def _handle(found: AccessPoint, kind: FileSystemKind) -> VolumeHandle:
    return VolumeHandle(kind=kind, file_system_id=found.file_system_id, access_point_id=found.access_point_id)


def _pending(problem: str, found: AccessPoint) -> VolumePending:
    return VolumePending(problem, field="access point", value=found.access_point_id, remedy="it is retried")


def _target(target: MountTarget) -> TargetAddress:
    zone = target.zone or ZoneName("")
    return TargetAddress(zone=zone, zone_id=target.zone_id or zone, address=target.address)
