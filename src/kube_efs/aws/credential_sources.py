"""The sources of the credentials of a mount with ``iam``: those of efs-utils, in its order.

As in efs-utils, keys in AWS_ACCESS_KEY_ID are not used.
"""

import pwd
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from os import getuid
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self

from kube_efs.aws.metadata import DEFAULT_ENDPOINT
from kube_efs.model.efs.ids import Region
from kube_efs.model.errors import InvalidSetting

_DEFAULT_PROFILE: Final = "default"


class SourceKind(StrEnum):
    """The kinds of sources, with their names in error messages."""

    CONTAINER = "container credentials"
    PROFILE = "profile"
    POD_IDENTITY = "pod identity"
    WEB_IDENTITY = "web identity"
    INSTANCE_ROLE = "instance role"


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialSource:
    """One source of credentials, also of their successors.

    ``target`` is the URI (its path only for container credentials), the profile's name or the role's ARN;
    ``token_file`` the file with the token of a pod or web identity. No part of it is secret.
    """

    kind: SourceKind
    target: str = ""
    token_file: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.target}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class IamOptions:
    """The mount options that choose an identity: ``awsprofile``, ``awscredsuri``, ``rolearn``, ``jwtpath``.

    ``token_file`` is ``jwtpath``; it is used only together with the role.
    """

    profile: str | None = None
    credentials_uri: str | None = None
    role_arn: str | None = None
    token_file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFiles:
    """The files with profiles; neither needs to exist."""

    credentials: Path
    config: Path

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        """The files in the environment, otherwise those in the home directory of this process's user.

        HOME is not used: in a container it can have any value.
        """
        folder = _home() / ".aws"
        return cls(
            credentials=Path(environment.get("AWS_SHARED_CREDENTIALS_FILE") or folder / "credentials"),
            config=Path(environment.get("AWS_CONFIG_FILE") or folder / "config"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialOptions:
    """Options of the sources.

    ``sts_endpoint_url`` None means AWS_ENDPOINT_URL_STS, otherwise the STS of the region. ``timeout_seconds``
    limits one source with all its retries; STS and container agents are called up to ``attempts`` times.
    """

    region: Region
    files: ProfileFiles
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    sts_endpoint_url: str | None = None
    metadata_endpoint: str = DEFAULT_ENDPOINT
    container_endpoint: str = "http://169.254.170.2"
    timeout_seconds: float = 15.0
    attempts: int = 3
    retry_seconds: float = 0.2


def _home() -> Path:
    """The home directory of this process's user; for a user unknown to the image, that of root."""
    try:
        return Path(pwd.getpwuid(getuid()).pw_dir)
    except KeyError:
        return Path("/")


def order_sources(
    options: IamOptions, environment: Mapping[str, str], files: ProfileFiles
) -> tuple[CredentialSource, ...]:
    """The sources to try, at least one.

    A configured URI or profile is the only source: users do not expect another identity instead. Raises
    InvalidSetting for an unreadable profile file.
    """
    if options.credentials_uri:
        return (CredentialSource(kind=SourceKind.CONTAINER, target=options.credentials_uri),)
    profile = None if options.role_arn and options.token_file else _profile(options, environment, files)
    if profile:
        return (CredentialSource(kind=SourceKind.PROFILE, target=profile),)
    return (*_ambient(options, environment), CredentialSource(kind=SourceKind.INSTANCE_ROLE))


def read_sections(file: Path) -> dict[str, dict[str, Any]]:
    """The sections of a profile file, none when it does not exist; raises InvalidSetting."""
    # It needs 10 MB of memory; processes that use only the values of this module do not load it.
    from botocore.configloader import raw_config_parse  # noqa: PLC0415
    from botocore.exceptions import ConfigNotFound, ConfigParseError  # noqa: PLC0415

    try:
        sections: dict[str, dict[str, Any]] = raw_config_parse(str(file))
    except ConfigNotFound:
        return {}
    except ConfigParseError:  # Its causes quote the line, which may contain a key.
        raise InvalidSetting("cannot be read", field="AWS profile file", value=str(file)) from None
    return sections


def _profile(options: IamOptions, environment: Mapping[str, str], files: ProfileFiles) -> str | None:
    chosen = options.profile or environment.get("AWS_PROFILE")
    if chosen:
        return chosen
    sections = (read_sections(file).get(_DEFAULT_PROFILE, {}) for file in (files.credentials, files.config))
    return _DEFAULT_PROFILE if any("aws_access_key_id" in section for section in sections) else None


def _ambient(options: IamOptions, environment: Mapping[str, str]) -> Iterator[CredentialSource]:
    """The sources that the platform configures: ECS, EKS Pod Identity, and roles of service accounts."""
    if uri := environment.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
        yield CredentialSource(kind=SourceKind.CONTAINER, target=uri)
    uri, file = _pair(
        environment, "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"
    )
    if uri and file:
        yield CredentialSource(kind=SourceKind.POD_IDENTITY, target=uri, token_file=file)
    roles = (
        (options.role_arn, options.token_file),
        _pair(environment, "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"),
    )
    for role_arn, token_file in roles:
        if role_arn and token_file:
            yield CredentialSource(kind=SourceKind.WEB_IDENTITY, target=role_arn, token_file=token_file)


def _pair(environment: Mapping[str, str], first: str, second: str) -> tuple[str, str]:
    return environment.get(first, ""), environment.get(second, "")
