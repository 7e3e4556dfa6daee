"""Counts and times every request to the API server."""

import time
from collections.abc import Callable

import httpx2

from kube_efs.telemetry.metrics import ApiServerMetrics

_NO_ANSWER = "none"


class MeasuringTransport(httpx2.AsyncBaseTransport):
    """Sends requests with ``inner``, and counts them by verb, resource and status code.

    The measured time ends when the answer begins, so it excludes the duration of a watch.
    """

    def __init__(
        self,
        inner: httpx2.AsyncBaseTransport,
        metrics: ApiServerMetrics,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._metrics = metrics
        self._clock = clock

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The answer; raises TransportError."""
        begun, code = self._clock(), _NO_ANSWER
        labels = _verb(request), resource_of(request.url.path)
        try:
            response = await self._inner.handle_async_request(request)
            code = str(response.status_code)
        finally:
            self._metrics.requests.labels(*labels, code).inc()
            self._metrics.request_seconds.labels(*labels).observe(self._clock() - begun)
        return response

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


def resource_of(path: str) -> str:
    """The resource of an API path, such as pods; empty for other paths.

    For ``/api/v1/namespaces/team/pods/web/log`` it is pods, for ``/apis/storage.k8s.io/v1/storageclasses``
    storageclasses, and for ``/version`` empty.
    """
    match path.strip("/").split("/"):
        case ["api", _, *rest] | ["apis", _, _, *rest]:
            is_namespaced = len(rest) > len(("namespaces", "name")) and rest[0] == "namespaces"
            return rest[2] if is_namespaced else "".join(rest[:1])
    return ""


def _verb(request: httpx2.Request) -> str:
    """The method, except that a watch is distinguished from a single request."""
    return "watch" if request.url.params.get("watch") == "true" else request.method.lower()
