import asyncio
from collections.abc import Mapping
from typing import Any

import httpx2
import pytest

from tinykube.kubelet import status_writer
from tinykube.kubelet.pods import Pod
from tinykube.kubelet.status_writer import StatusWriter

POD = Pod(namespace="n", name="p", uid="u")


class Api:
    """Takes statuses of a pod that is there, after raising the errors that are given."""

    def __init__(self, *errors: Exception, there: bool = True) -> None:
        self.errors = list(errors)
        self.there = there
        self.written: list[Mapping[str, Any]] = []

    async def write_status(self, pod: Pod, status: Mapping[str, Any]) -> bool:
        await asyncio.sleep(0)
        if self.errors:
            raise self.errors.pop(0)
        if self.there:
            self.written.append(status)
        return self.there


async def flushed(writer: StatusWriter) -> None:
    async with asyncio.timeout(5):
        await writer.flush()


async def test_newest_status_is_written_and_only_when_it_differs() -> None:
    api, phase = Api(), "Pending"
    writer = StatusWriter(api, POD, lambda: {"phase": phase})
    running = asyncio.create_task(writer.run())
    for phase in ("Pending", "Running", "Running"):  # noqa: B007 - the writer reads it
        writer.changed()
    await flushed(writer)
    writer.changed()
    await flushed(writer)
    assert api.written == [{"phase": "Running"}]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_failed_write_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_writer, "_RETRY_SECONDS", 0.0)
    api = Api(httpx2.ConnectError("the server is away"))
    writer = StatusWriter(api, POD, lambda: {"phase": "Running"})
    running = asyncio.create_task(writer.run())
    writer.changed()
    await flushed(writer)
    assert api.written == [{"phase": "Running"}]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_pod_that_is_gone_holds_nobody_up() -> None:
    writer = StatusWriter(Api(there=False), POD, lambda: {"phase": "Running"})
    running = asyncio.create_task(writer.run())
    writer.changed()
    await flushed(writer)
    async with asyncio.timeout(5):
        await running
    writer.changed()
    await flushed(writer)
