import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.telemetry.secrets import REMOVED, text_without_secrets, without_secrets

AWS_SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"  # AWS's own documentation example
JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzeXN0ZW0ifQ.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    "key",
    [
        "token",
        "password",
        "client_secret",
        "Authorization",
        "aws_session_token",
        "aws_secret_access_key",
        "SecretAccessKey",
        "private_key",
        "X-Amz-Security-Token",
        "x-aws-ec2-metadata-token",
    ],
)
def test_field_with_a_secret_name_is_removed_at_any_depth(key: str) -> None:
    assert without_secrets({key: "s3cr3t"}) == {key: REMOVED}
    assert without_secrets({"outer": [{key: {"inner": "s3cr3t"}}]}) == {"outer": [{key: REMOVED}]}


@pytest.mark.parametrize(
    "key",
    [
        "creation_token",
        "ClientToken",
        "client_token",
        "file_system",
        "root_key",
        "access_key_id",
        "tokens_left",
    ],
)
def test_field_with_another_name_is_kept(key: str) -> None:
    assert without_secrets({key: "pvc-0f3b"}) == {key: "pvc-0f3b"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "Authorization: Bearer abc.def-123", f"Authorization: Bearer {REMOVED}", id="bearer token"
        ),
        pytest.param("sent basic dXNlcjpwYXNz", f"sent basic {REMOVED}", id="basic credentials"),
        pytest.param(f"cannot use {JWT} here", f"cannot use {REMOVED} here", id="service account token"),
        pytest.param(f"key {AWS_SECRET}, sorry", f"key {REMOVED}, sorry", id="AWS secret key alone"),
        pytest.param(
            f"aws_secret_access_key={AWS_SECRET} region=x",
            f"aws_secret_access_key={REMOVED} region=x",
            id="AWS secret key by name",
        ),
        pytest.param(
            '{"SessionToken": "IQoJb3Jp", "Expiration": "2026"}',
            f'{{"SessionToken": "{REMOVED}", "Expiration": "2026"}}',
            id="session token in JSON",
        ),
        pytest.param(
            "AWS4-HMAC-SHA256 Credential=AKIA/x, Signature=0a1b2c",
            f"AWS4-HMAC-SHA256 Credential={REMOVED}, Signature={REMOVED}",
            id="signature of a request",
        ),
        pytest.param(
            "a\n-----BEGIN EC PRIVATE KEY-----\nMHcC\n-----END EC PRIVATE KEY-----\nb",
            f"a\n{REMOVED}\nb",
            id="private key",
        ),
        pytest.param("password=hunter2&user=me", f"password={REMOVED}&user=me", id="query of an address"),
    ],
)
def test_secret_inside_a_text_is_removed(text: str, expected: str) -> None:
    assert text_without_secrets(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "volume efs-stunnel-fs-0123456789abcdef0-default-example-x7k2p is bound",
        "commit 3d638e0a5b1c9f7e2d4a6b8c0e1f3a5b7c9d1e2f",
        "/var/lib/kubelet/pods/0f3b2c1d-1111-2222-3333-444455556666/volumes/kubernetes.io~csi",
        "creation_token=pvc-0f3b is known",
        "fs-0123456789abcdef0.efs.us-east-1.amazonaws.com:2049",
    ],
)
def test_ordinary_texts_are_not_changed(text: str) -> None:
    assert text_without_secrets(text) == text


def test_values_that_json_cannot_express_become_clean_text() -> None:
    class Credentials:
        def __repr__(self) -> str:
            return f"Credentials(secret_key={AWS_SECRET!r})"

    assert without_secrets({"used": Credentials()}) == {"used": f"Credentials(secret_key='{REMOVED}')"}


def test_recursive_value_is_truncated() -> None:
    loop: dict[str, object] = {}
    loop["again"] = loop

    assert "again" in without_secrets(loop)


@given(st.text())
def test_removing_secrets_twice_changes_nothing(text: str) -> None:
    once = text_without_secrets(text)

    assert text_without_secrets(once) == once


def test_number_that_json_refuses_is_only_described() -> None:
    assert without_secrets({"size": 10**100_000, "port": 20490}) == {"size": "a huge int", "port": 20490}


def test_secret_in_a_json_document_inside_a_text_is_removed() -> None:
    text = json.dumps({"a": json.dumps({"credentials": {"first": "hunter2", "second": ["x1y2"]}}), "b": 1})
    clean = str(without_secrets({"answer": text})["answer"])

    assert "hunter2" not in clean
    assert "x1y2" not in clean
    assert json.loads(clean)["b"] == 1


def test_object_without_a_text_does_not_lose_the_line() -> None:
    class Silent:
        def __str__(self) -> str:
            raise ValueError(AWS_SECRET)

    assert without_secrets({"x": Silent()}) == {"x": "a Silent that cannot be shown (ValueError)"}


def test_password_in_the_address_of_a_proxy_is_removed() -> None:
    fields = {"https_proxy": "me:s3cr3t@proxy:3128", "proxy": "http://me:pa's3cr3t@proxy:3128"}
    assert without_secrets(fields) == {
        "https_proxy": f"{REMOVED}@proxy:3128",
        "proxy": f"http://{REMOVED}@proxy:3128",
    }


def test_counts_and_flags_with_secret_names_are_kept() -> None:
    fields = {"tokens": 3, "automountServiceAccountToken": True, "password": None, "secret": ""}
    assert without_secrets(fields) == fields
