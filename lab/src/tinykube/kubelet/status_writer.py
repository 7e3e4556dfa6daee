"""Keeps the status of one pod in the API as it is here."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import structlog

from tinykube.client.calls import CALL_ERRORS
from tinykube.kubelet.pods import Pod

log = structlog.get_logger(__name__)

_RETRY_SECONDS = 0.5


class StatusApi(Protocol):
    """Where statuses go (see ``Cluster``)."""

    async def write_status(self, pod: Pod, status: Mapping[str, Any]) -> bool:
        """Write it; False when the pod is gone."""
        ...


class StatusWriter:
    """Writes the newest status whenever it has changed; states that pass quickly may be skipped."""

    def __init__(self, cluster: StatusApi, pod: Pod, render: Callable[[], Mapping[str, Any]]) -> None:
        self._cluster = cluster
        self._pod = pod
        self._render = render
        self._dirty = asyncio.Event()
        self._clean = asyncio.Event()
        self._clean.set()
        self._written: Mapping[str, Any] = {}
        self._gone = False

    def changed(self) -> None:
        """Have the status written soon, if there is still somewhere to write it."""
        if not self._gone:
            self._clean.clear()
            self._dirty.set()

    async def flush(self) -> None:
        """Wait until the newest status is written."""
        await self._clean.wait()

    async def run(self) -> None:
        """Write until cancelled, or until the pod is gone."""
        try:
            while not self._gone:
                await self._dirty.wait()
                self._dirty.clear()
                await self._write()
                if not self._dirty.is_set():
                    self._clean.set()
        finally:
            self._gone = True
            self._clean.set()

    async def _write(self) -> None:
        status = self._render()
        if status == self._written:
            return
        try:
            self._gone = not await self._cluster.write_status(self._pod, status)
        except CALL_ERRORS as error:
            log.warning("status-not-written", pod=self._pod.name, reason=str(error))
            await asyncio.sleep(_RETRY_SECONDS)
            self._dirty.set()
        else:
            self._written = status
