"""Reads the file systems of a region from AWS, with the credentials of the user."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from kube_efs.aws.connection import AwsOptions
from kube_efs.aws.gateway import AwsGateway
from kube_efs.aws.security_groups import Network, SecurityGroup
from kube_efs.doctor.facts import Area, AwsFacts, NodeObject
from kube_efs.doctor.gathering.attempts import Attempts
from kube_efs.model.csi.made_file_systems import Stage
from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.model.efs.file_systems import FileSystem, MountTarget
from kube_efs.model.efs.ids import FileSystemId, MountTargetId, Region
from kube_efs.model.efs.kinds import FileSystemKind

# A user waits for the answer, and the library's own retries would take minutes.
_ATTEMPTS: Final = 2
_READ_SECONDS: Final = 5.0


def aws_options(region: Region, *, timeout_seconds: float) -> AwsOptions:
    """The settings for calls to AWS."""
    return AwsOptions(
        region=region,
        max_attempts=_ATTEMPTS,
        read_timeout_seconds=_READ_SECONDS,
        call_timeout_seconds=timeout_seconds,
    )


async def gather_aws(
    options: AwsOptions,
    attempts: Attempts,
    *,
    named: Mapping[FileSystemId, FileSystemKind],
    nodes: Iterable[NodeObject],
    cluster_uid: str = "",
    in_use: Collection[FileSystemId] = (),
) -> AwsFacts | None:
    """The region's file systems, and more about those that the cluster has ``named``; None without access.

    Those of S3 Files are listed only if the cluster names one.

    The access points are read for those ``in_use``, and for those that the cluster ``cluster_uid`` has
    created for claims.
    """
    async with AwsGateway(options) as gateway:
        systems = await attempts.look("file systems", gateway.file_systems(), area=Area.AWS)
        if systems is None:
            return None
        listed = {FileSystemKind.EFS}
        if FileSystemKind.S3_FILES in named.values():
            of_s3_files = gateway.s3_files.file_systems()
            more = await attempts.look("file systems of S3 Files", of_s3_files, area=Area.AWS)
            listed |= set() if more is None else {FileSystemKind.S3_FILES}
            systems = (*systems, *(more or ()))
        found = {one.file_system_id: one for one in systems}
        wanted = sorted(one for one in named.keys() & found.keys() if found[one].kind is named[one])
        looked_into = await asyncio.gather(
            *(_with_mount_targets(gateway, found[one], attempts) for one in wanted)
        )
        looked_into = await _with_zones(gateway, looked_into, attempts)
        with_policy = [one for one in wanted if found[one].kind is FileSystemKind.EFS]
        policies = await asyncio.gather(*(_policy(gateway, one, attempts) for one in with_policy))
        found |= {one.file_system_id: one for one in looked_into if one is not None}
        facts = AwsFacts(
            region=options.region,
            listed=frozenset(listed),
            file_systems=MappingProxyType(found),
            looked_into=frozenset(one.file_system_id for one in looked_into if one is not None),
            policies=MappingProxyType(
                {one: text for one, text in zip(with_policy, policies, strict=True) if text}
            ),
        )
        facts = await _with_rules(gateway, facts, nodes, attempts)
        return await _with_access_points(gateway, facts, cluster_uid, in_use, attempts)


async def _with_access_points(
    gateway: AwsGateway,
    facts: AwsFacts,
    cluster_uid: str,
    in_use: Collection[FileSystemId],
    attempts: Attempts,
) -> AwsFacts:
    listed = gateway.made_file_systems.list()
    made = await attempts.look("file systems for claims", listed, area=Area.AWS) or ()
    idle = [
        one.file_system_id
        for one in made
        if one.owner.cluster == cluster_uid
        and one.stage is Stage.READY
        and one.state.usable
        and one.file_system_id not in in_use
    ]
    systems = (facts.file_systems[one] for one in facts.looked_into & set(in_use))
    used = [one.file_system_id for one in systems if one.kind is FileSystemKind.EFS]
    read = sorted({*idle, *used})
    points = await asyncio.gather(*(_access_points(gateway, one, attempts) for one in read))
    return replace(
        facts,
        made=MappingProxyType({one.file_system_id: one for one in made}),
        access_points=MappingProxyType(
            {one: ids for one, ids in zip(read, points, strict=True) if ids is not None}
        ),
    )


async def _access_points(
    gateway: AwsGateway, file_system_id: FileSystemId, attempts: Attempts
) -> frozenset[AccessPointId] | None:
    what = f"the access points of {file_system_id}"
    found = await attempts.look(
        what, gateway.access_points.list(file_system_id), area=Area.AWS, was_listed=True
    )
    return None if found is None else frozenset(one.access_point_id for one in found)


async def _with_mount_targets(
    gateway: AwsGateway, system: FileSystem, attempts: Attempts
) -> FileSystem | None:
    what = f"the mount targets of {system.file_system_id}"
    calls = gateway if system.kind is FileSystemKind.EFS else gateway.s3_files
    targets = await attempts.look(
        what, calls.mount_targets(system.file_system_id), area=Area.AWS, was_listed=True
    )
    return None if targets is None else replace(system, mount_targets=targets)


async def _with_zones(
    gateway: AwsGateway, systems: Sequence[FileSystem | None], attempts: Attempts
) -> list[FileSystem | None]:
    """With the names of the zones of mount targets of S3 Files, of which AWS gives only the IDs."""
    if not any(one is not None and one.kind.names_zones for one in systems):
        return list(systems)
    ids = await attempts.look("the IDs of zones", gateway.network.zone_ids(), area=Area.AWS)
    names = {zone_id: name for name, zone_id in (ids or {}).items()}

    def named(target: MountTarget) -> MountTarget:
        return replace(target, zone=target.zone or (names.get(target.zone_id) if target.zone_id else None))

    return [one and replace(one, mount_targets=tuple(map(named, one.mount_targets))) for one in systems]


async def _policy(gateway: AwsGateway, file_system_id: FileSystemId, attempts: Attempts) -> str | None:
    what = f"the policy of {file_system_id}"
    return await attempts.look(what, gateway.file_system_policy(file_system_id), area=Area.AWS)


async def _with_rules(
    gateway: AwsGateway, facts: AwsFacts, nodes: Iterable[NodeObject], attempts: Attempts
) -> AwsFacts:
    """With what decides whether nodes get to mount targets; judging it is another matter."""
    systems = [facts.file_systems[one] for one in facts.looked_into]
    targets = [target for one in systems for target in one.usable_mount_targets]
    if not targets:
        return facts
    instances = {one.instance_id for one in nodes if one.instance_id}
    by_target, interfaces = await asyncio.gather(
        _groups_of_targets(gateway, systems, attempts),
        attempts.look("the interfaces of nodes", gateway.interfaces.of_instances(instances), area=Area.AWS),
    )
    subnets = {one.subnet_id for found in (interfaces or {}).values() for one in found}
    subnets |= {one.subnet_id for one in targets}
    names = {group for groups in by_target.values() for group in groups}
    acls, groups = await asyncio.gather(
        attempts.look("network ACLs", gateway.network_acls.of_subnets(subnets), area=Area.AWS),
        attempts.look("security groups", gateway.security_groups.describe(names), area=Area.AWS),
    )
    return replace(
        facts,
        groups_by_target=by_target,
        groups=MappingProxyType({one.group_id: one for one in groups or ()}),
        prefix_lists=await _prefix_lists(gateway, groups or (), attempts),
        interfaces=interfaces or MappingProxyType({}),
        acls=acls or MappingProxyType({}),
    )


async def _groups_of_targets(
    gateway: AwsGateway, systems: Iterable[FileSystem], attempts: Attempts
) -> Mapping[MountTargetId, tuple[str, ...]]:
    calls = {
        FileSystemKind.EFS: gateway.security_groups.of_mount_target,
        FileSystemKind.S3_FILES: gateway.s3_files.security_groups,
    }

    async def of(kind: FileSystemKind, target_id: MountTargetId) -> tuple[MountTargetId, tuple[str, ...]]:
        what = f"the security groups of mount target {target_id}"
        found = await attempts.look(what, calls[kind](target_id), area=Area.AWS, was_listed=True)
        return target_id, found or ()

    found = await asyncio.gather(
        *(of(one.kind, target.mount_target_id) for one in systems for target in one.usable_mount_targets)
    )
    return MappingProxyType({target_id: groups for target_id, groups in found if groups})


async def _prefix_lists(
    gateway: AwsGateway, groups: Iterable[SecurityGroup], attempts: Attempts
) -> Mapping[str, tuple[Network, ...]]:
    named = sorted({name for one in groups for rule in one.permissions for name in rule.prefix_lists})
    calls = gateway.security_groups
    found = await asyncio.gather(
        *(attempts.look(f"prefix list {one}", calls.in_prefix_list(one), area=Area.AWS) for one in named)
    )
    return MappingProxyType(
        {name: networks for name, networks in zip(named, found, strict=True) if networks is not None}
    )
