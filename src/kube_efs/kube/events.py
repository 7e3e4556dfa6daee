"""Events, which users see in ``kubectl describe``.

They are written in the background, so that nothing waits for them, and one after the other. Warnings overtake
the others. One that fails, for example because of a webhook in its namespace, is written again later, after
others. A repeated event increases the count of the existing one, as in every Kubernetes component.

A burst of claims needs the API server itself, and its events can follow. So while many wait, the writer
pauses for three times as long as it writes, and leaves out that something began if it has also ended by then.
"""

import asyncio
import hashlib
import itertools
from collections import OrderedDict
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, replace
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
from kube_efs.model.errors import KubeAlreadyExists, KubeError, KubeNotFound, KubeUnavailable
from kube_efs.model.secrets import shortened

log = structlog.get_logger(__name__)

CONTROLLER = "kube-efs-controller"

_MESSAGE_MAX_CHARACTERS = 1024  # core/v1 Event, field message
_REMEMBERED = 4096
# Both events of 10,000 claims at once. Then there is still room for warnings.
_NORMAL_WAITING_MAX = 20_000
_WAITING_MAX = 22_500
_FLUSH_SECONDS = 2.0
# Most events are published only once. An outage of minutes must not lose them.
_TRY_AGAIN_SECONDS = (1.0, 5.0, 30.0, 60.0, 120.0)
# So many waiting events are a burst. An event costs the API server a fifth of what a claim does.
_MANY = 10
_PAUSES = 3
_PAUSE_MAX_SECONDS = 1.0


class EventType(StrEnum):
    """``type`` of an event."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The object of an event; ``namespace`` is empty for kinds without namespaces."""

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
    published: datetime
    is_counted: bool = True
    attempts: int = 0

    @property
    def key(self) -> str:
        """The same for each repetition, also after a restart: the name of the Event object ends with it."""
        text = "\0".join((self.subject.uid, self.type, self.reason, self.message))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


# Warnings first, and each kind in the order of its publication.
_Turn = tuple[bool, int, _Entry]


class EventRecorder(AbstractAsyncContextManager["EventRecorder"]):
    """Writes events under one component's name; use as ``async with``, which flushes at the end."""

    def __init__(self, client: AsyncClient, *, component: str, host: str = "") -> None:
        self._client = client
        self._source = EventSource(component=component, host=host or None)
        self._component = component
        self._instance = host or component
        self._waiting = asyncio.PriorityQueue[_Turn]()
        self._pausing = 0
        self._is_ending = False
        self._numbers = itertools.count()
        # The numbers of waiting events by object and reason, and of those among them that have ended.
        self._begun: dict[tuple[str, str], int] = {}
        self._ended: set[int] = set()
        self._counts: OrderedDict[str, int] = OrderedDict()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._write_all())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_ending = True
        try:
            async with asyncio.timeout(_FLUSH_SECONDS):
                await self._waiting.join()
        except TimeoutError:
            log.warning(
                "events-dropped",
                count=self._left(),
                reason="the API server did not accept them in time",
            )
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def publish(
        self, subject: Subject, kind: EventType, reason: str, message: str, *, ends: str = ""
    ) -> None:
        """Write that event soon. Never waits and never fails; a failed write is logged.

        It ends what an earlier event of the object with the reason ``ends`` has begun.
        """
        if self._put(subject, kind, reason, message):
            begun = self._begun.pop((subject.uid, ends), None)
            if begun is not None:
                self._ended.add(begun)

    def publish_once(self, subject: Subject, kind: EventType, reason: str, message: str) -> None:
        """Write it, unless this event exists or this process has written it: repetitions are not counted."""
        self._put(subject, kind, reason, message, is_counted=False)

    def _put(
        self, subject: Subject, kind: EventType, reason: str, message: str, *, is_counted: bool = True
    ) -> bool:
        is_normal = kind is EventType.NORMAL
        if self._left() >= (_NORMAL_WAITING_MAX if is_normal else _WAITING_MAX):
            log.warning("event-dropped", object=subject.name, reason=reason)
            return False
        # The name of a file in a message can have bytes that are not UTF-8.
        text = shortened(message.encode(errors="backslashreplace").decode(), _MESSAGE_MAX_CHARACTERS)
        entry = _Entry(subject, kind, reason, text, datetime.now(UTC), is_counted)
        number = next(self._numbers)
        self._begun[subject.uid, reason] = number
        self._waiting.put_nowait((is_normal, number, entry))
        return True

    def _left(self) -> int:
        return self._waiting.qsize() + self._pausing

    async def _write_all(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            turn = await self._next()
            begun = clock()
            await self._write_or_log(turn)
            is_normal, _, _ = turn
            # A burst: the API server needs its time for the claims themselves.
            if is_normal and self._waiting.qsize() >= _MANY and not self._is_ending:
                await asyncio.sleep(min(_PAUSES * (clock() - begun), _PAUSE_MAX_SECONDS))

    async def _next(self) -> _Turn:
        while True:
            turn = await self._waiting.get()
            _, number, entry = turn
            key = entry.subject.uid, entry.reason
            if self._begun.get(key) == number:
                del self._begun[key]
            if number not in self._ended:
                return turn
            self._ended.remove(number)
            # Without a burst, users see both: what has begun, and how it ended.
            if self._waiting.qsize() < _MANY:
                return turn
            self._waiting.task_done()

    async def _write_or_log(self, turn: _Turn) -> None:
        _, _, entry = turn
        try:
            await self._write(entry)
        except Exception as error:  # noqa: BLE001 - the next ones must be written nevertheless
            if isinstance(error, KubeUnavailable) and entry.attempts < len(_TRY_AGAIN_SECONDS):
                self._pausing += 1
                pause = _TRY_AGAIN_SECONDS[entry.attempts]
                asyncio.get_running_loop().call_later(pause, self._try_again, turn)
                return
            log.warning(
                "event-not-written",
                object=entry.subject.name,
                event_reason=entry.reason,
                error=str(error) if isinstance(error, KubeError) else repr(error),
            )
        self._waiting.task_done()

    def _try_again(self, turn: _Turn) -> None:
        is_normal, number, entry = turn
        self._pausing -= 1
        self._waiting.put_nowait((is_normal, number, replace(entry, attempts=entry.attempts + 1)))
        self._waiting.task_done()  # of the attempt that failed

    async def _write(self, entry: _Entry) -> None:
        # Forgotten until the write has succeeded: after a lost answer, only the API server knows the count.
        key = entry.key
        known = self._counts.pop(key, None)
        if known is not None and not entry.is_counted:
            self._counts[key] = known
            return
        try:
            count = await (self._create(entry) if known is None else self._count_up(entry, known + 1))
        except KubeAlreadyExists:
            # This process wrote it before a restart.
            count = await self._continue_counting(entry) if entry.is_counted else 1
        except KubeNotFound:
            # The API server deletes events after an hour.
            count = await self._create(entry)
        self._counts[key] = count
        if len(self._counts) > _REMEMBERED:
            self._counts.popitem(last=False)

    async def _continue_counting(self, entry: _Entry) -> int:
        with _translated(entry):
            found = await self._client.get(Event, _name(entry), namespace=_namespace(entry))
        return await self._count_up(entry, (found.count or 1) + 1)

    async def _create(self, entry: _Entry) -> int:
        with _translated(entry):
            await self._client.create(self._build(entry))
        return 1

    async def _count_up(self, entry: _Entry, count: int) -> int:
        patch: dict[str, object] = {"count": count}
        if not entry.attempts:  # otherwise, a newer one may have been written before it
            patch["lastTimestamp"] = entry.published.strftime("%Y-%m-%dT%H:%M:%SZ")
        with _translated(entry):
            await self._client.patch(
                Event, _name(entry), patch, namespace=_namespace(entry), patch_type=PatchType.MERGE
            )
        return count

    def _build(self, entry: _Entry) -> Event:
        subject = entry.subject
        return Event(
            metadata=ObjectMeta(name=_name(entry), namespace=_namespace(entry)),
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
            firstTimestamp=entry.published,
            lastTimestamp=entry.published,
        )


def _translated(entry: _Entry) -> AbstractContextManager[None]:
    return translated(f"event {entry.reason} of {entry.subject.name}")


def _name(entry: _Entry) -> str:
    # Truncated to the maximum length of a name; a name must not end with a hyphen or dot before a dot.
    return f"{entry.subject.name[:200].rstrip('-.')}.{entry.key}"


def _namespace(entry: _Entry) -> str:
    # By convention, events of cluster-scoped objects are in the namespace "default".
    return entry.subject.namespace or "default"
