"""The policies of file systems for claims; other tests of classes refuse and parse the parameters."""

import json
from typing import Any

import pytest

from fake_efs.errors import MountDenied
from fake_efs.policy import Client, check_policy, parse_policy
from kube_efs.model.csi.file_system_templates import ClientPolicy, client_policy

NODE = Client(arn="arn:aws:sts::123456789012:assumed-role/node/session")
ANONYMOUS = Client(arn=None)


def statements_of(kind: ClientPolicy) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(client_policy(kind) or "")["Statement"]
    return found


@pytest.mark.parametrize("kind", [ClientPolicy.TLS, ClientPolicy.TLS_AND_IAM])
def test_policy_denies_clients_without_tls(kind: ClientPolicy) -> None:
    [denied] = [one for one in statements_of(kind) if one["Effect"] == "Deny"]
    del denied["Sid"]
    assert denied == {
        "Effect": "Deny",
        "Principal": {"AWS": "*"},
        "Action": "*",
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }


def test_policy_for_tls_allows_every_client_to_write_as_root() -> None:
    parsed = parse_policy(client_policy(ClientPolicy.TLS) or "")
    check_policy(parsed, NODE)
    check_policy(parsed, ANONYMOUS)
    [allowed] = [one for one in statements_of(ClientPolicy.TLS) if one["Effect"] == "Allow"]
    assert {one.removeprefix("elasticfilesystem:Client") for one in allowed["Action"]} == {
        *("Mount", "Write", "RootAccess")
    }


def test_policy_for_identities_admits_no_client_without_one() -> None:
    parsed = parse_policy(client_policy(ClientPolicy.TLS_AND_IAM) or "")
    check_policy(parsed, NODE)
    with pytest.raises(MountDenied, match="without IAM signature"):
        check_policy(parsed, ANONYMOUS)


def test_without_a_policy_every_client_is_admitted() -> None:
    assert client_policy(ClientPolicy.NONE) is None
