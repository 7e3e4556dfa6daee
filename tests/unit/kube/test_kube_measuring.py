import httpx2
import pytest
from prometheus_client import CollectorRegistry

from kube_efs.kube.measuring import MeasuringTransport, resource_of
from kube_efs.telemetry.metrics import ApiServerMetrics

SERVER = "http://cluster.example/api/v1/pods"


class Measured:
    """A server that answers after two seconds, and the metrics of its requests."""

    def __init__(self, outcome: int | httpx2.TransportError) -> None:
        self._outcome = outcome
        self._now = 0.0
        self.registry = CollectorRegistry()
        self._transport = MeasuringTransport(
            httpx2.MockTransport(self._answer), ApiServerMetrics(self.registry), clock=lambda: self._now
        )

    async def send(self, method: str, query: str = "") -> None:
        async with httpx2.AsyncClient(transport=self._transport) as client:
            await client.request(method, SERVER + query)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"kube_efs_api_{name}", labels)

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        assert request.url.path == "/api/v1/pods"
        self._now += 2.0
        if isinstance(self._outcome, httpx2.TransportError):
            raise self._outcome
        return httpx2.Response(self._outcome)


@pytest.mark.parametrize(
    ("method", "query", "code", "verb"),
    [
        pytest.param("GET", "", 200, "get", id="a read"),
        pytest.param("GET", "?limit=500", 410, "get", id="expired list"),
        pytest.param("GET", "?watch=true&resourceVersion=1", 200, "watch", id="a watch"),
        pytest.param("GET", "?watch=false", 200, "get", id="no watch"),
        pytest.param("POST", "", 429, "post", id="throttled write"),
        pytest.param("PATCH", "", 409, "patch", id="a conflict"),
    ],
)
async def test_requests_are_counted_by_verb_and_code(method: str, query: str, code: int, verb: str) -> None:
    measured = Measured(code)
    await measured.send(method, query)
    assert measured.value("requests_total", verb=verb, resource="pods", code=str(code)) == 1
    assert measured.value("request_seconds_sum", verb=verb, resource="pods") == 2.0


async def test_request_without_an_answer_is_counted() -> None:
    measured = Measured(httpx2.ConnectError("refused"))
    with pytest.raises(httpx2.ConnectError):
        await measured.send("GET")
    assert measured.value("requests_total", verb="get", resource="pods", code="none") == 1
    assert measured.value("request_seconds_sum", verb="get", resource="pods") == 2.0


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        pytest.param("/api/v1/persistentvolumes", "persistentvolumes", id="cluster-scoped"),
        pytest.param("/api/v1/persistentvolumes/pv-1", "persistentvolumes", id="by name"),
        pytest.param("/api/v1/namespaces/team/pods/web/log", "pods", id="subresource in a namespace"),
        pytest.param("/api/v1/namespaces/team", "namespaces", id="a namespace"),
        pytest.param("/api/v1/namespaces", "namespaces", id="namespaces"),
        pytest.param("/apis/storage.k8s.io/v1/storageclasses", "storageclasses", id="in an API group"),
        pytest.param(
            "/apis/apps/v1/namespaces/n/daemonsets/d", "daemonsets", id="in an API group and a namespace"
        ),
        pytest.param("/apis/apps/v1", "", id="resources of an API group"),
        pytest.param("/apis", "", id="API groups"),
        pytest.param("/version", "", id="no resource"),
        pytest.param("/", "", id="the root"),
    ],
)
def test_resource_is_read_from_the_path(path: str, resource: str) -> None:
    assert resource_of(path) == resource
