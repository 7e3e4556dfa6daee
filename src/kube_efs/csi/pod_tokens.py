"""The tokens of a pod in a request to publish, and the role of its service account.

The kubelet adds tokens of the pod's service account to each request if the CSIDriver has ``tokenRequests``.
It replaces what a volume has under the same key, so a volume cannot bring a token of its own.

Namespace and name of the service account are those in the token itself: other fields of a request could name
another service account, and the mount would use its tunnel. AWS verifies the signature of a token, and a
mount gets a tunnel only with a token that AWS has accepted.
"""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from lightkube import AsyncClient
from lightkube.resources.core_v1 import ServiceAccount

from kube_efs.aws.credential_sources import ServiceAccountIdentity
from kube_efs.kube.errors import translated
from kube_efs.model.csi.errors import InvalidArgument
from kube_efs.model.errors import InvalidSetting, InvalidValue

POD_TOKENS: Final = "csi.storage.k8s.io/serviceAccount.tokens"
_FIELD: Final = "tokens of the pod"
_STS: Final = "sts.amazonaws.com"
_POD_IDENTITY: Final = "pods.eks.amazonaws.com"
_SUBJECT: Final = re.compile(r"system:serviceaccount:([^:]+):([^:]+)")
_ROLE_ANNOTATION: Final = "eks.amazonaws.com/role-arn"
_REMEDY: Final = (
    f"add tokenRequests for the audiences {_STS} and {_POD_IDENTITY}, and requiresRepublish: true,"
    " to the CSIDriver efs.csi.aws.com"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTokens:
    """Tokens of one service account, for STS and for the EKS Pod Identity Agent."""

    namespace: str
    service_account: str
    secret_sts: str = field(repr=False)
    secret_pod_identity: str = field(repr=False)

    def token_for(self, identity: ServiceAccountIdentity) -> str:
        """The token that is exchanged for credentials of this identity."""
        return self.secret_sts if identity.role_arn else self.secret_pod_identity

    def belong_to(self, identity: ServiceAccountIdentity) -> bool:
        """Whether they are tokens of this service account."""
        return (self.namespace, self.service_account) == (identity.namespace, identity.name)


def read_pod_tokens(context: Mapping[str, str], secrets: Mapping[str, str]) -> PodTokens:
    """The tokens in a request; raises InvalidArgument, without a part of a token, when one is missing.

    Kubernetes has them in the volume context, and since 1.35 in the secrets if the CSIDriver says so.
    """
    text = secrets.get(POD_TOKENS) or context.get(POD_TOKENS)
    if not text:
        raise InvalidArgument("are missing in the request", field=_FIELD, remedy=_REMEDY)
    sts, pod_identity = (_token(text, audience) for audience in (_STS, _POD_IDENTITY))
    namespace, name = _service_account(sts)
    if _service_account(pod_identity) != (namespace, name):
        raise InvalidArgument("are of different service accounts", field=_FIELD)
    return PodTokens(
        namespace=namespace, service_account=name, secret_sts=sts, secret_pod_identity=pod_identity
    )


async def read_identity(client: AsyncClient | None, tokens: PodTokens) -> ServiceAccountIdentity:
    """The service account and the role in its annotation ``eks.amazonaws.com/role-arn``.

    Raises InvalidArgument for an invalid role, KubeError, and InvalidSetting without a client.
    """
    subject = f"service account {tokens.namespace}/{tokens.service_account}"
    if client is None:
        raise InvalidSetting(
            "cannot be read without access to the cluster",
            field=subject,
            remedy="give kube-efs node a service account, or set KUBECONFIG",
        )
    with translated(subject):
        found = await client.get(ServiceAccount, tokens.service_account, namespace=tokens.namespace)
    role_arn = ((found.metadata and found.metadata.annotations) or {}).get(_ROLE_ANNOTATION) or None
    try:
        return ServiceAccountIdentity(
            namespace=tokens.namespace, name=tokens.service_account, role_arn=role_arn
        )
    except InvalidValue as error:
        raise InvalidArgument(
            "is not the ARN of a role",
            field=f"{subject}, annotation {_ROLE_ANNOTATION}",
            value=role_arn or "",
            remedy="use arn:aws:iam::ACCOUNT:role/NAME",
        ) from error


def _token(text: str, audience: str) -> str:
    try:
        token = json.loads(text)[audience]["token"]
    except (ValueError, LookupError, TypeError, RecursionError):
        token = None
    if not isinstance(token, str) or not token:
        raise InvalidArgument(f"contain none for the audience {audience}", field=_FIELD, remedy=_REMEDY)
    return token


def _service_account(token: str) -> tuple[str, str]:
    """The namespace and the name in the claim ``sub`` of a JWT (RFC 7519), which is not verified here."""
    try:
        _, payload, _ = token.split(".")
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        found = _SUBJECT.fullmatch(claims["sub"])
    except (ValueError, LookupError, TypeError, RecursionError):
        found = None
    if found is None:
        raise InvalidArgument("do not name a service account", field=_FIELD, remedy=_REMEDY)
    return found[1], found[2]
