"""Parts of the Node service without a socket: targets, names of holders, routes, calls at work."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.unmounting import unmount

from kube_efs.aws.credential_sources import IamOptions
from kube_efs.csi.mounting import NodeMount, direct_server, make_target, mount_of, remove_target, tunnel_spec
from kube_efs.csi.node import Calls, parse_target, resolve_target
from kube_efs.csi.place import NodePlace
from kube_efs.model.csi.capabilities import VolumeCapability
from kube_efs.model.csi.errors import InvalidArgument, NoMountTarget, VolumePending
from kube_efs.model.csi.mount_options import MountPlan, plan_mount
from kube_efs.model.csi.volume_attributes import parse_attributes
from kube_efs.model.csi.volume_handles import parse_volume_handle
from kube_efs.model.efs.ids import Region, ZoneName
from kube_efs.model.errors import MountFailed
from kube_efs.tunnels.promises import Holder

FS = "fs-0123456789abcdef0"
PLACE = NodePlace(node_id="i-0a", region=Region("eu-west-1"), zone=ZoneName("eu-west-1b"), zone_id="euw1-az2")
NAMES = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=50)
UNENCRYPTED = {"encryptInTransit": "false"}


def plan(handle: str = FS, *flags: str, **attributes: str) -> MountPlan:
    capability = VolumeCapability(mount_flags=flags)
    return plan_mount(parse_volume_handle(handle), parse_attributes(attributes), capability, read_only=False)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("", "is missing", id="empty"),
        pytest.param("a/b", "is not an absolute path below /", id="relative"),
        pytest.param("/", "is not an absolute path below /", id="the root"),
        pytest.param("//", "is not an absolute path below /", id="the root again"),
        pytest.param("/pods/../etc", "is not an absolute path below /", id="upwards"),
        pytest.param("/pods/a\nb", "has control characters", id="a line break"),
        pytest.param("/pods/\0", "has control characters", id="a zero"),
        pytest.param("/x" * 2048, "is longer than 4095 bytes", id="a long path"),
        pytest.param("/pods/" + "é" * 128, "has a name longer than 255 bytes", id="a long name"),
        pytest.param("/pods/" + "x" * 256 + "/mount", "has a name longer than 255 bytes", id="a long parent"),
        pytest.param("/pods/\udc80", "has control characters", id="no text"),
    ],
)
def test_targets_that_are_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_target(text, field="target_path")
    assert (caught.value.field, caught.value.problem) == ("target_path", problem)


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="/"), min_size=1))
def test_every_other_name_may_be_a_target_s(name: str) -> None:
    assume(name not in {".", ".."} and len(name.encode()) <= 255)
    assert parse_target(f"/pods/{name}", field="target_path").name == name


def test_links_of_parents_are_followed_whether_or_not_they_lead_anywhere(tmp_path: Path) -> None:
    (tmp_path / "pods").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "pods")
    (tmp_path / "pods" / "target").symlink_to("/etc")
    assert resolve_target(tmp_path / "link" / "target") == tmp_path / "pods" / "target"
    assert resolve_target(tmp_path / "link" / "a" / "b") == tmp_path / "pods" / "a" / "b"


def test_a_target_is_made_with_its_parents_and_removed_alone(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b"
    make_target(target)
    make_target(target)
    assert target.stat().st_mode & 0o777 == 0o755
    remove_target(target)
    remove_target(target)
    assert not target.exists()
    assert target.parent.exists()


def test_files_and_links_are_no_targets(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    deep = tmp_path.joinpath(*["x" * 255] * 17)
    for target, problem in {
        tmp_path / "file": "is a file; remove it",
        tmp_path / "link": "is a link; remove the link",
        tmp_path / "dangling": "is a link; remove the link",
        tmp_path / "file" / "below": "is below a file; remove the file",
        tmp_path / "circle" / "below": "is below a link that leads back to itself; remove the link",
        deep: "is too long; give a shorter path",
    }.items():
        with pytest.raises(InvalidArgument) as caught:
            make_target(target)
        assert str(caught.value).endswith(problem)
        assert (caught.value.field, caught.value.value) == ("target_path", str(target))
        assert len(str(caught.value)) < 400
        if target.name != "file":
            with pytest.raises(InvalidArgument, match=re.escape(problem)):
                remove_target(target)
    assert remove_target(tmp_path / "file")  # nothing is mounted there, and it may be somebody's
    assert {path.name for path in tmp_path.iterdir()} == {"file", "link", "dangling", "circle"}


def test_a_disk_that_is_at_fault_is_not_the_path_s_fault(tmp_path: Path) -> None:
    # A directory of the kernel's, in which nothing can be made.
    with pytest.raises(MountFailed, match="cannot be made"):
        make_target(Path("/proc/self/target"))


@given(NAMES, NAMES)
def test_a_holder_s_name_tells_volume_and_target(volume_id: str, below: str) -> None:
    mount = NodeMount(volume_id=volume_id, target=Path(f"/pods/{below}"))
    assert mount_of(mount.holder) == mount


@pytest.mark.parametrize(
    "name", ["", "controller", "volume relative/path", "two words /pods/x", "a%2 /pods/x", "v  /pods/x"]
)
def test_names_of_others_are_no_mounts(name: str) -> None:
    assert mount_of(Holder(name)) is None


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param(plan(), {}, id="nothing said"),
        pytest.param(plan(f"{FS}:/a:fsap-01234567"), {"access_point_id": "fsap-01234567"}, id="access point"),
        pytest.param(plan(FS, "iam"), {"iam": IamOptions()}, id="the node's identity"),
        pytest.param(
            plan(FS, "iam", "rolearn=arn:aws:iam::123456789012:role/r", "jwtpath=/t/x"),
            {"iam": IamOptions(role_arn="arn:aws:iam::123456789012:role/r", token_file="/t/x")},
            id="a web identity",
        ),
        pytest.param(plan(FS, "az=eu-west-1a"), {"zone": "eu-west-1a"}, id="zone"),
        pytest.param(plan(FS, "region=us-east-1"), {"region": "us-east-1"}, id="region"),
        pytest.param(plan(FS, "ocsp"), {"checks_revocation": True}, id="revocation"),
        pytest.param(plan(FS, crossaccount="true"), {"cross_account": True}, id="another account"),
        pytest.param(
            plan(FS, "az=eu-west-1a", crossaccount="true"),
            {"cross_account": True},
            id="another account, where a zone's name means another zone",
        ),
        pytest.param(
            plan(FS, "az=eu-west-1a", mounttargetip="10.0.0.4"),
            {"address": "10.0.0.4"},
            id="an address says all",
        ),
        pytest.param(
            plan(FS, mounttargetipmap='{"euw1-az2":"10.0.0.2","eu-west-1a":"10.0.0.1"}'),
            {"address": "10.0.0.2"},
            id="the address of the zone",
        ),
        pytest.param(
            plan(FS, mounttargetipmap='{"z9":"10.0.0.9","z1":"10.0.0.1"}'),
            {"address": "10.0.0.1"},
            id="the first address where the zone has none",
        ),
    ],
)
def test_what_is_asked_of_the_tunnel_agent(wanted: MountPlan, expected: dict[str, Any]) -> None:
    spec = tunnel_spec(wanted, PLACE)
    given = {name: getattr(spec, name) for name in spec.__slots__ if getattr(spec, name) not in {None, False}}
    assert given == {"file_system_id": FS, **expected}


@pytest.mark.parametrize(
    ("wanted", "server"),
    [
        pytest.param(plan(FS, **UNENCRYPTED), f"{FS}.efs.eu-west-1.amazonaws.com", id="its name"),
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
        pytest.param(plan(FS, mounttargetip="fd00::4", **UNENCRYPTED), "fd00::4", id="an address"),
    ],
)
def test_where_a_volume_is_without_a_tunnel(wanted: MountPlan, server: str) -> None:
    assert direct_server(wanted, PLACE) == server


@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        pytest.param({}, "this node's region: is not known; set AWS_REGION", id="no region"),
        pytest.param(
            {"crossaccount": "true"}, "this node's region: is not known; set AWS_REGION", id="nothing at all"
        ),
    ],
)
def test_a_node_that_does_not_know_where_it_is(attributes: dict[str, str], told: str) -> None:
    with pytest.raises(NoMountTarget) as caught:
        direct_server(plan(FS, **UNENCRYPTED, **attributes), NodePlace(node_id="n"))
    assert str(caught.value) == told


def test_the_zone_s_id_is_needed_for_another_account() -> None:
    with pytest.raises(NoMountTarget, match="this node's zone id: is not known"):
        direct_server(
            plan(FS, **UNENCRYPTED, crossaccount="true"), NodePlace(node_id="n", region=Region("eu-west-1"))
        )


def test_a_limit_counts_what_is_at_work_only() -> None:
    calls = Calls(2)
    for _ in range(3):
        with calls.mounting(), calls.mounting(), pytest.raises(VolumePending), calls.mounting():
            pass
    with Calls(None).mounting():
        pass


def test_a_target_is_for_one_call_and_free_after_it_whatever_its_end() -> None:
    calls, target = Calls(), Path("/pods/x")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), calls.alone(target), calls.alone(Path("/pods/y")):
            raise ZeroDivisionError
    with calls.alone(target), pytest.raises(VolumePending, match="in use"), calls.alone(target):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_target_with_a_mount_on_it_is_not_removed_and_said_to_have_one(tmp_path: Path) -> None:
    target = tmp_path / "mount"
    make_target(target)
    subprocess.run(["mount", "-t", "tmpfs", "none", str(target)], check=True)
    try:
        assert not remove_target(target)
    finally:
        unmount(target)
    assert remove_target(target)
    assert not target.exists()
