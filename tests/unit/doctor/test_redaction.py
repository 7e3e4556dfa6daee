"""Bundles contain no secret of any format, at any position."""

import base64
import json
import string
import tarfile
import textwrap
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.doctor.bundle import Bundle, write_bundle
from kube_efs.doctor.redaction import redacted, redacted_text
from kube_efs.model.errors import InvalidSetting

_KEY = (
    ec.generate_private_key(ec.SECP256R1())
    .private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    .decode()
)
_BODY = _KEY.splitlines()[1]  # one line of the key alone gives it away
_SECRET_ACCESS_KEY = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
_TOKEN = "IQoJb3JpZ2luX2VjEJr//////////wEaCXVzLWVhc3QtMSJHMEUCIQDHk0Q1aB2cD3eF4gH5iJ6kL7mN8oP9qR0sT1uV2w"
_JWT = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJlLW9mLXRoZS10b2tlbg"

_WRAPPED = textwrap.wrap(base64.b64encode(_KEY.encode()).decode(), 76)
_AUTH = base64.b64encode(b"user:hunter2").decode()
_PULL_SECRET = {"auths": {"quay.io": {"auth": _AUTH}}}

PLANTED = [
    pytest.param({"kind": "Secret", "data": {"a": "c2VjcmV0"}}, "c2VjcmV0", id="Secret's data"),
    pytest.param({"kind": "Secret", "stringData": {"a": "plain words"}}, "plain words", id="in plain text"),
    pytest.param(
        {"kind": "SecretList", "items": [{"data": {"a": "c2VjcmV0"}}]}, "c2VjcmV0", id="in their list"
    ),
    pytest.param(
        {"kind": "List", "items": [{"kind": "Secret", "data": {"a": "c2VjcmV0"}}]}, "c2VjcmV0", id="in a list"
    ),
    pytest.param(
        {
            "metadata": {
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": '{"data": "x1y2"}'}
            }
        },
        "x1y2",
        id="last applied configuration",
    ),
    pytest.param(
        {"env": [{"name": "AWS_SECRET_ACCESS_KEY", "value": "short"}]},
        "short",
        id="variable of a container",
    ),
    pytest.param({"env": [{"name": "MY_PASSWORD", "value": "two words"}]}, "two words", id="with a blank"),
    pytest.param(
        {"data": {"config": f"aws_secret_access_key = {_SECRET_ACCESS_KEY}"}}, "EXAMPLEKEY", id="ini"
    ),
    pytest.param({"log": f"found {_SECRET_ACCESS_KEY} there"}, "EXAMPLEKEY", id="AWS key alone"),
    pytest.param({"log": "key AKIAIOSFODNN7EXAMPLE"}, "AKIAIOSFODNN7EXAMPLE", id="AWS key's id"),
    pytest.param({"log": f"x={_TOKEN}"}, _TOKEN[40:], id="session token"),
    pytest.param({"log": f"Authorization: Bearer {_JWT}"}, "c2lnbmF0dXJl", id="bearer token"),
    pytest.param({"log": f"got {_JWT}"}, "c2lnbmF0dXJl", id="service account's token"),
    pytest.param({"text": f"before\n{_KEY}\nafter"}, _BODY, id="private key"),
    pytest.param({"text": json.dumps(_KEY)}, _BODY, id="private key within JSON"),
    pytest.param({"text": _KEY[:90]}, _BODY[:40], id="truncated private key"),
    pytest.param(
        {"client-key-data": base64.b64encode(_KEY.encode()).decode()},
        base64.b64encode(_KEY.encode()).decode()[60:90],
        id="kubeconfig's key",
    ),
    pytest.param({"log": '{"password": "two words"}'}, "words", id="in JSON, with a blank"),
    pytest.param(
        {"log": json.dumps({"message": json.dumps({"token": "two words"})})},
        "two words",
        id="in JSON within JSON",
    ),
    pytest.param({"url": "https://user:hunter2@proxy.example.com/"}, "hunter2", id="password in a URL"),
    pytest.param({"text": "https://ghp_abcdef012345@git.example.com/"}, "ghp_abcdef", id="token in a URL"),
    pytest.param({"text": _KEY[60:]}, _BODY[50:], id="private key without its beginning"),
    pytest.param({"text": "\n".join(_WRAPPED)}, _WRAPPED[1], id="key in base64 on several lines"),
    pytest.param({"text": json.dumps(_PULL_SECRET)}, _AUTH, id="pull secret"),
    pytest.param(
        {"text": base64.b64encode(json.dumps(_PULL_SECRET).encode()).decode()},
        base64.b64encode(json.dumps(_PULL_SECRET).encode()).decode()[30:50],
        id="pull secret in base64",
    ),
    pytest.param(
        {".dockercfg": base64.b64encode(b'{"a": {"auth": "x"}}').decode()},
        "eyJhIjogeyJhdXRo",
        id="short secret",
    ),
    pytest.param({"args": ["run", "--token", "opaque", "rest"]}, "opaque", id="separate argument"),
    pytest.param({"text": "users:\n- user:\n    token: |\n      opaque-token\n"}, "opaque", id="YAML block"),
    pytest.param({"text": "PROXY_PASS=hunter2"}, "hunter2", id="variable with an unusual name"),
    pytest.param({"text": "passphrase: hunter2"}, "hunter2", id="passphrase"),
    pytest.param(
        {"text": "<SessionToken>short</SessionToken>"}, "short", id="credentials in an answer of STS"
    ),
    pytest.param({"a": {"b": {"c": {"d": {"e": {"token": "deep"}}}}}}, "deep", id="deeply nested"),
    pytest.param({"password": ["hunter2"]}, "hunter2", id="in a list"),
    pytest.param({"password": {"plain": {"value": "hunter2"}}}, "hunter2", id="in an object"),
    pytest.param({"token": 12345678}, "12345678", id="a number"),
    pytest.param({"env": [{"name": "SECRET", "value": ["a", "b-c"]}]}, "b-c", id="list of a variable"),
    pytest.param({"proxy": "user:hunter2@proxy:3128"}, "hunter2", id="address of a proxy"),
    pytest.param(
        {"env": [{"name": "HTTPS_PROXY", "value": "user:hunter2@proxy:3128"}]},
        "hunter2",
        id="proxy of a container",
    ),
]


@pytest.mark.parametrize(("found", "secret"), PLANTED)
def test_planted_secret_is_removed(found: dict[str, Any], secret: str) -> None:
    assert secret in json.dumps(found).replace("\\\\n", "\\n")
    assert secret not in json.dumps(redacted(found))
    bundle = Bundle()
    bundle.add_object("object.json", found)
    is_text = "args" not in found and "items" not in found and found.get("kind") != "Secret"
    bundle.add_text("text.log", json.dumps(found) if is_text else "")
    if "last-applied" not in json.dumps(found) and "value" not in json.dumps(found):
        assert secret not in "".join(bundle.files.values())


_NOISE = st.text(alphabet=string.ascii_letters + string.digits + " .,:;=\"'{}[]\n\t/-_", max_size=60)
_ACCESS_KEYS = st.text(alphabet=string.ascii_letters + string.digits + "/+", min_size=40, max_size=40).filter(
    lambda text: any(map(str.isupper, text)) and any(map(str.islower, text)) and any(map(str.isdigit, text))
)


@given(
    before=_NOISE,
    after=_NOISE,
    name=st.sampled_from(["token", "AWS_SECRET_ACCESS_KEY", "password", "privateKey", "x-api-key"]),
    between=st.sampled_from(["=", ": ", '": "', " = "]),
    secret=st.text(alphabet=string.ascii_letters + string.digits + "/+._~-", min_size=6, max_size=50),
)
def test_value_with_the_name_of_a_secret_is_removed(
    before: str, after: str, name: str, between: str, secret: str
) -> None:
    text = f"{before}\n {name}{between}{secret} {after}"
    assert f"{name}{between}{secret}" not in redacted_text(text)


@given(before=_NOISE, after=_NOISE, secret=_ACCESS_KEYS)
def test_aws_key_is_removed_at_any_position(before: str, after: str, secret: str) -> None:
    assert secret not in redacted_text(f"{before}\n{secret}\n{after}")


@given(before=_NOISE, after=_NOISE)
def test_private_key_is_removed_at_any_position(before: str, after: str) -> None:
    assert _BODY not in redacted_text(f"{before}{_KEY}{after}")


def test_useful_text_is_kept() -> None:
    pod = {
        "kind": "Pod",
        "metadata": {"name": "efs-manager-7d9f", "uid": "0b6d3a52-6f0e-4a64-9c7a-1c0f0d6a1e11"},
        "spec": {
            "automountServiceAccountToken": False,
            "imagePullSecrets": [{"name": "registry"}],
            "volumes": [
                {"secret": {"secretName": "tls", "defaultMode": 420, "items": [{"key": "a", "path": "b"}]}},
                {"projected": {"sources": [{"serviceAccountToken": {"path": "token", "audience": "sts"}}]}},
            ],
            "tokens": 3,
            "proxy": "proxy.example.com:3128",
            "containers": [{"name": "a", "env": [{"name": "AWS_REGION", "value": "us-east-1"}]}],
        },
    }
    assert redacted(pod) == pod
    events = "pods/efs-manager-7d9f: Back-off restarting, image sha256:" + "0a1b2c3d" * 8
    assert redacted_text(events) == events
    folder = "/var/lib/kubelet/pods/0b6d3a52-6f0e-4a64-9c7a-1c0f0d6a1e11/volumes/kubernetes.io~csi/x/mount"
    assert redacted_text(folder) == folder
    line = '{"event": "claim-refused", "claim": "team/data", "file_system": "fs-0123456789abcdef0"}'
    assert redacted_text(line) == line


def test_archive_is_complete_and_only_for_its_owner(tmp_path: Path) -> None:
    bundle = Bundle()
    bundle.add_text("logs/a.log", "line\n")
    bundle.add_object("objects/Pod.json", [{"metadata": {"name": "a"}}])
    path = tmp_path / "bundle.tar.gz"
    write_bundle(path, bundle)
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        assert archive.getnames() == ["kube-efs-doctor/logs/a.log", "kube-efs-doctor/objects/Pod.json"]
        found = archive.extractfile("kube-efs-doctor/logs/a.log")
        assert found is not None
        assert found.read() == b"line\n"


def test_existing_archive_becomes_readable_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "bundle.tar.gz"
    path.write_text("something else")
    path.chmod(0o644)
    write_bundle(path, Bundle())
    assert path.stat().st_mode & 0o777 == 0o600
    assert tarfile.is_tarfile(path)


def test_archive_that_cannot_be_written_is_an_invalid_setting(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"--bundle: .*cannot be written \(No such file"):
        write_bundle(tmp_path / "nowhere" / "bundle.tar.gz", Bundle())
