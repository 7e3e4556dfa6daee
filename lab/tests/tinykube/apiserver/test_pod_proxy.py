"""What programs in pods answer, through the API server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from tinykube.api import ApiServer
from tinykube.api.paths import parse_resource_path
from tinykube.api.pod_proxy import Door, parse_door
from tinykube.objects.json_types import Json
from tinykube.objects.statuses import ApiError
from tinykube.ports import free_port


@pytest.mark.parametrize(
    ("text", "door"),
    [
        ("web", Door("http", "web", None)),
        ("web:80", Door("http", "web", 80)),
        ("https:web:443", Door("https", "web", 443)),
        ("https:web:", Door("https", "web", None)),
        ("http", Door("http", "http", None)),
    ],
)
def test_doors(text: str, door: Door) -> None:
    assert parse_door(text) == door


@pytest.mark.parametrize("text", ["", ":80", "web:none", "web:70000", "a:b:c", "http:web:80:1"])
def test_what_is_no_door(text: str) -> None:
    with pytest.raises(ApiError, match="name it as") as caught:
        parse_door(text)
    assert caught.value.code == 400


def test_only_a_proxy_has_a_path_below_it() -> None:
    found = parse_resource_path("/api/v1/namespaces/team/pods/web:80/proxy/a/b%20c/")
    assert found is not None
    assert (found.name, found.subresource, found.beyond) == ("web:80", "proxy", "a/b%20c/")
    assert parse_resource_path("/api/v1/namespaces/team/pods/web/log/more") is None
    inside = parse_resource_path("/api/v1/namespaces/proxy/pods/proxy/log")
    assert inside is not None
    assert (inside.namespace, inside.name, inside.subresource, inside.beyond) == ("proxy", "proxy", "log", "")


@asynccontextmanager
async def _program(port: int) -> AsyncIterator[None]:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=207, text=request.path_qs, headers={"X-Own": "yes"})

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield
    finally:
        await runner.cleanup()


async def test_answers_come_from_the_pod_and_its_absence_is_told() -> None:
    port = free_port()
    container = {"name": "main", "image": "any", "ports": [{"containerPort": port}]}
    body: Json = {"metadata": {"name": "web"}, "spec": {"containers": [container]}}
    async with ApiServer() as server:
        pods = f"{server.url}/api/v1/namespaces/default/pods"
        headers = {"Authorization": f"Bearer {server.token}"}
        async with aiohttp.ClientSession(headers=headers, raise_for_status=False) as session:

            async def get(path: str) -> tuple[int, str, str]:
                async with session.get(f"{pods}/{path}", ssl=False) as answer:
                    return answer.status, await answer.text(), answer.headers.get("X-Own", "")

            async with session.post(pods, json=body, ssl=False) as made:
                assert made.status == 201
            assert (await get("web/proxy/"))[0] == 400
            addressed = {**body, "status": {"podIP": "127.0.0.1"}}
            async with session.put(f"{pods}/web/status", json=addressed, ssl=False) as written:
                assert written.status == 200
            refused = await get(f"web:{port}/proxy/")
            assert refused[0] == 503
            assert "error trying to reach service" in refused[1]
            async with _program(port):
                assert await get(f"http:web:{port}/proxy/a/b?c=d") == (207, "/a/b?c=d", "yes")
                assert (await get("web/proxy"))[:2] == (207, "/")
            assert (await get("none:80/proxy/"))[0] == 404
