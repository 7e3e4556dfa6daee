"""Watches that continue after failures: on the embedded API server, and on a scripted one."""

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import httpx2
import pytest
from lightkube import AsyncClient, KubeConfig
from lightkube.config.kubeconfig import SingleConfig
from lightkube.config.models import User
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod, Secret
from structlog.testing import capture_logs

from kube_efs.kube import watching
from kube_efs.kube.client import connect
from kube_efs.kube.watching import Applied, Change, Deleted, Listed, follow
from tinykube.api import ApiServer

Handler = Callable[[httpx2.Request], Coroutine[Any, Any, httpx2.Response]]
ClientOf = Callable[[Handler], AsyncClient]


def secret(name: str, *, labels: dict[str, str] | None = None, namespace: str = "default") -> Secret:
    return Secret(metadata=ObjectMeta(name=name, namespace=namespace, labels=labels))


def told(change: Change[Secret]) -> str:
    """A short text for the change."""
    match change:
        case Listed(objects):
            return "listed " + " ".join(sorted(_name(one) for one in objects))
        case Applied(found):
            return f"applied {_name(found)}"
        case Deleted(found):
            return f"deleted {_name(found)}"


def _name(found: Secret) -> str:
    return (found.metadata and found.metadata.name) or ""


class Reader:
    """Reads one change at a time, each within ten seconds."""

    def __init__(self, stream: AsyncGenerator[Change[Secret], None]) -> None:
        self._stream = stream

    async def next(self) -> str:
        async with asyncio.timeout(10):
            return told(await anext(self._stream))


@asynccontextmanager
async def reading(client: AsyncClient, **scope: Any) -> AsyncIterator[Reader]:
    async with aclosing(follow(client, Secret, **{"namespace": "default", **scope})) as stream:
        yield Reader(stream)


async def test_watch_gives_the_list_then_every_change(kube: AsyncClient) -> None:
    await kube.create(secret("a"))
    async with reading(kube) as reader:
        assert await reader.next() == "listed a"
        await kube.create(secret("b"))
        await kube.patch(Secret, "a", {"data": {"k": "dg=="}}, namespace="default")
        await kube.delete(Secret, "b", namespace="default")
        assert [await reader.next() for _ in range(3)] == ["applied b", "applied a", "deleted b"]


@pytest.mark.parametrize(
    ("scope", "seen"),
    [
        pytest.param({"namespace": "default"}, "listed a b", id="one namespace"),
        pytest.param({"namespace": "*"}, "listed a b c", id="all namespaces"),
        pytest.param({"labels": {"component": "x"}}, "listed b", id="a label"),
        pytest.param({"fields": {"metadata.name": "a"}}, "listed a", id="a field"),
    ],
)
async def test_watch_is_limited_to_its_scope(kube: AsyncClient, scope: dict[str, Any], seen: str) -> None:
    for each in (
        secret("a"),
        secret("b", labels={"component": "x"}),
        secret("c", namespace="kube-system"),
    ):
        await kube.create(each)
    async with reading(kube, **scope) as reader:
        assert await reader.next() == seen


async def test_long_list_is_read_page_by_page(client_of: ClientOf) -> None:
    server = _Scripted(
        [_listing("a", "b", version="5", further="page-2"), _listing("c", version="5"), _events()]
    )
    read_at: list[int] = []

    def read(found: Secret) -> str:
        read_at.append(len(server.requests))
        return _name(found)

    async with client_of(server) as client, aclosing(follow(client, Secret, read=read)) as stream:
        assert await anext(stream) == Listed(("a", "b", "c"))
    assert read_at == [1, 1, 2]
    assert [one.get("continue") for one in server.requests] == [None, "page-2"]
    assert {one["limit"] for one in server.requests} == {"500"}


async def test_list_with_expired_pages_is_restarted(client_of: ClientOf) -> None:
    refused = httpx2.Response(410, json={"kind": "Status", "code": 410, "message": "too old"})
    server = _Scripted([_listing("a", version="5", further="page-2"), refused, _listing("b", version="9")])
    async with client_of(server) as client, reading(client) as reader:
        with capture_logs() as logs:
            assert await reader.next() == "listed b"
    assert [one.get("continue") for one in server.requests] == [None, "page-2", None]
    assert [(line["event"], line["resource"]) for line in logs] == [("watch-interrupted", "Secret")]


async def test_reader_converts_the_changed_objects(client_of: ClientOf) -> None:
    server = _Scripted(
        [_listing("a", version="5"), _events(_event("ADDED", "b", "6"), _event("DELETED", "a", "7"))]
    )
    async with client_of(server) as client, aclosing(follow(client, Secret, read=_name)) as stream:
        seen = [await anext(stream) for _ in range(3)]
    assert seen == [Listed(("a",)), Applied("b"), Deleted("a")]


async def test_expired_version_causes_a_new_list(client_of: ClientOf) -> None:
    server = _Scripted(
        [_listing("a", version="5"), _gone(), _listing("b", version="9"), _events(_event("ADDED", "c", "10"))]
    )
    async with client_of(server) as client, reading(client) as reader:
        with capture_logs() as logs:
            assert [await reader.next() for _ in range(3)] == ["listed a", "listed b", "applied c"]
    assert logs == []
    assert server.versions == [None, "5", None, "9"]


async def test_refused_version_causes_a_new_list(client_of: ClientOf) -> None:
    refused = httpx2.Response(410, json={"kind": "Status", "code": 410, "message": "too old"})
    server = _Scripted([_listing("a", version="5"), refused, _listing("b", version="9")])
    async with client_of(server) as client, reading(client) as reader:
        assert [await reader.next() for _ in range(2)] == ["listed a", "listed b"]


async def test_watch_continues_at_the_version_of_a_bookmark(client_of: ClientOf) -> None:
    """Otherwise the version of an object that never changes expires."""
    server = _Scripted(
        [
            _listing("a", version="5"),
            _events(_event("BOOKMARK", "", "90"), end=httpx2.ReadError("cut")),
            _events(_event("ADDED", "b", "91")),
        ]
    )
    async with client_of(server) as client, reading(client) as reader:
        assert [await reader.next() for _ in range(2)] == ["listed a", "applied b"]
    assert server.versions == [None, "5", "90"]
    assert [one.get("allowWatchBookmarks") for one in server.requests] == [None, "true", "true"]


async def test_bookmark_of_a_kind_with_required_fields_is_read(client_of: ClientOf) -> None:
    """As kube-apiserver 1.36 sends it."""
    bookmark = {
        "type": "BOOKMARK",
        "object": {"metadata": {"resourceVersion": "90"}, "spec": {"containers": None}, "status": {}},
    }
    server = _Scripted(
        [
            _listing("a", version="5"),
            _events(bookmark, end=httpx2.ReadError("cut")),
            _events(_event("ADDED", "b", "91")),
        ]
    )
    async with client_of(server) as client, aclosing(follow(client, Pod, namespace="default")) as stream:
        async with asyncio.timeout(10):
            assert [type(await anext(stream)) for _ in range(2)] == [Listed, Applied]
    assert server.versions == [None, "5", "90"]


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(httpx2.ConnectError("refused"), id="connection refused"),
        pytest.param(httpx2.ReadTimeout("slow"), id="no answer in time"),
        pytest.param(httpx2.Response(500, text="broken"), id="a server error"),
        pytest.param(httpx2.Response(403, json={"code": 403}), id="temporarily denied"),
        pytest.param(httpx2.Response(200, text='{"type": "ADDED", "obj'), id="half a line"),
    ],
)
async def test_watch_continues_after_a_failure(
    client_of: ClientOf, fault: httpx2.Response | Exception
) -> None:
    server = _Scripted(
        [
            _listing("a", version="5"),
            _events(_event("ADDED", "b", "6"), end=httpx2.ReadError("cut")),
            fault,
            _events(_event("MODIFIED", "b", "7")),
        ]
    )
    async with client_of(server) as client, reading(client) as reader:
        with capture_logs() as logs:
            assert [await reader.next() for _ in range(3)] == ["listed a", "applied b", "applied b"]
    assert server.versions == [None, "5", "6", "6"]
    assert [(line["event"], line["resource"]) for line in logs] == [("watch-interrupted", "Secret")] * 2


async def test_pauses_grow_while_requests_fail(client_of: ClientOf, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def note(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", note)
    down = httpx2.ConnectError("refused")
    server = _Scripted([*[down] * 10, _listing("a", version="5")])
    async with client_of(server) as client, reading(client) as reader:
        assert await reader.next() == "listed a"
    expected = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0]
    assert [
        0.8 * wanted <= pause <= 1.2 * wanted for pause, wanted in zip(pauses, expected, strict=True)
    ] == [True] * 10


async def test_silently_broken_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_WATCH_SECONDS", (0, 0))
    monkeypatch.setattr(watching, "_GRACE_SECONDS", 0.05)
    # On a busy machine, the grace can be over before the last answer is read. It is then given again.
    answers = itertools.chain(
        (_listing("a", version="5").content, b""),
        itertools.repeat(json.dumps(_event("ADDED", "b", "6")).encode()),
    )
    connections: list[asyncio.Task[None] | None] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send the next answer; a watch stays open, also after the second one, which is nothing."""
        connections.append(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                body = next(answers)
                writer.write(b"HTTP/1.1 200 OK\r\n")
                if body.startswith(b'{"metadata"'):
                    writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
                else:
                    writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
                    if body:
                        writer.write(b"%x\r\n%s\n\r\n" % (len(body) + 1, body))
        writer.close()
        with suppress(ConnectionError):  # of a client that has not read all
            await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        config = KubeConfig.from_server(f"http://127.0.0.1:{port}").get()
        assert config is not None
        async with connect(config._replace(user=User())) as client, reading(client) as reader:
            assert [await reader.next() for _ in range(2)] == ["listed a", "applied b"]
            broken, *_ = connections
            assert broken is not None
            async with asyncio.timeout(10):
                await broken
        await asyncio.gather(*(one for one in connections if one))


async def test_watch_continues_when_the_server_returns(api_server: ApiServer, cluster: SingleConfig) -> None:
    async with connect(cluster) as client, reading(client) as reader:
        assert await reader.next() == "listed "
        await api_server.stop()
        again = ApiServer(host=api_server.host, port=api_server.port, token=api_server.token)
        again._identity = api_server._identity
        async with again:
            await client.create(secret("b"))
            seen = await reader.next()
            while seen not in {"listed b", "applied b"}:
                seen = await reader.next()


async def test_reader_can_be_cancelled(kube: AsyncClient) -> None:
    async with reading(kube) as reader:
        await reader.next()
        waiting = asyncio.create_task(reader.next())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


class _Scripted:
    """Gives the answers in turn; later watches stay open without events."""

    def __init__(self, answers: list[httpx2.Response | Exception]) -> None:
        self._answers = iter(answers)
        self.versions: list[str | None] = []
        self.requests: list[dict[str, str]] = []

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(dict(request.url.params))
        self.versions.append(request.url.params.get("resourceVersion"))
        answer = next(self._answers, None)
        if answer is None:
            return _events()
        if isinstance(answer, Exception):
            raise answer
        return answer


def _listing(*names: str, version: str, further: str | None = None) -> httpx2.Response:
    """A list, or its first page."""
    items = [{"metadata": {"name": name, "resourceVersion": version}} for name in names]
    metadata = {"resourceVersion": version, **({"continue": further} if further else {})}
    return httpx2.Response(200, json={"metadata": metadata, "items": items})


def _event(kind: str, name: str, version: str) -> dict[str, Any]:
    return {"type": kind, "object": {"metadata": {"name": name, "resourceVersion": version}}}


def _gone() -> httpx2.Response:
    return _events({"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}})


def _events(*several: dict[str, Any], end: Exception | None = None) -> httpx2.Response:
    """A watch that gives these events, then fails or stays open."""

    async def lines() -> AsyncIterator[bytes]:
        for one in several:
            yield json.dumps(one).encode() + b"\n"
        if end is not None:
            raise end
        await asyncio.Event().wait()

    return httpx2.Response(200, content=lines())
