"""Sends requests to an API server and records its answers."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import aiohttp
import yaml

from tiny_ca.authority import trusting

Json: TypeAlias = dict[str, Any]

JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"

_ANSWER_SECONDS = 60.0
_POLL_SECONDS = 0.05
_GROUPS: Mapping[str, str] = {
    "clusterroles": "rbac.authorization.k8s.io/v1",
    "csidrivers": "storage.k8s.io/v1",
    "csinodes": "storage.k8s.io/v1",
    "customresourcedefinitions": "apiextensions.k8s.io/v1",
    "daemonsets": "apps/v1",
    "deployments": "apps/v1",
    "leases": "coordination.k8s.io/v1",
    "rolebindings": "rbac.authorization.k8s.io/v1",
    "roles": "rbac.authorization.k8s.io/v1",
    "statefulsets": "apps/v1",
    "storageclasses": "storage.k8s.io/v1",
}
_CLUSTER_SCOPED = frozenset(
    {
        "clusterroles",
        "csidrivers",
        "csinodes",
        "customresourcedefinitions",
        "namespaces",
        "nodes",
        "persistentvolumes",
        "storageclasses",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a server to a request; the body of a watch is the list of its events."""

    exchange: str
    status: int
    content_type: str
    warnings: tuple[str, ...]
    body: Any


class Server:
    """An API server that stories are sent to."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._session = session

    @classmethod
    @asynccontextmanager
    async def of(cls, kubeconfig: str) -> AsyncIterator["Server"]:
        """The server of this kubeconfig, with its user."""
        config = yaml.safe_load(kubeconfig)
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        headers = {"Authorization": f"Bearer {user['token']}", "User-Agent": "differential/1"}
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=trusting(authority)),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=_ANSWER_SECONDS),
        ) as session:
            yield cls(cluster["server"], session)

    def request(self, method: str, path: str, **options: Any) -> Any:
        """A response of the library, used as a context."""
        return self._session.request(method, self._url + path, **options)


class Player:
    """Sends a story to a server, in its own namespace, and records every answer."""

    def __init__(self, server: Server, namespace: str) -> None:
        self.namespace = namespace
        self.answers: list[Answer] = []
        self._server = server

    async def begin(self) -> None:
        """Create the namespace."""
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
        made = await self._ask("", "POST", "namespaces", body, {}, JSON, JSON)
        assert made.status == 201, made

    def path(self, short: str) -> str:
        """The path for ``plural[/name[/subresource]]``; a path with a leading slash is already complete."""
        if short.startswith("/"):
            return short
        plural = short.partition("/")[0]
        group = _GROUPS.get(plural)
        prefix = f"/apis/{group}" if group else "/api/v1"
        scope = "" if plural in _CLUSTER_SCOPED else f"/namespaces/{self.namespace}"
        return f"{prefix}{scope}/{short}"

    async def get(
        self, exchange: str, path: str, query: Mapping[str, str] | None = None, *, accept: str = JSON
    ) -> Any:
        """Get the object or the list at a path."""
        return await self.send(exchange, "GET", path, query=query, accept=accept)

    async def create(
        self, exchange: str, path: str, body: Json, query: Mapping[str, str] | None = None
    ) -> Any:
        """Create an object."""
        return await self.send(exchange, "POST", path, body, query=query)

    async def put(self, exchange: str, path: str, body: Json, query: Mapping[str, str] | None = None) -> Any:
        """Replace an object."""
        return await self.send(exchange, "PUT", path, body, query=query)

    async def patch(
        self,
        exchange: str,
        path: str,
        patch: Any,
        query: Mapping[str, str] | None = None,
        *,
        content_type: str = MERGE_PATCH,
    ) -> Any:
        """Patch an object."""
        return await self.send(exchange, "PATCH", path, patch, query=query, content_type=content_type)

    async def apply(
        self, exchange: str, path: str, body: Json, *, manager: str = "first", force: bool = False
    ) -> Any:
        """Apply an object server-side."""
        query = {"fieldManager": manager, **({"force": "true"} if force else {})}
        return await self.send(exchange, "PATCH", path, body, query=query, content_type=APPLY)

    async def delete(
        self,
        exchange: str,
        path: str,
        options: Json | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Any:
        """Delete an object or a collection."""
        return await self.send(exchange, "DELETE", path, options, query=query)

    async def send(
        self,
        exchange: str,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> Any:
        """Send a request, and record its answer under the name of the exchange; returns the body."""
        answer = await self._ask(exchange, method, path, body, query or {}, content_type, accept)
        self.answers.append(answer)
        return answer.body

    async def until(self, exchange: str, path: str, holds: Callable[[Any], bool]) -> Any:
        """Wait until the object at a path meets the condition; only that answer is recorded."""
        answer = await self._once(exchange, path, holds)
        self.answers.append(answer)
        return answer.body

    async def settle(self, path: str, holds: Callable[[Any], bool], *, trial: Json | None = None) -> None:
        """Wait until the object at a path meets the condition; no answer is recorded.

        With a ``trial``, it is a dry run: the object that the collection at the path would create.
        """
        await self._once(path, path, holds, trial)

    async def _once(
        self, exchange: str, path: str, holds: Callable[[Any], bool], trial: Json | None = None
    ) -> Answer:
        method, query = ("GET", {}) if trial is None else ("POST", {"dryRun": "All"})
        answer: Answer | None = None
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                while answer is None or not holds(answer.body):
                    await asyncio.sleep(0 if answer is None else _POLL_SECONDS)
                    answer = await self._ask(exchange, method, path, trial, query, JSON, JSON)
        except TimeoutError:
            raise AssertionError(f"{exchange} did not come true: {answer}") from None
        return answer

    async def watch(
        self,
        exchange: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        events: int,
        accept: str = JSON,
    ) -> list[Json]:
        """The first events of a watch; fewer if the server ends it."""
        parameters = {"watch": "true", **(query or {})}
        async with self._server.request(
            "GET", self.path(path), params=parameters, headers={"Accept": accept}
        ) as answer:
            seen: list[Json] = []
            while len(seen) < events and (line := await answer.content.readline()):
                seen.append(json.loads(line))
            self.answers.append(_answer(exchange, answer, seen))
        return seen

    async def _ask(
        self,
        exchange: str,
        method: str,
        path: str,
        body: Any,
        query: Mapping[str, str],
        content_type: str,
        accept: str,
    ) -> Answer:
        headers = {"Accept": accept, **({} if body is None else {"Content-Type": content_type})}
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        async with self._server.request(
            method, self.path(path), params=query, data=content, headers=headers
        ) as answer:
            text = await answer.text()
            is_json = answer.headers.get("Content-Type", "").startswith(JSON)
            return _answer(exchange, answer, json.loads(text) if is_json else text)


def _answer(exchange: str, answer: aiohttp.ClientResponse, body: Any) -> Answer:
    return Answer(
        exchange=exchange,
        status=answer.status,
        content_type=answer.headers.get("Content-Type", ""),
        warnings=tuple(answer.headers.getall("Warning", ())),
        body=body,
    )
