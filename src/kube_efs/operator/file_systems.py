"""A file system for a cluster, made with all that it needs, and everything of a cluster in AWS removed.

Both may be repeated whenever they were interrupted: what is there is found again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lightkube.resources.core_v1 import Node

from kube_efs.aws.gateway import AwsGateway
from kube_efs.aws.owned import Owned, Subnet, creation_token, one_of_each_zone, owner_tag
from kube_efs.kube.client import connect, load_config
from kube_efs.kube.errors import translated
from kube_efs.model.efs.file_systems import FileSystem
from kube_efs.model.efs.ids import FileSystemId, SubnetId
from kube_efs.model.errors import AwsNotFound, AwsUnavailable, InvalidSetting

Say = Callable[[str], None]

# A file system takes seconds, a mount target a minute or two.
_WAIT_SECONDS: Final = 600.0
_LOOK_SECONDS: Final = 2.0
_PROVIDER: Final = "aws:///"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The file system to be made. Without ``subnets``, those of the nodes of the cluster count."""

    infra_id: str
    name: str
    subnets: tuple[SubnetId, ...] = ()
    kubeconfig: Path | None = None
    dry_run: bool = False


async def create_file_system(gateway: AwsGateway, wanted: Wanted, say: Say) -> FileSystemId | None:
    """The file system, ready to be mounted; None for a dry run. Raises AwsError, KubeError."""
    subnets = one_of_each_zone(await _subnets(gateway, wanted))
    vpc_id = subnets[0].vpc_id
    ranges = await gateway.owned.network_ranges(vpc_id)
    say(f"network {vpc_id}: {', '.join(ranges)}")
    for one in subnets:
        say(f"mount target in {one.subnet_id} ({one.zone})")
    if wanted.dry_run:
        say("nothing was created")
        return None
    group = await gateway.owned.ensure_security_group(wanted.infra_id, vpc_id, ranges)
    say(f"security group {group} allows NFS from the network")
    system = await gateway.create_file_system(
        creation_token(wanted.infra_id, wanted.name),
        name=wanted.name,
        tags={owner_tag(wanted.infra_id): "owned"},
    )
    say(f"file system {system.file_system_id}")
    await _until(lambda: _is_usable(gateway, system), f"file system {system.file_system_id}")
    await _ensure_mount_targets(gateway, system.file_system_id, subnets, group)
    say("all mount targets are available")
    return system.file_system_id


async def destroy(gateway: AwsGateway, owned: Owned, say: Say) -> None:
    """Remove all of it, data too; raises AwsError."""
    for access_point_id, _ in owned.access_points:
        await _unless_gone(gateway.access_points.delete(access_point_id))
        say(f"access point {access_point_id} is removed")
    for file_system_id in owned.file_systems:
        await _delete_file_system(gateway, file_system_id)
        say(f"file system {file_system_id} is removed")
    for group in owned.security_groups:
        await _unless_gone(gateway.owned.delete_security_group(group))
        say(f"security group {group} is removed")


def describe(owned: Owned) -> Iterable[str]:
    """What there is, a line for each."""
    for access_point_id, file_system_id in owned.access_points:
        yield f"access point {access_point_id} of {file_system_id}"
    for file_system in owned.file_systems:
        yield f"file system {file_system} with its mount targets and ALL DATA in it"
    for group in owned.security_groups:
        yield f"security group {group}"


async def _subnets(gateway: AwsGateway, wanted: Wanted) -> tuple[Subnet, ...]:
    if wanted.subnets:
        return await gateway.owned.subnets(wanted.subnets)
    instances = await _instances(wanted.kubeconfig)
    if not instances:
        remedy = "name subnets with --subnet"
        raise InvalidSetting("has no nodes that are EC2 instances", field="cluster", remedy=remedy)
    return await gateway.owned.subnets_of_instances(instances)


async def _instances(kubeconfig: Path | None) -> set[str]:
    """The ids of the instances that the nodes of the cluster are."""
    async with connect(load_config(kubeconfig)) as client:
        with translated("nodes"):
            ids = [(one.spec and one.spec.providerID) or "" async for one in client.list(Node)]
    return {one.rpartition("/")[2] for one in ids if one.startswith(_PROVIDER)}


async def _ensure_mount_targets(
    gateway: AwsGateway, file_system_id: FileSystemId, subnets: Iterable[Subnet], group: str
) -> None:
    there = {one.zone for one in await gateway.mount_targets(file_system_id)}
    for one in subnets:
        if one.zone not in there:
            await gateway.create_mount_target(file_system_id, one.subnet_id, security_groups=[group])

    async def all_usable() -> bool:
        targets = await gateway.mount_targets(file_system_id)
        return bool(targets) and all(one.state.usable for one in targets)

    await _until(all_usable, f"mount targets of {file_system_id}")


async def _is_usable(gateway: AwsGateway, system: FileSystem) -> bool:
    return (await gateway.file_system(system.file_system_id)).state.usable


async def _delete_file_system(gateway: AwsGateway, file_system_id: FileSystemId) -> None:
    try:
        for one in await gateway.mount_targets(file_system_id):
            await _unless_gone(gateway.delete_mount_target(one.mount_target_id))
        await _until(lambda: _has_none(gateway, file_system_id), f"mount targets of {file_system_id}")
        await gateway.delete_file_system(file_system_id)
    except AwsNotFound:
        return


async def _has_none(gateway: AwsGateway, file_system_id: FileSystemId) -> bool:
    return not await gateway.mount_targets(file_system_id)


async def _unless_gone(call: Awaitable[object]) -> None:
    try:
        await call
    except AwsNotFound:
        return


async def _until(so: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait until it is so; raises AwsUnavailable when that takes too long."""
    try:
        async with asyncio.timeout(_WAIT_SECONDS):
            while not await so():  # noqa: ASYNC110 - asked from outside
                await asyncio.sleep(_LOOK_SECONDS)
    except TimeoutError as error:
        problem = f"did not change its state within {_WAIT_SECONDS:.0f} s"
        raise AwsUnavailable(problem, field=what, remedy="repeat the command to continue") from error
