"""The embedded API server's HTTP, where clients' libraries would hide it."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tiny_ca.authority import trusting
from tinykube.api import ApiServer

DEADLINE_SECONDS = 60.0
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as started:
        yield started


@pytest.fixture
async def http(server: ApiServer) -> AsyncIterator[aiohttp.ClientSession]:
    context = trusting(server.ca_pem.decode())
    async with aiohttp.ClientSession(
        server.url,
        headers={"Authorization": f"Bearer {server.token}"},
        connector=aiohttp.TCPConnector(ssl=context),
        timeout=aiohttp.ClientTimeout(total=DEADLINE_SECONDS),
    ) as session:
        yield session


async def create(http: aiohttp.ClientSession, name: str, **data: str) -> Any:
    async with http.post(CONFIG_MAPS, json={"metadata": {"name": name}, "data": data}) as response:
        assert response.status == 201
        return await response.json()


async def get(http: aiohttp.ClientSession, path: str, accept: str = "application/json") -> Any:
    async with http.get(path, headers={"Accept": accept}) as response:
        assert response.status == 200, await response.text()
        return await response.json(content_type=None)


@pytest.mark.parametrize("header", ["", "Bearer wrong", "Basic dXNlcjpwYXNz"], ids=["none", "wrong", "basic"])
async def test_nobody_gets_in_without_the_token(http: aiohttp.ClientSession, header: str) -> None:
    async with http.get("/api/v1/namespaces", headers={"Authorization": header}) as response:
        assert response.status == 401
        assert await response.json() == {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": "Unauthorized",
            "reason": "Unauthorized",
            "code": 401,
        }


async def test_the_certificate_is_checked_by_the_servers_own_authority(server: ApiServer) -> None:
    async with aiohttp.ClientSession(server.url) as session:
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await session.get("/healthz")


async def test_health_and_version_are_for_everybody(http: aiohttp.ClientSession) -> None:
    for path in ("/healthz", "/livez", "/readyz"):
        async with http.get(path, headers={"Authorization": ""}) as response:
            assert (response.status, await response.text()) == (200, "ok")
    async with http.get("/version", headers={"Authorization": ""}) as response:
        assert (await response.json())["major"] == "1"


@pytest.mark.parametrize("path", ["/apis/example.com/v1", "/apis/example.com/v1/things", "/nowhere"])
async def test_what_is_not_served_is_not_found(http: aiohttp.ClientSession, path: str) -> None:
    async with http.get(path) as response:
        assert (response.status, await response.text()) == (404, "404 page not found\n")


@pytest.mark.parametrize("path", ["/api/v1/things", "/apis/apps/v1/things", "/api/v1/nodes/n/log"])
async def test_what_a_built_in_version_lacks_is_answered_with_a_status(
    http: aiohttp.ClientSession, path: str
) -> None:
    async with http.get(path) as response:
        assert response.status == 404
        assert (await response.json())["message"] == "the server could not find the requested resource"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", CONFIG_MAPS),
        ("POST", f"{CONFIG_MAPS}/a"),
        ("POST", "/api/v1/configmaps"),
        ("DELETE", "/api/v1/namespaces"),
        ("GET", "/apis/authentication.k8s.io/v1/selfsubjectreviews"),
        ("DELETE", "/api/v1/namespaces/default/pods/a/status"),
    ],
)
async def test_methods_that_do_not_fit_are_refused(
    http: aiohttp.ClientSession, method: str, path: str
) -> None:
    async with http.request(method, path, json={}) as response:
        assert response.status == 405
        assert (await response.json())["reason"] == "MethodNotAllowed"


async def test_items_of_built_in_lists_come_without_their_type(http: aiohttp.ClientSession) -> None:
    created = await create(http, "a", colour="red")
    found = await get(http, CONFIG_MAPS)
    assert (found["kind"], found["apiVersion"]) == ("ConfigMapList", "v1")
    del created["kind"], created["apiVersion"]
    assert found["items"] == [created]


async def test_tables_are_served_on_request(http: aiohttp.ClientSession) -> None:
    await create(http, "a", colour="red")
    table = await get(http, f"{CONFIG_MAPS}?includeObject=Object", TABLE)
    assert table["kind"] == "Table"
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Age"]
    assert table["rows"][0]["cells"][0] == "a"
    assert table["rows"][0]["object"]["kind"] == "ConfigMap"


async def read_event(response: aiohttp.ClientResponse) -> Any:
    async with asyncio.timeout(DEADLINE_SECONDS):
        return json.loads(await response.content.readline())


async def test_watch_events_arrive_at_once_as_lines(http: aiohttp.ClientSession) -> None:
    async with http.get(f"{CONFIG_MAPS}?watch=1") as response:
        assert response.headers["Transfer-Encoding"] == "chunked"
        created = await create(http, "a", colour="red")
        assert await read_event(response) == {"type": "ADDED", "object": created}


async def test_only_the_first_table_of_a_watch_has_column_heads(http: aiohttp.ClientSession) -> None:
    async with http.get(f"{CONFIG_MAPS}?watch=1", headers={"Accept": TABLE}) as response:
        await create(http, "a")
        await create(http, "b")
        first, second = await read_event(response), await read_event(response)
        assert first["object"]["columnDefinitions"]
        assert second["object"]["columnDefinitions"] is None
        assert second["object"]["rows"][0]["cells"][0] == "b"


async def test_a_watch_from_a_forgotten_version_ends_with_an_error_event(
    server: ApiServer, http: aiohttp.ClientSession
) -> None:
    version = (await create(http, "a"))["metadata"]["resourceVersion"]
    await create(http, "b")
    server.compact()
    async with http.get(f"{CONFIG_MAPS}?watch=1&resourceVersion={version}") as response:
        assert response.status == 200
        event = await read_event(response)
        assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
        assert event["object"]["reason"] == "Expired"
        assert await response.content.read() == b""


async def test_a_watch_ends_after_its_time(http: aiohttp.ClientSession) -> None:
    async with http.get(f"{CONFIG_MAPS}?watch=1&timeoutSeconds=1") as response:
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert await response.content.read() == b""


async def test_a_slow_watcher_holds_nobody_up(http: aiohttp.ClientSession) -> None:
    async with http.get(f"{CONFIG_MAPS}?watch=1") as slow:
        for number in range(200):
            await create(http, f"n{number}", text="x" * 10_000)
        assert (await read_event(slow))["object"]["metadata"]["name"] == "n0"


async def test_deletions_answer_with_a_status_or_the_object(http: aiohttp.ClientSession) -> None:
    uid = (await create(http, "a"))["metadata"]["uid"]
    async with http.delete(f"{CONFIG_MAPS}/a") as response:
        assert response.status == 200
        answer = await response.json()
        assert (answer["status"], answer["details"]) == (
            "Success",
            {"name": "a", "kind": "configmaps", "uid": uid},
        )
    async with http.delete("/api/v1/namespaces/default/serviceaccounts/default") as response:
        assert (await response.json())["kind"] == "ServiceAccount"


async def test_a_collection_is_deleted_by_selector(http: aiohttp.ClientSession) -> None:
    for name in ("a", "b"):
        body = {"metadata": {"name": name, "labels": {"name": name}}}
        async with http.post(CONFIG_MAPS, json=body) as response:
            assert response.status == 201
    async with http.delete(f"{CONFIG_MAPS}?labelSelector=name=a") as response:
        assert (await response.json())["kind"] == "ConfigMapList"
    assert [one["metadata"]["name"] for one in (await get(http, CONFIG_MAPS))["items"]] == ["b"]


async def test_discovery_names_groups_and_resources(http: aiohttp.ClientSession) -> None:
    assert (await get(http, "/api"))["versions"] == ["v1"]
    groups = {group["name"] for group in (await get(http, "/apis"))["groups"]}
    assert {"apps", "storage.k8s.io", "apiextensions.k8s.io"} <= groups
    names = {one["name"] for one in (await get(http, "/api/v1"))["resources"]}
    assert {"pods", "pods/status", "pods/log", "namespaces/finalize"} <= names


async def test_openapi_tells_kubectl_which_parameters_patches_take(http: aiohttp.ClientSession) -> None:
    index = await get(http, "/openapi/v3")
    document = await get(http, index["paths"]["api/v1"]["serverRelativeURL"])
    patch = document["paths"]["/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}"]["patch"]
    assert {"fieldValidation", "dryRun"} <= {parameter["name"] for parameter in patch["parameters"]}
    assert patch["x-kubernetes-group-version-kind"]["kind"] == "PersistentVolumeClaim"


async def test_bodies_that_are_too_large_are_refused(http: aiohttp.ClientSession) -> None:
    async with http.post(CONFIG_MAPS, data=io.BytesIO(b"x" * 4_000_000)) as response:
        assert response.status == 413
        assert (await response.json())["reason"] == "RequestEntityTooLarge"
