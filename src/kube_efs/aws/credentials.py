"""Credentials of an identity: for a mount with ``iam``, or of a role in another account."""

import structlog

from kube_efs.aws.connection import AwsConnection, LoadedCredentials, Service
from kube_efs.aws.credential_loading import load_credentials, parse_credentials
from kube_efs.aws.credential_sources import CredentialOptions, CredentialSource, IamOptions, order_sources
from kube_efs.aws.errors import reading
from kube_efs.model.errors import AwsDenied, KubeEfsError

log = structlog.get_logger()


async def find_credentials(
    iam: IamOptions, options: CredentialOptions
) -> tuple[CredentialSource, LoadedCredentials]:
    """The first available credentials, and their source.

    Raises the error of ``load_credentials`` for a single source, otherwise AwsDenied that names every source
    with its reason.
    """
    failures: list[KubeEfsError] = []
    for source in order_sources(iam, options.environment, options.files):
        try:
            found = await load_credentials(source, options)
        except KubeEfsError as error:
            failures.append(error)
        else:
            for failure in failures:
                log.warning("aws-credentials-of-later-source", used=str(source), passed_over=str(failure))
            return source, found
    if len(failures) == 1:
        raise failures[0]
    raise AwsDenied(
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
