"""Translates the errors of the Kubernetes client into those of kube-efs; the only place that does."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx2
import lightkube
import msgspec
import yaml
from lightkube.core.exceptions import ConfigError

from kube_efs.model.errors import (
    InvalidSetting,
    KubeAlreadyExists,
    KubeConflict,
    KubeDenied,
    KubeError,
    KubeExpired,
    KubeInvalid,
    KubeNotFound,
    KubeUnavailable,
)

_BY_CODE: dict[int, type[KubeError]] = {
    400: KubeInvalid,
    401: KubeDenied,
    403: KubeDenied,
    404: KubeNotFound,
    409: KubeConflict,
    410: KubeExpired,
    422: KubeInvalid,
}
_REMEDIES: dict[type[KubeError], str] = {
    KubeDenied: "check the service account's roles",
    KubeUnavailable: "check that the API server is up and reachable",
}
# The paths of kinds that each cluster has.
_BUILT_IN = re.compile(
    r"/api/v1/|/apis/(apps|apiextensions\.k8s\.io|coordination\.k8s\.io|rbac\.authorization\.k8s\.io"
    r"|storage\.k8s\.io)/v1/"
)
# The answer of Go's HTTP library, as text, for paths that nothing is served at.
_NO_SUCH_PATH = "404 page not found\n"
# Not the roles but the admission refuses a request with one of these texts in the answer.
_REMEDIES_OF_ADMISSION: dict[str, str] = {
    "exceeded quota": "raise the quota, or delete objects that it counts",
    "admission webhook": "",
    "usage per PersistentVolumeClaim": "",  # a LimitRange
}


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Translate errors of the client into errors of the model; ``what`` names the call or object."""
    try:
        yield
    except httpx2.HTTPStatusError as error:
        raise _from_status(error, what) from error
    except (httpx2.HTTPError, httpx2.StreamError, TimeoutError, ConnectionError) as error:
        problem = f"could not be reached ({str(error) or type(error).__name__})"
        raise KubeUnavailable(problem, field=what, remedy=_REMEDIES[KubeUnavailable]) from error
    # The answer of a proxy; the client also expects that a refusal has a content type. A RecursionError comes
    # from an answer that is nested too deeply.
    except (msgspec.MsgspecError, KeyError, RecursionError) as error:
        problem = f"did not answer with a Kubernetes response ({type(error).__name__}: {error})"
        raise KubeUnavailable(problem, field=what, remedy=_REMEDIES[KubeUnavailable]) from error
    except (ConfigError, httpx2.InvalidURL) as error:
        raise _unusable(error) from error


@contextmanager
def configured() -> Iterator[None]:
    """Raise InvalidSetting for an invalid kubeconfig; the client does not check its structure."""
    try:
        yield
    except (
        ConfigError,
        yaml.YAMLError,
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        httpx2.InvalidURL,
    ) as error:
        raise _unusable(error) from error


def _unusable(error: Exception) -> InvalidSetting:
    remedy = "set KUBECONFIG, or run in a pod with a service account"
    return InvalidSetting(
        f"cannot be used ({type(error).__name__}: {error})", field="KUBECONFIG", remedy=remedy
    )


def _from_status(error: httpx2.HTTPStatusError, what: str) -> KubeError:
    code, reason, message = _read_status(error)
    kind = _BY_CODE.get(code, KubeUnavailable)
    # A load balancer may answer 404, too, and a volume that does not exist protects no data.
    if kind is KubeNotFound and reason != "NotFound" and not _is_missing_kind(error):
        kind = KubeUnavailable
    if reason == "AlreadyExists":
        kind = KubeAlreadyExists
    return kind(f"answered {code} ({message})", field=what, remedy=_remedy(kind, message))


def _is_missing_kind(error: httpx2.HTTPStatusError) -> bool:
    """Whether the API server says that it does not have the kind: only then, its 404 has no reason."""
    if isinstance(error, lightkube.ApiError) or _BUILT_IN.search(error.request.url.path):
        return False
    response = error.response
    with suppress(httpx2.StreamError):  # The client does not read the body of a refused watch.
        is_text = response.headers.get("Content-Type", "").startswith("text/plain")
        return is_text and response.text == _NO_SUCH_PATH
    return False


def _remedy(kind: type[KubeError], message: str) -> str:
    if kind is KubeDenied:
        for text, remedy in _REMEDIES_OF_ADMISSION.items():
            if text in message:
                return remedy
    return _REMEDIES.get(kind, "")


def _read_status(error: httpx2.HTTPStatusError) -> tuple[int, str, str]:
    if isinstance(error, lightkube.ApiError):
        status = error.status
        code = status.code or (error.response.status_code if error.response else 0)
        return code, status.reason or "", status.message or "no reason given"
    # The client does not read the body of a refused watch.
    try:
        body = json.loads(error.response.content)
        return error.response.status_code, body.get("reason", ""), body.get("message", "")
    except (ValueError, AttributeError, httpx2.StreamError):
        return error.response.status_code, "", error.response.reason_phrase
