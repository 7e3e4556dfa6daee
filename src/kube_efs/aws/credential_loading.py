"""Asking one source for its credentials, and reading what it answers.

Nothing that is read here comes into an error or a log: answers are shown only where they hold no credentials,
and cleaned of what looks like a secret.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import quote

from aiobotocore.config import AioConfig
from aiobotocore.credentials import AioConfigProvider, AioCredentials, AioSharedCredentialProvider
from aiobotocore.session import AioSession, get_session
from aiobotocore.utils import AioContainerMetadataFetcher
from botocore import UNSIGNED
from botocore.exceptions import MetadataRetrievalError

from kube_efs.aws.connection import AwsCredentials, LoadedCredentials
from kube_efs.aws.credential_sources import (
    CredentialOptions,
    CredentialSource,
    SourceKind,
    read_sections,
)
from kube_efs.aws.errors import FOREIGN_ERRORS, translate
from kube_efs.aws.metadata import InstanceMetadata
from kube_efs.model.errors import AwsDenied, AwsUnavailable, InvalidSetting, KubeEfsError
from kube_efs.telemetry.secrets import REMOVED, text_without_secrets

# The name that efs-utils gives its sessions: trust policies and searches in CloudTrail may name it.
_SESSION_NAME: Final = "efs-mount-helper"
_CLIENT: Final = AioConfig(
    connect_timeout=3, read_timeout=5, retries={"mode": "standard", "total_max_attempts": 3}
)
_ROLES: Final = "meta-data/iam/security-credentials/"
_CONTAINER_RETRY_SECONDS: Final = 0.2


async def load_credentials(source: CredentialSource, options: CredentialOptions) -> LoadedCredentials:
    """The present credentials of this source, which is how a certificate keeps its identity when renewed.

    Raises AwsError, and InvalidSetting for an unusable profile or URI.
    """
    try:
        async with asyncio.timeout(options.timeout_seconds):
            return await _LOADERS[source.kind](source, options)
    except FOREIGN_ERRORS as error:
        raise _translated(error, source) from error


def _translated(error: Exception, source: CredentialSource) -> KubeEfsError:
    action = "sts:AssumeRole" if source.kind is SourceKind.PROFILE else "sts:AssumeRoleWithWebIdentity"
    failure = translate(error, operation=str(source), iam_action=action)
    return type(failure)(_shown(failure.problem), field=failure.field, remedy=failure.remedy)


def parse_credentials(document: object, *, origin: str) -> LoadedCredentials:
    """The credentials in an answer of ``origin``; raises AwsError, which says what is wrong but no value."""
    if not isinstance(document, Mapping):
        raise AwsUnavailable("gave something else than credentials", field=origin)
    # Instance metadata tells of failures with status 200.
    if (code := document.get("Code", "Success")) != "Success":
        raise AwsDenied(f"gave no credentials but {_shown(code)}", field=origin)
    values = (
        document.get("AccessKeyId"),
        document.get("SecretAccessKey"),
        document.get("Token", document.get("SessionToken")),  # STS alone calls it the latter
    )
    texts = [value for value in values if isinstance(value, str) and value]
    if len(texts) < len(values):
        raise AwsUnavailable("gave credentials without key, secret key or token", field=origin)
    return LoadedCredentials(
        credentials=AwsCredentials(
            access_key_id=texts[0], secret_access_key=texts[1], session_token=texts[2]
        ),
        expires_at=_parse_expiration(document.get("Expiration"), origin),
    )


def _parse_expiration(value: object, origin: str) -> datetime | None:
    if value is None:
        return None
    try:
        time = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise AwsUnavailable("gave credentials whose Expiration is no time", field=origin) from None


async def _load_container(source: CredentialSource, options: CredentialOptions) -> LoadedCredentials:
    if not source.target.startswith("/"):
        # "@host" and ".host" would lead elsewhere.
        raise InvalidSetting("has no path that begins with /", field=str(source))
    return await _ask_container(source, options.container_endpoint + source.target)


async def _load_pod_identity(source: CredentialSource, _options: CredentialOptions) -> LoadedCredentials:
    return await _ask_container(source, source.target, await _read_token(source))


async def _ask_container(source: CredentialSource, url: str, token: str = "") -> LoadedCredentials:
    fetcher = AioContainerMetadataFetcher(sleep=_pause)
    try:
        document = await fetcher.retrieve_full_uri(url, headers={"Authorization": token} if token else None)
    except MetadataRetrievalError as error:
        # The message has the answer's text in it, which may repeat what was sent; so may the causes.
        text = str(error).replace(token, REMOVED) if token else str(error)
        raise AwsUnavailable(f"gave none ({_shown(text)})", field=str(source)) from None
    except ValueError as error:  # a host that must not get a token
        raise InvalidSetting(f"is not to be asked ({_shown(error)})", field=str(source)) from None
    return parse_credentials(document, origin=str(source))


async def _load_profile(source: CredentialSource, options: CredentialOptions) -> LoadedCredentials:
    try:
        found = await _find_in_profile(source.target, options)
        keys = found and await found.get_frozen_credentials()
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        # Such errors come out of the library for what a profile's credential_process printed.
        raise InvalidSetting(f"cannot be used ({type(error).__name__})", field=str(source)) from error
    if not keys:
        raise AwsDenied("has no credentials", field=str(source))
    return LoadedCredentials(
        credentials=AwsCredentials(
            access_key_id=keys.access_key, secret_access_key=keys.secret_key, session_token=keys.token
        ),
        # The library has no other way to tell.
        expires_at=_parse_expiration(getattr(found, "_expiry_time", None), str(source)),
    )


async def _find_in_profile(name: str, options: CredentialOptions) -> AioCredentials | None:
    """Keys in the files come before a role of the profile; the library alone would turn that around."""
    files = options.files
    loads = (
        AioSharedCredentialProvider(str(files.credentials), name).load,
        # efs-utils takes [NAME] here, the library only [profile NAME].
        AioConfigProvider(str(files.config), name, lambda file: {"profiles": read_sections(Path(file))}).load,
        _profile_session(name, options).get_credentials,
    )
    for load in loads:
        if found := await load():
            return found
    return None


def _profile_session(profile: str, options: CredentialOptions) -> AioSession:
    session = get_session()
    variables = {
        "profile": profile,
        "credentials_file": str(options.files.credentials),
        "config_file": str(options.files.config),
        "region": options.region,
        "ec2_metadata_service_endpoint": options.metadata_endpoint,
        "ec2_metadata_v1_disabled": True,
    }
    for name, value in variables.items():
        session.set_config_variable(name, value)
    session.set_default_client_config(_CLIENT)
    return session


async def _load_web_identity(source: CredentialSource, options: CredentialOptions) -> LoadedCredentials:
    token = await _read_token(source)
    async with get_session().create_client(
        "sts",
        region_name=options.region,
        endpoint_url=options.sts_endpoint_url,
        config=_CLIENT.merge(AioConfig(signature_version=UNSIGNED)),
    ) as sts:
        answer = await sts.assume_role_with_web_identity(
            RoleArn=source.target, RoleSessionName=_SESSION_NAME, WebIdentityToken=token
        )
    return parse_credentials(answer.get("Credentials"), origin=str(source))


async def _load_instance_role(source: CredentialSource, options: CredentialOptions) -> LoadedCredentials:
    async with _InstanceRole(options.metadata_endpoint) as metadata:
        text = await metadata.credentials()
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    return parse_credentials(document, origin=str(source))


class _InstanceRole(InstanceMetadata):
    async def credentials(self) -> str:
        """The document with the credentials of the instance's role."""
        roles = (await self._get(_ROLES)).split()
        if not roles:
            raise AwsDenied("has no role", field="instance metadata")
        return await self._get(_ROLES + quote(roles[0]))


async def _read_token(source: CredentialSource) -> str:
    try:
        text = await asyncio.to_thread(Path(source.token_file).read_text, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise AwsDenied(
            f"has no token that can be read ({type(error).__name__})",
            field=str(source),
            value=source.token_file,
        ) from error
    return text.strip()


async def _pause(_seconds: float) -> None:
    await asyncio.sleep(_CONTAINER_RETRY_SECONDS)


def _shown(foreign: object) -> str:
    return text_without_secrets(str(foreign))[:300]


_LOADERS: Final[
    Mapping[SourceKind, Callable[[CredentialSource, CredentialOptions], Awaitable[LoadedCredentials]]]
] = MappingProxyType(
    {
        SourceKind.CONTAINER: _load_container,
        SourceKind.POD_IDENTITY: _load_pod_identity,
        SourceKind.PROFILE: _load_profile,
        SourceKind.WEB_IDENTITY: _load_web_identity,
        SourceKind.INSTANCE_ROLE: _load_instance_role,
    }
)
