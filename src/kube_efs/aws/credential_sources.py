"""The sources of the credentials of a mount with ``iam``: those of efs-utils, in its order.

Unlike in efs-utils, ``rolearn`` with ``jwtpath`` is the only source of a mount, as a profile is. As in
efs-utils, keys in AWS_ACCESS_KEY_ID are not used. A mount that signs with the service account of its pod has
one source, which the service account determines.
"""

import pwd
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from os import getuid
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self

import msgspec

from kube_efs.aws.metadata import DEFAULT_ENDPOINT
from kube_efs.model.csi.cross_account import ROLE_ARN
from kube_efs.model.efs.ids import Region
from kube_efs.model.errors import InvalidSetting, InvalidValue

_DEFAULT_PROFILE: Final = "default"
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SERVICE_ACCOUNT: Final = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")


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


class ServiceAccountIdentity(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The service account of pods, which signs instead of the node; raises InvalidValue for an invalid part.

    With ``role_arn``, STS exchanges the token of a pod for credentials of this role (web identity). With
    None, the EKS Pod Identity Agent of the node does.

    Where a file or a message has an object for ``IamOptions``, it has an array for this. A version that does
    not know service accounts therefore cannot read it, instead of signing with the identity of the node.
    """

    namespace: str
    name: str
    role_arn: str | None = None

    def __post_init__(self) -> None:
        patterns = {"namespace": _NAMESPACE, "name": _SERVICE_ACCOUNT, "role_arn": ROLE_ARN}
        for field_name, pattern in patterns.items():
            value = getattr(self, field_name)
            if not (value is None and field_name == "role_arn") and not pattern.fullmatch(value):
                raise InvalidValue("is malformed", field=f"service account, {field_name}", value=value)

    def __str__(self) -> str:
        return f"service account {self.namespace}/{self.name}"


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

    ``sts_endpoint_url`` None means AWS_ENDPOINT_URL_STS, otherwise the STS of the region.
    ``pod_identity_endpoint`` is the EKS Pod Identity Agent of the node. ``timeout_seconds`` limits one source
    with all its retries; STS and container agents are called up to ``attempts`` times.
    """

    region: Region
    files: ProfileFiles
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    sts_endpoint_url: str | None = None
    metadata_endpoint: str = DEFAULT_ENDPOINT
    container_endpoint: str = "http://169.254.170.2"
    pod_identity_endpoint: str = "http://169.254.170.23"
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

    A URI, a role with its token, or a profile is the only source: users do not expect another identity
    instead. Raises InvalidSetting for an unreadable profile file.
    """
    if options.credentials_uri:
        return (CredentialSource(kind=SourceKind.CONTAINER, target=options.credentials_uri),)
    if options.role_arn and options.token_file:
        return (_web_identity(options.role_arn, options.token_file),)
    if profile := _profile(options, environment, files):
        return (CredentialSource(kind=SourceKind.PROFILE, target=profile),)
    return (*_ambient(environment), CredentialSource(kind=SourceKind.INSTANCE_ROLE))


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


def _ambient(environment: Mapping[str, str]) -> Iterator[CredentialSource]:
    """The sources that the platform configures: ECS, EKS Pod Identity, and roles of service accounts."""
    if uri := environment.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
        yield CredentialSource(kind=SourceKind.CONTAINER, target=uri)
    uri, file = _pair(
        environment, "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"
    )
    if uri and file:
        yield CredentialSource(kind=SourceKind.POD_IDENTITY, target=uri, token_file=file)
    role_arn, token_file = _pair(environment, "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE")
    if role_arn and token_file:
        yield _web_identity(role_arn, token_file)


def _web_identity(role_arn: str, token_file: str) -> CredentialSource:
    return CredentialSource(kind=SourceKind.WEB_IDENTITY, target=role_arn, token_file=token_file)


def _pair(environment: Mapping[str, str], first: str, second: str) -> tuple[str, str]:
    return environment.get(first, ""), environment.get(second, "")
