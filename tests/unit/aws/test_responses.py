from typing import Any

import pytest

from kube_efs.aws.responses import parse_access_point, parse_file_system, parse_mount_target
from kube_efs.model.efs.file_systems import FileSystem, LifeCycleState, MountTarget
from kube_efs.model.efs.ids import FileSystemId, MountTargetId, SubnetId, VpcId, ZoneName
from kube_efs.model.errors import InvalidValue

FILE_SYSTEM = {
    "FileSystemId": "fs-0123456789abcdef0",
    "Name": "apps",
    "LifeCycleState": "available",
    "SizeInBytes": {"Value": 6144},
    "NumberOfMountTargets": 3,
}
MOUNT_TARGET = {
    "MountTargetId": "fsmt-0a",
    "FileSystemId": "fs-0123456789abcdef0",
    "SubnetId": "subnet-0b",
    "LifeCycleState": "available",
    "IpAddress": "10.0.1.5",
    "AvailabilityZoneId": "use1-az1",
    "AvailabilityZoneName": "us-east-1a",
    "VpcId": "vpc-0c",
}


def test_file_system_is_parsed() -> None:
    assert parse_file_system(FILE_SYSTEM) == FileSystem(
        file_system_id=FileSystemId("fs-0123456789abcdef0"),
        name="apps",
        size_bytes=6144,
        number_of_mount_targets=3,
    )


def test_one_zone_file_system_without_a_name_is_parsed() -> None:
    entry = {
        "FileSystemId": "fs-1",
        "Name": "",
        "LifeCycleState": "creating",
        "AvailabilityZoneName": "us-east-1b",
    }

    assert parse_file_system(entry) == FileSystem(
        file_system_id=FileSystemId("fs-1"), state=LifeCycleState.CREATING, zone=ZoneName("us-east-1b")
    )


def test_mount_target_is_parsed() -> None:
    assert parse_mount_target(MOUNT_TARGET) == MountTarget(
        mount_target_id=MountTargetId("fsmt-0a"),
        file_system_id=FileSystemId("fs-0123456789abcdef0"),
        subnet_id=SubnetId("subnet-0b"),
        zone=ZoneName("us-east-1a"),
        address="10.0.1.5",
        state=LifeCycleState.AVAILABLE,
        zone_id=ZoneName("use1-az1"),
        vpc_id=VpcId("vpc-0c"),
    )


def test_mount_target_with_only_an_ipv6_address_is_parsed() -> None:
    entry = {key: value for key, value in MOUNT_TARGET.items() if key != "IpAddress"}

    assert parse_mount_target({**entry, "Ipv6Address": "2001:DB8::5"}).address == "2001:db8::5"


@pytest.mark.parametrize(
    ("broken", "field"),
    [
        ({"FileSystemId": "fs-1\nconnect = evil"}, "FileSystemId"),
        ({"FileSystemId": None}, "FileSystemId"),
        ({"LifeCycleState": "sublimating"}, "LifeCycleState"),
        ({"AvailabilityZoneName": "us-east-1a; rm"}, "AvailabilityZoneName"),
    ],
)
def test_malformed_file_system_is_refused(broken: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_file_system({**FILE_SYSTEM, **broken})

    assert caught.value.field == field


@pytest.mark.parametrize(
    ("broken", "field"),
    [
        ({"MountTargetId": ""}, "MountTargetId"),
        ({"SubnetId": "../subnet"}, "SubnetId"),
        ({"IpAddress": "evil.example.com"}, "IpAddress"),
        ({"IpAddress": None}, "IpAddress"),
        ({"LifeCycleState": None}, "LifeCycleState"),
    ],
)
def test_malformed_mount_target_is_refused(broken: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_mount_target({**MOUNT_TARGET, **broken})

    assert caught.value.field == field


def test_access_point_of_any_directory_is_parsed() -> None:
    """EFS accepts nearly any character; one that is left out would not keep the data of its volume."""
    entry = {
        "AccessPointId": "fsap-0123456789abcdef0",
        "FileSystemId": "fs-0123456789abcdef0",
        "RootDirectory": {"Path": "/data/共有\u3000A"},
    }
    assert parse_access_point(entry).directory.parts == ("data", "共有\u3000A")
