"""Creates a file system for a cluster, and removes everything that a cluster owns in AWS.

Both can be repeated after an interruption: they find existing resources by their tags and tokens.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kube_efs.aws.gateway import AwsGateway
from kube_efs.aws.owned import (
    Owned,
    Subnet,
    cluster_security_group,
    creation_token,
    one_of_each_zone,
    owner_tag,
)
from kube_efs.kube.client import connect, load_config
from kube_efs.kube.cluster_reader import ClusterReader
from kube_efs.model.efs.file_systems import FileSystem
from kube_efs.model.efs.ids import FileSystemId, SubnetId
from kube_efs.model.errors import AwsNotFound, AwsUnavailable, InvalidSetting

ShowProgress = Callable[[str], None]

# A file system takes seconds, a mount target a minute or two.
_WAIT_SECONDS: Final = 600.0
_POLL_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystemRequest:
    """The file system to create. Without ``subnets``, those of the cluster's nodes are used."""

    infra_id: str
    name: str
    subnets: tuple[SubnetId, ...]
    kubeconfig: Path | None = None
    dry_run: bool


async def create_file_system(
    gateway: AwsGateway, request: FileSystemRequest, show: ShowProgress
) -> FileSystemId | None:
    """Gives a file system that can be mounted; None for a dry run. Raises AwsError, KubeError."""
    subnets = one_of_each_zone(await _subnets(gateway, request))
    vpc_id = subnets[0].vpc_id
    ranges = await gateway.owned.network_ranges(vpc_id)
    show(f"network {vpc_id}: {', '.join(ranges)}")
    for one in subnets:
        show(f"mount target in {one.subnet_id} ({one.zone})")
    if request.dry_run:
        show("nothing was created")
        return None
    tags = {owner_tag(request.infra_id): "owned"}
    name = cluster_security_group(request.infra_id)
    group = await gateway.owned.ensure_security_group(name, vpc_id, ranges, tags)
    show(f"security group {group} allows NFS from the network")
    system = await gateway.create_file_system(
        creation_token(request.infra_id, request.name),
        name=request.name,
        tags=tags,
    )
    show(f"file system {system.file_system_id}")
    await _until(lambda: _is_usable(gateway, system), f"file system {system.file_system_id}")

    async def has_targets() -> bool:
        # Repeated, because AWS may still be deleting a mount target of an earlier command.
        await gateway.ensure_mount_targets(system.file_system_id, subnets, [group])
        targets = await gateway.mount_targets(system.file_system_id)
        return {one.zone for one in subnets} <= {one.zone for one in targets if one.state.usable}

    await _until(has_targets, f"mount targets of {system.file_system_id}")
    show("all mount targets are available")
    return system.file_system_id


async def destroy(gateway: AwsGateway, owned: Owned, show: ShowProgress) -> None:
    """Remove these resources with all data; raises AwsError."""
    for access_point_id, _ in owned.access_points:
        await _ignoring_not_found(gateway.access_points.delete(access_point_id))
        show(f"access point {access_point_id} is removed")
    for file_system_id in owned.file_systems:
        await _delete_file_system(gateway, file_system_id)
        show(f"file system {file_system_id} is removed")
    # Last: EC2 does not delete a security group that a mount target uses.
    for group in owned.security_groups:
        await _ignoring_not_found(gateway.owned.delete_security_group(group))
        show(f"security group {group} is removed")


def describe(owned: Owned) -> Iterable[str]:
    """A line for each resource."""
    for access_point_id, file_system_id in owned.access_points:
        yield f"access point {access_point_id} of {file_system_id}"
    for file_system in owned.file_systems:
        yield f"file system {file_system} with its mount targets and ALL DATA in it"
    for group in owned.security_groups:
        yield f"security group {group}"


async def _subnets(gateway: AwsGateway, request: FileSystemRequest) -> tuple[Subnet, ...]:
    if request.subnets:
        return await gateway.owned.subnets(request.subnets)
    instances = await _instances(request.kubeconfig)
    if not instances:
        remedy = "name subnets with --subnet"
        raise InvalidSetting("has no nodes that are EC2 instances", field="cluster", remedy=remedy)
    return await gateway.owned.subnets_of_instances(instances)


async def _instances(kubeconfig: Path | None) -> frozenset[str]:
    """The IDs of the EC2 instances of the nodes."""
    async with connect(load_config(kubeconfig)) as client:
        return await ClusterReader(client).instance_ids()


async def _is_usable(gateway: AwsGateway, system: FileSystem) -> bool:
    return (await gateway.file_system(system.file_system_id)).state.usable


async def _delete_file_system(gateway: AwsGateway, file_system_id: FileSystemId) -> None:
    async def has_no_targets() -> bool:
        return not await gateway.delete_mount_targets(file_system_id)

    await _until(has_no_targets, f"mount targets of {file_system_id}")
    await _ignoring_not_found(gateway.delete_file_system(file_system_id))


async def _ignoring_not_found(call: Awaitable[object]) -> None:
    try:
        await call
    except AwsNotFound:
        return


async def _until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait until the condition is true; raises AwsUnavailable when that takes too long."""
    try:
        async with asyncio.timeout(_WAIT_SECONDS):
            while not await condition():  # noqa: ASYNC110 - AWS changes it
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError as error:
        problem = f"did not change its state within {_WAIT_SECONDS:.0f} s"
        raise AwsUnavailable(problem, field=what, remedy="repeat the command to continue") from error
