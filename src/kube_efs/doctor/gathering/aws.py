"""The file systems of a region, asked of AWS with whatever credentials the operator has."""

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from kube_efs.aws.connection import AwsOptions
from kube_efs.aws.gateway import AwsGateway
from kube_efs.doctor.facts import Area, AwsFacts, NodeObject
from kube_efs.doctor.gathering.attempts import Attempts
from kube_efs.model.file_systems import FileSystem
from kube_efs.model.ids import FileSystemId, MountTargetId, Region

# Somebody sits in front of it, and the library's own retries would take minutes.
_ATTEMPTS: Final = 2
_READ_SECONDS: Final = 5.0


def aws_options(region: Region, *, timeout_seconds: float) -> AwsOptions:
    """How the doctor calls AWS."""
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
    named: Collection[FileSystemId],
    nodes: Iterable[NodeObject],
) -> AwsFacts | None:
    """The region's file systems, and more about those that the cluster has ``named``; None without access."""
    async with AwsGateway(options) as gateway:
        systems = await attempts.look("file systems", gateway.file_systems(), area=Area.AWS)
        if systems is None:
            return None
        found = {one.file_system_id: one for one in systems}
        wanted = sorted(named & found.keys())
        looked_into = await asyncio.gather(
            *(_with_mount_targets(gateway, found[one], attempts) for one in wanted)
        )
        policies = await asyncio.gather(*(_policy(gateway, one, attempts) for one in wanted))
        found |= {one.file_system_id: one for one in looked_into if one is not None}
        facts = AwsFacts(
            region=options.region,
            file_systems=MappingProxyType(found),
            looked_into=frozenset(one.file_system_id for one in looked_into if one is not None),
            policies=MappingProxyType(
                {one: text for one, text in zip(wanted, policies, strict=True) if text}
            ),
        )
        return await _with_security_groups(gateway, facts, nodes, attempts)


async def _with_mount_targets(
    gateway: AwsGateway, system: FileSystem, attempts: Attempts
) -> FileSystem | None:
    what = f"the mount targets of {system.file_system_id}"
    targets = await attempts.look(what, gateway.mount_targets(system.file_system_id), area=Area.AWS)
    return None if targets is None else replace(system, mount_targets=targets)


async def _policy(gateway: AwsGateway, file_system_id: FileSystemId, attempts: Attempts) -> str | None:
    what = f"the policy of {file_system_id}"
    return await attempts.look(what, gateway.file_system_policy(file_system_id), area=Area.AWS)


async def _with_security_groups(
    gateway: AwsGateway, facts: AwsFacts, nodes: Iterable[NodeObject], attempts: Attempts
) -> AwsFacts:
    calls = gateway.security_groups
    targets = [target for one in facts.looked_into for target in facts.file_systems[one].usable_mount_targets]
    instances = {node.instance_id for node in nodes if node.instance_id}

    async def of_target(target_id: MountTargetId) -> tuple[MountTargetId, tuple[str, ...]]:
        what = f"the security groups of mount target {target_id}"
        return target_id, await attempts.look(what, calls.of_mount_target(target_id), area=Area.AWS) or ()

    by_target = dict(await asyncio.gather(*(of_target(one.mount_target_id) for one in targets)))
    wanted = {group for groups in by_target.values() for group in groups}
    if not wanted:
        return facts
    by_instance, groups = await asyncio.gather(
        attempts.look("the security groups of nodes", calls.of_instances(instances), area=Area.AWS),
        attempts.look("what security groups let in", calls.describe(wanted), area=Area.AWS),
    )
    return replace(
        facts,
        groups_by_target=MappingProxyType(by_target),
        groups_by_instance=by_instance or MappingProxyType({}),
        groups=MappingProxyType({one.group_id: one for one in groups or ()}),
    )
