"""Every request to the API server, counted and timed."""

import time
from collections.abc import Callable

import httpx2

from kube_efs.telemetry.metrics import ApiServerMetrics

_NO_ANSWER = "none"


class MeasuringTransport(httpx2.AsyncBaseTransport):
    """Sends by ``inner``, and counts what was asked and how it was answered.

    A watch lasts as long as it is watched: its time is that until the answer begins, like that of every
    request.
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
    """The kind of object in the plural that a path of the API leads to; empty where it leads to none.

    ``/api/v1/namespaces/team/pods/web/log`` leads to pods, ``/apis/storage.k8s.io/v1/storageclasses`` to
    storageclasses, and ``/version`` to none.
    """
    match path.strip("/").split("/"):
        case ["api", _, *rest] | ["apis", _, _, *rest]:
            is_namespaced = len(rest) > len(("namespaces", "name")) and rest[0] == "namespaces"
            return rest[2] if is_namespaced else "".join(rest[:1])
    return ""


def _verb(request: httpx2.Request) -> str:
    """The method, except that a watch is distinguished from a single request."""
    return "watch" if request.url.params.get("watch") == "true" else request.method.lower()
