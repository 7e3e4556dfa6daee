"""Loads the credentials of one source.

Errors and logs contain no part of an answer or of a program's output: see ``errors``.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import quote, urlsplit

from aiobotocore.config import AioConfig
from aiobotocore.credentials import AioConfigProvider, AioCredentials, AioSharedCredentialProvider
from aiobotocore.session import AioSession
from aiobotocore.utils import AioContainerMetadataFetcher
from botocore import UNSIGNED
from botocore.exceptions import MetadataRetrievalError

from kube_efs.aws.connection import AwsCredentials, LoadedCredentials
from kube_efs.aws.credential_sources import (
    CredentialOptions,
    CredentialSource,
    ServiceAccountIdentity,
    SourceKind,
    read_sections,
)
from kube_efs.aws.errors import aws_errors, reading, safe_code
from kube_efs.aws.metadata import InstanceMetadata
from kube_efs.aws.session import new_session
from kube_efs.model.errors import (
    AwsDenied,
    AwsError,
    AwsInvalidAnswer,
    AwsThrottled,
    AwsUnavailable,
    InvalidSetting,
)
from kube_efs.model.secrets import hidden_here

# The session name of efs-utils: trust policies and searches in CloudTrail may contain it.
_SESSION_NAME: Final = "efs-mount-helper"
# The limit of STS.
_SESSION_NAME_MAX: Final = 64
_POD_IDENTITY_PATH: Final = "/v1/credentials"
_ROLES: Final = "meta-data/iam/security-credentials/"
# Characters that are valid in headers, signatures and certificates. AWS documents no maximum length.
_CREDENTIAL: Final = re.compile(r"[\x21-\x7e]{1,65536}")
_ROLE_NAME: Final = re.compile(r"[\w+=,.@-]{1,64}", re.ASCII)
# The library reports the status only in this text.
_STATUS: Final = re.compile(r"Error retrieving metadata: Received non 200 response (\d{3}) ")


async def load_credentials(source: CredentialSource, options: CredentialOptions) -> LoadedCredentials:
    """The current credentials of this source; so a renewed certificate keeps its identity.

    Raises AwsError, and InvalidSetting for an unusable profile or URI.
    """
    action = "sts:AssumeRole" if source.kind is SourceKind.PROFILE else "sts:AssumeRoleWithWebIdentity"
    with aws_errors(str(source), iam_action=action):
        async with asyncio.timeout(options.timeout_seconds):
            return await _LOADERS[source.kind](source, options)


async def load_pod_credentials(
    identity: ServiceAccountIdentity, token: str, options: CredentialOptions
) -> LoadedCredentials:
    """The credentials that AWS gives for a token of a pod with this service account.

    Raises AwsError, and InvalidSetting when the Pod Identity Agent must not be called. No error contains
    the token.
    """
    if not _CREDENTIAL.fullmatch(token):
        raise AwsDenied("has an invalid token", field=str(identity))
    try:
        # A token that STS refuses could be part of its answer, and not have the shape of one.
        with hidden_here([token]), aws_errors(str(identity), iam_action="sts:AssumeRoleWithWebIdentity"):
            async with asyncio.timeout(options.timeout_seconds):
                if identity.role_arn:
                    # CloudTrail then shows which service account it was.
                    session = f"{identity.name}@{identity.namespace}"[-_SESSION_NAME_MAX:]
                    return await _assume_role(identity.role_arn, token, options, str(identity), session)
                url = options.pod_identity_endpoint + _POD_IDENTITY_PATH
                return await _ask_container(str(identity), options, url, token)
    except AwsError as error:
        if identity.role_arn is None:
            error.remedy = (
                "annotate the service account with eks.amazonaws.com/role-arn, or create a Pod Identity"
                " association for it and check that the Pod Identity Agent runs on the node"
            )
        elif error.code.startswith("ExpiredToken"):
            error.remedy = "check that the CSIDriver efs.csi.aws.com has requiresRepublish: true"
        elif isinstance(error, AwsDenied):
            error.remedy = f"check that the trust policy of {identity.role_arn} allows this service account"
        raise


def parse_credentials(document: object, *, origin: str) -> LoadedCredentials:
    """The credentials in an answer of ``origin``; raises AwsError, which contains no value of the answer."""
    if not isinstance(document, Mapping):
        raise AwsInvalidAnswer("returned no credentials object", field=origin)
    # Instance metadata reports failures with status 200.
    if (code := document.get("Code", "Success")) != "Success":
        raise AwsDenied(f"returned no credentials but the code {safe_code(code)}", field=origin)
    values = (
        document.get("AccessKeyId"),
        document.get("SecretAccessKey"),
        document.get("Token", document.get("SessionToken")),  # Only STS uses the latter name.
    )
    if not all(values):
        raise AwsInvalidAnswer("returned credentials without key, secret key or token", field=origin)
    return _checked(*values, expiration=document.get("Expiration"), origin=origin)


def _checked(
    key: object, secret_key: object, token: object, *, expiration: object, origin: str
) -> LoadedCredentials:
    """The checked credentials; ``token`` may be None."""
    texts = [
        value for value in (key, secret_key, token) if isinstance(value, str) and _CREDENTIAL.fullmatch(value)
    ]
    if len(texts) < (2 if token is None else 3):
        raise AwsInvalidAnswer("returned an invalid key, secret key or token", field=origin)
    with reading(origin):
        expires_at = _parse_expiration(expiration, origin)
    return LoadedCredentials(
        credentials=AwsCredentials(
            access_key_id=texts[0],
            secret_access_key=texts[1],
            session_token=texts[2] if token is not None else None,
        ),
        expires_at=expires_at,
    )


def _parse_expiration(value: object, origin: str) -> datetime | None:
    if value is None:
        return None
    try:
        time = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise AwsInvalidAnswer("returned credentials with an invalid Expiration", field=origin) from None


async def _load_container(source: CredentialSource, options: CredentialOptions) -> LoadedCredentials:
    if not source.target.startswith("/"):
        # "@host" and ".host" would select another host.
        raise InvalidSetting(
            "has no absolute path", field=str(source), remedy="use a path that begins with /"
        )
    return await _ask_container(str(source), options, options.container_endpoint + source.target)


async def _load_pod_identity(source: CredentialSource, options: CredentialOptions) -> LoadedCredentials:
    return await _ask_container(str(source), options, source.target, await _read_token(source))


async def _ask_container(
    origin: str, options: CredentialOptions, url: str, token: str = ""
) -> LoadedCredentials:
    fetcher = AioContainerMetadataFetcher(sleep=lambda _: asyncio.sleep(options.retry_seconds))
    fetcher.RETRY_ATTEMPTS = options.attempts
    try:
        document = await fetcher.retrieve_full_uri(url, headers={"Authorization": token} if token else None)
    except MetadataRetrievalError as error:
        if status := _STATUS.match(str(error)):
            code = int(status[1])
            is_denial = 400 <= code < 500 and code != 408
            kind = AwsThrottled if code == 429 else AwsDenied if is_denial else AwsUnavailable
            raise kind(f"was answered with status {code}", field=origin) from None
        is_answer = "Unable to parse JSON" in str(error)
        problem = "returned an answer that is not JSON" if is_answer else "was not answered"
        raise AwsUnavailable(problem, field=origin) from None
    except UnicodeError:
        raise AwsInvalidAnswer("returned an answer that is not text", field=origin) from None
    except ValueError:  # The host must not get a token.
        problem = f"must not be called, because {urlsplit(url).hostname!r} is not a host of an AWS agent"
        raise InvalidSetting(problem, field=origin) from None
    return parse_credentials(document, origin=origin)


async def _load_profile(source: CredentialSource, options: CredentialOptions) -> LoadedCredentials:
    found = await _find_in_profile(source.target, options)
    keys = found and await found.get_frozen_credentials()
    if not keys:
        raise AwsDenied("has no credentials", field=str(source))
    # The library gives the expiration only in this attribute.
    expiration = getattr(found, "_expiry_time", None)
    return _checked(keys.access_key, keys.secret_key, keys.token, expiration=expiration, origin=str(source))


async def _find_in_profile(name: str, options: CredentialOptions) -> AioCredentials | None:
    """Keys in the files precede a role of the profile; the library alone has the reverse order."""
    files = options.files
    loads = (
        AioSharedCredentialProvider(str(files.credentials), name).load,
        # efs-utils accepts [NAME] here, the library only [profile NAME].
        AioConfigProvider(str(files.config), name, lambda file: {"profiles": read_sections(Path(file))}).load,
        _profile_session(name, options).get_credentials,
    )
    for load in loads:
        if found := await load():
            return found
    return None


def _client_config(options: CredentialOptions) -> AioConfig:
    retries = {"mode": "standard", "total_max_attempts": options.attempts}
    return AioConfig(connect_timeout=3, read_timeout=5, retries=retries)


def _profile_session(profile: str, options: CredentialOptions) -> AioSession:
    session = new_session()
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
    session.set_default_client_config(session.get_default_client_config().merge(_client_config(options)))
    return session


async def _load_web_identity(source: CredentialSource, options: CredentialOptions) -> LoadedCredentials:
    token = await _read_token(source)
    return await _assume_role(source.target, token, options, str(source), _SESSION_NAME)


async def _assume_role(
    role_arn: str, token: str, options: CredentialOptions, origin: str, session_name: str
) -> LoadedCredentials:
    # The token is the proof. A signature would need other credentials, which the node may not have.
    async with new_session().create_client(
        "sts",
        region_name=options.region,
        endpoint_url=options.sts_endpoint_url,
        config=_client_config(options).merge(AioConfig(signature_version=UNSIGNED)),
    ) as sts:
        answer = await sts.assume_role_with_web_identity(
            RoleArn=role_arn, RoleSessionName=session_name, WebIdentityToken=token
        )
    return parse_credentials(answer.get("Credentials"), origin=origin)


async def _load_instance_role(source: CredentialSource, options: CredentialOptions) -> LoadedCredentials:
    async with _InstanceRole(options.metadata_endpoint) as metadata:
        text = await metadata.credentials()
    with reading(str(source)):
        return parse_credentials(json.loads(text), origin=str(source))


class _InstanceRole(InstanceMetadata):
    async def credentials(self) -> str:
        """The document with the credentials of the instance's role."""
        roles = (await self._get(_ROLES)).split()
        if not roles:
            raise AwsDenied("has no role", field="instance metadata")
        if not _ROLE_NAME.fullmatch(roles[0]):
            raise AwsInvalidAnswer("returned an invalid role name", field="instance metadata")
        return await self._get(_ROLES + quote(roles[0]), shown=_ROLES)


async def _read_token(source: CredentialSource) -> str:
    try:
        text = await asyncio.to_thread(Path(source.token_file).read_text, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise AwsDenied(
            f"has no readable token ({type(error).__name__})",
            field=str(source),
            value=source.token_file,
        ) from None
    if not _CREDENTIAL.fullmatch(text.strip()):
        raise AwsDenied("has an invalid token", field=str(source), value=source.token_file)
    return text.strip()


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
