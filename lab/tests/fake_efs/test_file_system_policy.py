"""Policies of file systems: those that AWS's console writes, and those that cannot be understood."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_efs.admission import Client, check_policy, parse_policy
from fake_efs.errors import InvalidValue

ROLE = "arn:aws:iam::123456789012:role/kube-efs-node"
ROOT = "arn:aws:iam::123456789012:root"
ACCESS_POINT = "arn:aws:elasticfilesystem:us-east-1:123456789012:access-point/fsap-01234567"
ANYBODY, SIGNED = Client(), Client(arn=ROLE)
THROUGH = Client(access_point_arn=ACCESS_POINT)

MOUNT_TARGET = {"Bool": {"elasticfilesystem:AccessedViaMountTarget": "true"}}
PLAIN_TEXT = {"Bool": {"aws:SecureTransport": "false"}}
BY_ACCESS_POINT = {"StringEquals": {"elasticfilesystem:AccessPointArn": ACCESS_POINT}}


def policy(*statements: Mapping[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


def allow(principal: object = "*", action: object = "elasticfilesystem:ClientMount", **more: object) -> Any:
    return {"Effect": "Allow", "Principal": {"AWS": principal}, "Action": action, **more}


def deny(**more: object) -> Any:
    return {**allow(**more), "Effect": "Deny"}


@pytest.mark.parametrize(
    ("text", "clients"),
    [
        pytest.param(policy(), [SIGNED], id="no statement"),
        pytest.param(policy(allow()), [ANYBODY, SIGNED, THROUGH], id="everybody"),
        pytest.param(policy({**allow(), "Principal": "*"}), [ANYBODY, SIGNED, THROUGH], id="short form"),
        pytest.param(policy(allow(ROOT)), [SIGNED], id="account"),
        pytest.param(policy(allow(["123456789012", ROLE])), [SIGNED], id="account by number, and role"),
        pytest.param(policy(allow(action="elasticfilesystem:ClientWrite")), [SIGNED], id="another action"),
        pytest.param(policy(allow(action=["x:y", "*"])), [ANYBODY, SIGNED, THROUGH], id="every action"),
        pytest.param(
            policy(allow(Condition=MOUNT_TARGET), deny(Condition=PLAIN_TEXT)),
            [ANYBODY, SIGNED, THROUGH],
            id="TLS only, as the console writes it",
        ),
        pytest.param(policy(allow(Condition=BY_ACCESS_POINT)), [SIGNED, THROUGH], id="one access point"),
        pytest.param(
            policy(allow(Condition={"ArnLike": {"elasticfilesystem:AccessPointArn": ["x", "*/fsap-0123*"]}})),
            [SIGNED, THROUGH],
            id="access points by pattern",
        ),
        pytest.param(policy(allow(), deny(principal=ROLE)), [ANYBODY, THROUGH], id="a role denied"),
        pytest.param(policy(allow(), deny()), [], id="everybody denied"),
        pytest.param(json.dumps({"Statement": allow()}), [ANYBODY, SIGNED, THROUGH], id="no list"),
    ],
)
def test_who_may_mount(text: str, clients: list[Client]) -> None:
    def may_mount(client: Client) -> bool:
        try:
            check_policy(parse_policy(text), client)
        except InvalidValue:
            return False
        return True

    assert [client for client in (ANYBODY, SIGNED, THROUGH) if may_mount(client)] == clients


def test_refusals_say_who_and_what_helps() -> None:
    with pytest.raises(InvalidValue) as caught:
        check_policy(parse_policy(policy(allow(ROOT))), ANYBODY)
    assert str(caught.value) == (
        "file system policy: 'a client without IAM signature' is not allowed ClientMount; "
        "mount with the option iam"
    )
    with pytest.raises(InvalidValue, match=f"'{ROLE}' is denied ClientMount"):
        check_policy(parse_policy(policy(deny(principal=ROLE))), SIGNED)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("{", r"cannot be read \(JSONDecodeError\)", id="no JSON"),
        pytest.param("[]", r"cannot be read \(TypeError\)", id="no object"),
        pytest.param('{"Statement": ["a"]}', r"cannot be read \(AttributeError\)", id="no statement"),
        pytest.param('{"Statement": {"Effect": "Allow"}}', r"cannot be read \(KeyError\)", id="no principal"),
        pytest.param(policy({**allow(), "NotAction": "x"}), "'NotAction' is not known", id="unknown key"),
        pytest.param(policy({**allow(), "Effect": "allow"}), "'allow' is not known", id="unknown effect"),
        pytest.param(
            policy({**allow(), "Principal": {"Service": "x"}}), "is not known", id="unknown kind of principal"
        ),
        pytest.param(
            policy(deny(Condition={"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}})),
            "'IpAddress' is not known to the embedded EFS",
            id="unknown operator",
        ),
    ],
)
def test_what_is_not_understood_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidValue, match=reason) as caught:
        parse_policy(text)
    assert caught.value.field == "file system policy"


@given(st.recursive(st.none() | st.booleans() | st.text(max_size=5), st.lists, max_leaves=8))
def test_any_value_is_read_or_refused(value: object) -> None:
    for text in (json.dumps(value), policy({**allow(), "Condition": value}), policy(allow(value, value))):
        with suppress(InvalidValue):
            parse_policy(text)
