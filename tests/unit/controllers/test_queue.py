import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from kube_efs.controllers import queue as queue_module
from kube_efs.controllers.queue import WorkQueue
from kube_efs.telemetry.duties import Duties

pytestmark = pytest.mark.virtual_time


class Handler:
    """Records the handled keys, and waits, fails or requests a delay as the test configures."""

    def __init__(self) -> None:
        self.handled: list[str] = []
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.gate = asyncio.Event()
        self.gate.set()
        self.answer: Callable[[str], float | None] = lambda _: None

    async def __call__(self, key: str) -> float | None:
        self.handled.append(key)
        self.running[key] += 1
        self.most |= self.running
        try:
            await self.gate.wait()
            return self.answer(key)
        finally:
            self.running[key] -= 1


@asynccontextmanager
async def open_queue(handler: Handler) -> AsyncIterator[WorkQueue[str]]:
    duties = Duties(CollectorRegistry())
    async with asyncio.timeout(10), WorkQueue("claims", handler, duties) as queue:
        yield queue


async def until_idle(queue: WorkQueue[str]) -> None:
    while queue.waiting:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_every_key_is_handled() -> None:
    handler = Handler()
    async with open_queue(handler) as queue:
        for key in "abc":
            queue.add(key)
        await until_idle(queue)
    assert sorted(handler.handled) == ["a", "b", "c"]


async def test_keys_are_handled_concurrently() -> None:
    handler = Handler()
    handler.gate.clear()
    async with open_queue(handler) as queue:
        for key in "abc":
            queue.add(key)
        await turns()
        assert sum(handler.running.values()) == 3
        handler.gate.set()
        await until_idle(queue)


async def test_key_is_handled_once_at_a_time_and_once_more_for_additions_meanwhile() -> None:
    handler = Handler()
    handler.gate.clear()
    async with open_queue(handler) as queue:
        queue.add("a")
        await turns()
        for _ in range(5):
            queue.add("a")
        await turns()
        assert handler.handled == ["a"]
        handler.gate.set()
        await until_idle(queue)
    assert handler.handled == ["a", "a"]
    assert handler.most == {"a": 1}


async def test_key_added_twice_before_the_start_is_handled_once() -> None:
    handler = Handler()
    async with open_queue(handler) as queue:
        queue.add("a")
        queue.add("a")
        await until_idle(queue)
    assert handler.handled == ["a"]


async def test_key_is_handled_again_after_its_delay() -> None:
    handler = Handler()
    delays = iter([0.02, 0.01, None])
    handler.answer = lambda _: next(delays)
    async with open_queue(handler) as queue:
        queue.add("a")
        await until_idle(queue)
    assert handler.handled == ["a", "a", "a"]


async def test_delayed_key_is_not_handled_early() -> None:
    handler = Handler()
    handler.answer = lambda _: 3600
    async with open_queue(handler) as queue:
        queue.add("a")
        await turns()
        await turns()
        assert (handler.handled, queue.waiting) == (["a"], 1)


async def test_adding_a_delayed_key_handles_it_now_and_only_once() -> None:
    handler = Handler()
    delays = iter([0.5, None, None])
    handler.answer = lambda _: next(delays)
    async with open_queue(handler) as queue:
        queue.add("a")
        await turns()
        queue.add("a")
        await turns()
        assert handler.handled == ["a", "a"]
        await asyncio.sleep(0.6)
        assert handler.handled == ["a", "a"]


async def test_addition_meanwhile_overrides_the_delay() -> None:
    handler = Handler()
    handler.gate.clear()
    delays = iter([3600, None])
    handler.answer = lambda _: next(delays)
    async with open_queue(handler) as queue:
        queue.add("a")
        await turns()
        queue.add("a")
        handler.gate.set()
        await until_idle(queue)
    assert handler.handled == ["a", "a"]


async def test_later_addition_shortens_a_delay_and_never_extends_it() -> None:
    handler = Handler()
    handler.answer = lambda _: 3600
    async with open_queue(handler) as queue:
        assert queue.add("a")
        await turns()
        assert queue.add("a", after_seconds=0.05)
        assert not queue.add("a", after_seconds=0.05)
        await turns()
        assert handler.handled == ["a"]
        await asyncio.sleep(0.1)
        assert handler.handled == ["a", "a"]
        assert not queue.add("a", after_seconds=7200)


async def test_later_addition_meanwhile_waits_after_the_end() -> None:
    handler = Handler()
    handler.gate.clear()
    async with open_queue(handler) as queue:
        queue.add("a")
        await turns()
        assert queue.add("a", after_seconds=0.05)
        assert not queue.add("a", after_seconds=0.05)
        handler.gate.set()
        await turns()
        assert (handler.handled, queue.waiting) == (["a"], 1)
        await until_idle(queue)
    assert handler.handled == ["a", "a"]


async def test_error_stops_neither_its_key_nor_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "FAULT_DELAY_SECONDS", 0.01)
    handler = Handler()
    faults = iter([ZeroDivisionError("once")])

    def fail_once(key: str) -> None:
        if key == "a" and (fault := next(faults, None)):
            raise fault

    handler.answer = fail_once
    with capture_logs() as logs:
        async with open_queue(handler) as queue:
            queue.add("a")
            queue.add("b")
            await until_idle(queue)
    assert sorted(handler.handled) == ["a", "a", "b"]
    assert [(line["event"], line["duty"], line["key"]) for line in logs] == [("duty-failed", "claims", "a")]


async def test_close_cancels_running_and_waiting_keys() -> None:
    handler = Handler()
    async with open_queue(handler) as queue:
        handler.answer = lambda _: 0.01
        queue.add("waits")
        await turns()
        handler.gate.clear()
        queue.add("runs")
        await turns()
    handled = list(handler.handled)
    await asyncio.sleep(0.05)
    assert handler.handled == handled
    assert sum(handler.running.values()) == 0
