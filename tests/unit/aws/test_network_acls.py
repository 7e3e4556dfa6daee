"""Network ACLs and network interfaces as EC2 describes them."""

from ipaddress import ip_address, ip_network

from kube_efs.aws.interfaces import Interface, parse_interface
from kube_efs.aws.network_acls import AclRule, NetworkAcl, parse_network_acl
from kube_efs.model.efs.ids import SubnetId


def test_tcp_entries_are_read_in_the_order_of_rule_numbers() -> None:
    entries = [
        {
            "RuleNumber": 32767,
            "Protocol": "-1",
            "RuleAction": "deny",
            "Egress": False,
            "CidrBlock": "0.0.0.0/0",
        },
        {
            "RuleNumber": 100,
            "Protocol": "6",
            "RuleAction": "allow",
            "Egress": True,
            "Ipv6CidrBlock": "fd00::/8",
            "PortRange": {"From": 1024, "To": 65535},
        },
        {
            "RuleNumber": 50,
            "Protocol": "17",
            "RuleAction": "deny",
            "Egress": False,
            "CidrBlock": "0.0.0.0/0",
            "PortRange": {"From": 2049, "To": 2049},
        },
    ]
    assert parse_network_acl({"NetworkAclId": "acl-1", "Entries": entries}) == NetworkAcl(
        acl_id="acl-1",
        rules=(
            AclRule(number=100, allows=True, outbound=True, network=ip_network("fd00::/8"), first_port=1024),
            AclRule(number=32767, allows=False, outbound=False, network=ip_network("0.0.0.0/0")),
        ),
    )


def test_interface_has_all_addresses_and_groups() -> None:
    entry = {
        "SubnetId": "subnet-1",
        "PrivateIpAddresses": [{"PrivateIpAddress": "10.0.0.4"}, {"PrivateIpAddress": "10.0.0.5"}],
        "Ipv6Addresses": [{"Ipv6Address": "fd00::4"}],
        "Groups": [{"GroupId": "sg-1", "GroupName": "nodes"}, {"GroupId": "sg-2", "GroupName": "more"}],
    }
    assert parse_interface(entry) == Interface(
        subnet_id=SubnetId("subnet-1"),
        addresses=(ip_address("10.0.0.4"), ip_address("10.0.0.5"), ip_address("fd00::4")),
        groups=("sg-1", "sg-2"),
    )
    assert parse_interface({"SubnetId": "subnet-1"}) == Interface(subnet_id=SubnetId("subnet-1"))
