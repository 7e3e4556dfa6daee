"""Tokens of pods in requests, and the roles of service accounts."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest
from lightkube import AsyncClient
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ServiceAccount
from tests.unit.csi.tokens import ROLE, TOKENS, pod_token, token_context

from kube_efs.aws.credential_sources import ServiceAccountIdentity
from kube_efs.csi.pod_tokens import PodTokens, read_identity, read_pod_tokens
from kube_efs.model.csi.errors import InvalidArgument
from kube_efs.model.errors import InvalidSetting, KubeNotFound

STS, POD_IDENTITY = "sts.amazonaws.com", "pods.eks.amazonaws.com"
REMEDY = (
    "add tokenRequests for the audiences sts.amazonaws.com and pods.eks.amazonaws.com, and"
    " requiresRepublish: true, to the CSIDriver efs.csi.aws.com"
)
WEB = PodTokens(
    namespace="team",
    service_account="web",
    secret_sts=pod_token("team", "web", STS),
    secret_pod_identity=pod_token("team", "web", POD_IDENTITY),
)


def encoded(tokens: Mapping[str, Any]) -> dict[str, str]:
    return {TOKENS: json.dumps(tokens)}


def test_tokens_name_their_service_account() -> None:
    context = token_context("team", "web")
    assert read_pod_tokens(context, {}) == WEB
    # Kubernetes 1.35 can have them in the secrets.
    assert read_pod_tokens({}, context) == WEB
    # Only the token decides, whatever else is in the request.
    others = {"csi.storage.k8s.io/serviceAccount.name": "admin", "csi.storage.k8s.io/pod.namespace": "other"}
    assert read_pod_tokens({**context, **others}, {}) == WEB
    assert WEB.secret_sts not in repr(WEB)
    assert WEB.secret_pod_identity not in repr(WEB)


def claims(content: object) -> str:
    return f"e30.{base64.urlsafe_b64encode(json.dumps(content).encode()).decode()}.x"


@pytest.mark.parametrize(
    ("context", "message"),
    [
        pytest.param({}, "are missing in the request", id="no tokens"),
        pytest.param({TOKENS: ""}, "are missing in the request", id="empty"),
        pytest.param({TOKENS: "token"}, f"contain none for the audience {STS}", id="not JSON"),
        pytest.param({TOKENS: "[" * 100_000}, f"contain none for the audience {STS}", id="deep JSON"),
        pytest.param(encoded({}), f"contain none for the audience {STS}", id="other audience"),
        pytest.param(
            encoded({STS: {"token": WEB.secret_sts}}),
            f"contain none for the audience {POD_IDENTITY}",
            id="one audience",
        ),
        *(
            pytest.param(
                encoded({STS: {"token": token}, POD_IDENTITY: {"token": token}}),
                "do not name a service account",
                id=name,
            )
            for name, token in {
                "not a JWT": "a.b",
                "not base64": "a.ä.b",
                "no object": claims(["sub"]),
                "no subject": claims({}),
                "another subject": claims({"sub": "system:node:a"}),
                "number": claims({"sub": 7}),
            }.items()
        ),
    ],
)
def test_request_without_usable_tokens_is_refused(context: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read_pod_tokens(context, {})
    assert str(caught.value) == f"tokens of the pod: {message}; {REMEDY}"


def test_tokens_of_two_service_accounts_are_refused() -> None:
    tokens = {STS: {"token": WEB.secret_sts}, POD_IDENTITY: {"token": pod_token("team", "b", POD_IDENTITY)}}
    with pytest.raises(InvalidArgument, match="are of different service accounts"):
        read_pod_tokens(encoded(tokens), {})


async def annotate(kube: AsyncClient, annotations: dict[str, str]) -> None:
    metadata = ObjectMeta(namespace="default", name="web", annotations=annotations)
    await kube.create(ServiceAccount(metadata=metadata))


@pytest.fixture
def tokens() -> PodTokens:
    return read_pod_tokens(token_context("default", "web"), {})


@pytest.mark.parametrize(
    ("annotations", "role", "audience"),
    [
        pytest.param({"eks.amazonaws.com/role-arn": ROLE}, ROLE, STS, id="web identity"),
        pytest.param({"eks.amazonaws.com/role-arn": ""}, None, POD_IDENTITY, id="empty annotation"),
        pytest.param({}, None, POD_IDENTITY, id="Pod Identity"),
    ],
)
async def test_annotation_of_the_service_account_has_the_role(
    kube: AsyncClient, tokens: PodTokens, annotations: dict[str, str], role: str | None, audience: str
) -> None:
    await annotate(kube, annotations)
    identity = await read_identity(kube, tokens)
    assert identity == ServiceAccountIdentity(namespace="default", name="web", role_arn=role)
    assert tokens.token_for(identity) == pod_token("default", "web", audience)


async def test_invalid_role_is_refused(kube: AsyncClient, tokens: PodTokens) -> None:
    await annotate(kube, {"eks.amazonaws.com/role-arn": "web-role"})
    with pytest.raises(InvalidArgument) as caught:
        await read_identity(kube, tokens)
    assert str(caught.value) == (
        "service account default/web, annotation eks.amazonaws.com/role-arn: 'web-role' is not the ARN of a"
        " role; use arn:aws:iam::ACCOUNT:role/NAME"
    )


async def test_service_account_that_cannot_be_read_is_an_error(kube: AsyncClient, tokens: PodTokens) -> None:
    with pytest.raises(KubeNotFound, match="service account default/web"):
        await read_identity(kube, tokens)
    with pytest.raises(InvalidSetting, match="cannot be read without access to the cluster"):
        await read_identity(None, tokens)
