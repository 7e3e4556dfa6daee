"""Security groups and network ACLs, evaluated as in EC2, also with unknown facts."""

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.doctor import examples as ex

from kube_efs.aws.network_acls import AclRefusal, AclRule, NetworkAcl
from kube_efs.aws.security_groups import Permission, SecurityGroup
from kube_efs.doctor.diagnosis import diagnose
from kube_efs.doctor.facts import AwsFacts, Facts, NodeObject
from kube_efs.doctor.reach import EPHEMERAL, Verdict, judge_acls, judge_groups, ways
from kube_efs.model.efs.file_systems import MountTarget
from kube_efs.model.efs.ids import SubnetId

_FIRST, _LAST = EPHEMERAL
_ELSEWHERE = SubnetId("subnet-33333333")
_LISTED = {"pl-1": (ip_network("10.0.0.0/16"), ip_network("fd00::/8")), "pl-2": (ip_network("10.7.0.0/16"),)}
_IPV6 = replace(ex.SOURCE, addresses=(*ex.SOURCE.addresses, ip_address("fd00::7")))
_TWO = (ex.SOURCE, replace(ex.SOURCE, subnet_id=_ELSEWHERE, addresses=(), groups=("sg-pods",)))


def _way(node: NodeObject, aws: AwsFacts, address: str = ex.ADDRESS) -> tuple[Any, MountTarget, AwsFacts]:
    target = replace(ex.MOUNT_TARGET, address=address)
    aws = replace(aws, file_systems={ex.SYSTEM: replace(ex.FILE_SYSTEM, mount_targets=(target,))})
    facts = Facts(cluster=replace(ex.CLUSTER, nodes=(node,)), aws=aws)
    ((found, (source,)),) = ways(facts)
    return source, found, aws


def test_only_nodes_with_tunnels_must_reach_a_mount_target() -> None:
    agent = replace(ex.POD, namespace=ex.NAMESPACE, name=f"{ex.TUNNEL.name}-x7k2p", node=ex.NODE.name)
    nodes = (ex.NODE, replace(ex.NODE, name="without-tunnels"))
    facts = Facts(cluster=replace(ex.CLUSTER, nodes=nodes, pods=(agent,)), aws=ex.AWS)
    assert [[source.name for source in sources] for _, sources in ways(facts)] == [[ex.NODE.name]]


def _with_rule(permission: Mapping[str, Any], **more: Any) -> AwsFacts:
    networks = tuple(ip_network(one) for one in permission.get("networks", ()))
    rule = Permission(**{"first_port": 1024, "last_port": 2049, **permission, "networks": networks})
    groups = {"sg-target": SecurityGroup(group_id="sg-target", permissions=(rule,))}
    changes = {
        "groups_by_target": {ex.TARGET: ("sg-target",)},
        "groups": groups,
        "prefix_lists": _LISTED,
        **more,
    }
    return replace(ex.AWS, **changes)


@pytest.mark.parametrize(
    ("permission", "more", "verdict"),
    [
        pytest.param({"groups": ("sg-node",)}, {}, Verdict.OPEN, id="node's group"),
        pytest.param({"groups": ("sg-other",)}, {}, Verdict.CLOSED, id="another group"),
        pytest.param(
            {"groups": ("sg-pods",)},
            {"interfaces": {"i-1": _TWO}},
            Verdict.OPEN,
            id="group of the second interface",
        ),
        pytest.param({"groups": ("sg-node",)}, {"interfaces": {}}, Verdict.UNKNOWN, id="unknown groups"),
        pytest.param(
            {"groups": ("sg-node",), "last_port": 2048},
            {"interfaces": {}},
            Verdict.CLOSED,
            id="but not for NFS",
        ),
        pytest.param({"networks": ("10.0.0.0/16",)}, {}, Verdict.OPEN, id="node's network"),
        pytest.param({"networks": ("10.1.0.0/16",)}, {}, Verdict.CLOSED, id="another network"),
        pytest.param({"networks": ("::/0",)}, {}, Verdict.CLOSED, id="everyone, by IPv6 only"),
        pytest.param({"prefix_lists": ("pl-1",)}, {}, Verdict.OPEN, id="prefix list with the node"),
        pytest.param({"prefix_lists": ("pl-2",)}, {}, Verdict.CLOSED, id="prefix list without it"),
        pytest.param({"prefix_lists": ("pl-3",)}, {}, Verdict.UNKNOWN, id="unreadable prefix list"),
        pytest.param(
            {"prefix_lists": ("pl-3",), "networks": ("10.0.0.0/16",)},
            {},
            Verdict.OPEN,
            id="unreadable prefix list that is not needed",
        ),
        pytest.param({"groups": ("sg-node",), "last_port": 2048}, {}, Verdict.CLOSED, id="other ports"),
        pytest.param(
            {"groups": ("sg-node",), "first_port": 0, "last_port": 65535}, {}, Verdict.OPEN, id="all ports"
        ),
        pytest.param({}, {"groups": {}}, Verdict.UNKNOWN, id="unreadable group"),
        pytest.param({}, {"groups_by_target": {}}, Verdict.OPEN, id="unreadable groups"),
    ],
)
def test_security_group_is_evaluated_as_in_ec2(
    permission: dict[str, Any], more: dict[str, Any], verdict: Verdict
) -> None:
    judgement = judge_groups(*_way(ex.NODE, _with_rule(permission, **more)))
    assert judgement.verdict is verdict
    assert bool(judgement.reasons) is (verdict is Verdict.UNKNOWN)


@pytest.mark.parametrize(
    ("permission", "interface", "verdict"),
    [
        pytest.param({"networks": ("fd00::/8",)}, _IPV6, Verdict.OPEN, id="node's IPv6 network"),
        pytest.param({"networks": ("0.0.0.0/0", "fe80::/10")}, _IPV6, Verdict.CLOSED, id="all of IPv4"),
        pytest.param({"prefix_lists": ("pl-1",)}, _IPV6, Verdict.OPEN, id="prefix list of IPv6"),
        pytest.param({"networks": ("::/0",)}, ex.SOURCE, Verdict.UNKNOWN, id="node without IPv6"),
    ],
)
def test_ipv6_rules_apply_to_ipv6_mount_targets(
    permission: dict[str, Any], interface: Any, verdict: Verdict
) -> None:
    aws = _with_rule(permission, interfaces={"i-1": (interface,)})
    assert judge_groups(*_way(ex.NODE, aws, "fd00::1")).verdict is verdict


def test_unknown_verdict_lists_the_missing_facts() -> None:
    source, target, aws = _way(
        ex.NODE, _with_rule({"prefix_lists": ("pl-3",), "groups": ("sg-a",)}, interfaces={})
    )
    assert judge_groups(source, target, aws).reasons == (
        "the entries of prefix list pl-3 are not known",
        "the security groups of node one are not known; sg-a is allowed",
    )


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        pytest.param("fargate", [], id="runs no pods of kube-efs"),
        pytest.param("hybrid", [], id="is outside of EC2"),
        pytest.param("", ["security-group/not-judged"], id="is an instance of another account"),
    ],
)
def test_nodes_outside_of_this_account_have_an_unknown_verdict(compute: str, expected: list[str]) -> None:
    node = replace(ex.NODE, compute=compute, instance_id="i-unknown")
    aws = _with_rule({"groups": ("sg-node",)})
    facts = Facts(now=ex.NOW, cluster=replace(ex.CLUSTER, nodes=(node,)), aws=aws)
    assert [one.kind.id for one in diagnose(facts)] == expected


def test_command_allows_the_security_group_of_the_node() -> None:
    (found,) = diagnose(Facts(now=ex.NOW, cluster=ex.CLUSTER, aws=_with_rule({"groups": ("sg-other",)})))
    rule = "IpProtocol=tcp,FromPort=2049,ToPort=2049,UserIdGroupPairs=[{GroupId=sg-node}]"
    start = "aws ec2 authorize-security-group-ingress --region us-east-1 --group-id sg-target"
    assert tuple(map(str, found.commands)) == (f"{start} --ip-permissions '{rule}'",)


def _rule(
    number: int, *, allows: bool, outbound: bool = False, network: str = "0.0.0.0/0", **ports: Any
) -> AclRule:
    return AclRule(number=number, allows=allows, outbound=outbound, network=ip_network(network), **ports)


_OPEN_RULES = (_rule(100, allows=True), _rule(100, allows=True, outbound=True))
_OPEN = NetworkAcl(acl_id="acl-open", rules=_OPEN_RULES)
_NFS: dict[str, Any] = {"first_port": 2049, "last_port": 2049}


def _acl(*rules: AclRule) -> NetworkAcl:
    return NetworkAcl(acl_id="acl-1", rules=tuple(sorted((*rules, *_OPEN_RULES), key=lambda one: one.number)))


def _acls(there: NetworkAcl = _OPEN, here: NetworkAcl = _OPEN, **more: Any) -> AwsFacts:
    return replace(ex.AWS, acls={ex.SUBNET: there, ex.SOURCE.subnet_id: here}, **more)


_IN_THE_SUBNET = (replace(ex.SOURCE, subnet_id=ex.SUBNET),)
_CLOSED = _acl(_rule(90, allows=False, **_NFS))
_TOLD = "acl-1 of subnet-11111111: rule "

ACLS = [
    pytest.param(_acls(), Verdict.OPEN, "", id="everything"),
    pytest.param(
        _acls(_CLOSED), Verdict.CLOSED, f"{_TOLD}90 denies TCP 2049 in from 10.0.2.9", id="no NFS in"
    ),
    pytest.param(
        _acls(_acl(_rule(90, allows=True, **_NFS), _rule(95, allows=False, **_NFS))),
        Verdict.OPEN,
        "",
        id="first rule allows",
    ),
    pytest.param(
        _acls(_acl(_rule(90, allows=False, **_NFS), _rule(95, allows=True, **_NFS))),
        Verdict.CLOSED,
        f"{_TOLD}90 denies TCP 2049 in from 10.0.2.9",
        id="first rule denies",
    ),
    pytest.param(
        _acls(_acl(_rule(90, allows=False, network="10.9.0.0/16", **_NFS))),
        Verdict.OPEN,
        "",
        id="others only",
    ),
    pytest.param(
        _acls(_acl(_rule(90, allows=False, outbound=True, first_port=1024, last_port=40000))),
        Verdict.CLOSED,
        f"{_TOLD}90 denies TCP 32768-40000 out to 10.0.2.9",
        id="part of the answers",
    ),
    pytest.param(
        _acls(NetworkAcl(acl_id="acl-1", rules=(_rule(100, allows=True, **_NFS),))),
        Verdict.CLOSED,
        f"{_TOLD}* denies TCP {_FIRST}-{_LAST} out to 10.0.2.9",
        id="no rule for the answers",
    ),
    pytest.param(
        _acls(here=_acl(_rule(5, allows=False, outbound=True, network="10.0.1.5/32"))),
        Verdict.CLOSED,
        "acl-1 of subnet-22222222: rule 5 denies TCP 2049 out to 10.0.1.5",
        id="node's own subnet",
    ),
    pytest.param(
        _acls(here=_acl(_rule(5, allows=False, first_port=60999))),
        Verdict.CLOSED,
        "acl-1 of subnet-22222222: rule 5 denies TCP 60999 in from 10.0.1.5",
        id="last port of the answers, in the node's own subnet",
    ),
    pytest.param(
        _acls(_CLOSED, interfaces={"i-1": _IN_THE_SUBNET}),
        Verdict.OPEN,
        "",
        id="same subnet",
    ),
    pytest.param(
        _acls(_CLOSED, interfaces={}),
        Verdict.UNKNOWN,
        "it is not known whether node one is in subnet-11111111",
        id="node with an unknown subnet",
    ),
    pytest.param(replace(_acls(), acls={}), Verdict.OPEN, "", id="unreadable ACLs"),
]


@pytest.mark.parametrize(("aws", "verdict", "reason"), ACLS)
def test_network_acls_are_evaluated_in_both_directions(aws: AwsFacts, verdict: Verdict, reason: str) -> None:
    judgement = judge_acls(*_way(ex.NODE, aws))
    assert judgement.verdict is verdict
    assert next(iter(judgement.reasons), "") == reason


_PORTS = st.integers(0, 40)


@given(
    rules=st.lists(st.tuples(st.booleans(), _PORTS, _PORTS, st.booleans()), max_size=6),
    first=_PORTS,
    last=_PORTS,
)
def test_first_matching_rule_decides_for_each_port(
    rules: list[tuple[bool, int, int, bool]], first: int, last: int
) -> None:
    address = ip_address("10.0.0.1")
    acl = NetworkAcl(
        acl_id="acl-1",
        rules=tuple(
            _rule(
                number,
                allows=allows,
                network="10.0.0.0/8" if mine else "11.0.0.0/8",
                first_port=a,
                last_port=b,
            )
            for number, (allows, a, b, mine) in enumerate(rules)
        ),
    )
    refused = acl.refusals(address, outbound=False, first_port=first, last_port=last)
    told = sorted((port, one.rule) for one in refused for port in range(one.first_port, one.last_port + 1))
    assert told == [
        (port, rule) for port in range(first, last + 1) if (rule := _refusing(acl, port)) is not None
    ]


def _refusing(acl: NetworkAcl, port: int) -> int | None:
    """The number of the rule that denies a port, from a simple search; None if it is allowed."""
    for one in acl.rules:
        if ip_address("10.0.0.1") in one.network and one.first_port <= port <= one.last_port:
            return None if one.allows else one.number
    return 32767


def test_refusal_names_the_ports() -> None:
    acl = _acl(_rule(7, allows=False, first_port=10, last_port=20))
    assert acl.refusals(ip_address("10.0.0.1"), outbound=False, first_port=15, last_port=99) == (
        AclRefusal(rule=7, first_port=15, last_port=20),
    )
