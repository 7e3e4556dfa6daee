"""Credentials of an identity: for a mount with ``iam``, or of a role in another account."""

from typing import Final

import structlog

from kube_efs.aws.connection import AwsConnection, LoadedCredentials, Service
from kube_efs.aws.credential_loading import load_credentials, parse_credentials
from kube_efs.aws.credential_sources import (
    CredentialOptions,
    CredentialSource,
    IamOptions,
    SourceKind,
    order_sources,
)
from kube_efs.aws.errors import reading
from kube_efs.model.errors import (
    AwsDenied,
    AwsIdentityLate,
    AwsNotFound,
    AwsRefused,
    AwsUnavailable,
    InvalidValue,
    KubeEfsError,
)

log = structlog.get_logger()

# Any other error of a source may end by itself.
_REFUSALS: Final = (AwsDenied, AwsNotFound, AwsRefused, InvalidValue)


async def find_credentials(
    iam: IamOptions, options: CredentialOptions
) -> tuple[CredentialSource, LoadedCredentials]:
    """The first available credentials, and their source.

    A source is passed over only if it clearly refuses. The next one has another identity, which the mount
    would keep, so nothing replaces a source that is only late or busy: its error is raised, as
    AwsIdentityLate if it does not answer. Nobody can tell late instance metadata from a node without any, so
    their error stays AwsUnavailable. If all refuse, the error is that of the only source, or AwsDenied. After
    several failures, it names each source with its reason.
    """
    failures: list[KubeEfsError] = []
    kind: type[KubeEfsError] = AwsDenied
    for source in order_sources(iam, options.environment, options.files):
        try:
            found = await load_credentials(source, options)
        except KubeEfsError as error:
            failures.append(error)
            if isinstance(error, _REFUSALS):
                continue
            is_configured = source.kind is not SourceKind.INSTANCE_ROLE
            kind = AwsIdentityLate if is_configured and isinstance(error, AwsUnavailable) else type(error)
            break
        else:
            for failure in failures:
                log.warning("aws-credentials-of-later-source", used=str(source), passed_over=str(failure))
            return source, found
    [*others, last] = failures
    if not others and kind is AwsIdentityLate:
        raise kind(last.problem, field=last.field, value=last.value, remedy=last.remedy) from last
    if not others:
        raise last
    raise kind(
        f"are not available from {len(failures)} sources: " + "; ".join(map(str, failures)),
        field="AWS credentials",
        remedy="give the node's tunnel agent a role, with its service account or the instance",
    ) from ExceptionGroup("sources of credentials", failures)


async def assume_role(
    connection: AwsConnection, role_arn: str, *, external_id: str | None = None
) -> LoadedCredentials:
    """Credentials of a role, such as one of another account; raises AwsError."""
    answer = await connection.call(
        Service.STS,
        "AssumeRole",
        subject=role_arn,
        RoleArn=role_arn,
        RoleSessionName="kube-efs",
        **({"ExternalId": external_id} if external_id else {}),
    )
    with reading("AssumeRole", subject=role_arn):
        return parse_credentials(answer.get("Credentials"), origin=f"role {role_arn}")
