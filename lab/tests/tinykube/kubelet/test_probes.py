"""Probes of containers against a server that answers as told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from aiohttp import web
from tests.serving import answering, serving

from tinykube.errors import InvalidValue
from tinykube.kubelet.pods import Container, Probe
from tinykube.kubelet.probes import Check, ask, check_of, follow_readiness
from tinykube.ports import free_port

CONTAINER = Container(name="c", ports={"health": 9810})


@pytest.mark.parametrize(
    ("probe", "port", "url"),
    [
        pytest.param(Probe(port="health", path="/readyz"), None, "http://10.0.0.1:9810/readyz", id="a name"),
        pytest.param(
            Probe(port="80", path="x", scheme="https"), None, "https://10.0.0.1:80/x", id="a number"
        ),
        pytest.param(Probe(port="health", host="127.0.0.1"), 5000, "http://127.0.0.1:5000/", id="moved"),
    ],
)
def test_where_a_probe_asks(probe: Probe, port: int | None, url: str) -> None:
    assert check_of(probe, CONTAINER, address="10.0.0.1", port=port).url == url


def test_a_port_that_the_container_does_not_have_is_told() -> None:
    with pytest.raises(InvalidValue, match="'metrics' is no port of the container"):
        check_of(Probe(port="metrics"), CONTAINER, address="10.0.0.1", port=None)


@dataclass
class Server:
    """Answers with the next of these statuses, the last one for ever."""

    url: str = ""
    statuses: list[int] = field(default_factory=lambda: [200])

    async def answer(self, _: web.Request) -> web.Response:
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        return web.Response(status=status)

    def check(self, **fields: float) -> Check:
        return Check(url=self.url, probe=Probe(port="health", period_seconds=0.01, **fields))  # type: ignore[arg-type]


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    found = Server()
    async with serving(answering(found.answer)) as url:
        found.url = f"{url}/"
        yield found


@pytest.mark.parametrize(
    ("status", "problem"),
    [(204, ""), (302, ""), (404, "HTTP probe failed with statuscode: 404")],
    ids=["success", "a redirection", "anything else"],
)
async def test_which_answers_are_good(server: Server, status: int, problem: str) -> None:
    server.statuses = [status]
    assert await ask(server.check()) == problem


async def test_nobody_there_is_a_failure() -> None:
    check = Check(url=f"http://127.0.0.1:{free_port()}/", probe=Probe(port="health"))
    assert "Cannot connect" in await ask(check)


async def test_readiness_comes_at_once_and_goes_after_its_failures(server: Server) -> None:
    told: list[tuple[bool, str]] = []
    enough = asyncio.Event()

    def said(ready: bool, problem: str) -> None:
        told.append((ready, problem))
        if len(told) == 3:
            enough.set()

    server.statuses = [503, 200, 503, 200, 503, 503, 200]
    following = asyncio.create_task(follow_readiness(server.check(failures=2), said))
    await asyncio.wait_for(enough.wait(), 20)
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following
    assert told == [(True, ""), (False, "HTTP probe failed with statuscode: 503"), (True, "")]
