"""Events: what a person sees in ``kubectl describe``.

Written in the background, so that nothing waits for them, and merged: a repeated event of an object
counts up the one that is there, as every Kubernetes component does it.
"""

import asyncio
import hashlib
from collections import OrderedDict
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from types import TracebackType
from typing import Self

import structlog
from lightkube import AsyncClient
from lightkube.models.core_v1 import EventSource, ObjectReference
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Event
from lightkube.types import PatchType

from kube_efs.kube.errors import translated
from kube_efs.model.errors import KubeError, KubeNotFound

log = structlog.get_logger(__name__)

_MESSAGE_MAX_CHARACTERS = 1024  # core/v1 Event, field message
_REMEMBERED = 4096
_WAITING_MAX = 10_000
_WRITERS = 4
_FLUSH_SECONDS = 2.0


class EventType(StrEnum):
    """``type`` of an event."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The object that an event is about; ``namespace`` is empty for kinds without namespaces."""

    api_version: str
    kind: str
    name: str
    uid: str
    namespace: str = ""
    resource_version: str = ""


@dataclass(frozen=True, slots=True)
class _Entry:
    subject: Subject
    type: EventType
    reason: str
    message: str

    @property
    def key(self) -> str:
        text = "\0".join((self.subject.uid, self.type, self.reason, self.message))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class EventRecorder(AbstractAsyncContextManager["EventRecorder"]):
    """Writes events under one component's name; use as ``async with``, which flushes at the end."""

    def __init__(self, client: AsyncClient, *, component: str, host: str = "") -> None:
        self._client = client
        self._source = EventSource(component=component, host=host or None)
        self._component = component
        self._instance = host or component
        self._waiting: asyncio.Queue[_Entry] = asyncio.Queue(maxsize=_WAITING_MAX)
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._write_all()) for _ in range(_WRITERS)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            async with asyncio.timeout(_FLUSH_SECONDS):
                await self._waiting.join()
        except TimeoutError:
            log.warning(
                "events-dropped",
                count=self._waiting.qsize(),
                reason="the API server did not take them in time",
            )
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def publish(self, subject: Subject, kind: EventType, reason: str, message: str) -> None:
        """Write that event soon. Never waits and never fails; what cannot be written is logged."""
        entry = _Entry(subject, kind, reason, message[:_MESSAGE_MAX_CHARACTERS])
        try:
            self._waiting.put_nowait(entry)
        except asyncio.QueueFull:
            log.warning("event-dropped", object=subject.name, reason=reason)

    async def _write_all(self) -> None:
        while True:
            entry = await self._waiting.get()
            try:
                await self._write(entry)
            except KubeError as error:
                log.warning(
                    "event-not-written",
                    object=entry.subject.name,
                    event_reason=entry.reason,
                    error=str(error),
                )
            finally:
                self._waiting.task_done()

    async def _write(self, entry: _Entry) -> None:
        count = self._counts.pop(entry.key, 0) + 1
        self._counts[entry.key] = count
        if len(self._counts) > _REMEMBERED:
            self._counts.popitem(last=False)
        if count > 1:
            try:
                await self._count_up(entry, count)
            except KubeNotFound:
                self._counts[entry.key] = 1
            else:
                return
        with translated(f"event {entry.reason} of {entry.subject.name}"):
            await self._client.create(self._build(entry))

    async def _count_up(self, entry: _Entry, count: int) -> None:
        patch = {"count": count, "lastTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
        with translated(f"event {entry.reason} of {entry.subject.name}"):
            await self._client.patch(
                Event, self._name(entry), patch, namespace=_namespace(entry), patch_type=PatchType.MERGE
            )

    def _name(self, entry: _Entry) -> str:
        return f"{entry.subject.name[:200]}.{entry.key}"

    def _build(self, entry: _Entry) -> Event:
        subject, now = entry.subject, datetime.now(UTC)
        return Event(
            metadata=ObjectMeta(name=self._name(entry), namespace=_namespace(entry)),
            involvedObject=ObjectReference(
                apiVersion=subject.api_version,
                kind=subject.kind,
                namespace=subject.namespace or None,
                name=subject.name,
                uid=subject.uid,
                resourceVersion=subject.resource_version or None,
            ),
            type=str(entry.type),
            reason=entry.reason,
            message=entry.message,
            source=self._source,
            reportingComponent=self._component,
            reportingInstance=self._instance,
            count=1,
            firstTimestamp=now,
            lastTimestamp=now,
        )


def _namespace(entry: _Entry) -> str:
    # Events of objects without a namespace live in "default", by Kubernetes' convention.
    return entry.subject.namespace or "default"
