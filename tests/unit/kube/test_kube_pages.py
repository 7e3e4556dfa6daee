"""Only a few pages of lists are read at a time, whatever the callers do."""

import asyncio
from collections.abc import AsyncIterator

import httpx2
import pytest
from lightkube import AsyncClient, KubeConfig
from lightkube.config.models import Cluster, User
from lightkube.resources.core_v1 import Pod

from kube_efs.kube.answers import DecodableTransport

pytestmark = pytest.mark.virtual_time

_LAST_PAGE = 2
_ONE = {"metadata": {"name": "one", "resourceVersion": "1"}, "spec": {"containers": []}}


class Endless(httpx2.AsyncByteStream):
    """A body of which some more arrives again and again."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(20)


class Server(httpx2.AsyncBaseTransport):
    """Each namespace has three pages of pods, and each answer takes a second, or never ends."""

    def __init__(self) -> None:
        self.is_stuck = False
        self.running = self.running_most = 0
        self.unfinished: set[str] = set()
        self.unfinished_most = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if "limit" not in request.url.params:
            return httpx2.Response(200, json=_ONE)
        if self.is_stuck:
            return httpx2.Response(200, headers={"Content-Type": "application/json"}, stream=Endless())
        page = int(request.url.params.get("continue", 0))
        self.unfinished.add(request.url.path)
        self.unfinished_most = max(self.unfinished_most, len(self.unfinished))
        self.running += 1
        self.running_most = max(self.running_most, self.running)
        await asyncio.sleep(1)
        self.running -= 1
        if page == _LAST_PAGE:
            self.unfinished.remove(request.url.path)
        rest = {} if page == _LAST_PAGE else {"continue": str(page + 1)}
        return httpx2.Response(200, json={"metadata": rest, "items": [_ONE]})


class Client:
    """A client of the server."""

    def __init__(self) -> None:
        cluster = Cluster(server="http://cluster.example")
        self.server = Server()
        self.kube = AsyncClient(
            KubeConfig.from_one(cluster=cluster, user=User(token="secret")),
            transport=DecodableTransport(self.server),
        )

    async def pods(self, namespace: object) -> int:
        """The number of pods in the namespace."""
        return len([one async for one in self.kube.list(Pod, namespace=str(namespace), chunk_size=500)])


async def test_few_pages_are_read_at_a_time_and_lists_that_have_begun_come_first() -> None:
    client, loop = Client(), asyncio.get_running_loop()
    began = loop.time()
    # A list keeps the objects of a page until it has the next one.
    assert await asyncio.gather(*map(client.pods, range(20))) == [3] * 20
    assert (client.server.running_most, client.server.unfinished_most) == (4, 4)
    assert loop.time() - began == pytest.approx(15)


async def test_stuck_pages_keep_no_single_object_waiting_and_end() -> None:
    client, loop = Client(), asyncio.get_running_loop()
    client.server.is_stuck = True
    stuck = [asyncio.create_task(client.pods(number)) for number in range(4)]
    await asyncio.sleep(1)
    client.server.is_stuck = False
    cancelled = asyncio.create_task(client.pods("cancelled"))
    waiting = asyncio.create_task(client.pods("waiting"))
    began = loop.time()
    assert (await client.kube.get(Pod, "one", namespace="other")).metadata
    assert [one async for one in client.kube.list(Pod, namespace="other", chunk_size=1)]
    assert loop.time() - began == pytest.approx(3)
    cancelled.cancel()
    assert await waiting == 3
    assert loop.time() - began < 70
    failures = await asyncio.gather(*stuck, return_exceptions=True)
    assert {type(one) for one in failures} == {httpx2.ReadTimeout}


async def test_cancelled_lists_let_others_read() -> None:
    client = Client()
    for pause in (0.0, 0.5, 1.5):
        lists = [asyncio.create_task(client.pods(number)) for number in range(20)]
        await asyncio.sleep(pause)
        for one in lists:
            one.cancel()
        await asyncio.gather(*lists, return_exceptions=True)
        client.server.running, client.server.unfinished = 0, set()
    assert await asyncio.gather(*map(client.pods, range(8))) == [3] * 8
    assert client.server.running_most == 4
