"""Whether security groups let nodes reach mount targets on TCP port 2049."""

import ipaddress
from collections.abc import Iterable, Iterator, Sequence

from kube_efs.aws.security_groups import Permission, SecurityGroup
from kube_efs.doctor.facts import AwsFacts, Facts, NodeObject
from kube_efs.doctor.findings import Finding, Subject, Topic, broken
from kube_efs.tunnels.services import NFS_PORT

_CLOSED = broken("security-group/closed", "No security group of a mount target lets a node in at TCP 2049.")

_SHOWN = 10


def _check(facts: Facts) -> Iterator[Finding]:
    aws = facts.aws
    nodes = facts.cluster.nodes if facts.cluster else None
    if aws is None or not nodes:
        return
    for file_system_id in sorted(aws.looked_into):
        for target in aws.file_systems[file_system_id].usable_mount_targets:
            ids = aws.groups_by_target.get(target.mount_target_id, ())
            groups = [aws.groups[one] for one in ids if one in aws.groups]
            shut_out = [node for node in nodes if _is_shut_out(node, groups, aws)]
            if shut_out:
                yield Finding(
                    kind=_CLOSED,
                    subject=Subject("FileSystem", file_system_id),
                    problem=f"its mount target {target.mount_target_id} at {target.address} lets"
                    f" {len(shut_out)} of {len(nodes)} nodes not in",
                    evidence=(
                        *(f"node {_tell(node, aws)}" for node in shut_out[:_SHOWN]),
                        *(f"{one.group_id} lets in {_rules(one)}" for one in groups),
                    ),
                    remedy=f"let TCP {NFS_PORT} in from the nodes' security group or network",
                )


def _is_shut_out(node: NodeObject, groups: Sequence[SecurityGroup], aws: AwsFacts) -> bool:
    """Whether it is certain that the node does not get in."""
    own = aws.groups_by_instance.get(node.instance_id, ())
    if not groups or not (node.addresses or own):
        return False
    rules = [one for group in groups for one in group.permissions if one.first_port <= NFS_PORT]
    return not any(one.last_port >= NFS_PORT and lets_in(one, node.addresses, own) for one in rules)


def lets_in(permission: Permission, addresses: Iterable[str], groups: Iterable[str]) -> bool:
    """Whether somebody with these addresses and groups may get in; a prefix list lets everybody in here."""
    if permission.prefix_lists or not set(permission.groups).isdisjoint(groups):
        return True
    parsed = [ipaddress.ip_address(one) for one in addresses]
    return any(address in network for address in parsed for network in permission.networks)


def _tell(node: NodeObject, aws: AwsFacts) -> str:
    own = aws.groups_by_instance.get(node.instance_id, ())
    return " ".join([node.name, *node.addresses, *own])


def _rules(group: SecurityGroup) -> str:
    found = [
        f"{source} at {_ports(one)}"
        for one in group.permissions
        for source in (*map(str, one.networks), *one.groups, *one.prefix_lists)
    ]
    return ", ".join(found[:_SHOWN]) or "nobody"


def _ports(permission: Permission) -> str:
    first, last = permission.first_port, permission.last_port
    return str(first) if first == last else f"{first}-{last}"


TOPIC = Topic(check=_check, kinds=(_CLOSED,))
