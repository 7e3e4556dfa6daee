"""The file systems of a class. With ``provisioningMode: efs-fs``, they are created and removed with volumes.

Every step of the creation can be repeated, by this process or by another one: the creation token gives the
same file system, and its tags say whose it is and how far it is (``made_file_systems.py`` in ``model/csi``).
So a crash, a lost answer and a second controller leave one file system. If nobody continues, it is still in
the stage ``creating`` and has no data; ``controllers/unfinished_file_systems.py`` removes it.

How a removal and a new volume exclude each other, also in different processes: a removal first records the
stage ``removing``, and then checks that no other access point, volume or snapshot exists. A new volume first
gets its access point, and then checks that no removal has begun (``record_use``). Whatever the order of these
four steps, at least one of the two notices the other and gives way. In addition, AWS refuses to delete a file
system with mount targets.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final, Protocol
from weakref import WeakValueDictionary

import structlog

from kube_efs.aws.gateway import AwsGateway
from kube_efs.aws.owned import Subnet, one_of_each_zone
from kube_efs.kube.references import References
from kube_efs.model.claims import Claim
from kube_efs.model.csi.access_point_tags import CLUSTER, Tag
from kube_efs.model.csi.access_points import VolumeRequest
from kube_efs.model.csi.claims import is_volume_of
from kube_efs.model.csi.errors import InvalidArgument, VolumePending
from kube_efs.model.csi.file_system_templates import FileSystemTemplate, Scope
from kube_efs.model.csi.made_file_systems import (
    FileSystemOwner,
    MadeFileSystem,
    Stage,
    check_owner_known,
    check_template,
    creation_token,
    tags_for,
)
from kube_efs.model.csi.parameters import FileSystemReference, parse_referenced
from kube_efs.model.efs.file_systems import LifeCycleState, MountTarget
from kube_efs.model.efs.ids import ClaimUid, FileSystemId, MountTargetId
from kube_efs.model.errors import (
    AwsAlreadyExists,
    AwsError,
    AwsNotFound,
    InvalidValue,
    KubeNotFound,
    NotYet,
    RemovalRefused,
    WorkerFailed,
)
from kube_efs.provisioning.guards import RemovalOrder
from kube_efs.single_flight import SingleFlight

log = structlog.get_logger(__name__)

# A call to AWS with all its retries takes at most 120 s (AwsOptions), and begins at most 30 s after the
# confirmation of the order (RemovalOrder.confirm).
CALL_SECONDS: Final = 180.0
_VISIBLE_SECONDS: Final = 5.0
# A file system takes seconds, a mount target a minute or two.
_POLL_SECONDS: Final = 2.0
# Each claim needs the subnets of all nodes, also if its file system is complete, so claims share one list. It
# must not be much older: a claim can wait for a pod on a node that was added for it, in a zone without a
# mount target, and no later claim adds one to a file system of its own. A node runs pods later than this
# after its registration, because its network plugin must start first.
_SUBNETS_SECONDS: Final = 10.0
# AWS documents these refusals of DeleteFileSystem, and not which of them is that of a replication.
_IN_REPLICATION: Final = frozenset({"BadRequest", "FileSystemInUse"})
_GROUP_IN_USE: Final = frozenset({"DependencyViolation"})


class Cluster(Protocol):
    """What the cluster says about itself; every method may raise KubeError."""

    async def instance_ids(self) -> frozenset[str]:
        """The IDs of the EC2 instances of its nodes."""

    async def namespace_uid(self, name: str) -> str:
        """The uid of that namespace."""

    async def claim_uid(self, namespace: str, name: str) -> ClaimUid | None:
        """The uid of that claim; None without one."""

    async def cluster_uid(self) -> str:
        """A text that only this cluster has."""


class FileSystems:
    """Finds the file systems of classes; creates and removes some with the gateway of our own account.

    ``tags`` are the driver's own, for file systems and security groups. ``notice`` publishes the steps on a
    claim. An attempt that takes longer than ``patience_seconds`` raises VolumePending or NotYet, and must be
    repeated: csi-provisioner does not wait longer for an answer.
    """

    def __init__(
        self,
        gateway: AwsGateway,
        cluster: Cluster,
        references: References,
        *,
        tags: Sequence[Tag] = (),
        notice: Callable[[Claim, str], None],
        patience_seconds: float,
    ) -> None:
        self._gateway = gateway
        self._cluster = cluster
        self._references = references
        self._tags = tags
        self._notice_claim = notice
        self._patience_seconds = patience_seconds
        # By token; claims of one namespace create their file system together.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._subnets_of_nodes = SingleFlight(self._describe_subnets_of_nodes)
        # The last answer that was not empty, and when its list of nodes has begun.
        self._described: tuple[float, Sequence[Subnet]] | None = None
        # Since when no volume is leaving with a file system whose removal has begun.
        self._left_since: dict[FileSystemId, float] = {}
        # File systems without the tags of this cluster, and the time of that answer.
        self._others: dict[FileSystemId, float] = {}
        # The addresses of those that are being removed, also of mount targets that are deleted by now.
        self._addresses: dict[FileSystemId, frozenset[str]] = {}
        # The uid of the namespace of each unfinished volume. The namespace can be deleted meanwhile, and only
        # a complete volume is removed with everything that belongs to it.
        self._namespaces: dict[str, str] = {}

    async def existing(self, request: VolumeRequest) -> Sequence[FileSystemId]:
        """The file systems of the class that exist; without one that must be created first.

        Raises InvalidArgument, AwsError, KubeError.
        """
        named = request.parameters.file_systems
        if isinstance(named, FileSystemReference):
            return parse_referenced(await self._references.text(named), named)
        if isinstance(named, FileSystemTemplate):
            token = creation_token(await self._owner(request, named), named)
            found = await self._gateway.made_file_systems.with_token(token)
            return (found.file_system_id,) if found else ()
        return named

    async def ensure(
        self,
        request: VolumeRequest,
        template: FileSystemTemplate,
        claim: Claim | None,
        *,
        is_leaving: Callable[[FileSystemId], Awaitable[bool]],
    ) -> FileSystemId:
        """The file system of the request, which can be mounted; created if it does not exist.

        ``claim`` gets an event for each step. ``is_leaving`` says whether a volume is being removed with the
        file system. Raises InvalidArgument, ExistingVolumeDiffers, VolumePending while it is not ready,
        AwsError, KubeError.
        """
        owner = await self._owner(request, template)
        if owner.scope is Scope.NAMESPACE:
            self._namespaces[request.name] = owner.name
        token = creation_token(owner, template)
        async with self._locks.setdefault(token, asyncio.Lock()):
            found = await self._gateway.made_file_systems.with_token(token)
            if found is not None and found.stage is Stage.REMOVING:
                found = await self._taken_back(found, is_leaving)
            if found is not None:
                _check_usable(found)
                if owner.scope is Scope.CLAIM:
                    check_template(found, template)
            # Before the creation, so that an invalid class leaves nothing behind.
            subnets = await self._subnets(template)
            if found is not None and found.is_used and await self._has_targets(found, subnets):
                return found.file_system_id
            if found is None:
                await self._check_claim(request)
            began = _now()

            def say(step: str) -> None:
                text = f"File system {found.file_system_id}: " if found else ""
                self._say(request, claim, f"{text}{step} ({_now() - began:.0f} s)")

            if found is None:
                say("Creating a file system")
                tags = tags_for(owner, request, template, self._tags)
                found = await self._create(token, template, tags)
            await self._finish(found, template, subnets, say)
        return found.file_system_id

    async def _taken_back(
        self, found: MadeFileSystem, is_leaving: Callable[[FileSystemId], Awaitable[bool]]
    ) -> MadeFileSystem | None:
        """The file system, reopened if its removal was given up, such as by the reclaim policy Retain.

        None if it was deleted meanwhile. A removal counts as given up when no volume has been leaving for as
        long as a call to AWS can still take effect.
        """
        name = found.file_system_id
        if found.state.ending or await is_leaving(name):
            self._left_since.pop(name, None)
            return found
        if _now() - self._left_since.setdefault(name, _now()) < CALL_SECONDS:
            return found
        del self._left_since[name]
        return await self.reopen(found)

    async def record_use(self, file_system_id: FileSystemId) -> None:
        """Record that a volume may be on it, after the creation of the access point.

        Raises VolumePending if a removal has begun meanwhile, and AwsError.
        """
        found = await self._get(file_system_id)
        _check_usable(found)
        if not found.mount_targets:
            raise _pending(file_system_id, "has no mount targets")
        if not found.is_used or found.stage is not Stage.READY or found.is_checked:
            await self._gateway.made_file_systems.set_stage(file_system_id, Stage.READY)

    def finished(self, volume: str) -> None:
        """Forget the volume of that name: it is complete, or nothing exists for it."""
        self._namespaces.pop(volume, None)

    async def check_stays(self, file_system_id: FileSystemId) -> None:
        """Raise VolumePending if the file system is being removed, with everything in it.

        A removal looks for snapshots and worker pods after it has recorded that it begins. So a snapshot must
        check this after its creation, and a worker pod after that of its object. Raises AwsNotFound if the
        file system does not exist in our account, AwsError, KubeError.
        """
        found = await self._of_this_cluster(file_system_id)
        if found is None:
            return
        _check_usable(found)
        if found.is_checked and await self._can_be_mounted(file_system_id):
            # People have created mount targets after a removal was refused: its check counts no longer.
            await self._gateway.made_file_systems.set_stage(file_system_id, Stage.READY)

    async def get(self, file_system_id: FileSystemId) -> MadeFileSystem | None:
        """That file system; None if it does not exist, or was not created for claims of this cluster.

        Raises AwsError, KubeError.
        """
        try:
            return await self._of_this_cluster(file_system_id)
        except AwsNotFound:
            return None

    async def _of_this_cluster(self, file_system_id: FileSystemId) -> MadeFileSystem | None:
        if self._others.get(file_system_id, -CALL_SECONDS) + CALL_SECONDS > _now():
            return None
        found = await self._gateway.made_file_systems.get(file_system_id)
        if found is None or found.owner.cluster != await self._cluster.cluster_uid():
            self._others[file_system_id] = _now()
            return None
        return found

    async def to_be_removed(self, file_system_id: FileSystemId) -> MadeFileSystem | None:
        """The same with the addresses of its mount targets; None if it is already being deleted."""
        found = await self.get(file_system_id)
        if found is None or found.state.ending:
            return None
        addresses = frozenset(one.address for one in await self._mount_targets(file_system_id))
        if found.stage is Stage.REMOVING:
            # An earlier attempt may have deleted some, and people may have created a volume since that still
            # names one of these. After a restart, they are not known any more.
            addresses |= self._addresses.get(file_system_id, frozenset())
        self._addresses[file_system_id] = addresses
        return replace(found, addresses=addresses)

    async def unfinished(self, *, older_than: float) -> tuple[MadeFileSystem, ...]:
        """Those of this cluster that were created before this time in Unix seconds and were never used.

        Raises AwsError, KubeError.
        """
        return tuple(one for one in await self._made() if not one.is_used and one.created < older_than)

    async def reopen_kept(self, is_leaving: Callable[[FileSystemId], Awaitable[bool]]) -> None:
        """Reopen those whose removal was given up before it deleted mount targets, also without a claim.

        Otherwise snapshots and worker pods of a volume that stays would wait indefinitely. ``is_leaving`` is
        that of ``ensure``. Raises AwsError, KubeError.
        """
        for one in await self._made():
            if one.is_used and one.stage is Stage.REMOVING and one.mount_targets:
                await self._taken_back(one, is_leaving)

    async def _made(self) -> Sequence[MadeFileSystem]:
        cluster = await self._cluster.cluster_uid()
        return [one for one in await self._gateway.made_file_systems.list() if one.owner.cluster == cluster]

    async def namespace_uids(self, names: Collection[str]) -> frozenset[str]:
        """The uids of these namespaces, as far as they exist; raises KubeError."""
        found = set[str]()
        for one in sorted(names):
            with suppress(KubeNotFound):
                found.add(await self._cluster.namespace_uid(one))
        return frozenset(found)

    async def delete_unused_access_points(
        self, found: MadeFileSystem, list_claims: Callable[[], Awaitable[Collection[ClaimUid]]]
    ) -> None:
        """Delete the driver's access points on an unused file system whose claims were deleted.

        The order of the calls matters. A claim that is missing after its access point was listed never comes
        back. If the file system is unused after that, the volume of this claim can only appear later, when no
        pod can use it. Raises AwsError, KubeError.
        """
        points = await self._gateway.access_points.list(found.file_system_id)
        made = [one for one in points if one.tags.get(CLUSTER) == "true" and one.client_token]
        if not made:
            return
        claims = await list_claims()
        gone = [one for one in made if not any(is_volume_of(one.client_token, uid) for uid in claims)]
        now = await self.get(found.file_system_id)
        for one in gone if now is not None and not now.is_used else ():
            log.info("access-point-discarded", access_point=one.access_point_id, volume=one.client_token)
            await self._gateway.access_points.delete(one.access_point_id)

    async def begin_removal(
        self,
        found: MadeFileSystem,
        order: RemovalOrder,
        check_contents: Callable[[MadeFileSystem], Awaitable[None]],
    ) -> MadeFileSystem | None:
        """The file system, which is now to be removed with its volume; None if others use it.

        From then on, no new volume and no new worker uses it. ``check_contents`` raises RemovalRefused if it
        contains something that must stay, NotYet while a worker uses it, and WorkerFailed if that may never
        end. It is called before the first mount target is deleted, because then no worker could mount the
        file system. Raises RemovalRefused, NotYet, WorkerFailed, AwsError, KubeError.
        """
        if not await self._confirmed(found, order):
            return None
        if found.stage is not Stage.REMOVING:
            await self._gateway.made_file_systems.set_stage(found.file_system_id, Stage.REMOVING)
            found = replace(found, stage=Stage.REMOVING)
            # AWS does not say how soon others see new tags.
            await asyncio.sleep(_VISIBLE_SECONDS)
            # What has appeared before the record is found now; what appears later finds the record.
            if not await self._confirmed(found, order):
                return None
        # Read now, because ``found`` was read before a wait for the directory.
        before = await self._removing(found.file_system_id)
        if not await self._check_contents(found, before, order, check_contents):
            return None
        now = await self._removing(found.file_system_id)
        if before is None or now is None:
            return found
        if now.is_used and not found.is_used:
            await self.reopen(found)
            return None
        if now.use != before.use or (found.is_used and not now.is_used):
            # Another process may have reopened it and begun another removal since the contents were checked.
            # Or its tags are not visible yet.
            raise _used_again(found.file_system_id)
        if found.is_used and not now.is_checked:
            await self._gateway.made_file_systems.set_checked(now)
        return replace(found, use=now.use)

    async def _check_contents(
        self,
        found: MadeFileSystem,
        now: MadeFileSystem | None,
        order: RemovalOrder,
        check_contents: Callable[[MadeFileSystem], Awaitable[None]],
    ) -> bool:
        """Whether its removal may continue; raises what ``begin_removal`` raises."""
        if not await self._can_be_mounted(found.file_system_id):
            if now is not None and found.is_used and not now.is_checked:
                # Somebody else has deleted them, perhaps to create others.
                raise RemovalRefused(
                    "has no mount targets, so nobody can look for snapshots in it",
                    field="file system",
                    value=found.file_system_id,
                    remedy="create a mount target, or delete the file system",
                )
            return True
        try:
            await check_contents(found)
        except (RemovalRefused, WorkerFailed):
            # A removal may be impossible for long, so new volumes may use it again.
            await self.reopen(found)
            raise
        # Workers can take minutes, and others may have begun to use the file system meanwhile.
        return await self._confirmed(found, order)

    async def remove(
        self, found: MadeFileSystem, order: RemovalOrder, delete_access_point: Callable[[], Awaitable[None]]
    ) -> None:
        """Delete the mount targets, its own security group and the file system, after ``begin_removal``.

        The access point and the file system are deleted last: without them, a removal that is interrupted or
        given up could not be continued or repaired. Each deletion is confirmed by itself. Raises NotYet while
        AWS deletes the mount targets, and when another process has given up the removal; RemovalRefused,
        AwsError, KubeError.
        """
        name = found.file_system_id
        await self._delete_mount_targets(found)
        # After the mount targets: EC2 does not delete a security group that is in use.
        for group in await self._gateway.owned.security_groups_named(found.security_group, (CLUSTER, "true")):
            remedy = (
                "remove it from rules of other security groups and from network interfaces; it is retried"
            )
            with _advising(_GROUP_IN_USE, remedy):
                await self._gateway.owned.delete_security_group(group)
        await self._confirm_last(found, order)
        await delete_access_point()
        # Once more: that call may have taken minutes, or this process was paused. Meanwhile, others may have
        # kept the volume and reported that its data stays.
        await self._confirm_last(found, order)
        try:
            remedy = (
                "if it is part of a replication, delete the replication configuration; it is deleted then"
            )
            with _advising(_IN_REPLICATION, remedy):
                await self._gateway.delete_file_system(name)
        except AwsNotFound:
            log.info("file-system-gone", file_system=name)
        self._addresses.pop(name, None)
        log.info("file-system-removed", file_system=name, owner=found.owner.name)

    async def _confirm_last(self, found: MadeFileSystem, order: RemovalOrder) -> None:
        """Raise KubeEfsError unless the file system is still to be removed; one deletion may follow."""
        await self._check_unused_since(found)
        # The order comes last, because ``CALL_SECONDS`` begins with its confirmation.
        await order.confirm()
        if order.permit.keeps_file_system:
            raise NotYet(order.permit.keeps_file_system, field="file system", value=found.file_system_id)

    async def reopen(self, found: MadeFileSystem) -> MadeFileSystem | None:
        """Let new volumes use it again, although a removal had begun; None if it does not exist any more.

        The next of them creates the mount targets that are missing. It also sets the policy of a file system
        that was never used: its creation continues, and no use may be recorded before its end. Without mount
        targets, nothing uses it, so an earlier check still counts: otherwise no removal could continue when
        nothing refuses it any more. Raises AwsError, KubeError.
        """
        if found.stage is not Stage.REMOVING:
            return found
        # It may be used, checked, or without mount targets only since the removal has begun.
        now = await self.get(found.file_system_id)
        if now is None:
            return None
        stage = Stage.READY if now.is_used else Stage.CREATING
        keeps_check = now.is_checked and not await self._can_be_mounted(found.file_system_id)
        await self._gateway.made_file_systems.set_stage(found.file_system_id, stage, keeps_check=keeps_check)
        return replace(now, stage=stage)

    async def _confirmed(self, found: MadeFileSystem, order: RemovalOrder) -> bool:
        """Whether the file system may be removed; if not, new volumes may use it again.

        That is also necessary without mount targets: the reason can be the access point of a new volume,
        which is only completed if it may use the file system.
        """
        try:
            await order.confirm()
        except RemovalRefused:
            await self.reopen(found)
            raise
        if order.permit.keeps_file_system:
            await self.reopen(found)
        return not order.permit.keeps_file_system

    def _say(self, request: VolumeRequest, claim: Claim | None, text: str) -> None:
        log.info("file-system-step", volume=request.name, claim=claim.key if claim else "", step=text)
        if claim is not None:
            self._notice_claim(claim, text)

    async def _owner(self, request: VolumeRequest, template: FileSystemTemplate) -> FileSystemOwner:
        check_owner_known(request)
        name = request.name
        if template.scope is Scope.NAMESPACE:
            known = self._namespaces.get(request.name)
            name = known or await self._cluster.namespace_uid(request.origin.claim_namespace)
        return FileSystemOwner(scope=template.scope, name=name, cluster=await self._cluster.cluster_uid())

    async def _check_claim(self, request: VolumeRequest) -> None:
        """Raise InvalidArgument if the claim was deleted.

        csi-provisioner requests its volume until the end nevertheless. If that is impossible, such as without
        a free ID, one unfinished file system after the other would be created and removed.
        """
        origin = request.origin
        if not origin.is_known:
            return
        uid = await self._cluster.claim_uid(origin.claim_namespace, origin.claim_name)
        if uid is None or not is_volume_of(request.name, uid):
            raise InvalidArgument(
                "was deleted, so no file system is created for it",
                field="claim",
                value=f"{origin.claim_namespace}/{origin.claim_name}",
            )

    async def _create(
        self, token: str, template: FileSystemTemplate, tags: Mapping[str, str]
    ) -> MadeFileSystem:
        try:
            made = await self._gateway.made_file_systems.create(token, template, tags)
        except AwsAlreadyExists:
            # By an earlier attempt whose answer was lost, or by another controller.
            existing = await self._gateway.made_file_systems.with_token(token)
            if existing is None:
                raise
            _check_usable(existing)
            return existing
        log.info("file-system-created", file_system=made.file_system_id, owner=made.owner.name)
        return made

    async def _finish(
        self,
        found: MadeFileSystem,
        template: FileSystemTemplate,
        subnets: Sequence[Subnet],
        say: Callable[[str], None],
    ) -> None:
        """Configure the file system and create its mount targets."""
        name, until = found.file_system_id, _now() + self._patience_seconds
        while not found.state.usable:
            if found.state is LifeCycleState.ERROR:
                raise _pending(name, "is in the state error, which AWS does not repair: delete it")
            if found.state.ending:
                raise _pending(name, "is being deleted")
            await self._pause(name, "is being created", until)
            found = await self._get(name)
        if not found.is_used:
            # Before the first mount target: without a policy, clients without TLS would be admitted. Later,
            # people may have changed the settings.
            await self._gateway.made_file_systems.configure(name, template)
        vpc_id = subnets[0].vpc_id
        groups: Sequence[str] = template.security_groups
        if not groups:
            ranges = await self._gateway.owned.network_ranges(vpc_id)
            tags = {CLUSTER: "true", **{one.key: one.value for one in self._tags}}
            group = await self._gateway.owned.ensure_security_group(
                found.security_group, vpc_id, ranges, tags
            )
            groups = (group,)
        await self._gateway.ensure_mount_targets(name, subnets, groups)
        wanted, last = {one.zone for one in subnets}, -1
        while last < len(wanted):
            targets = [one for one in await self._gateway.mount_targets(name) if one.zone in wanted]
            usable = sum(one.state.usable for one in targets)
            if usable != last:
                say(f"mount targets {usable} of {len(wanted)}")
            last = usable
            if last < len(wanted):
                failed = [one.mount_target_id for one in targets if one.state is LifeCycleState.ERROR]
                delete = f"; delete {', '.join(failed)}, which AWS could not create" if failed else ""
                await self._pause(name, f"has {usable} of {len(wanted)} mount targets{delete}", until)

    async def _has_targets(self, found: MadeFileSystem, subnets: Sequence[Subnet]) -> bool:
        """Whether it has a usable mount target in the zone of each subnet.

        Nodes in a new zone need another one, and a removal that was given up may have deleted some.
        """
        targets = await self._mount_targets(found.file_system_id) if found.state.usable else ()
        return {one.zone for one in subnets} <= {one.zone for one in targets if one.state.usable}

    async def _subnets(self, template: FileSystemTemplate) -> Sequence[Subnet]:
        """The subnets of the mount targets, one of each zone of the file system."""
        if template.subnets:
            subnets: Sequence[Subnet] = await self._gateway.owned.subnets(template.subnets)
        else:
            subnets = await self._subnets_of_nodes()
            if not subnets:
                problem = "is missing, and the cluster has no nodes that are EC2 instances"
                raise InvalidArgument(problem, field="subnetIds", remedy="name subnets in the StorageClass")
        wanted = [one for one in subnets if template.zone in {None, one.zone}]
        if not wanted:
            raise InvalidArgument(
                "has no subnet with nodes of the cluster" if not template.subnets else "has no such subnet",
                field="availabilityZoneName",
                value=str(template.zone),
                remedy="name a subnet of that zone in subnetIds",
            )
        try:
            return one_of_each_zone(wanted)
        except InvalidValue as error:
            raise InvalidArgument(
                error.problem, field="subnetIds", value=error.value, remedy=error.remedy
            ) from error

    async def _describe_subnets_of_nodes(self) -> Sequence[Subnet]:
        """The subnets of the cluster's nodes, as they were ``_SUBNETS_SECONDS`` ago at the earliest."""
        began = _now()
        if self._described is not None and began < self._described[0] + _SUBNETS_SECONDS:
            return self._described[1]
        instances = await self._cluster.instance_ids()
        subnets = await self._gateway.owned.subnets_of_instances(instances) if instances else ()
        if subnets:
            self._described = (began, subnets)
        return subnets

    async def _delete_mount_targets(self, found: MadeFileSystem) -> None:
        """Delete those that exist now; raises NotYet while AWS deletes them, and if people create others."""
        name, until = found.file_system_id, _now() + self._patience_seconds
        known: set[MountTargetId] | None = None
        while targets := await self._mount_targets(name):
            there = {one.mount_target_id for one in targets}
            if known is not None and (others := sorted(there - known)):
                # A volume that nobody has looked for may be mounted from its address.
                problem, remedy = f"has got {', '.join(others)}", "the removal is checked again"
                raise NotYet(problem, field="file system", value=name, remedy=remedy)
            known = there
            for one in targets:
                if not one.state.ending:
                    with suppress(AwsNotFound):
                        await self._gateway.delete_mount_target(one.mount_target_id)
            if _now() >= until:
                raise NotYet(
                    f"still has {len(targets)} mount targets, which AWS deletes",
                    field="file system",
                    value=name,
                    remedy="the removal is continued",
                )
            await asyncio.sleep(_POLL_SECONDS)
            # If this process was paused, another one may have given up the removal meanwhile.
            await self._check_unused_since(found)

    async def _check_unused_since(self, found: MadeFileSystem) -> None:
        """Raise NotYet if the removal was given up since ``found`` was checked, also if another one began."""
        now = await self._removing(found.file_system_id)
        if now is not None and now.use != found.use:
            raise _used_again(found.file_system_id)

    async def _removing(self, name: FileSystemId) -> MadeFileSystem | None:
        """The file system while its removal is recorded, None if it does not exist any more.

        Raises NotYet if the removal was given up, or if people have removed the driver's tags to keep it.
        """
        try:
            found = await self._of_this_cluster(name)
        except AwsNotFound:
            return None
        if found is None or found.stage is not Stage.REMOVING:
            raise _used_again(name)
        return found

    async def _get(self, name: FileSystemId) -> MadeFileSystem:
        """The file system, as AWS describes it now; raises VolumePending if it does not exist."""
        try:
            found = await self._gateway.made_file_systems.get(name)
        except AwsNotFound:
            found = None
        if found is None:
            raise _pending(name, "was deleted")
        return found

    async def _mount_targets(self, name: FileSystemId) -> Sequence[MountTarget]:
        try:
            return await self._gateway.mount_targets(name)
        except AwsNotFound:
            return ()

    async def _can_be_mounted(self, name: FileSystemId) -> bool:
        """Whether it has a mount target that nobody deletes."""
        return any(not one.state.ending for one in await self._mount_targets(name))

    async def _pause(self, name: FileSystemId, problem: str, until: float) -> None:
        if _now() >= until:
            raise _pending(name, problem)
        await asyncio.sleep(_POLL_SECONDS)


def _now() -> float:
    return asyncio.get_running_loop().time()


@contextmanager
def _advising(codes: Collection[str], remedy: str) -> Iterator[None]:
    """Give that remedy to errors of AWS with these codes, which only a person can end."""
    try:
        yield
    except AwsError as error:
        if error.code in codes:
            error.remedy = remedy
        raise


def _check_usable(found: MadeFileSystem) -> None:
    """Raise VolumePending for a file system that is being removed."""
    if found.stage is Stage.REMOVING or found.state.ending:
        raise VolumePending(
            "is being removed with an earlier volume",
            field="file system",
            value=found.file_system_id,
            remedy="another one is created afterwards",
        )


def _used_again(name: FileSystemId) -> NotYet:
    return NotYet("may be used again", field="file system", value=name, remedy="it is retried")


def _pending(name: FileSystemId, problem: str) -> VolumePending:
    return VolumePending(problem, field="file system", value=name, remedy="it is retried")
