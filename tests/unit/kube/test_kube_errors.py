import inspect
import json
from collections.abc import Callable, Coroutine
from typing import Any

import httpx2
import pytest
from lightkube import AsyncClient
from lightkube.core.exceptions import ConfigError
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.core_v1 import Pod
from lightkube.resources.storage_v1 import CSINode

from kube_efs.kube.errors import translated
from kube_efs.model.errors import (
    InvalidSetting,
    KubeAlreadyExists,
    KubeConflict,
    KubeDenied,
    KubeEfsError,
    KubeError,
    KubeExpired,
    KubeInvalid,
    KubeNotFound,
    KubeUnavailable,
)

ClientOf = Callable[[Callable[[httpx2.Request], Coroutine[Any, Any, httpx2.Response]]], AsyncClient]

SNAPSHOT = create_namespaced_resource("snapshot.storage.k8s.io", "v1", "VolumeSnapshot", "volumesnapshots")
DENIED = "; check the service account's roles"
DOWN = "; check that the API server is up and reachable"


def status(code: int, reason: str, message: str) -> dict[str, Any]:
    return {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}


async def refused(client_of: ClientOf, response: httpx2.Response, kind: type[Any] = Pod) -> KubeEfsError:
    """The error of a caller that gets this answer."""

    async def answer(_: httpx2.Request) -> httpx2.Response:
        return response

    async with client_of(answer) as client:
        with pytest.raises(KubeEfsError) as caught, translated("pod a"):
            await client.get(kind, "a")
    return caught.value


@pytest.mark.parametrize(
    ("code", "reason", "kind", "remedy"),
    [
        (400, "BadRequest", KubeInvalid, ""),
        (401, "Unauthorized", KubeDenied, DENIED),
        (403, "Forbidden", KubeDenied, DENIED),
        (404, "NotFound", KubeNotFound, ""),
        (409, "Conflict", KubeConflict, ""),
        (409, "AlreadyExists", KubeAlreadyExists, ""),
        (410, "Expired", KubeExpired, ""),
        (422, "Invalid", KubeInvalid, ""),
        (429, "TooManyRequests", KubeUnavailable, DOWN),
        (500, "InternalError", KubeUnavailable, DOWN),
        (503, "ServiceUnavailable", KubeUnavailable, DOWN),
        (504, "Timeout", KubeUnavailable, DOWN),
        (418, "Teapot", KubeUnavailable, DOWN),
    ],
)
async def test_refusal_of_the_api_server_is_translated(
    client_of: ClientOf, code: int, reason: str, kind: type[KubeError], remedy: str
) -> None:
    error = await refused(client_of, httpx2.Response(code, json=status(code, reason, "because")))
    assert type(error) is kind
    assert str(error) == f"pod a: answered {code} (because){remedy}"


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ('User "a" cannot create resource "pods"', DENIED),
        (
            "exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0",
            "; raise the quota, or delete objects that it counts",
        ),
        ('admission webhook "w.example.com" denied the request: no', ""),
        ("minimum storage usage per PersistentVolumeClaim is 5Gi, but request is 1Gi", ""),
    ],
    ids=["role", "quota", "webhook", "limit range"],
)
async def test_remedy_of_a_denial_depends_on_its_reason(
    client_of: ClientOf, reason: str, remedy: str
) -> None:
    message = f'pods "a" is forbidden: {reason}'
    error = await refused(client_of, httpx2.Response(403, json=status(403, "Forbidden", message)))
    assert str(error) == f"pod a: answered 403 ({message}){remedy}"


@pytest.mark.parametrize(
    ("response", "kind", "text"),
    [
        pytest.param(
            httpx2.Response(
                404,
                content=json.dumps(status(404, "NotFound", "gone")),
                headers={"content-type": "application/json; charset=utf-8"},
            ),
            KubeNotFound,
            "pod a: answered 404 (gone)",
            id="a content type with parameters",
        ),
        pytest.param(
            httpx2.Response(502, html="<html>"),
            KubeUnavailable,
            f"pod a: answered 502 (Bad Gateway){DOWN}",
            id="a proxy's page",
        ),
        pytest.param(
            httpx2.Response(503),
            KubeUnavailable,
            "pod a: did not answer with a Kubernetes response (KeyError: 'Content-Type')" + DOWN,
            id="no content type",
        ),
        pytest.param(
            httpx2.Response(404, html="<html>"),
            KubeUnavailable,
            f"pod a: answered 404 (Not Found){DOWN}",
            id="a load balancer's page for an unknown path",
        ),
        pytest.param(
            httpx2.Response(404, json={"error": "no"}),
            KubeUnavailable,
            f"pod a: answered 404 (no reason given){DOWN}",
            id="JSON of a load balancer for an unknown path",
        ),
        pytest.param(
            httpx2.Response(403, json={"error": "no"}),
            KubeDenied,
            f"pod a: answered 403 (no reason given){DENIED}",
            id="JSON other than a Status",
        ),
        pytest.param(
            httpx2.Response(503, content="upstream", headers={"content-type": "application/json; v=1"}),
            KubeUnavailable,
            f"pod a: answered 503 (Service Unavailable){DOWN}",
            id="invalid JSON",
        ),
    ],
)
async def test_refusal_of_an_intermediary_is_translated(
    client_of: ClientOf, response: httpx2.Response, kind: type[KubeError], text: str
) -> None:
    error = await refused(client_of, response)
    assert (type(error), str(error)) == (kind, text)


async def test_kind_that_the_cluster_does_not_have_is_not_found(kube: AsyncClient) -> None:
    with pytest.raises(KubeNotFound), translated("VolumeSnapshot a"):
        await kube.get(SNAPSHOT, "a", namespace="default")
    with pytest.raises(KubeNotFound), translated("list VolumeSnapshot"):
        _ = [one async for one in kube.list(SNAPSHOT, namespace="*")]


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        pytest.param(httpx2.Response(404, text="404 page not found\n"), CSINode, id="for a built-in kind"),
        pytest.param(httpx2.Response(404, html="404 page not found\n"), SNAPSHOT, id="as HTML"),
        pytest.param(httpx2.Response(404, html="<html>"), SNAPSHOT, id="page of a load balancer"),
        pytest.param(httpx2.Response(404, text="default backend - 404"), SNAPSHOT, id="text of a proxy"),
        pytest.param(httpx2.Response(404, json={"error": "no"}), SNAPSHOT, id="JSON of a load balancer"),
    ],
)
async def test_answer_404_of_an_intermediary_does_not_mean_that_the_kind_does_not_exist(
    client_of: ClientOf, response: httpx2.Response, kind: type[Any]
) -> None:
    assert type(await refused(client_of, response, kind)) is KubeUnavailable


@pytest.mark.parametrize(
    "response",
    [
        pytest.param(httpx2.Response(200, html="<html>"), id="a proxy's page"),
        pytest.param(httpx2.Response(200, json=[]), id="a list"),
        pytest.param(httpx2.Response(200, json={"metadata": 7}), id="malformed object"),
        pytest.param(httpx2.Response(502, json=[]), id="malformed refusal"),
    ],
)
async def test_answer_that_is_not_from_kubernetes_is_translated(
    client_of: ClientOf, response: httpx2.Response
) -> None:
    error = await refused(client_of, response)
    assert type(error) is KubeUnavailable
    assert error.problem.startswith("did not answer with a Kubernetes response (")


def _foreign_errors() -> list[type[Exception]]:
    found = [
        value for value in vars(httpx2).values() if inspect.isclass(value) and issubclass(value, Exception)
    ]
    # Only reading a cookie raises the first, which the client never does. The second has tests above.
    return [cls for cls in found if cls not in {httpx2.CookieConflict, httpx2.HTTPStatusError}]


@pytest.mark.parametrize("kind", _foreign_errors(), ids=lambda kind: str(kind.__name__))
def test_every_error_of_the_http_library_is_translated(kind: type[Exception]) -> None:
    error = kind.__new__(kind)
    Exception.__init__(error, "went wrong")
    with pytest.raises(KubeEfsError) as caught, translated("pod a"):
        raise error
    assert isinstance(caught.value, (KubeUnavailable, InvalidSetting))
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TimeoutError(), f"pod a: could not be reached (TimeoutError){DOWN}"),
        (ConnectionResetError("reset"), f"pod a: could not be reached (reset){DOWN}"),
        (httpx2.ConnectError("no route"), f"pod a: could not be reached (no route){DOWN}"),
    ],
)
def test_missing_answer_is_translated(error: Exception, text: str) -> None:
    with pytest.raises(KubeUnavailable) as caught, translated("pod a"):
        raise error
    assert str(caught.value) == text


def test_kubeconfig_error_is_an_invalid_setting() -> None:
    with pytest.raises(InvalidSetting) as caught, translated("pod a"):
        raise ConfigError("token file gone")
    assert str(caught.value) == (
        "KUBECONFIG: cannot be used (ConfigError: token file gone); "
        "set KUBECONFIG, or run in a pod with a service account"
    )


def test_internal_errors_are_not_translated() -> None:
    with pytest.raises(ZeroDivisionError), translated("pod a"):
        raise ZeroDivisionError
