"""The identity of tunnels on demand, and refused values."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.aws.credential_sources import IamOptions
from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.model.efs.ids import FileSystemId, Region, ZoneName
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.errors import InvalidValue
from kube_efs.tunnels.data_plane import TunnelService
from kube_efs.tunnels.options import AMAZON_CA_FILE
from kube_efs.tunnels.reservations import TunnelSpec, parse_holder
from kube_efs.tunnels.stunnel.configuration import check_service

FS = FileSystemId("fs-0123456789abcdef0")
SPEC = TunnelSpec(file_system_id=FS)
DIFFERENT: dict[str, dict[str, Any]] = {
    "another file system": {"file_system_id": FileSystemId("fs-1")},
    "access point": {"access_point_id": AccessPointId("fsap-0123456789abcdef0")},
    "identity": {"iam": IamOptions()},
    "another identity": {"iam": IamOptions(profile="team")},
    "another region": {"region": Region("us-west-2")},
    "address": {"address": "10.0.0.1"},
    "zone": {"zone": ZoneName("us-east-1a")},
    "another account": {"cross_account": True},
    "check of revocation": {"checks_revocation": True},
    "authorities": {"ca_file": "/ca/a.pem"},
    "S3 Files": {"kind": FileSystemKind.S3_FILES, "iam": IamOptions()},
}


def test_name_is_the_same_in_every_version() -> None:
    # Held tunnels keep their port by it; a change here moves what is not held.
    assert SPEC.name == "fs-0123456789abcdef0-6c2c8d8b7b3417ff"
    assert replace(SPEC).name == SPEC.name


def test_s3_files_always_needs_an_identity() -> None:
    with pytest.raises(InvalidValue, match="iam: is missing; S3 Files always needs an identity"):
        TunnelSpec(file_system_id=FS, kind=FileSystemKind.S3_FILES)


@pytest.mark.parametrize("difference", DIFFERENT)
def test_each_part_of_a_spec_gives_another_tunnel(difference: str) -> None:
    others = [SPEC, *(replace(SPEC, **change) for change in DIFFERENT.values())]
    assert [one.name for one in others].count(replace(SPEC, **DIFFERENT[difference]).name) == 1


def test_longest_file_system_id_gives_a_valid_name_for_stunnel() -> None:
    spec = TunnelSpec(file_system_id=FileSystemId("fs-" + "0" * 40))
    host = f"{spec.file_system_id}.efs.us-east-1.amazonaws.com"
    service = TunnelService(
        name=spec.name,
        file_system_id=spec.file_system_id,
        port=22049,
        addresses=("10.0.0.1",),
        check_host=host,
        ca_file=AMAZON_CA_FILE,
    )
    check_service(service)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        pytest.param({"file_system_id": "fs-1\n"}, "file system ID", id="file system with a line break"),
        pytest.param({"access_point_id": "fsap-xyz"}, "access point ID", id="invalid access point"),
        pytest.param({"region": "US"}, "region", id="invalid region"),
        pytest.param({"zone": "a b"}, "zone", id="invalid zone"),
        pytest.param({"address": "example.com"}, "address", id="name instead of an address"),
        pytest.param({"address": "fd00:0::1"}, "address", id="address in a long form"),
        pytest.param({"cross_account": True, "address": "10.0.0.1"}, "cross_account", id="two addresses"),
        pytest.param({"ca_file": "/ca/../a.pem"}, "cafile", id="path that leaves its directory"),
        pytest.param({"iam": IamOptions(profile="")}, "iam.profile", id="empty profile"),
        pytest.param({"iam": IamOptions(role_arn="a\nb")}, "iam.role_arn", id="role with a line break"),
    ],
)
def test_malformed_parts_are_refused(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        replace(SPEC, **change)
    assert refused.value.field == field


@given(st.text())
def test_holder_is_plain_text(text: str) -> None:
    if not text or re.search(r"[\x00-\x1f\x7f]", text):
        with pytest.raises(InvalidValue, match="holder"):
            parse_holder(text)
    else:
        assert parse_holder(text) == text
