"""Security groups as EC2 describes them."""

import ipaddress
from typing import Any

import pytest

from kube_efs.aws.security_groups import Permission, parse_security_group

_NETWORK = ipaddress.ip_network("10.0.0.0/16")


@pytest.mark.parametrize(
    ("entry", "permissions"),
    [
        pytest.param(
            {
                "IpProtocol": "tcp",
                "FromPort": 2049,
                "ToPort": 2050,
                "IpRanges": [{"CidrIp": "10.0.0.0/16"}],
                "Ipv6Ranges": [{"CidrIpv6": "fd00::/8"}],
                "UserIdGroupPairs": [{"GroupId": "sg-1", "UserId": "1"}, {"GroupName": "old"}],
                "PrefixListIds": [{"PrefixListId": "pl-1"}],
            },
            [
                Permission(
                    first_port=2049,
                    last_port=2050,
                    networks=(_NETWORK, ipaddress.ip_network("fd00::/8")),
                    groups=("sg-1",),
                    prefix_lists=("pl-1",),
                )
            ],
            id="TCP",
        ),
        pytest.param(
            {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "10.0.0.0/16"}]},
            [Permission(first_port=0, last_port=65535, networks=(_NETWORK,))],
            id="every protocol",
        ),
        pytest.param(
            {"IpProtocol": "6", "FromPort": -1, "ToPort": -1},
            [Permission(first_port=0, last_port=65535)],
            id="TCP by its number, every port",
        ),
        pytest.param({"IpProtocol": "udp", "FromPort": 2049, "ToPort": 2049}, [], id="UDP"),
        pytest.param({"IpProtocol": "icmp", "FromPort": -1, "ToPort": -1}, [], id="ICMP"),
    ],
)
def test_security_group_allows_its_sources(entry: dict[str, Any], permissions: list[Permission]) -> None:
    group = parse_security_group({"GroupId": "sg-0", "IpPermissions": [entry]})
    assert group.group_id == "sg-0"
    assert group.permissions == tuple(permissions)


def test_security_group_without_rules_allows_nothing() -> None:
    assert parse_security_group({"GroupId": "sg-0"}).permissions == ()
