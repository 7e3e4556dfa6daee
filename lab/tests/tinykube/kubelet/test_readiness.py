"""Readiness probes against a server that answers as told."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field

import pytest
from aiohttp import web
from lightkube.models.core_v1 import Container, ContainerPort, HTTPGetAction, Probe
from tests.serving import answering, serving

from tinykube.kubelet.container_runner import _answers, follow_readiness, readiness_url
from tinykube.ports import free_port


@pytest.mark.parametrize(
    ("asks", "moved", "url"),
    [
        pytest.param(
            HTTPGetAction(port="health", path="/readyz"), None, "http://127.0.0.1:9810/readyz", id="a name"
        ),
        pytest.param(HTTPGetAction(port=80, path="x"), None, "http://127.0.0.1:80/x", id="a number"),
        pytest.param(
            HTTPGetAction(port="health", host="10.0.0.1"), "5000", "http://10.0.0.1:5000/", id="moved"
        ),
        pytest.param(None, None, "", id="nobody asks"),
    ],
)
def test_where_a_probe_asks(asks: HTTPGetAction | None, moved: str | None, url: str) -> None:
    ports = [ContainerPort(name="health", containerPort=9810)]
    assert readiness_url(Container(name="c", ports=ports, readinessProbe=Probe(httpGet=asks)), moved) == url


@dataclass
class Server:
    """Answers with the next of these statuses, the last one for ever."""

    url: str = ""
    statuses: list[int] = field(default_factory=lambda: [200])

    async def answer(self, _: web.Request) -> web.Response:
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        return web.Response(status=status)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    found = Server()
    async with serving(answering(found.answer)) as url:
        found.url = f"{url}/"
        yield found


@pytest.mark.parametrize(
    ("status", "good"), [(204, True), (302, True), (404, False)], ids=["success", "a redirection", "other"]
)
async def test_which_answers_are_good(server: Server, status: int, good: bool) -> None:
    server.statuses = [status]
    assert await _answers(server.url, timeout_seconds=10) is good


async def test_nobody_there_is_a_failure() -> None:
    assert not await _answers(f"http://127.0.0.1:{free_port()}/", timeout_seconds=10)


async def test_readiness_comes_at_once_and_goes_after_its_failures(server: Server) -> None:
    server.statuses = [503, 200, 503, 200, 503, 503, 200]
    probe = Probe(periodSeconds=1, timeoutSeconds=10, failureThreshold=2)
    told = []
    async with aclosing(follow_readiness(probe, server.url)) as changes:
        async for ready in changes:
            told.append((ready, len(server.statuses)))
            if len(told) == 3:
                break
    assert told == [(True, 5), (False, 1), (True, 1)]
