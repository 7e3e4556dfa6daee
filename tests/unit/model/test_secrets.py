"""The rules that find secrets: what they remove and keep, and how long they take."""

import base64
import importlib
import json
import random
import string
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kube_efs.model import secrets
from kube_efs.model.errors import InvalidValue, KubeEfsError, shown
from kube_efs.model.secrets import (
    REMOVED,
    hidden_here,
    is_secret_name,
    shortened,
    text_without_secrets,
)

_WORD = string.ascii_letters + string.digits + "_.~+/-"
_MIXED = string.ascii_letters + string.digits
re_parser: Any = importlib.import_module("re._parser")
AWS_SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"  # AWS's own documentation example
JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzeXN0ZW0ifQ.c2lnbmF0dXJl"


def secret_of(seed: int, length: int, alphabet: str = _WORD) -> str:
    """A secret of that length that does not contain the beginning of another one."""
    return "".join(random.Random(seed).choices(alphabet, k=length))


# -- Names --


@pytest.mark.parametrize(
    "name",
    [
        *("DB_PASS", "DBPASS", "dbPass", "pass", "MYSQL_PWD", "REDIS_AUTH", "AUTH", "auth", "PROXY_PASS"),
        *(
            "SSHPASS",
            "PASSWORD1",
            "password_2",
            "DB_PASSWORD_OLD",
            "token-value",
            "apiTokenV2",
            "SECRET_BASE64",
        ),
        *(
            "AWS_SECRET_ACCESS_KEY",
            "aws_session_token",
            "SecretAccessKey",
            "X-Amz-Security-Token",
            "sessionToken",
        ),
        *("Credential", "credentials", "AWS_CREDS", "Cookie", "Set-Cookie", "cookies", "X-Amz-Signature"),
        *(
            "Authorization",
            "Proxy-Authorization",
            "x-api-key",
            "tls.key",
            "client.key",
            "signing_key",
            "JWT",
            "psk",
        ),
        *(
            ".dockerconfigjson",
            ".dockercfg",
            "WebIdentityToken",
            "clientSecret",
            "passphrase",
            "x" * 300 + "_token",
        ),
        *("csi.storage.k8s.io/serviceAccount.tokens", "password_text", "2token"),
    ],
)
def test_names_of_secrets_are_recognized(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("creation_token", "ClientToken", "client_token", "nextToken", "ClientRequestToken", "", "-", "42"),
        *(
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            "token_path",
            "secretName",
            "fileSystemIdSecretRef",
            "access_key_id",
        ),
        *("csi.storage.k8s.io/provisioner-secret-name", "tokens_left", "passwordPolicy", "bypass", "compass"),
        *("root_key", "key", "author", "authority", "passed", "file_system", "volume", "credentials_uri"),
        *("ca.crt", "caBundle", "certificate", "tls.crt", "uid", "digest", "session", "NO_PROXY_BYPASS"),
    ],
)
def test_other_names_are_not_secret(name: str) -> None:
    assert not is_secret_name(name)


# -- Frames: how a secret of any length stands in a text --

_NAMED: dict[str, Callable[[str], str]] = {
    "variable": "DB_PASS={} next".format,
    "plain AUTH": "AUTH={}".format,
    "yaml": "\npassword: {}\nuser: me".format,
    "next line": "token:\n  {}\nuser: me".format,
    "yaml block": "user:\n  token: |\n    {}\n  name: x".format,
    "json": lambda secret: json.dumps({"password": secret, "user": "me"}),
    "json with blanks": lambda secret: json.dumps({"password": f"two {secret} words"}),
    "json list": lambda secret: json.dumps({"tokens": [secret, secret]}),
    "json in json": lambda secret: json.dumps({"message": json.dumps({"sessionToken": f"a {secret}"})}),
    "json in json in json": lambda secret: json.dumps([json.dumps([json.dumps({"pwd": f'"{secret}" b'})])]),
    "json in url": lambda secret: "q=" + quote(json.dumps({"token": secret})),
    "repr": lambda secret: repr({"clientSecret": secret}),
    "bytes": lambda secret: repr({"clientSecret": secret.encode()}),
    "query": "GET /?user=me&X-Amz-Security-Token={}&a=b".format,
    "form": lambda secret: f"Action=AssumeRole&WebIdentityToken={quote_plus(secret)}&Version=1",
    "encoded form": lambda secret: quote(f"a=b&token={secret}"),
    "header": "Authorization: Bearer {}\r\nHost: x".format,
    "own header": "x-aws-ec2-metadata-token: {}".format,
    "signed header": "Authorization: AWS4-HMAC-SHA256 Credential=a/b, Signature={}".format,
    "cookie": "Cookie: a=b; session={}; c=d".format,
    "quoted header": "curl -H 'Proxy-Authorization: Basic {}' http://x".format,
    "option": "psql --password {} --host x".format,
    "options": lambda secret: repr(["psql", "--db-password", secret, "--host"]),
    "url": lambda secret: f"https://me:{quote(secret, safe='')}@proxy.example.com/",
    "url with a quote": lambda secret: f"https://me:pa'{quote(secret, safe='')}@proxy.example.com/",
    "proxy": lambda secret: f"HTTPS_PROXY=me:{quote(secret, safe='')}@proxy.example.com:3128 next",
    "proxy of a kubeconfig": lambda secret: f"proxy-url: me:{quote(secret, safe='')}@proxy.example.com:3128",
    "proxy in json": lambda secret: json.dumps({"httpsProxy": f"me:{quote(secret, safe='')}@proxy:3128"}),
    "proxy in repr": lambda secret: repr({"https_proxy": f"me:{quote(secret, safe='')}@proxy:3128"}),
    "proxy in json in json": lambda secret: json.dumps(
        {"message": json.dumps({"ALL_PROXY": f"me:pa'{quote(secret, safe='')}@proxy:3128"})}
    ),
    "element": "<SecretAccessKey>{}</SecretAccessKey><Expiration>2026</Expiration>".format,
    "element in lines": "<SessionToken>\n  {}\n</SessionToken>".format,
    "element with CDATA": "<WebIdentityToken><![CDATA[{}]]></WebIdentityToken>".format,
    "escaped element": "&lt;SessionToken&gt;{}&lt;/SessionToken&gt;".format,
    "attribute": '<login user="me" password="{}"/>'.format,
    "three quotes": 'password = """{}"""\nuser = "me"'.format,
    "lines in three quotes": lambda secret: f"token = '''\n{secret}\n'a' {secret}'''\nuser = 'me'",
    "three quotes in json": lambda secret: json.dumps({"data": f'password = """{secret} "b" {secret}"""'}),
    "truncated three quotes": 'password = """{}'.format,
    "truncated quote": 'password="{}'.format,
    "truncated element": "<SessionToken>{}".format,
    "truncated json": '{{"a": "b", "token": "{}'.format,
    "long name": ("x" * 500 + "_password={}").format,
}
_SHAPED: dict[str, Callable[[str], str]] = {
    "jwt": lambda secret: f"got eyJhbGciOiJSUzI1NiJ9.{_url(secret)}.{_url(secret)} from",
    "truncated jwt": lambda secret: f"got eyJhbGciOiJSUzI1NiJ9{_url(secret)}",
    "json in base64": lambda secret: _plain(json.dumps({"auths": {"a": secret}})),
    "session token": lambda secret: f"x IQoJb3JpZ2luX2Vj{_plain(secret)} y",
    "older session token": lambda secret: f"FwoGZXIvYXdzE{_plain(secret)}",
    "oldest session token": lambda secret: f"(FQoGZXIvYXdzE{_plain(secret)})",
    "session token in a url": lambda secret: quote(f"FwoGZXIvYXdzE{_plain(secret)}", safe=""),
    "openshift": lambda secret: f"sha256~{_url(secret)}{_url(secret)}",
    "bearer": lambda secret: f"sent Bearer {_url(secret)}.",
    "private key": "-----BEGIN EC PRIVATE KEY-----\n{}\n-----END EC PRIVATE KEY-----".format,
    "truncated private key": "-----BEGIN PRIVATE KEY-----\n{}".format,
    "end of a private key": lambda secret: f"{_plain(secret)}\n-----END RSA PRIVATE KEY-----\nmore",
    "private key in json": lambda secret: json.dumps(
        f"-----BEGIN PRIVATE KEY-----\n{_plain(secret)}\n-----END PRIVATE KEY-----\n"
    ),
}


def _plain(secret: str) -> str:
    return base64.b64encode(secret.encode()).decode()


def _url(secret: str) -> str:
    return base64.urlsafe_b64encode(secret.encode()).decode().rstrip("=")


def _traces(secret: str, clean: str) -> set[str]:
    """The parts of a secret in a text: any eight of its characters, in each form."""
    forms = (secret, _plain(secret), _url(secret), quote(secret, safe=""))
    return _parts(clean) & set().union(*map(_parts, forms))


def _parts(text: str) -> set[str]:
    return {text[at : at + 8] for at in range(len(text) - 7)}


_SECRETS = st.builds(
    secret_of, st.integers(0, 2**32), st.integers(10, 5000), st.sampled_from([_WORD, _MIXED])
)
_FRAMES = st.sampled_from(sorted({**_NAMED, **_SHAPED}.items()))
_NOISE = st.text(alphabet=string.ascii_letters + " .,:;=\n\t/-_", max_size=60)


@pytest.mark.parametrize("frame", {**_NAMED, **_SHAPED}.values(), ids={**_NAMED, **_SHAPED}.keys())
def test_secrets_of_any_length_are_removed_in_every_format(frame: Callable[[str], str]) -> None:
    for length in (10, 39, 40, 41, 64, 199, 201, 500, 5000):
        secret = secret_of(length, length)
        clean = text_without_secrets(frame(secret))

        assert not _traces(secret, clean), length
        assert REMOVED in clean, length
        assert text_without_secrets(clean) == clean, length


@settings(deadline=None)
@example(frame=("truncated element", _NAMED["truncated element"]), secret="5ZCrIB1uGN", before="", after=" :")
@example(frame=("next line", _NAMED["next line"]), secret="-4uk/bSrjQ", before="", after="")
@example(frame=("next line", _NAMED["next line"]), secret="--uk/bSrjQ", before="", after="")
@given(frame=_FRAMES, secret=_SECRETS, before=_NOISE, after=_NOISE)
def test_secret_in_any_format_is_removed_from_other_text(
    frame: tuple[str, Callable[[str], str]], secret: str, before: str, after: str
) -> None:
    clean = text_without_secrets(f"{before}\n{frame[1](secret)}\n{after}")

    assert not _traces(secret, clean)


@settings(deadline=None)
@given(frame=_FRAMES, secret=_SECRETS, before=st.integers(0, 6000), limit=st.integers(0, 3000))
def test_truncation_leaves_no_part_of_a_secret(
    frame: tuple[str, Callable[[str], str]], secret: str, before: int, limit: int
) -> None:
    text = f"{'lorem ipsum ' * (before // 12)}\n{frame[1](secret)}\n{'dolor ' * 2000}"
    clean = shortened(text, limit)

    assert not _traces(secret, clean)
    assert len(clean) <= max(limit, 30)
    assert f"({len(text)} characters)" in clean


@settings(deadline=None)
@given(st.text() | st.text(alphabet="a\"'\\:={}[]<>/&;,| \n-tokenpassword%2"))
def test_removing_secrets_twice_changes_nothing(text: str) -> None:
    once = text_without_secrets(text)

    assert text_without_secrets(once) == once


@given(st.text(max_size=300), st.integers(0, 400))
def test_short_text_is_not_truncated(text: str, limit: int) -> None:
    clean = text_without_secrets(text)

    assert (shortened(text, limit) == clean) == (len(clean) <= limit)


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


def test_aws_secret_key_without_a_name_is_removed_after_any_separator() -> None:
    for text in (AWS_SECRET, f"a-{AWS_SECRET}", f"x={AWS_SECRET}", f"[{AWS_SECRET}]"):
        assert AWS_SECRET[4:20] not in text_without_secrets(text)


def test_private_key_is_removed_as_encoded_in_secrets_and_kubeconfigs() -> None:
    key = _private_key()
    encoded = base64.b64encode(key.encode()).decode()
    for text in (encoded, f"client-key-data: {encoded}", f"x {encoded} y", json.dumps({"a": key})):
        clean = text_without_secrets(text)
        assert key.splitlines()[1][:16] not in clean
        assert encoded[60:90] not in clean


# -- What stays --

_KEY = ec.generate_private_key(ec.SECP256R1())


def _private_key() -> str:
    form = serialization.PrivateFormat.PKCS8
    return _KEY.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def _certificate() -> str:
    """Text with the format of a certificate."""
    body = base64.encodebytes(random.Random(7).randbytes(900)).decode()
    return f"-----BEGIN CERTIFICATE-----\n{body}-----END CERTIFICATE-----\n"


@pytest.mark.parametrize(
    "text",
    [
        "volume efs-stunnel-fs-0123456789abcdef0-default-example-x7k2p is bound",
        "commit 3d638e0a5b1c9f7e2d4a6b8c0e1f3a5b7c9d1e2f",
        "image quay.io/a/b@sha256:" + "0a1b2c3d" * 8,
        "sha512 " + "0a1b2c3d" * 16,
        "/var/lib/kubelet/pods/0f3b2c1d-1111-2222-3333-444455556666/volumes/kubernetes.io~csi/Mount1",
        "/exports/Team1/reports/Q3/final/archive/Older/ones/from/2019/and/before/that/Year2018/X",
        "creation_token=pvc-0f3b is known",
        '{"ClientToken": "pvc-0f3b2c1d", "uid": "0b6d3a52-6f0e-4a64-9c7a-1c0f0d6a1e11"}',
        "fs-0123456789abcdef0.efs.us-east-1.amazonaws.com:2049",
        "efs:fs-0123456789abcdef0:/a/b:fsap-0123456789abcdef0",
        "arn:aws:iam::123456789012:role/efs-csi",
        "arn:aws:secretsmanager:us-east-1:123456789012:secret:name-AbCdEf is not there",
        "arn:aws:elasticfilesystem:us-east-1:123456789012:access-point/fsap-0123456789abcdef0",
        "AWS_WEB_IDENTITY_TOKEN_FILE=/var/run/secrets/eks.amazonaws.com/serviceaccount/token",
        "csi.storage.k8s.io/provisioner-secret-name: x-account",
        "provisioner secret: 'team/role' does not exist; create it, with awsRoleArn",
        "AWS credentials: could not be read from 3 sources",
        "token: permission denied for this user",
        "automountServiceAccountToken: false",
        '"automountServiceAccountToken": true, "x": 1',
        "set the token, then try again: <token> is what you got",
        "a Secret may be named twice, password or not",
        "nfs4 rw,vers=4.1,addr=127.0.0.1,port=20490,sec=sys,noresvport",
        "time=2026-11-22T13:00:00Z level=info msg=ready",
        "<Error><Code>AccessDenied</Code><RequestId>0b6d3a52-6f0e-4a64-9c7a-1c0f0d6a1e11</RequestId></Error>",
        "https://sts.us-east-1.amazonaws.com/?Action=GetCallerIdentity",
        "NO_PROXY=localhost,10.0.0.0/8 HTTPS_PROXY=http://proxy.example.com:3128",
        "the proxy: user@example.com cannot be reached",
        "quay.io/brancz/kube-rbac-proxy:v0.18.0@sha256:" + "0a1b2c3d" * 8,
    ],
)
def test_text_that_administrators_need_is_kept(text: str) -> None:
    assert text_without_secrets(text) == text
    assert shortened(text, 1000) == text


def test_certificates_are_kept() -> None:
    certificate = _certificate()
    encoded = base64.b64encode(certificate.encode() * 2).decode()
    for text in (certificate, json.dumps({"ca.crt": certificate}), f"caBundle: {encoded}", encoded[:801]):
        assert text_without_secrets(text) == text


def test_private_key_next_to_certificates_is_removed() -> None:
    bundle = _certificate() + _private_key()
    encoded = base64.b64encode(bundle.encode()).decode()

    assert _private_key().splitlines()[1] not in text_without_secrets(bundle)
    assert _certificate() in text_without_secrets(bundle)
    assert text_without_secrets(encoded) == REMOVED


# -- Secrets whose value is known --


@pytest.mark.parametrize(
    "form", [str, repr, json.dumps, quote_plus, lambda secret: quote(secret, safe="")], ids=range(5)
)
def test_known_secret_is_removed_in_every_encoding_and_nowhere_else(form: Callable[[str], str]) -> None:
    secret = 'a "short" & ünusual\none'
    with hidden_here([secret]):
        clean = text_without_secrets(f"before {form(secret)} after")
    assert "nusual" not in clean
    assert clean.startswith("before ")
    assert clean.endswith(" after")
    assert "nusual" in text_without_secrets(f"before {form(secret)} after")


def test_known_secret_of_one_letter_does_not_lengthen_the_text() -> None:
    with hidden_here(["e", "r", "m", "", "true"]):
        assert text_without_secrets(f"true {REMOVED} e") == f"t[removed]u[removed] {REMOVED} [removed]"


def test_known_secret_across_a_truncation_is_removed() -> None:
    secret = secret_of(3, 5000, string.ascii_lowercase)
    with hidden_here([secret]):
        for before in range(0, 300, 7):
            clean = shortened("x" * before + secret + "y" * 10_000, 200)
            assert not set(clean.split("...")[0].removesuffix(REMOVED)) - set("x[removed]y")


def test_many_known_secrets_before_a_truncation_hide_nothing_else() -> None:
    secret = secret_of(4, 5000, string.ascii_lowercase)
    with hidden_here([secret]):
        clean = shortened(f"{secret} " * 10 + "Y" * 10_000, 200)
    assert clean.startswith(f"{REMOVED} " * 10 + "Y" * 50)
    assert clean.endswith("... (60010 characters)")


# -- Errors: their texts go to logs, events, statuses and callers --


@pytest.mark.parametrize("frame", _NAMED.values(), ids=_NAMED.keys())
def test_error_text_contains_no_part_of_a_secret(frame: Callable[[str], str]) -> None:
    for length in (40, 190, 250, 5000):
        secret = secret_of(length, length)
        for error in (
            InvalidValue("is not valid", field="mountOptions", value=frame(secret)),
            InvalidValue("is not valid", value={"options": [frame(secret)]}),
            InvalidValue(f"is not valid ({shown(frame(secret))})", remedy=f"not {frame(secret)}"),
            KubeEfsError(f"was answered with {frame(secret)}"),
        ):
            assert not _traces(secret, str(error)), length


def test_known_secret_that_an_error_truncates_is_removed() -> None:
    secret = secret_of(5, 700, string.ascii_lowercase)
    with hidden_here([secret]):
        text = str(InvalidValue("is not valid", value=f"externalId is {secret} there"))
    assert text == "'externalId is [removed] there' is not valid"


# -- Time --

_HARD = (
    *(
        "x",
        "xX1",
        " ",
        "=",
        "a:",
        '"',
        "\\",
        '\\"',
        "password=",
        'password="',
        "password='",
        'password="""',
        'password="""a""',
        'token:["',
        "token:\n",
    ),
    *(
        "token: |\n  a\n",
        "token: |\\n  ",
        "<",
        "<a>",
        "<token>",
        "<token><![CDATA[",
        "&lt;a&gt;",
        "eyJ",
        "eyJaaaaaaaa.",
    ),
    *(
        "-----BEGIN PRIVATE KEY-----",
        "-----END PRIVATE KEY-----",
        "-----BEGIN CERTIFICATE-----",
        "-----BEGIN A ",
    ),
    *(
        "LS0tLS1CRUdJTi",
        "LS0tLS1CRUdJTiA\\n",
        "://a",
        "a@",
        "proxy=a:b@",
        "@proxy=",
        "proxy: ",
        "Bearer ",
        "--token ",
        "'--token', ",
        "arn:aws:",
        "a.-",
    ),
    *("cookie: ", "authorization: Digest ", "%22", "token%3D%22", '{"token": {"a": ', "A" * 39 + "a "),
)


@pytest.mark.parametrize("part", _HARD)
def test_removal_time_is_linear_in_the_length(part: str) -> None:
    def seconds(length: int) -> float:
        text = part * (length // len(part))
        began = time.process_time()
        text_without_secrets(text)
        return time.process_time() - began

    # Quadratic, this is 64 times as long; what is measured is far above what a clock can tell, or nothing.
    # Other processes make single counts longer, and Python may collect the garbage of other tests meanwhile.
    # A count that is short enough shows that it is not quadratic.
    short = min(seconds(50_000) for _ in range(3))
    assert any(seconds(400_000) < max(0.05, 24 * short) for _ in range(20))


@pytest.mark.parametrize("known", [[], ["planted-secret"]], ids=["none", "one"])
def test_truncated_text_costs_no_time(known: list[str]) -> None:
    def seconds(action: Callable[[], str]) -> float:
        began = time.process_time()
        action()
        return time.process_time() - began

    text = "password=" * 10_000_000
    with hidden_here(known):
        cut = min(seconds(lambda: shortened(text, 1000)) for _ in range(3))
        assert cut < seconds(lambda: text_without_secrets(text[:1_000_000]))


def test_no_group_is_possessive() -> None:
    """Python before 3.11.5 matches them wrongly, and the other tests run with a later one."""
    patterns = [found() for name, found in vars(secrets).items() if name.isupper() and callable(found)]
    patterns += [pattern for _, pattern, _ in secrets._shapes()]
    found = [
        parsed
        for pattern in patterns
        for parsed in _operations(re_parser.parse(pattern.pattern, pattern.flags))
    ]
    repeated = [argument[2] for operation, argument in found if str(operation) == "POSSESSIVE_REPEAT"]
    assert len(repeated) > 20
    single = {"LITERAL", "NOT_LITERAL", "IN", "ANY"}
    assert {str(operation) for one in repeated for operation, _ in one} <= single


def _operations(parsed: Any) -> Iterator[tuple[Any, Any]]:
    """All operations of a parsed pattern, at any depth."""
    if isinstance(parsed, re_parser.SubPattern):
        for operation, argument in parsed:
            yield operation, argument
            yield from _operations(argument)
    elif isinstance(parsed, tuple | list):
        for one in parsed:
            yield from _operations(one)
