"""Network ACLs: the rules for traffic into and out of a subnet.

https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_NetworkAclEntry.html
"""

import ipaddress
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from kube_efs.aws.connection import AwsConnection
from kube_efs.aws.errors import reading
from kube_efs.aws.filters import list_by_ids
from kube_efs.aws.interfaces import Address
from kube_efs.aws.security_groups import Network
from kube_efs.model.efs.ids import SubnetId

# The last rule, which denies everything else; the API shows this number, the console an asterisk.
LAST_RULE: Final = 32767
_ANY_OR_TCP: Final = frozenset({"-1", "6"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AclRule:
    """A rule about TCP; ``network`` is the source, or the destination of an ``outbound`` rule."""

    number: int
    allows: bool
    outbound: bool
    network: Network
    first_port: int = 0
    last_port: int = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class AclRefusal:
    """Ports that a rule denies."""

    rule: int
    first_port: int
    last_port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkAcl:
    """A network ACL with its rules about TCP, in the order of their numbers."""

    acl_id: str
    rules: tuple[AclRule, ...] = ()

    def refusals(
        self, address: Address, *, outbound: bool, first_port: int, last_port: int
    ) -> tuple[AclRefusal, ...]:
        """The denied ports of these, each with its rule: the first rule for a port decides."""
        left, refused = [(first_port, last_port)], list[AclRefusal]()
        for rule in self.rules:
            if rule.outbound is not outbound or address not in rule.network:
                continue
            undecided = []
            for first, last in left:
                start, end = max(first, rule.first_port), min(last, rule.last_port)
                if start > end:
                    undecided.append((first, last))
                    continue
                undecided += [
                    (one, other) for one, other in ((first, start - 1), (end + 1, last)) if one <= other
                ]
                if not rule.allows:
                    refused.append(AclRefusal(rule=rule.number, first_port=start, last_port=end))
            left = undecided
        return (
            *refused,
            *(AclRefusal(rule=LAST_RULE, first_port=first, last_port=last) for first, last in left),
        )


class AwsNetworkAcls:
    """Calls about network ACLs on an open connection. Every method may raise AwsError."""

    def __init__(self, connection: AwsConnection) -> None:
        self._connection = connection

    async def of_subnets(self, subnet_ids: Collection[SubnetId]) -> Mapping[SubnetId, NetworkAcl]:
        """The ACL of each of these subnets; missing subnets are omitted."""
        found = await list_by_ids(
            self._connection,
            "DescribeNetworkAcls",
            "NetworkAcls",
            name="association.subnet-id",
            ids=subnet_ids,
        )
        with reading("DescribeNetworkAcls"):
            return MappingProxyType(
                {
                    SubnetId(one["SubnetId"]): parse_network_acl(entry)
                    for entry in found
                    for one in entry.get("Associations") or ()
                    if one.get("SubnetId") in subnet_ids
                }
            )


def parse_network_acl(entry: Mapping[str, Any]) -> NetworkAcl:
    """The ACL, without rules about other protocols."""
    rules = (_parse_rule(one) for one in entry.get("Entries") or () if one.get("Protocol") in _ANY_OR_TCP)
    return NetworkAcl(acl_id=entry["NetworkAclId"], rules=tuple(sorted(rules, key=lambda rule: rule.number)))


def _parse_rule(entry: Mapping[str, Any]) -> AclRule:
    # With the protocol -1, ports have no meaning.
    ports = (entry.get("PortRange") or {}) if entry["Protocol"] != "-1" else {}
    return AclRule(
        number=int(entry["RuleNumber"]),
        allows=entry["RuleAction"] == "allow",
        outbound=bool(entry["Egress"]),
        network=ipaddress.ip_network(entry.get("CidrBlock") or entry["Ipv6CidrBlock"], strict=False),
        first_port=int(ports.get("From", 0)),
        last_port=int(ports.get("To", 65535)),
    )
