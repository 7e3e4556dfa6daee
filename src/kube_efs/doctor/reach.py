"""Whether a node reaches a mount target, by the rules in EC2. No I/O.

What is said to be closed is so for sure; where something is not known that would decide, that is said.
"""

import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from kube_efs.aws.interfaces import Address, Interface
from kube_efs.aws.network_acls import LAST_RULE, AclRefusal, NetworkAcl
from kube_efs.aws.security_groups import Permission
from kube_efs.doctor.checks.common import nodes_with
from kube_efs.doctor.facts import AwsFacts, Facts, NodeObject
from kube_efs.model.efs.file_systems import MountTarget
from kube_efs.tunnels.mount_targets import NFS_PORT

# net.ipv4.ip_local_port_range of Linux, from which stunnel's connections get their own ports.
EPHEMERAL: Final = (32768, 60999)
# Machines that are none of EC2's.
_OUTSIDE: Final = frozenset({"hybrid"})
_IPV4: Final = 4


class Verdict(StrEnum):
    """Whether traffic is allowed."""

    OPEN = "open"
    CLOSED = "closed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict; ``reasons`` say what closes the way, or what would have to be known."""

    verdict: Verdict
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSource:
    """A node as a mount target may see it.

    ``addresses`` are of the mount target's family. ``interfaces`` None means that they are not known.
    """

    name: str
    addresses: tuple[Address, ...]
    interfaces: tuple[Interface, ...] | None = None

    @property
    def groups(self) -> frozenset[str]:
        """The ids of the security groups that are known of it."""
        return frozenset(group for one in self.interfaces or () for group in one.groups)

    def subnets_of(self, address: Address) -> frozenset[str]:
        """Where packets from that address leave; all of its subnets if no interface is known to have it."""
        known = self.interfaces or ()
        having = [one for one in known if address in one.addresses] or known
        return frozenset(one.subnet_id for one in having)

    def __str__(self) -> str:
        return " ".join([self.name, *map(str, self.addresses), *sorted(self.groups)])


def ways(facts: Facts) -> Iterator[tuple[MountTarget, tuple[NodeSource, ...]]]:
    """Each usable mount target that AWS was asked about, with all nodes that may mount through it."""
    aws, served = facts.aws, nodes_with("tunnel", facts.cluster) if facts.cluster else ()
    if aws is None or not served:
        return
    for file_system_id in sorted(aws.looked_into):
        for target in aws.file_systems[file_system_id].usable_mount_targets:
            version = _address(target.address).version
            yield target, tuple(_source(one, aws, version) for one in served)


def _source(node: NodeObject, aws: AwsFacts, version: int) -> NodeSource:
    interfaces = () if node.compute in _OUTSIDE else aws.interfaces.get(node.instance_id) or None
    told = [one for one in map(_address, node.addresses) if one.version == version]
    # A node of a cluster with IPv4 has no IPv6 address in Kubernetes, but may have one.
    found = told or [address for one in interfaces or () for address in one.addresses]
    return NodeSource(
        name=node.name,
        addresses=tuple(one for one in found if one.version == version),
        interfaces=interfaces,
    )


@lru_cache(maxsize=4096)
def _address(text: str) -> Address:
    return ipaddress.ip_address(text)


def judge_groups(source: NodeSource, target: MountTarget, aws: AwsFacts) -> Judgement:
    """Whether the security groups of the mount target let the node in at TCP 2049."""
    doubts: list[str] = []
    ids = aws.groups_by_target.get(target.mount_target_id, ())
    if not ids:  # they could not be read, which is reported already
        return Judgement(verdict=Verdict.OPEN)
    for group_id in ids:
        group = aws.groups.get(group_id)
        if group is None:
            doubts.append(f"the rules of {group_id} are not known")
            continue
        for rule in group.permissions:
            if rule.first_port <= NFS_PORT <= rule.last_port:
                if _lets_in(rule, source, aws):
                    return Judgement(verdict=Verdict.OPEN)
                doubts.extend(_doubts(rule, source, aws))
    if not source.addresses:
        family = "IPv4" if _address(target.address).version == _IPV4 else "IPv6"
        doubts.append(f"no {family} address of node {source.name} is known")
    verdict = Verdict.UNKNOWN if doubts else Verdict.CLOSED
    return Judgement(verdict=verdict, reasons=tuple(dict.fromkeys(doubts)))


def _lets_in(rule: Permission, source: NodeSource, aws: AwsFacts) -> bool:
    listed = (one for name in rule.prefix_lists for one in aws.prefix_lists.get(name, ()))
    networks = (*rule.networks, *listed)
    if not source.groups.isdisjoint(rule.groups):
        return True
    return any(address in network for address in source.addresses for network in networks)


def _doubts(rule: Permission, source: NodeSource, aws: AwsFacts) -> Iterator[str]:
    """What would have to be known to say that this rule does not let the node in."""
    for name in rule.prefix_lists:
        if name not in aws.prefix_lists:
            yield f"the entries of prefix list {name} are not known"
    if rule.groups and source.interfaces is None:
        yield f"the security groups of node {source.name} are not known; {', '.join(rule.groups)} is allowed"


def judge_acls(source: NodeSource, target: MountTarget, aws: AwsFacts) -> Judgement:
    """Whether the network ACLs of both subnets let the node's packets there, and the answers back.

    ACLs that are not known are no obstacle here, because they are reported as not known.
    """
    obstacles: tuple[str, ...] = ()
    for address in source.addresses:
        subnets = source.subnets_of(address)
        if target.subnet_id in subnets:  # ACLs are about what crosses a subnet's border
            return Judgement(verdict=Verdict.OPEN)
        found = tuple(_obstacles(address, subnets, target, aws))
        if not found:
            return Judgement(verdict=Verdict.OPEN)
        obstacles = obstacles or found
    if obstacles and source.interfaces is None:
        unknown = f"it is not known whether node {source.name} is in {target.subnet_id}"
        return Judgement(verdict=Verdict.UNKNOWN, reasons=(unknown, *obstacles))
    return Judgement(verdict=Verdict.CLOSED if obstacles else Verdict.OPEN, reasons=obstacles)


def _obstacles(
    address: Address, subnets: frozenset[str], target: MountTarget, aws: AwsFacts
) -> Iterator[str]:
    acls = {str(subnet): acl for subnet, acl in aws.acls.items()}
    nfs, there = (NFS_PORT, NFS_PORT), _address(target.address)
    if acl := acls.get(target.subnet_id):
        yield from _refused(acl, target.subnet_id, address, nfs, outbound=False)
        yield from _refused(acl, target.subnet_id, address, EPHEMERAL, outbound=True)
    for subnet in sorted(subnets):
        if acl := acls.get(subnet):
            yield from _refused(acl, subnet, there, nfs, outbound=True)
            yield from _refused(acl, subnet, there, EPHEMERAL, outbound=False)


def _refused(
    acl: NetworkAcl, subnet: str, address: Address, ports: Sequence[int], *, outbound: bool
) -> Iterator[str]:
    first, last = ports
    where = f"out to {address}" if outbound else f"in from {address}"
    for one in acl.refusals(address, outbound=outbound, first_port=first, last_port=last):
        rule = "*" if one.rule == LAST_RULE else one.rule
        yield f"{acl.acl_id} of {subnet}: rule {rule} denies TCP {_ports(one)} {where}"


def _ports(refusal: AclRefusal) -> str:
    first, last = refusal.first_port, refusal.last_port
    return str(first) if first == last else f"{first}-{last}"
