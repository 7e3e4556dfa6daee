import pytest

from kube_efs.model.efs.file_systems import (
    Discovery,
    FileSystem,
    LifeCycleState,
    MountTarget,
    dns_name,
)
from kube_efs.model.efs.ids import FileSystemId, MountTargetId, Region, SubnetId
from kube_efs.model.efs.kinds import FileSystemKind

FS1, FS2, FS3 = (FileSystemId(f"fs-{number}") for number in (1, 2, 3))


# The list of efs-utils' efs-utils.conf (dns_name_suffix of each region's section).
@pytest.mark.parametrize(
    ("region", "suffix"),
    [
        ("us-east-1", "amazonaws.com"),
        ("eu-central-2", "amazonaws.com"),
        ("us-gov-west-1", "amazonaws.com"),
        ("cn-north-1", "amazonaws.com.cn"),
        ("cn-northwest-1", "amazonaws.com.cn"),
        ("us-iso-east-1", "c2s.ic.gov"),
        ("us-iso-west-1", "c2s.ic.gov"),
        ("us-isob-east-1", "sc2s.sgov.gov"),
        ("us-isob-west-1", "sc2s.sgov.gov"),
        ("us-isof-east-1", "csp.hci.ic.gov"),
        ("us-isof-south-1", "csp.hci.ic.gov"),
        ("eu-isoe-west-1", "cloud.adc-e.uk"),
        ("eusc-de-east-1", "amazonaws.eu"),
    ],
)
def test_dns_name_has_the_suffix_of_the_partition(region: str, suffix: str) -> None:
    assert dns_name(FS1, Region(region)) == f"fs-1.efs.{region}.{suffix}"


# The list of efs-utils' s3files-utils.conf.
@pytest.mark.parametrize(
    ("region", "suffix"),
    [
        ("us-east-1", "on.aws"),
        ("us-gov-west-1", "on.aws"),
        ("cn-north-1", "on.amazonwebservices.com.cn"),
        ("us-iso-east-1", "c2s.ic.gov"),
        ("us-isob-east-1", "sc2s.sgov.gov"),
        ("us-isof-south-1", "csp.hci.ic.gov"),
        ("eu-isoe-west-1", "cloud.adc-e.uk"),
        ("eusc-de-east-1", "amazonaws.eu"),
    ],
)
def test_server_of_s3_files_has_a_name_of_its_own(region: str, suffix: str) -> None:
    name = dns_name(FS1, Region(region), "example.org", kind=FileSystemKind.S3_FILES)
    assert name == f"fs-1.s3files.{region}.{suffix}"


def test_dns_name_uses_the_configured_suffix() -> None:
    assert dns_name(FS1, Region("us-east-1"), "example.org") == "fs-1.efs.us-east-1.example.org"


@pytest.mark.parametrize(
    ("state", "usable"),
    [
        (LifeCycleState.AVAILABLE, True),
        (LifeCycleState.UPDATING, True),
        (LifeCycleState.CREATING, False),
        (LifeCycleState.DELETING, False),
        (LifeCycleState.DELETED, False),
        (LifeCycleState.ERROR, False),
        (LifeCycleState.MISCONFIGURED, False),
    ],
)
def test_file_system_is_usable_only_in_available_states(state: LifeCycleState, usable: bool) -> None:
    target = MountTarget(
        mount_target_id=MountTargetId("fsmt-1"),
        file_system_id=FS1,
        subnet_id=SubnetId("subnet-a"),
        zone=None,
        address="10.0.0.1",
        state=state,
    )
    system = FileSystem(file_system_id=FS1, state=state, mount_targets=(target,))
    assert system.usable_mount_targets == ((target,) if usable else ())
    assert Discovery(file_systems={FS1: system}).usable == ((FS1,) if usable else ())


def test_usable_file_systems_are_sorted() -> None:
    systems = {fs: FileSystem(file_system_id=fs) for fs in (FS3, FS1, FS2)}
    assert Discovery(file_systems=systems).usable == (FS1, FS2, FS3)


def test_discovery_is_empty_before_the_first_poll() -> None:
    assert not Discovery().complete
    assert Discovery().usable == ()
