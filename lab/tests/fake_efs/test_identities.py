"""Signatures to connect: those of EFS's own client, and what makes them worth nothing."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from fake_efs.aws_api import CREDENTIALS, Credentials
from fake_efs.client_certificate import IamSignature
from fake_efs.errors import InvalidValue
from fake_efs.file_systems import Kind
from fake_efs.identities import Identities
from kube_efs.model.efs.ids import FileSystemId, Region
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.tunnels.on_demand.signature import ConnectRequest, sign

REGION = Region("us-east-1")
FILE_SYSTEM = FileSystemId("fs-01234567")
NOW = datetime(2026, 2, 28, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Clock:
    """A clock that is set by hand."""

    now = NOW

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def identities(clock: Clock) -> Identities:
    return Identities(REGION, clock=clock)


def signed(
    credentials: Credentials = CREDENTIALS, at: datetime = NOW, kind: FileSystemKind = FileSystemKind.EFS
) -> IamSignature:
    request = ConnectRequest(
        kind=kind,
        file_system_id=FILE_SYSTEM,
        region=REGION,
        public_key_hash="0" * 40,
        access_key_id=credentials.access_key_id,
        session_token=credentials.session_token,
        signed_at=at,
    )
    return IamSignature(
        public_key_hash=request.public_key_hash,
        access_key_id=credentials.access_key_id,
        session_token=credentials.session_token,
        signed_at=at,
        signature=sign(request, credentials.secret_access_key),
    )


def test_the_accounts_key_signs(identities: Identities) -> None:
    assert identities.verify(signed(), FILE_SYSTEM) == "arn:aws:iam::123456789012:user/embedded"


def test_the_instances_role_signs_with_its_token(identities: Identities) -> None:
    credentials, expires_at = identities.instance_credentials()
    assert expires_at == NOW + 6 * HOUR
    arn = "arn:aws:iam::123456789012:role/kube-efs-node"
    assert identities.verify(signed(credentials), FILE_SYSTEM) == arn
    with pytest.raises(InvalidValue, match="is of no known access key and session token"):
        identities.verify(signed(replace(credentials, session_token=None)), FILE_SYSTEM)


def test_the_roles_credentials_are_renewed_before_their_end(clock: Clock, identities: Identities) -> None:
    first, _ = identities.instance_credentials()
    clock.now += timedelta(hours=5, minutes=44)
    assert identities.instance_credentials()[0] == first
    clock.now += timedelta(minutes=1)
    second, expires_at = identities.instance_credentials()
    assert second != first
    assert expires_at == clock.now + 6 * HOUR
    for credentials in (first, second):
        assert identities.verify(signed(credentials, clock.now), FILE_SYSTEM)
    clock.now = NOW + 6 * HOUR
    with pytest.raises(InvalidValue, match="is of credentials that have expired"):
        identities.verify(signed(first, clock.now), FILE_SYSTEM)
    assert identities.verify(signed(second, clock.now), FILE_SYSTEM)


@pytest.mark.parametrize(
    ("signature", "problem"),
    [
        pytest.param(signed(at=NOW - 24 * HOUR), "has expired, it is of 2026-02-27 12:00", id="a day old"),
        pytest.param(
            signed(at=NOW + timedelta(minutes=6)),
            "is of the future, 2026-02-28 12:06",
            id="six minutes ahead",
        ),
        pytest.param(replace(signed(), public_key_hash="1" * 40), "does not match", id="another key pair"),
        pytest.param(replace(signed(), signature="0" * 64), "does not match", id="made up"),
        pytest.param(replace(signed(), access_key_id="other"), "no known access key", id="unknown key"),
        pytest.param(
            replace(signed(), signed_at=NOW - timedelta(seconds=1)), "does not match", id="another time"
        ),
    ],
)
def test_others_are_refused(identities: Identities, signature: IamSignature, problem: str) -> None:
    with pytest.raises(InvalidValue, match=problem) as caught:
        identities.verify(signature, FILE_SYSTEM)
    assert str(caught.value).startswith(f"IAM signature by key: '{signature.access_key_id}' ")


def test_a_signature_is_for_one_file_system_and_region(clock: Clock, identities: Identities) -> None:
    with pytest.raises(InvalidValue, match="does not match"):
        identities.verify(signed(), FileSystemId("fs-99999999"))
    with pytest.raises(InvalidValue, match="region than eu-west-1"):
        Identities(Region("eu-west-1"), clock=clock).verify(signed(), FILE_SYSTEM)


def test_a_signature_is_for_one_service(identities: Identities) -> None:
    for_s3_files = signed(kind=FileSystemKind.S3_FILES)
    identities.verify(for_s3_files, FILE_SYSTEM, Kind.S3_FILES)
    for signature, kind in ((for_s3_files, Kind.EFS), (signed(), Kind.S3_FILES)):
        with pytest.raises(InvalidValue, match=r"does not match: another .*service"):
            identities.verify(signature, FILE_SYSTEM, kind)


def test_nothing_secret_is_shown(identities: Identities) -> None:
    credentials, _ = identities.instance_credentials()
    signature = replace(signed(credentials), signature="0" * 64)
    with pytest.raises(InvalidValue) as caught:
        identities.verify(signature, FILE_SYSTEM)
    shown = json.dumps([str(caught.value), repr(signature)])
    assert str(credentials.session_token) not in shown
    assert credentials.secret_access_key not in shown
