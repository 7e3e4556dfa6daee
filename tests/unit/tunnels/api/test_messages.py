"""Messages of the agent's socket are converted without loss."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.aws.credential_sources import IamOptions, ServiceAccountIdentity
from kube_efs.model.csi.errors import InvalidArgument
from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.model.efs.ids import FileSystemId, Region, ZoneName
from kube_efs.model.errors import (
    AwsDenied,
    InvalidSetting,
    InvalidValue,
    KubeEfsError,
    PortTaken,
    TunnelError,
    TunnelNotReady,
)
from kube_efs.tunnels.api.messages import parse_failure, parse_spec, render_failure, render_spec
from kube_efs.tunnels.protocol import tunnels_pb2 as pb
from kube_efs.tunnels.reservations import TunnelSpec

FS = FileSystemId("fs-1")


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(TunnelSpec(file_system_id=FS), id="minimum"),
        pytest.param(TunnelSpec(file_system_id=FS, iam=IamOptions()), id="identity of the node"),
        pytest.param(TunnelSpec(file_system_id=FS, cross_account=True), id="another account"),
        pytest.param(
            TunnelSpec(file_system_id=FS, iam=ServiceAccountIdentity(namespace="team", name="web")),
            id="service account",
        ),
        pytest.param(
            TunnelSpec(
                file_system_id=FS,
                iam=ServiceAccountIdentity(
                    namespace="team", name="web", role_arn="arn:aws:iam::123456789012:role/web"
                ),
            ),
            id="service account with a role",
        ),
        pytest.param(
            TunnelSpec(
                file_system_id=FS,
                access_point_id=AccessPointId("fsap-0123456789abcdef0"),
                iam=IamOptions(role_arn="arn:aws:iam::123456789012:role/Team", token_file="/var/run/token"),
                region=Region("us-west-2"),
                address="fd00::1",
                zone=ZoneName("us-west-2a"),
                checks_revocation=True,
                ca_file="/ca/a.pem",
            ),
            id="almost all fields",
        ),
    ],
)
def test_specs_are_converted_and_back(spec: TunnelSpec) -> None:
    encoded = render_spec(spec).SerializeToString()
    assert parse_spec(pb.Spec.FromString(encoded)) == spec


@pytest.mark.parametrize("place", ["spec", "identity", "service account"])
def test_spec_with_a_part_of_a_later_version_is_refused(place: str) -> None:
    identities: dict[str, IamOptions | ServiceAccountIdentity | None] = {
        "spec": None,
        "identity": IamOptions(profile="team"),
        "service account": ServiceAccountIdentity(namespace="team", name="web"),
    }
    message = render_spec(TunnelSpec(file_system_id=FS, iam=identities[place]))
    part = {"spec": message, "identity": message.iam, "service account": message.service_account}[place]
    part.MergeFromString(b"\xa2\x06\x04blue")  # the field 100 with a text
    with pytest.raises(InvalidValue, match="'fs-1' has a part that this version does not know; update"):
        parse_spec(pb.Spec.FromString(message.SerializeToString()))


def test_empty_spec_is_refused() -> None:
    with pytest.raises(InvalidValue, match="file system ID"):
        parse_spec(pb.Spec())


@pytest.mark.parametrize(
    "kind", [InvalidValue, InvalidSetting, AwsDenied, PortTaken, TunnelNotReady, TunnelError]
)
def test_errors_keep_their_kind_and_parts(kind: type[KubeEfsError]) -> None:
    error = kind("is not valid", field="a.b", value="c", remedy="mend it")
    found = parse_failure(render_failure(error))
    assert type(found) is kind
    assert str(found) == str(error)


def test_error_of_an_unknown_subclass_becomes_its_base_class() -> None:
    assert type(parse_failure(render_failure(InvalidArgument("is not valid")))) is InvalidValue


@pytest.mark.parametrize("kind", ["", "News", "shown", "reprlib", "ClassVar"])
def test_unknown_kind_becomes_a_tunnel_error(kind: str) -> None:
    assert type(parse_failure(pb.Failure(kind=kind, problem="is wrong").SerializeToString())) is TunnelError


@given(st.text(), st.text(max_size=10_000))
def test_errors_fit_into_the_metadata_of_an_answer(problem: str, value: str) -> None:
    assert len(render_failure(TunnelNotReady(problem, value=value))) < 8000
