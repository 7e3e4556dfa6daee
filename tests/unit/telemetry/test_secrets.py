import json

import pytest

from kube_efs.model.secrets import REMOVED
from kube_efs.telemetry.secrets import without_secrets

AWS_SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"  # AWS's own documentation example


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


def test_values_that_json_cannot_express_become_clean_text() -> None:
    class Credentials:
        def __repr__(self) -> str:
            return f"Credentials(secret_key={AWS_SECRET!r})"

    assert without_secrets({"used": Credentials()}) == {"used": f"Credentials(secret_key='{REMOVED}')"}


def test_recursive_value_is_truncated() -> None:
    loop: dict[str, object] = {}
    loop["again"] = loop

    assert "again" in without_secrets(loop)


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
