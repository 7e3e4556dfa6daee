"""Sources of credentials: their order, and each with a server that answers as AWS does."""

import io
import json
import logging
import os
import pwd
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import structlog
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from tests.serving import answering, serving

from kube_efs.aws.connection import AwsConnection, AwsCredentials, AwsOptions, LoadedCredentials
from kube_efs.aws.credential_loading import load_credentials, load_pod_credentials, parse_credentials
from kube_efs.aws.credential_sources import (
    CredentialOptions,
    CredentialSource,
    IamOptions,
    ProfileFiles,
    ServiceAccountIdentity,
    SourceKind,
    order_sources,
)
from kube_efs.aws.credentials import assume_role, find_credentials
from kube_efs.model.efs.ids import Region
from kube_efs.model.errors import (
    AwsDenied,
    AwsError,
    AwsIdentityLate,
    AwsInvalidAnswer,
    AwsThrottled,
    AwsUnavailable,
    InvalidSetting,
    InvalidValue,
    KubeEfsError,
)
from kube_efs.telemetry.logging import configure

SECRET = "je7MtGbClwBF/2Zp9Utk/h3yCo8nvbEXAMPLEKEY"
SESSION = "zpoJje0Go3qmnhJl8wjgfqaDKCP9Y1GNwfGQxh1fjeRtRBkIAKRUQB45"
POD_TOKEN = "pod-identity-token-of-this-test"
JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ0ZXN0In0.c2lnbmF0dXJl"
ROLE = "arn:aws:iam::123456789012:role/efs"
END = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
LOADED = LoadedCredentials(
    credentials=AwsCredentials(access_key_id="ASIA1", secret_access_key=SECRET, session_token=SESSION),
    expires_at=END,
)
DOCUMENT = {
    "AccessKeyId": "ASIA1",
    "SecretAccessKey": SECRET,
    "Token": SESSION,
    "Expiration": "2030-01-02T03:04:05Z",
}
CONTAINER = CredentialSource(kind=SourceKind.CONTAINER, target="/v2/credentials/1")
INSTANCE_ROLE = CredentialSource(kind=SourceKind.INSTANCE_ROLE)


@dataclass
class FakeAws:
    """Instance metadata, the container agent and STS on one port; refuses paths without a document.

    ``status`` None is that of a refusal: 404, and 403 of STS.
    """

    url: str = ""
    documents: dict[str, str] = field(default_factory=dict)
    refusal: str = "refused"
    code: str = "AccessDenied"
    status: int | None = None
    requests: list[str] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    form: dict[str, str] = field(default_factory=dict)

    async def handle(self, request: web.Request) -> web.Response:
        self.requests.append(f"{request.method} {request.path}")
        self.headers = dict(request.headers)
        if request.method == "PUT":
            return web.Response(text="metadata-token")
        if request.method == "POST":
            return await self._sts(request)
        if request.path.startswith("/latest/") and "X-aws-ec2-metadata-token" not in request.headers:
            return web.Response(status=401)
        text = self.documents.get(request.path)
        if text is not None:
            return web.Response(text=text)
        return web.Response(status=self.status or 404, text=self.refusal)

    async def _sts(self, request: web.Request) -> web.Response:
        self.form = {key: str(value) for key, value in (await request.post()).items()}
        action = self.form["Action"]
        if action not in self.documents:
            error = f"<Code>{self.code}</Code><Message>{self.refusal}</Message>"
            text = f"<ErrorResponse><Error>{error}</Error></ErrorResponse>"
            return web.Response(status=self.status or 403, text=text)
        return web.Response(
            content_type="text/xml",
            text=f"<{action}Response><{action}Result><Credentials><AccessKeyId>ASIA1</AccessKeyId>"
            f"<SecretAccessKey>{SECRET}</SecretAccessKey><SessionToken>{SESSION}</SessionToken>"
            f"<Expiration>2030-01-02T03:04:05Z</Expiration></Credentials></{action}Result></{action}Response>",
        )


@pytest.fixture
async def aws() -> AsyncIterator[FakeAws]:
    fake = FakeAws()
    async with serving(answering(fake.handle)) as fake.url:
        yield fake


@pytest.fixture
def options(aws: FakeAws, tmp_path: Path) -> CredentialOptions:
    return CredentialOptions(
        region=Region("eu-west-1"),
        files=ProfileFiles(credentials=tmp_path / "credentials", config=tmp_path / "config"),
        sts_endpoint_url=aws.url,
        metadata_endpoint=aws.url,
        container_endpoint=aws.url,
    )


@pytest.fixture
def pod_identity(aws: FakeAws, tmp_path: Path) -> CredentialSource:
    file = tmp_path / "pod-token"
    file.write_text(f"{POD_TOKEN}\n")
    return CredentialSource(
        kind=SourceKind.POD_IDENTITY, target=f"{aws.url}/v1/credentials", token_file=str(file)
    )


@pytest.fixture
def web_identity(tmp_path: Path) -> CredentialSource:
    file = tmp_path / "jwt"
    file.write_text(JWT)
    return CredentialSource(kind=SourceKind.WEB_IDENTITY, target=ROLE, token_file=str(file))


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """Everything that the product logs, at the level debug."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    stream = io.StringIO()
    configure("DEBUG", stream=stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def _profile(name: str) -> CredentialSource:
    return CredentialSource(kind=SourceKind.PROFILE, target=name)


def _static(key: str, token: str | None = None) -> LoadedCredentials:
    return LoadedCredentials(
        credentials=AwsCredentials(access_key_id=key, secret_access_key=SECRET, session_token=token)
    )


# The sources and their order

ECS = {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/ecs"}
POD = {
    "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://169.254.170.23/v1/credentials",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "/pod-token",
}
IRSA = {"AWS_ROLE_ARN": ROLE, "AWS_WEB_IDENTITY_TOKEN_FILE": "/jwt"}
FROM_ECS = CredentialSource(kind=SourceKind.CONTAINER, target="/ecs")
FROM_POD = CredentialSource(
    kind=SourceKind.POD_IDENTITY, target="http://169.254.170.23/v1/credentials", token_file="/pod-token"
)
FROM_IRSA = CredentialSource(kind=SourceKind.WEB_IDENTITY, target=ROLE, token_file="/jwt")
OWN_ROLE = IamOptions(role_arn="arn:own", token_file="/own")
FROM_OWN_ROLE = CredentialSource(kind=SourceKind.WEB_IDENTITY, target="arn:own", token_file="/own")


@pytest.mark.parametrize(
    ("iam", "environment", "sources"),
    [
        pytest.param(IamOptions(), {}, [INSTANCE_ROLE], id="only the instance"),
        pytest.param(
            IamOptions(),
            {**IRSA, **POD, **ECS},
            [FROM_ECS, FROM_POD, FROM_IRSA, INSTANCE_ROLE],
            id="all sources of the platform, in the order of efs-utils",
        ),
        pytest.param(OWN_ROLE, {**IRSA, **POD, **ECS}, [FROM_OWN_ROLE], id="only a role with its token"),
        pytest.param(
            IamOptions(credentials_uri="/v2/credentials/1", profile="p"), ECS, [CONTAINER], id="only a URI"
        ),
        pytest.param(IamOptions(profile="p"), ECS, [_profile("p")], id="only a profile"),
        pytest.param(
            IamOptions(), {"AWS_PROFILE": "e", **IRSA}, [_profile("e")], id="the environment's profile"
        ),
        pytest.param(
            IamOptions(profile="p"), {"AWS_PROFILE": "e"}, [_profile("p")], id="the option before AWS_PROFILE"
        ),
        pytest.param(
            OWN_ROLE,
            {"AWS_PROFILE": "e"},
            [FROM_OWN_ROLE],
            id="role with its token disables profiles",
        ),
        pytest.param(
            IamOptions(role_arn=ROLE),
            {"AWS_PROFILE": "e"},
            [_profile("e")],
            id="role without its token does not",
        ),
        pytest.param(
            IamOptions(),
            {"AWS_ROLE_ARN": ROLE, "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://x"},
            [INSTANCE_ROLE],
            id="incomplete pairs are ignored",
        ),
        pytest.param(
            IamOptions(),
            {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": SECRET},
            [INSTANCE_ROLE],
            id="keys in the environment are ignored",
        ),
    ],
)
def test_credential_sources_have_a_fixed_order(
    iam: IamOptions, environment: dict[str, str], sources: list[CredentialSource], tmp_path: Path
) -> None:
    files = ProfileFiles(credentials=tmp_path / "none", config=tmp_path / "neither")
    assert order_sources(iam, environment, files) == tuple(sources)


@pytest.mark.parametrize("file", ["credentials", "config"])
@pytest.mark.parametrize(
    ("text", "sources"),
    [
        pytest.param("[default]\naws_access_key_id = AKIA\n", (_profile("default"),), id="with keys"),
        pytest.param("[default]\nregion = x\n", (INSTANCE_ROLE,), id="without keys"),
        pytest.param("[other]\naws_access_key_id = AKIA\n", (INSTANCE_ROLE,), id="another profile"),
    ],
)
def test_default_profile_is_used_when_it_has_keys(
    file: str, text: str, sources: tuple[CredentialSource, ...], options: CredentialOptions, tmp_path: Path
) -> None:
    (tmp_path / file).write_text(text)
    assert order_sources(IamOptions(), {}, options.files) == sources


def test_invalid_profile_file_is_an_error(options: CredentialOptions) -> None:
    options.files.credentials.write_text(f"aws_secret_access_key = {SECRET}\n")
    with pytest.raises(InvalidSetting) as caught:
        order_sources(IamOptions(), {}, options.files)
    assert str(caught.value) == f"AWS profile file: {str(options.files.credentials)!r} cannot be read"


def test_profile_files_are_in_the_home_directory_unless_the_environment_names_others() -> None:
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    assert ProfileFiles.of({"HOME": "/elsewhere"}) == ProfileFiles(
        credentials=home / ".aws/credentials", config=home / ".aws/config"
    )
    assert ProfileFiles.of({"AWS_SHARED_CREDENTIALS_FILE": "/a", "AWS_CONFIG_FILE": "/b"}) == ProfileFiles(
        credentials=Path("/a"), config=Path("/b")
    )


def test_user_unknown_to_the_image_has_profile_files(monkeypatch: pytest.MonkeyPatch) -> None:
    # The user of pods: OpenShift assigns user IDs to each namespace.
    monkeypatch.setattr("kube_efs.aws.credential_sources.getuid", lambda: 1_000_660_000)
    assert ProfileFiles.of({}) == ProfileFiles(
        credentials=Path("/.aws/credentials"), config=Path("/.aws/config")
    )


# Each source


async def test_instance_role_credentials_are_read_with_imdsv2(
    aws: FakeAws, options: CredentialOptions
) -> None:
    roles = "/latest/meta-data/iam/security-credentials/"
    aws.documents = {roles: "node-role\n", f"{roles}node-role": json.dumps({"Code": "Success", **DOCUMENT})}
    assert await load_credentials(INSTANCE_ROLE, options) == LOADED
    assert aws.requests == ["PUT /latest/api/token", f"GET {roles}", f"GET {roles}node-role"]


@pytest.mark.parametrize(
    ("role", "document", "kind", "problem"),
    [
        pytest.param(None, "", AwsError, "status 404", id="no role"),
        pytest.param(" ", "", AwsDenied, "has no role", id="an empty list of roles"),
        pytest.param(
            "r",
            '{"Code": "AssumeRoleUnauthorizedAccess"}',
            AwsDenied,
            "returned no credentials but the code AssumeRoleUnauthorizedAccess",
            id="failure with status 200",
        ),
        pytest.param("r", "<html>", AwsInvalidAnswer, "gave an invalid answer", id="not JSON"),
        pytest.param("r", "[]", AwsInvalidAnswer, "no credentials object", id="another document"),
        pytest.param("r/../x", "", AwsInvalidAnswer, "an invalid role name", id="not a role's name"),
    ],
)
async def test_instance_without_credentials_reports_the_reason(
    role: str | None,
    document: str,
    kind: type[KubeEfsError],
    problem: str,
    aws: FakeAws,
    options: CredentialOptions,
) -> None:
    roles = "/latest/meta-data/iam/security-credentials/"
    aws.documents = {} if role is None else {roles: role, f"{roles}r": document}
    with pytest.raises(kind, match=problem):
        await load_credentials(INSTANCE_ROLE, options)


async def test_container_credentials_are_loaded(aws: FakeAws, options: CredentialOptions) -> None:
    aws.documents = {CONTAINER.target: json.dumps(DOCUMENT)}
    assert await load_credentials(CONTAINER, options) == LOADED
    assert "Authorization" not in aws.headers


@pytest.mark.parametrize("uri", ["@evil.example/x", ".evil.example", "http://evil.example"])
async def test_relative_uri_cannot_select_another_host(uri: str, options: CredentialOptions) -> None:
    with pytest.raises(InvalidSetting, match="has no absolute path"):
        await load_credentials(CredentialSource(kind=SourceKind.CONTAINER, target=uri), options)


async def test_pod_identity_sends_the_token_without_its_line_break(
    aws: FakeAws, options: CredentialOptions, pod_identity: CredentialSource
) -> None:
    aws.documents = {"/v1/credentials": json.dumps(DOCUMENT)}
    assert await load_credentials(pod_identity, options) == LOADED
    assert aws.headers["Authorization"] == POD_TOKEN


async def test_refusal_of_the_agent_is_reported_without_the_token(
    aws: FakeAws, options: CredentialOptions, pod_identity: CredentialSource
) -> None:
    aws.refusal = f"AccessDeniedException for {POD_TOKEN}"
    with pytest.raises(AwsDenied) as caught:
        await load_credentials(pod_identity, options)
    assert caught.value.problem == "was answered with status 404"
    assert caught.value.field == f"pod identity {aws.url}/v1/credentials"
    assert POD_TOKEN not in _everything_about(caught.value)
    assert aws.requests == ["GET /v1/credentials"] * 3


async def test_token_is_sent_to_no_other_host(
    options: CredentialOptions, pod_identity: CredentialSource
) -> None:
    with pytest.raises(InvalidSetting, match=r"must not be called, because 'evil\.example' is not"):
        await load_credentials(replace(pod_identity, target="http://evil.example/"), options)


async def test_token_with_an_inner_line_break_is_not_sent(
    aws: FakeAws, options: CredentialOptions, pod_identity: CredentialSource, tmp_path: Path
) -> None:
    (tmp_path / "pod-token").write_text("half\r\nX-Forged: half")
    with pytest.raises(KubeEfsError) as caught:
        await load_credentials(pod_identity, options)
    assert caught.value.field.startswith("pod identity")
    assert aws.requests == []


@pytest.mark.parametrize("kind", [SourceKind.POD_IDENTITY, SourceKind.WEB_IDENTITY])
async def test_error_names_the_missing_token_file(
    kind: SourceKind, aws: FakeAws, options: CredentialOptions, tmp_path: Path
) -> None:
    file = str(tmp_path / "missing")
    with pytest.raises(AwsDenied, match=r"has no readable token \(FileNotFoundError\)") as caught:
        await load_credentials(CredentialSource(kind=kind, target=aws.url, token_file=file), options)
    assert caught.value.value == file


async def test_web_identity_credentials_are_loaded(
    aws: FakeAws, options: CredentialOptions, web_identity: CredentialSource
) -> None:
    aws.documents = {"AssumeRoleWithWebIdentity": ""}
    assert await load_credentials(web_identity, options) == LOADED
    assert aws.form == {
        "Action": "AssumeRoleWithWebIdentity",
        "Version": "2011-06-15",
        "RoleArn": ROLE,
        "RoleSessionName": "efs-mount-helper",
        "WebIdentityToken": JWT,
    }
    assert "Authorization" not in aws.headers


async def test_refused_web_identity_names_role_code_and_permission(
    aws: FakeAws, options: CredentialOptions, web_identity: CredentialSource
) -> None:
    aws.refusal = f"Not authorized with {JWT}"
    with pytest.raises(AwsDenied) as caught:
        await load_credentials(web_identity, options)
    assert str(caught.value) == (
        f"web identity {ROLE}: was answered with AccessDenied (status 403); "
        "allow sts:AssumeRoleWithWebIdentity to the role of this process"
    )


async def test_source_that_does_not_answer_in_time_fails(
    options: CredentialOptions, pod_identity: CredentialSource
) -> None:
    with pytest.raises(AwsUnavailable, match="was not answered in time"):
        await load_credentials(
            replace(pod_identity, target="http://127.0.0.1:9/"), replace(options, timeout_seconds=0.1)
        )


# Profiles

CREDENTIALS = f"""\
[keys]
aws_access_key_id = AKIAKEYS
aws_secret_access_key = {SECRET}

[session]
aws_access_key_id = ASIASESSION
aws_secret_access_key = {SECRET}
aws_session_token = {SESSION}

[half]
aws_access_key_id = AKIAHALF

[both]
aws_access_key_id = AKIABOTH
aws_secret_access_key = {SECRET}
"""
CONFIG = f"""\
[keys]
aws_access_key_id = AKIASECOND
aws_secret_access_key = {SECRET}

[bare]
aws_access_key_id = AKIABARE
aws_secret_access_key = {SECRET}

[profile prefixed]
aws_access_key_id = AKIAPREFIXED
aws_secret_access_key = {SECRET}

[profile both]
role_arn = {ROLE}
source_profile = keys

[profile role]
role_arn = {ROLE}
external_id = ticket-7
source_profile = keys
endpoint_url = URL

[profile process]
credential_process = sh -c 'echo "[]"'

[profile failing]
credential_process = sh -c 'echo "secret_key={SECRET}" >&2; exit 1'

[profile nothing]
region = eu-west-1
"""


@pytest.fixture
def profiles(aws: FakeAws, options: CredentialOptions) -> CredentialOptions:
    options.files.credentials.write_text(CREDENTIALS)
    options.files.config.write_text(CONFIG.replace("URL", aws.url))
    return options


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("keys", _static("AKIAKEYS"), id="the credentials file first"),
        pytest.param("session", _static("ASIASESSION", SESSION), id="with a session token"),
        pytest.param("bare", _static("AKIABARE"), id="name without prefix in the config file"),
        pytest.param("prefixed", _static("AKIAPREFIXED"), id="a profile of the config file"),
        pytest.param("both", _static("AKIABOTH"), id="keys before a role"),
    ],
)
async def test_profile_keys_are_loaded(
    name: str, expected: LoadedCredentials, profiles: CredentialOptions
) -> None:
    assert await load_credentials(_profile(name), profiles) == expected


async def test_profile_with_a_role_assumes_it_with_the_external_id(
    aws: FakeAws, profiles: CredentialOptions
) -> None:
    aws.documents = {"AssumeRole": ""}
    assert await load_credentials(_profile("role"), profiles) == LOADED
    assert (aws.form["RoleArn"], aws.form["ExternalId"]) == (ROLE, "ticket-7")
    assert "Credential=AKIAKEYS/" in aws.headers["Authorization"]


async def test_profile_without_keys_uses_the_instance_role(aws: FakeAws, profiles: CredentialOptions) -> None:
    roles = "/latest/meta-data/iam/security-credentials/"
    aws.documents = {roles: "r", f"{roles}r": json.dumps(DOCUMENT)}
    assert await load_credentials(_profile("nothing"), profiles) == LOADED


@pytest.mark.parametrize(
    ("name", "kind", "problem"),
    [
        pytest.param("half", AwsDenied, "missing: aws_secret_access_key", id="incomplete keys"),
        pytest.param("missing", InvalidSetting, "could not be found", id="missing profile"),
        pytest.param(
            "process",
            AwsInvalidAnswer,
            r"gave an invalid answer \(AttributeError\)",
            id="program with invalid output",
        ),
        pytest.param(
            "failing",
            AwsDenied,
            r"could not be signed \(CredentialRetrievalError\)",
            id="failing program that prints a secret",
        ),
        pytest.param("nothing", AwsError, "profile nothing", id="empty profile without an instance role"),
    ],
)
async def test_unusable_profile_reports_the_reason(
    name: str, kind: type[KubeEfsError], problem: str, profiles: CredentialOptions
) -> None:
    with pytest.raises(kind, match=problem) as caught:
        await load_credentials(_profile(name), profiles)
    assert caught.value.field == f"profile {name}"
    assert SECRET not in _everything_about(caught.value)


# The first source with credentials


async def test_first_source_with_credentials_wins_and_failed_sources_are_reported(
    aws: FakeAws,
    options: CredentialOptions,
    web_identity: CredentialSource,
    log: io.StringIO,
) -> None:
    aws.documents = {"AssumeRoleWithWebIdentity": ""}
    environment = {**ECS, "AWS_ROLE_ARN": ROLE, "AWS_WEB_IDENTITY_TOKEN_FILE": web_identity.token_file}
    source, found = await find_credentials(IamOptions(), replace(options, environment=environment))
    assert (source, found) == (web_identity, LOADED)
    [line] = map(json.loads, log.getvalue().splitlines())
    assert (line["event"], line["used"]) == ("aws-credentials-of-later-source", f"web identity {ROLE}")
    assert line["passed_over"].startswith("container credentials /ecs: was answered with status 404")


async def test_error_names_every_source_without_credentials_and_its_reason(
    aws: FakeAws, options: CredentialOptions, web_identity: CredentialSource
) -> None:
    environment = {**ECS, "AWS_ROLE_ARN": ROLE, "AWS_WEB_IDENTITY_TOKEN_FILE": web_identity.token_file}
    with pytest.raises(AwsDenied) as caught:
        await find_credentials(IamOptions(), replace(options, environment=environment))
    text = str(caught.value)
    assert text.startswith(
        "AWS credentials: are not available from 3 sources: container credentials /ecs: was answered with"
    )
    assert f"web identity {ROLE}: was answered with AccessDenied (status 403)" in text
    assert f"instance metadata: '{aws.url}/latest/meta-data/iam/security-credentials/'" in text
    assert isinstance(caught.value.__cause__, ExceptionGroup)
    assert len(caught.value.__cause__.exceptions) == 3


@pytest.mark.parametrize(
    ("first", "status", "code", "kind"),
    [
        pytest.param(ECS, 500, "", AwsIdentityLate, id="container agent with an internal error"),
        pytest.param(ECS, 408, "", AwsIdentityLate, id="slow container agent"),
        pytest.param(ECS, 429, "", AwsThrottled, id="busy container agent"),
        pytest.param({}, 503, "ServiceUnavailable", AwsIdentityLate, id="STS without service"),
        pytest.param({}, 400, "Throttling", AwsThrottled, id="throttled STS"),
    ],
)
async def test_late_or_busy_source_is_not_replaced_by_another_identity(
    first: dict[str, str],
    status: int,
    code: str,
    kind: type[KubeEfsError],
    aws: FakeAws,
    options: CredentialOptions,
    web_identity: CredentialSource,
) -> None:
    roles = "/latest/meta-data/iam/security-credentials/"
    aws.documents = {roles: "r", f"{roles}r": json.dumps(DOCUMENT)}
    aws.status, aws.code = status, code
    environment = {**first, "AWS_ROLE_ARN": ROLE, "AWS_WEB_IDENTITY_TOKEN_FILE": web_identity.token_file}
    with pytest.raises(kind) as caught:
        await find_credentials(IamOptions(), replace(options, environment=environment, attempts=1))
    assert type(caught.value) is kind
    assert f"status {status}" in str(caught.value)
    assert len(aws.requests) == 1


async def test_agent_that_does_not_listen_yet_is_not_replaced(options: CredentialOptions) -> None:
    options = replace(options, environment=ECS, container_endpoint="http://127.0.0.1:9", attempts=1)
    with pytest.raises(AwsIdentityLate) as caught:
        await find_credentials(IamOptions(), options)
    assert str(caught.value) == "container credentials /ecs: was not answered"


async def test_missing_instance_metadata_after_a_refusal_name_both(
    aws: FakeAws, options: CredentialOptions
) -> None:
    """A node without instance metadata: ``iam=auto`` then mounts without an identity."""
    options = replace(options, environment=ECS, metadata_endpoint="http://127.0.0.1:9", attempts=1)
    with pytest.raises(AwsUnavailable) as caught:
        await find_credentials(IamOptions(), options)
    assert not isinstance(caught.value, AwsIdentityLate)
    assert "container credentials /ecs: was answered with status 404" in str(caught.value)
    assert "instance metadata: 'http://127.0.0.1:9" in str(caught.value)


async def test_no_source_logs_a_secret(
    aws: FakeAws,
    profiles: CredentialOptions,
    pod_identity: CredentialSource,
    web_identity: CredentialSource,
    log: io.StringIO,
) -> None:
    roles = "/latest/meta-data/iam/security-credentials/"
    document = json.dumps(DOCUMENT)
    aws.documents = {
        roles: "r",
        f"{roles}r": document,
        "/v1/credentials": document,
        CONTAINER.target: document,
    }
    aws.documents |= {"AssumeRole": "", "AssumeRoleWithWebIdentity": ""}
    sources = [INSTANCE_ROLE, CONTAINER, pod_identity, web_identity, _profile("role"), _profile("keys")]
    assert {
        (await load_credentials(source, profiles)).credentials.secret_access_key for source in sources
    } == {SECRET}
    aws.documents = {}
    for source in sources[:-1]:
        with pytest.raises(AwsError):
            await load_credentials(source, profiles)
    logged = log.getvalue()
    assert (
        "Refreshing temporary credentials failed" in logged
    )  # a message of the library, which logs here, too
    assert [secret for secret in (SECRET, SESSION, POD_TOKEN, JWT) if secret in logged] == []


async def test_chosen_profile_is_not_replaced_by_another_identity(
    aws: FakeAws, profiles: CredentialOptions
) -> None:
    with pytest.raises(InvalidSetting, match="could not be found"):
        await find_credentials(IamOptions(profile="missing"), replace(profiles, environment=ECS))
    assert aws.requests == []


@pytest.mark.parametrize("external_id", [None, "ticket-7"])
async def test_role_of_another_account_is_assumed(external_id: str | None, aws: FakeAws) -> None:
    aws.documents = {"AssumeRole": ""}
    own = AwsCredentials(access_key_id="AKIAOWN", secret_access_key=SECRET)
    async with AwsConnection(
        AwsOptions(region=Region("eu-west-1"), endpoint_url=aws.url, credentials=own)
    ) as connection:
        assert await assume_role(connection, ROLE, external_id=external_id) == LOADED
    assert (aws.form["RoleArn"], aws.form.get("ExternalId")) == (ROLE, external_id)
    assert aws.headers["User-Agent"].startswith("kube-efs/")


# The form of answers


@pytest.mark.parametrize("missing", ["AccessKeyId", "SecretAccessKey", "Token"])
@pytest.mark.parametrize("value", [None, "", 7, ["x"], "two words", "new\nline", "\ud800", "x" * 65537])
def test_incomplete_answer_is_refused(missing: str, value: object) -> None:
    problem = "returned an invalid key, secret key or token" if value else "without key, secret key or token"
    with pytest.raises(AwsInvalidAnswer, match=problem):
        parse_credentials({**DOCUMENT, missing: value}, origin="instance role")


@pytest.mark.parametrize(
    ("expiration", "expected"),
    [
        pytest.param(None, None, id="none"),
        pytest.param("2030-01-02T03:04:05Z", END, id="in UTC"),
        pytest.param("2030-01-02T05:04:05+02:00", END, id="with an offset"),
        pytest.param("2030-01-02T03:04:05", END, id="without a zone"),
        pytest.param(END, END, id="a time, as STS gives"),
    ],
)
def test_expiration_is_in_utc(expiration: object, expected: datetime | None) -> None:
    loaded = parse_credentials({**DOCUMENT, "Expiration": expiration}, origin="instance role")
    assert loaded.expires_at == expected


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(DOCUMENT)), inner),
    max_leaves=8,
)


# Not st.timezones(), which needs the names and rules of all time zones: fresh systems have none.
_zones = st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone)


@given(document=_json, expiration=_json | st.datetimes() | st.datetimes(timezones=_zones))
def test_any_answer_gives_credentials_or_an_error_without_values(
    document: object, expiration: object
) -> None:
    if isinstance(document, dict):
        document = {**document, "SecretAccessKey": SECRET, "Expiration": expiration}
    outcome = _parsed(document)
    if isinstance(outcome, AwsError):
        assert SECRET not in _everything_about(outcome)
    else:
        assert outcome.expires_at is None or outcome.expires_at.tzinfo is UTC


def _parsed(document: object) -> LoadedCredentials | AwsError:
    try:
        return parse_credentials(document, origin="instance role")
    except AwsError as error:
        return error


def test_repr_contains_no_secret(options: CredentialOptions) -> None:
    shown = repr(LOADED) + repr(replace(options, environment={"AWS_SECRET_ACCESS_KEY": SECRET}))
    assert "ASIA1" in shown
    assert [secret for secret in (SECRET, SESSION) if secret in shown] == []


def _everything_about(error: BaseException | None) -> str:
    shown = ""
    while error is not None:
        shown += f"{error} {error!r} {_details(error)}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return shown


def _details(error: Any) -> str:
    return repr(getattr(error, "kwargs", ""))


# Service accounts of pods

WITH_ROLE = ServiceAccountIdentity(namespace="team", name="web", role_arn=ROLE)
WITHOUT_ROLE = ServiceAccountIdentity(namespace="team", name="web")


async def test_token_of_a_pod_is_exchanged_for_its_role(aws: FakeAws, options: CredentialOptions) -> None:
    aws.documents["AssumeRoleWithWebIdentity"] = ""
    assert await load_pod_credentials(WITH_ROLE, JWT, options) == LOADED
    assert (aws.form["RoleArn"], aws.form["WebIdentityToken"]) == (ROLE, JWT)
    assert aws.form["RoleSessionName"] == "web@team"
    # STS accepts 64 characters.
    long = ServiceAccountIdentity(namespace="n" * 63, name="web", role_arn=ROLE)
    await load_pod_credentials(long, JWT, options)
    assert aws.form["RoleSessionName"] == f"@{'n' * 63}"


async def test_token_of_a_pod_is_exchanged_by_the_agent_of_the_node(
    aws: FakeAws, options: CredentialOptions
) -> None:
    options = replace(options, pod_identity_endpoint=aws.url)
    aws.documents["/v1/credentials"] = json.dumps(DOCUMENT)
    assert await load_pod_credentials(WITHOUT_ROLE, JWT, options) == LOADED
    assert aws.headers["Authorization"] == JWT


@pytest.mark.parametrize(
    ("identity", "message"),
    [
        pytest.param(
            WITH_ROLE,
            f"check that the trust policy of {ROLE} allows this service account",
            id="web identity",
        ),
        pytest.param(
            WITHOUT_ROLE,
            "service account team/web: was answered with status 404; annotate the service account with "
            "eks.amazonaws.com/role-arn, or create a Pod Identity association for it and check that the Pod "
            "Identity Agent runs on the node",
            id="Pod Identity",
        ),
    ],
)
async def test_refused_token_of_a_pod_is_an_error_with_a_remedy_and_without_the_token(
    aws: FakeAws,
    options: CredentialOptions,
    log: io.StringIO,
    identity: ServiceAccountIdentity,
    message: str,
) -> None:
    token = "a-token-without-the-shape-of-one"
    aws.refusal = f"refused {token}"
    with pytest.raises(AwsError) as caught:
        await load_pod_credentials(identity, token, replace(options, pod_identity_endpoint=aws.url))
    assert message in str(caught.value)
    assert str(caught.value).startswith("service account team/web: ")
    assert token not in f"{caught.value!r} {caught.value} {log.getvalue()}"


async def test_remedy_for_an_expired_token_of_a_pod_is_another(
    aws: FakeAws, options: CredentialOptions
) -> None:
    aws.code = "ExpiredTokenException"
    with pytest.raises(AwsDenied) as caught:
        await load_pod_credentials(WITH_ROLE, JWT, options)
    assert caught.value.remedy == "check that the CSIDriver efs.csi.aws.com has requiresRepublish: true"


async def test_malformed_token_of_a_pod_is_not_sent(aws: FakeAws, options: CredentialOptions) -> None:
    options = replace(options, pod_identity_endpoint=aws.url)
    for identity in (WITH_ROLE, WITHOUT_ROLE):
        with pytest.raises(AwsDenied, match="service account team/web: has an invalid token"):
            await load_pod_credentials(identity, "a\nHost: b", options)
    assert aws.requests == []


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        pytest.param({"namespace": "../x"}, "namespace", id="namespace"),
        pytest.param({"name": "a b"}, "name", id="name"),
        pytest.param({"role_arn": "arn:aws:iam::1:user/x"}, "role_arn", id="role"),
    ],
)
def test_malformed_service_account_is_refused(parts: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidValue, match=f"service account, {field}: .* is malformed"):
        ServiceAccountIdentity(**{"namespace": "team", "name": "web", **parts})
