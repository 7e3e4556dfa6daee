"""The access that policies of file systems refuse to clients without an identity."""

import json

import pytest

from kube_efs.doctor.policies import Access, refused_without_identity
from kube_efs.model.errors import InvalidValue

EVERYTHING = {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "elasticfilesystem:Client*"}
MOUNT = "elasticfilesystem:ClientMount"
ROLE = "arn:aws:iam::123456789012:role/efs"


def denied(**more: object) -> dict[str, object]:
    return {"Sid": "No", "Effect": "Deny", "Principal": "*", "Action": MOUNT, **more}


@pytest.mark.parametrize(
    ("statements", "refused"),
    [
        pytest.param([EVERYTHING], set(), id="all client actions are allowed"),
        pytest.param([{**EVERYTHING, "Action": "*"}], set(), id="everything is allowed"),
        pytest.param([], set(Access), id="nothing is allowed"),
        pytest.param([{**EVERYTHING, "Action": [MOUNT]}], {Access.WRITE, Access.ROOT}, id="only mounting"),
        pytest.param([{**EVERYTHING, "Principal": {"AWS": ROLE}}], set(Access), id="only a role"),
        pytest.param([EVERYTHING, denied()], {Access.MOUNT}, id="mounting is denied"),
        pytest.param([EVERYTHING, denied(Action=MOUNT.upper())], {Access.MOUNT}, id="in uppercase"),
        pytest.param([EVERYTHING, denied(Principal={"AWS": ROLE})], set(), id="denied to a role"),
        pytest.param([EVERYTHING, {**denied(), "NotPrincipal": ROLE}], set(), id="denied to all but one"),
        pytest.param(
            [EVERYTHING, denied(Condition={"Bool": {"aws:SecureTransport": "false"}})],
            set(),
            id="denied without TLS",
        ),
        pytest.param(
            [EVERYTHING, denied(Condition={"Bool": {"aws:SecureTransport": "true"}})],
            {Access.MOUNT},
            id="denied with TLS",
        ),
        pytest.param(
            [EVERYTHING, denied(Condition={"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}})],
            set(),
            id="denied under an unknown condition",
        ),
        pytest.param(
            [{**EVERYTHING, "Condition": {"Bool": {"elasticfilesystem:AccessedViaMountTarget": "true"}}}],
            set(),
            id="allowed through mount targets",
        ),
        pytest.param(
            [{**EVERYTHING, "Condition": {"Bool": {"elasticfilesystem:AccessedViaMountTarget": ["false"]}}}],
            set(Access),
            id="allowed in other ways than through mount targets",
        ),
        pytest.param(
            [{**EVERYTHING, "Condition": {"StringEquals": {"elasticfilesystem:AccessPointArn": "x"}}}],
            set(),
            id="allowed under an unknown condition",
        ),
        pytest.param(
            [{"Effect": "Allow", "NotPrincipal": {"AWS": ROLE}, "Action": "*"}],
            set(),
            id="all but one allowed",
        ),
    ],
)
def test_access_that_the_policy_certainly_refuses_is_found(
    statements: list[object], refused: set[Access]
) -> None:
    found = refused_without_identity(json.dumps({"Statement": statements}))
    assert {one.access for one in found} == refused


def test_refusal_names_the_denying_statement() -> None:
    (refusal,) = refused_without_identity(json.dumps({"Statement": [EVERYTHING, denied()]}))
    assert refusal.by == "No"


@pytest.mark.parametrize("text", ["", "[]", '{"Statement": [{}]}', '{"Statement": ["x"]}', "{}"])
def test_invalid_policy_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="cannot be read"):
        refused_without_identity(text)
