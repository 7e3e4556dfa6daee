import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterator

import httpx2
import pytest
from lightkube import AsyncClient, KubeConfig
from lightkube.config.models import Cluster, User
from lightkube.resources.core_v1 import Namespace
from structlog.testing import capture_logs

from kube_efs.kube.client import connect
from kube_efs.kube.retrying import RetryingTransport

PATIENCE = 10.0
REFUSED = httpx2.ConnectError("connection refused")
Outcome = httpx2.Response | httpx2.TransportError


class Server:
    """Gives these outcomes in turn and repeats the last one; only waiting takes time."""

    def __init__(self, *outcomes: Outcome) -> None:
        self._outcomes: Iterator[Outcome] = itertools.chain(outcomes, itertools.repeat(outcomes[-1]))
        self.requests: list[httpx2.Request] = []
        self.waits: list[float] = []
        self._inner = httpx2.MockTransport(self._answer)
        self.transport = RetryingTransport(
            self._inner, PATIENCE, clock=lambda: sum(self.waits), sleep=self._sleep
        )

    async def _answer(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        outcome = next(self._outcomes)
        if isinstance(outcome, httpx2.TransportError):
            raise outcome
        return outcome

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    async def send(self, method: str = "POST") -> httpx2.Response:
        async with httpx2.AsyncClient(transport=self.transport) as client:
            return await client.request(method, "http://cluster.example/api/v1/namespaces", content=b"body")


def answer(code: int, **headers: str) -> httpx2.Response:
    return httpx2.Response(code, headers={key.replace("_", "-"): value for key, value in headers.items()})


@pytest.mark.parametrize(
    ("method", "failure"),
    [
        pytest.param("POST", answer(429, Retry_After="1"), id="throttled, with Retry-After"),
        pytest.param("POST", answer(429), id="throttled"),
        pytest.param(
            "POST", answer(429, Retry_After="Fri, 20 Nov 2026 10:00:00 GMT"), id="throttled, with a date"
        ),
        pytest.param("PATCH", answer(503, Retry_After="1"), id="server starting"),
        pytest.param("POST", answer(500, Retry_After="1"), id="new leader of etcd"),
        pytest.param("POST", REFUSED, id="connection refused"),
        pytest.param("DELETE", httpx2.ConnectTimeout("time-out"), id="connection timeout"),
        pytest.param("GET", httpx2.RemoteProtocolError("disconnected"), id="read with a broken connection"),
        pytest.param("GET", httpx2.ReadTimeout("time-out"), id="read without an answer"),
    ],
)
async def test_transient_errors_are_retried(method: str, failure: Outcome) -> None:
    server = Server(failure, failure, answer(200))
    assert (await server.send(method)).status_code == 200
    assert [(request.method, request.content) for request in server.requests] == [(method, b"body")] * 3


@pytest.mark.parametrize(
    ("method", "failure"),
    [
        pytest.param("POST", answer(500), id="internal error"),
        pytest.param("GET", answer(503, Retry_After="soon"), id="invalid Retry-After"),
        pytest.param("POST", answer(409, Retry_After="1"), id="conflict"),
        pytest.param(
            "POST", httpx2.RemoteProtocolError("disconnected"), id="creation with a broken connection"
        ),
        pytest.param("PATCH", httpx2.ReadTimeout("time-out"), id="change without an answer"),
        pytest.param("DELETE", httpx2.ReadError("reset"), id="deletion with a reset connection"),
        pytest.param("PUT", httpx2.WriteError("reset"), id="update with an interrupted request"),
        pytest.param("GET", answer(429, Retry_After="11"), id="too long Retry-After"),
    ],
)
async def test_permanent_errors_are_not_retried(method: str, failure: Outcome) -> None:
    server = Server(failure, answer(200))
    assert await outcome_of(server, method) is failure
    assert len(server.requests) == 1


async def outcome_of(server: Server, method: str) -> Outcome:
    try:
        return await server.transport.handle_async_request(
            httpx2.Request(method, "http://cluster.example/", content=b"")
        )
    except httpx2.TransportError as error:
        return error


@pytest.mark.parametrize(
    ("failure", "least"),
    [
        pytest.param(answer(503, Retry_After="2"), [2, 2, 2], id="delay from Retry-After"),
        pytest.param(REFUSED, [0.25, 0.5, 1, 2], id="growing delay while the connection is refused"),
    ],
)
async def test_retry_delay_grows_and_follows_retry_after(failure: Outcome, least: list[float]) -> None:
    server = Server(failure)
    assert await outcome_of(server, "POST") is failure
    assert sum(server.waits) <= PATIENCE
    for waited, asked in zip(server.waits, least, strict=False):
        assert asked <= waited <= asked * 1.25
    assert len(server.waits) >= len(least)


@pytest.mark.parametrize(("seconds", "headers"), [(1, {"Retry_After": "1"}), (0.25, {})])
async def test_requests_that_are_refused_together_do_not_return_together(
    seconds: float, headers: dict[str, str]
) -> None:
    servers = [Server(answer(429, **headers), answer(200)) for _ in range(100)]
    for server in servers:
        assert (await server.send()).status_code == 200
    waits = [server.waits[0] for server in servers]
    assert all(seconds <= wait <= 6 * seconds for wait in waits)
    assert max(waits) - min(waits) > 3 * seconds


async def test_each_retry_logs_its_reason() -> None:
    server = Server(REFUSED, answer(429, Retry_After="1"), answer(200))
    with capture_logs() as logs:
        await server.send()
    keys = ("event", "method", "path", "attempt", "reason")
    assert [tuple(line[key] for key in keys) for line in logs] == [
        ("request-repeated", "POST", "/api/v1/namespaces", 1, "connection refused"),
        ("request-repeated", "POST", "/api/v1/namespaces", 2, "answered 429"),
    ]


@pytest.fixture
async def proxy() -> AsyncIterator[str]:
    """A proxy on loopback that answers all requests itself; gives host:port."""
    body = json.dumps(
        {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "through-proxy"}}
    ).encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        pytest.param({}, None, id="no proxy"),
        pytest.param({"HTTP_PROXY": "http://{}"}, "through-proxy", id="HTTP_PROXY"),
        pytest.param({"HTTP_PROXY": "{}"}, "through-proxy", id="HTTP_PROXY without a scheme"),
        pytest.param({"ALL_PROXY": "http://{}"}, "through-proxy", id="ALL_PROXY"),
        pytest.param({"HTTP_PROXY": "http://{}", "NO_PROXY": "a,127.0.0.1"}, None, id="excluded by NO_PROXY"),
        pytest.param(
            {"HTTP_PROXY": "http://{}", "NO_PROXY": ".svc, 127.0.0.0/16,x/8"}, None, id="excluded network"
        ),
        pytest.param(
            {"HTTP_PROXY": "http://{}", "NO_PROXY": "172.30.0.0/16,::/0"},
            "through-proxy",
            id="other networks",
        ),
        pytest.param({"HTTPS_PROXY": "http://{}"}, None, id="HTTPS_PROXY"),
    ],
)
async def test_proxy_is_read_from_the_environment(
    environment: dict[str, str], found: str | None, proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value.format(proxy))
    nobody = KubeConfig.from_one(cluster=Cluster(server="http://127.0.0.1:1"), user=User(token="t")).get()
    assert nobody
    async with connect(nobody, patience_seconds=0) as client:
        assert await name_of_namespace(client) == found


async def name_of_namespace(client: AsyncClient) -> str | None:
    try:
        namespace = await client.get(Namespace, "any")
    except httpx2.ConnectError:
        return None
    return namespace.metadata.name if namespace.metadata else None
