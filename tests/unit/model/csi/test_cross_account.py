from collections.abc import Mapping

import pytest

from kube_efs.model.csi.cross_account import (
    CrossAccountRole,
    TargetAddress,
    cross_account_attributes,
    needs_targets,
    parse_provisioner_secret,
)
from kube_efs.model.csi.errors import InvalidArgument, NoMountTarget, RpcCode
from kube_efs.model.csi.volume_attributes import render_attributes
from kube_efs.model.efs.ids import FileSystemId, ZoneName

FS = FileSystemId("fs-0123456789abcdef0")
ARN = "arn:aws:iam::123456789012:role/EFSCrossAccount"
ROLE = CrossAccountRole(role_arn=ARN)
TARGETS = [
    TargetAddress(zone=ZoneName("us-east-1a"), zone_id=ZoneName("use1-az4"), address="10.0.0.4"),
    TargetAddress(zone=ZoneName("us-east-1b"), zone_id=ZoneName("use1-az1"), address="10.0.0.1"),
]


@pytest.mark.parametrize(
    ("secret", "role"),
    [
        pytest.param({}, None, id="no secret"),
        pytest.param({"externalId": "x1", "crossaccount": "true"}, None, id="no role"),
        pytest.param({"awsRoleArn": ARN}, ROLE, id="role"),
        pytest.param({"awsRoleArn": ARN, "externalId": ""}, ROLE, id="empty external id"),
        pytest.param(
            {"awsRoleArn": ARN, "externalId": "abc-1", "crossaccount": "T"},
            CrossAccountRole(role_arn=ARN, external_id="abc-1", by_zone_id=True),
            id="everything",
        ),
        pytest.param(
            {"awsRoleArn": "arn:aws-us-gov:iam::123456789012:role/path/name"},
            CrossAccountRole(role_arn="arn:aws-us-gov:iam::123456789012:role/path/name"),
            id="another partition",
        ),
    ],
)
def test_provisioner_secret_is_parsed(secret: Mapping[str, str], role: CrossAccountRole | None) -> None:
    assert parse_provisioner_secret(secret) == role


@pytest.mark.parametrize(
    ("secret", "message"),
    [
        pytest.param(
            {"crossaccount": "hunter2"},
            "secret crossaccount: is not a boolean; use true or false",
            id="no boolean, without a role too",
        ),
        pytest.param(
            {"awsRoleArn": "hunter2"},
            "secret awsRoleArn: is not the ARN of a role; use arn:aws:iam::ACCOUNT:role/NAME",
            id="no role",
        ),
        pytest.param(
            {"awsRoleArn": ARN, "externalId": "hunter2 "},
            "secret externalId: is not a valid external ID; use 2 to 1224 letters, digits and _+=,.@:/-",
            id="no external id",
        ),
    ],
)
def test_error_does_not_contain_the_refused_secret(secret: Mapping[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_provisioner_secret(secret)
    assert str(caught.value) == message
    assert "hunter2" not in repr(caught.value.args)
    assert caught.value.__cause__ is None


def test_error_does_not_contain_the_external_id() -> None:
    assert "hunter2" not in repr(CrossAccountRole(role_arn=ARN, external_id="hunter2"))


@pytest.mark.parametrize(
    ("by_zone_id", "zone", "context"),
    [
        pytest.param(True, "us-east-1a", {"crossaccount": "true"}, id="by DNS, which wins over a zone"),
        pytest.param(False, "us-east-1a", {"mounttargetip": "10.0.0.4"}, id="pinned by a zone's name"),
        pytest.param(False, "use1-az4", {"mounttargetip": "10.0.0.4"}, id="pinned by a zone's id"),
        pytest.param(
            False, "us-east-1f", {"mounttargetip": "10.0.0.1"}, id="no target there: the first zone id's"
        ),
        pytest.param(
            False,
            None,
            {"mounttargetipmap": '{"use1-az1":"10.0.0.1","use1-az4":"10.0.0.4"}'},
            id="address for each zone",
        ),
    ],
)
def test_volume_attributes_contain_the_cross_account_addresses(
    by_zone_id: bool, zone: str | None, context: Mapping[str, str]
) -> None:
    role = CrossAccountRole(role_arn=ARN, by_zone_id=by_zone_id)
    name = ZoneName(zone) if zone else None
    assert render_attributes(cross_account_attributes(role, name, FS, TARGETS)) == context
    assert needs_targets(role) is not by_zone_id


def test_cross_account_volume_without_mount_target_is_refused() -> None:
    with pytest.raises(NoMountTarget) as caught:
        cross_account_attributes(ROLE, None, FS)
    assert str(caught.value) == (
        f"file system: '{FS}' has no mount target that is available; "
        "create a mount target, or set crossaccount in the provisioner secret"
    )
    assert caught.value.code is RpcCode.FAILED_PRECONDITION
