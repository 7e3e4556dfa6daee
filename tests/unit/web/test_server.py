"""The page over HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict

import aiohttp
import pytest
from tests.unit.web.sample import report

from kube_efs.model.errors import InvalidSetting, KubeDenied, KubeEfsError
from kube_efs.report.values import ClusterReport
from kube_efs.web import server
from kube_efs.web.server import Sources, StatusPage


class World:
    """A cluster that counts readings, and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.looks = 0
        self.error: KubeEfsError | None = None
        self.hangs = False

    async def read(self) -> ClusterReport:
        self.looks += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.error:
            raise self.error
        return report()

    @asynccontextmanager
    async def served(self, host: str = "127.0.0.1") -> AsyncIterator[str]:
        sources = Sources(read=self.read)
        async with StatusPage(host, 0, sources, clock=lambda: self.now) as page:
            yield f"http://127.0.0.1:{page.port}"


@pytest.fixture
async def web() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
def world() -> World:
    return World()


async def test_json_is_that_of_the_status_command(world: World, web: aiohttp.ClientSession) -> None:
    async with world.served() as url, web.get(f"{url}/status.json") as answer:
        assert answer.content_type == "application/json"
        assert await answer.json() == json.loads(json.dumps(asdict(report())))


async def test_headers_forbid_scripts_loading_and_caching(world: World, web: aiohttp.ClientSession) -> None:
    async with world.served() as url:
        for path in ("/", "/status.json", "/none"):
            async with web.get(f"{url}{path}") as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert policy.startswith("default-src 'none'; style-src 'sha256-")
                assert "script-src" not in policy
                assert "unsafe" not in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert answer.headers["Cache-Control"] == "no-store"
                assert answer.headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_only_reads_are_allowed(world: World, web: aiohttp.ClientSession, method: str) -> None:
    async with world.served() as url, web.request(method, url) as answer:
        assert answer.status == 405
    assert world.looks == 0


async def test_cluster_is_read_at_most_once_in_an_interval(world: World, web: aiohttp.ClientSession) -> None:
    async with world.served() as url:

        async def look() -> int:
            async with web.get(url) as answer:
                return answer.status

        assert await asyncio.gather(*(look() for _ in range(20))) == [200] * 20
        assert world.looks == 1
        world.now = 9.9
        await look()
        assert world.looks == 1
        world.now = 10
        await look()
        assert world.looks == 2


async def test_last_report_is_shown_while_the_cluster_cannot_be_read(
    world: World, web: aiohttp.ClientSession
) -> None:
    async with world.served() as url:
        async with web.get(url) as answer:
            assert "the data is outdated" not in await answer.text()
        world.now, world.error = 60, KubeDenied("may not be listed", field="events", value="*")
        async with web.get(url) as answer:
            assert answer.status == 200
            assert "the data is outdated: events: &#x27;*&#x27; may not be listed" in await answer.text()
        world.now, world.error = 120, None
        async with web.get(url) as answer:
            assert "the data is outdated" not in await answer.text()


@pytest.mark.parametrize("path", ["/", "/status.json"])
async def test_server_without_a_report_answers_with_the_reason(
    world: World, web: aiohttp.ClientSession, path: str
) -> None:
    world.error = KubeDenied("may not be listed", field="events", value="all")
    async with world.served() as url, web.get(f"{url}{path}") as answer:
        assert answer.status == 503
        assert "may not be listed" in await answer.text()


async def test_answer_does_not_wait_for_a_cluster_that_does_not_answer(
    world: World, web: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_PATIENCE_SECONDS", 0.05)
    world.hangs = True
    async with world.served() as url, web.get(url) as answer:
        assert answer.status == 503
        assert "the cluster did not answer within 0.05 s" in await answer.text()


@pytest.mark.parametrize(
    ("host", "name", "status"),
    [
        pytest.param("127.0.0.1", "localhost:9814", 200, id="forwarded port"),
        pytest.param("127.0.0.1", "127.0.0.1:1", 200, id="address itself"),
        pytest.param("127.0.0.1", "[::1]:9814", 200, id="other loopback"),
        pytest.param("127.0.0.1", "localhost", 200, id="without a port"),
        pytest.param("127.0.0.1", "[::1]", 200, id="other loopback without a port"),
        pytest.param("127.0.0.1", "evil.example.com:9814", 403, id="name that resolves to loopback"),
        pytest.param("127.0.0.1", "localhost.evil.example.com", 403, id="name that resembles loopback"),
        pytest.param("0.0.0.0", "status.example.com", 200, id="page on all interfaces"),
    ],
)
async def test_other_host_names_are_rejected_on_loopback(
    world: World, web: aiohttp.ClientSession, host: str, name: str, status: int
) -> None:
    async with world.served(host) as url, web.get(url, headers={"Host": name}) as answer:
        assert answer.status == status


async def test_port_in_use_is_an_invalid_setting(world: World) -> None:
    async with world.served() as url:
        port = int(url.rpartition(":")[2])
        with pytest.raises(InvalidSetting, match="cannot be bound"):
            async with StatusPage("127.0.0.1", port, Sources(read=world.read)):
                pass
