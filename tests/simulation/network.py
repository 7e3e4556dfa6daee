"""The connections to the API server: below the client and its retries, with the faults of a run.

A request that was sent is carried out within 60 s, even if its sender ends. The sender waits for the answer
until its own timeout.

This replaces the client's HTTP library, which needs more time for a request than all other parts together.
Requests and answers are values here that look like its own to the client and the retries.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from types import SimpleNamespace
from typing import Any

import httpx2
import msgspec
from lightkube import AsyncClient, KubeConfig
from lightkube.config.models import Cluster, User
from lightkube.core.generic_client import GenericAsyncClient
from tests.simulation.apiserver import Answer, ApiServer, Request, Watch
from tests.simulation.history import History
from tests.simulation.request_faults import Delivery, RequestFaults
from tests.simulation.virtual import Process, State, VirtualLoop, settle

from kube_efs.kube.client import FIELD_MANAGER, PATIENCE_SECONDS, REQUEST_TIMEOUT_SECONDS
from kube_efs.kube.retrying import RetryingTransport

_CONFIG = KubeConfig.from_one(cluster=Cluster(server="http://cluster"), user=User()).get()
_OK = 200
_BAD = 400


class Network(httpx2.AsyncBaseTransport):
    """The connections of one process."""

    def __init__(
        self,
        loop: VirtualLoop,
        process: Process,
        server: ApiServer,
        request_faults: RequestFaults,
        history: History,
    ) -> None:
        self._loop = loop
        self._process = process
        self._server = server
        self._request_faults = request_faults
        self._history = history

    def client(self) -> AsyncClient:
        """A client as ``kube_efs.kube.client.connect`` creates it, with these connections."""
        transport = RetryingTransport(self, PATIENCE_SECONDS, clock=self._loop.time)
        usual: Any = GenericAsyncClient.AdapterClient
        http: Any = staticmethod(lambda *_: _Http(transport, self._process.name))
        GenericAsyncClient.AdapterClient = http
        try:
            return AsyncClient(_CONFIG, field_manager=FIELD_MANAGER)
        finally:
            GenericAsyncClient.AdapterClient = usual

    async def handle_async_request(self, request: Any) -> httpx2.Response:
        """The answer; raises TransportError."""
        if self._process.state is State.DEAD:
            raise httpx2.ConnectError("this process is dead")
        delivery = self._request_faults.delivery(f"{request.method} {request.kind}")
        if delivery.fault:
            self._history.note(
                "{}: {} {} is {}", self._process.name, request.method, request.url.path, _story(delivery)
            )
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._send(request, delivery, future)
        # An answer that arrives during a pause of the process is received after it, as with sockets.
        await asyncio.wait({future}, timeout=request.extensions["timeout"]["read"])
        if not future.done():
            raise httpx2.ReadTimeout("no answer in time")
        return _response(request, future.result())

    def _send(self, request: Request, delivery: Delivery, future: "asyncio.Future[Answer]") -> None:
        sent_at = self._loop.time()

        def arrive(*, is_answered: bool) -> None:
            self._server.sent_at = sent_at
            answer = self._server.serve(request, self._request_faults.lag)
            if is_answered and delivery.answers is not None:
                given = answer if delivery.code is None else _failure(delivery.code)
                self._loop.after(delivery.answers, settle, future, given)

        if delivery.arrives is not None:
            self._loop.after(delivery.arrives, lambda: arrive(is_answered=True))
            if delivery.again is not None and request.method != "GET":
                self._loop.after(delivery.arrives + delivery.again, lambda: arrive(is_answered=False))
            if delivery.answers is None:
                lost = httpx2.ReadError("connection reset")
                self._loop.after(delivery.arrives + 0.01, settle, future, lost)
        elif delivery.code is not None:
            self._loop.after(delivery.answers or 0.0, settle, future, _failure(delivery.code))
        else:
            self._loop.after(delivery.answers or 0.0, settle, future, httpx2.ReadError("connection reset"))


class _Http:
    """The parts of the HTTP library that the client uses."""

    def __init__(self, transport: httpx2.AsyncBaseTransport, author: str) -> None:
        self._transport = transport
        self._author = author

    def build_request(
        self,
        method: str,
        url: str,
        *,
        params: Mapping[str, Any] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: Any = httpx2.USE_CLIENT_DEFAULT,
    ) -> Request:
        seconds = REQUEST_TIMEOUT_SECONDS if timeout is httpx2.USE_CLIENT_DEFAULT else timeout.read
        return Request(
            method=method,
            url=SimpleNamespace(path=f"/{url}"),
            params={key: str(value) for key, value in (params or {}).items()},
            content=content or b"",
            content_type=(headers or {}).get("Content-Type", ""),
            author=self._author,
            extensions={"timeout": {"read": seconds}},
        )

    async def send(self, request: Any, *, stream: bool = False) -> httpx2.Response:
        return await self._transport.handle_async_request(request)

    async def aclose(self) -> None:
        await self._transport.aclose()


class _Response(httpx2.Response):
    """A successful answer, without the expensive parts of the library's own."""

    def __init__(self, request: Request, code: int, content: bytes, watch: Watch | None) -> None:
        self.status_code = code
        self._content = content
        self._watch = watch
        self._read_seconds = request.extensions["timeout"]["read"]
        self.headers = {}  # type: ignore[assignment]

    def raise_for_status(self) -> httpx2.Response:
        return self

    async def aiter_lines(self) -> AsyncIterator[str]:
        for line in self._content.decode().splitlines():
            yield line

    async def aiter_bytes(self, _chunk_size: int | None = None) -> AsyncGenerator[bytes, None]:
        if self._watch is None:
            yield self._content
            return
        lines = aiter(self._watch)
        while True:
            try:
                async with asyncio.timeout(self._read_seconds):
                    found = await anext(lines, None)
            except TimeoutError as error:
                raise httpx2.ReadTimeout("nothing has arrived") from error
            if found is None:
                return
            yield found

    async def aclose(self) -> None:
        if self._watch is not None:
            await self._watch.aclose()


def _response(request: Request, answer: Answer) -> httpx2.Response:
    if answer.code < _BAD:
        return _Response(request, answer.code, answer.content, answer.watch)
    headers = {"Content-Type": "application/json"}
    if answer.code in {429, 503}:
        headers["Retry-After"] = "1"
    asked = httpx2.Request(request.method, f"http://cluster{request.url.path}")
    return httpx2.Response(answer.code, headers=headers, content=answer.content, request=asked)


def _failure(code: int) -> Answer:
    status = {"apiVersion": "v1", "kind": "Status", "code": code, "message": "a fault of the simulation"}
    return Answer(code, msgspec.json.encode(status))


def _story(delivery: Delivery) -> str:
    again = f", and again after {delivery.again:.1f} s" if delivery.again is not None else ""
    if delivery.arrives is None:
        return f"{delivery.fault}{again}"
    code = f", answered {delivery.code}" if delivery.code else ""
    return f"{delivery.fault}: done after {delivery.arrives:.1f} s{again}{code}"
