"""Names of holders, and the tunnel or mount target of a plan."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.aws.credential_sources import IamOptions
from kube_efs.csi.node_info import NodeInfo
from kube_efs.csi.publication import NodeMount, direct_server, parse_mount, tunnel_spec
from kube_efs.model.csi.capabilities import VolumeCapability
from kube_efs.model.csi.errors import NoMountTarget
from kube_efs.model.csi.mount_options import MountPlan, plan_mount
from kube_efs.model.csi.volume_attributes import parse_attributes
from kube_efs.model.csi.volume_handles import parse_volume_handle
from kube_efs.model.efs.ids import Region, ZoneName
from kube_efs.tunnels.reservations import Holder

FS = "fs-0123456789abcdef0"
NODE_INFO = NodeInfo(
    node_id="i-0a", region=Region("eu-west-1"), zone=ZoneName("eu-west-1b"), zone_id="euw1-az2"
)
NAMES = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=50)
UNENCRYPTED = {"encryptInTransit": "false"}


def plan(handle: str = FS, *flags: str, **attributes: str) -> MountPlan:
    capability = VolumeCapability(mount_flags=flags)
    return plan_mount(parse_volume_handle(handle), parse_attributes(attributes), capability, read_only=False)


@given(NAMES, NAMES)
def test_holder_name_contains_volume_and_target(volume_id: str, below: str) -> None:
    mount = NodeMount(volume_id=volume_id, target=Path(f"/pods/{below}"))
    assert parse_mount(mount.holder) == mount


@pytest.mark.parametrize(
    "name", ["", "controller", "volume relative/path", "two words /pods/x", "a%2 /pods/x", "v  /pods/x"]
)
def test_other_names_are_not_mounts(name: str) -> None:
    assert parse_mount(Holder(name)) is None


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param(plan(), {}, id="not set"),
        pytest.param(plan(f"{FS}:/a:fsap-01234567"), {"access_point_id": "fsap-01234567"}, id="access point"),
        pytest.param(plan(FS, "iam"), {"iam": IamOptions()}, id="identity of the node"),
        pytest.param(
            plan(FS, "iam", "rolearn=arn:aws:iam::123456789012:role/r", "jwtpath=/t/x"),
            {"iam": IamOptions(role_arn="arn:aws:iam::123456789012:role/r", token_file="/t/x")},
            id="web identity",
        ),
        pytest.param(plan(FS, "az=eu-west-1a"), {"zone": "eu-west-1a"}, id="zone"),
        pytest.param(plan(FS, "region=us-east-1"), {"region": "us-east-1"}, id="region"),
        pytest.param(plan(FS, "ocsp"), {"checks_revocation": True}, id="revocation"),
        pytest.param(plan(FS, "cafile=/ca/a.pem"), {"ca_file": "/ca/a.pem"}, id="authorities"),
        pytest.param(plan(FS, crossaccount="true"), {"cross_account": True}, id="another account"),
        pytest.param(
            plan(FS, "az=eu-west-1a", crossaccount="true"),
            {"cross_account": True},
            id="another account with other zone names",
        ),
        pytest.param(
            plan(FS, "az=eu-west-1a", mounttargetip="10.0.0.4"),
            {"address": "10.0.0.4"},
            id="address only",
        ),
        pytest.param(
            plan(FS, mounttargetipmap='{"euw1-az2":"10.0.0.2","eu-west-1a":"10.0.0.1"}'),
            {"address": "10.0.0.2"},
            id="address of the zone",
        ),
        pytest.param(
            plan(FS, mounttargetipmap='{"z9":"10.0.0.9","z1":"10.0.0.1"}'),
            {"address": "10.0.0.1"},
            id="first address for a zone without one",
        ),
    ],
)
def test_plan_determines_the_tunnel(wanted: MountPlan, expected: dict[str, Any]) -> None:
    spec = tunnel_spec(wanted, NODE_INFO)
    given = {one.name: value for one in fields(spec) if (value := getattr(spec, one.name)) != one.default}
    assert given == {"file_system_id": FS, **expected}


@pytest.mark.parametrize(
    ("wanted", "server"),
    [
        pytest.param(plan(FS, **UNENCRYPTED), f"{FS}.efs.eu-west-1.amazonaws.com", id="DNS name"),
        pytest.param(
            plan(FS, "region=cn-north-1", **UNENCRYPTED), f"{FS}.efs.cn-north-1.amazonaws.com.cn", id="region"
        ),
        pytest.param(
            plan(FS, "az=eu-west-1a", **UNENCRYPTED),
            f"eu-west-1a.{FS}.efs.eu-west-1.amazonaws.com",
            id="zone",
        ),
        pytest.param(
            plan(FS, crossaccount="true", **UNENCRYPTED),
            f"euw1-az2.{FS}.efs.eu-west-1.amazonaws.com",
            id="another account",
        ),
        pytest.param(plan(FS, mounttargetip="fd00::4", **UNENCRYPTED), "fd00::4", id="address"),
    ],
)
def test_server_of_a_mount_without_tls_is_determined(wanted: MountPlan, server: str) -> None:
    assert direct_server(wanted, NODE_INFO) == server


@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        pytest.param({}, "this node's region: is not known; set AWS_REGION", id="no region"),
        pytest.param(
            {"crossaccount": "true"},
            "this node's region: is not known; set AWS_REGION",
            id="no region and no zone",
        ),
    ],
)
def test_node_with_an_unknown_region_is_an_error(attributes: dict[str, str], told: str) -> None:
    with pytest.raises(NoMountTarget) as caught:
        direct_server(plan(FS, **UNENCRYPTED, **attributes), NodeInfo(node_id="n"))
    assert str(caught.value) == told


def test_another_account_requires_the_zone_id() -> None:
    with pytest.raises(NoMountTarget, match="this node's zone id: is not known"):
        direct_server(
            plan(FS, **UNENCRYPTED, crossaccount="true"), NodeInfo(node_id="n", region=Region("eu-west-1"))
        )
