"""Events of pods: what a person sees in ``kubectl describe``."""

import asyncio
import time
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from types import TracebackType

import structlog
from lightkube import AsyncClient
from lightkube.models.core_v1 import EventSource, ObjectReference
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Event

from tinykube.client.calls import CALL_ERRORS
from tinykube.kubelet.pods import Pod

log = structlog.get_logger(__name__)

_COMPONENT = "kubelet"
_MESSAGE_MAX_CHARACTERS = 1024  # core/v1 Event, field message
_FLUSH_SECONDS = 2.0


class PodEvents(AbstractAsyncContextManager["PodEvents"]):
    """Writes warnings about the pods of a node, in the background; the end of its context flushes.

    The same warning about the same pod is written once.
    """

    def __init__(self, client: AsyncClient, *, node: str) -> None:
        self._client = client
        self._node = node
        self._known: set[tuple[str, str, str]] = set()
        self._writing: set[asyncio.Task[None]] = set()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writing:
            _, late = await asyncio.wait(self._writing, timeout=_FLUSH_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def warn(self, pod: Pod, reason: str, message: str) -> None:
        """Write that warning soon. Never waits and never fails; what cannot be written is logged."""
        known = (pod.uid, reason, message)
        if known not in self._known:
            self._known.add(known)
            task = asyncio.create_task(self._write(pod, reason, message))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)

    async def _write(self, pod: Pod, reason: str, message: str) -> None:
        try:
            await self._client.create(self._event(pod, reason, message[:_MESSAGE_MAX_CHARACTERS]))
        except CALL_ERRORS as error:
            self._known.discard((pod.uid, reason, message))
            log.warning("event-not-written", object=pod.name, reason=str(error))

    def _event(self, pod: Pod, reason: str, message: str) -> Event:
        now = datetime.now(UTC)
        # Cut to what a name may have, and as a name may end before a dot.
        name = f"{pod.name[:200].rstrip('-.')}.{time.time_ns():x}"
        return Event(
            metadata=ObjectMeta(name=name, namespace=pod.namespace),
            involvedObject=ObjectReference(
                apiVersion="v1",
                kind="Pod",
                namespace=pod.namespace,
                name=pod.name,
                uid=pod.uid,
                resourceVersion=pod.version,
            ),
            type="Warning",
            reason=reason,
            message=message,
            source=EventSource(component=_COMPONENT, host=self._node),
            reportingComponent=_COMPONENT,
            reportingInstance=self._node,
            count=1,
            firstTimestamp=now,
            lastTimestamp=now,
        )
