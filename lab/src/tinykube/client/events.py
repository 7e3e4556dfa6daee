"""Events: what a person sees in ``kubectl describe``."""

import asyncio
import time
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

import structlog
from lightkube import AsyncClient
from lightkube.models.core_v1 import EventSource, ObjectReference
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Event

from tinykube.client.calls import CALL_ERRORS

log = structlog.get_logger(__name__)

_MESSAGE_MAX_CHARACTERS = 1024  # core/v1 Event, field message
_FLUSH_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    about: ObjectReference
    type: str
    reason: str
    message: str


class EventRecorder(AbstractAsyncContextManager["EventRecorder"]):
    """Writes events under one component's name, in the background; the end of its context flushes.

    The same event about the same object is written once.
    """

    def __init__(self, client: AsyncClient, *, component: str, host: str = "") -> None:
        self._client = client
        self._source = EventSource(component=component, host=host or None)
        self._entries: asyncio.Queue[_Entry] = asyncio.Queue()
        self._written: set[tuple[str | None, str, str]] = set()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._write_all())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_SECONDS):
                await self._entries.join()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def publish(self, about: ObjectReference, reason: str, message: str, *, warning: bool = False) -> None:
        """Write that event soon. Never waits and never fails; what cannot be written is logged."""
        kind = "Warning" if warning else "Normal"
        message = message[:_MESSAGE_MAX_CHARACTERS]
        self._entries.put_nowait(_Entry(about=about, type=kind, reason=reason, message=message))

    async def _write_all(self) -> None:
        while True:
            entry = await self._entries.get()
            try:
                await self._write(entry)
            except CALL_ERRORS as error:
                log.warning("event-not-written", object=entry.about.name, reason=str(error))
            finally:
                self._entries.task_done()

    async def _write(self, entry: _Entry) -> None:
        key = (entry.about.uid, entry.reason, entry.message)
        if key not in self._written:
            await self._client.create(self._build(entry))
            self._written.add(key)

    def _build(self, entry: _Entry) -> Event:
        now = datetime.now(UTC)
        # Cut to what a name may have, and as a name may end before a dot.
        name = f"{(entry.about.name or '')[:200].rstrip('-.')}.{time.time_ns():x}"
        # Events of objects without a namespace live in "default", by Kubernetes' convention.
        namespace = entry.about.namespace or "default"
        return Event(
            metadata=ObjectMeta(name=name, namespace=namespace),
            involvedObject=entry.about,
            type=entry.type,
            reason=entry.reason,
            message=entry.message,
            source=self._source,
            reportingComponent=self._source.component,
            reportingInstance=self._source.host or "",
            count=1,
            firstTimestamp=now,
            lastTimestamp=now,
        )
