import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx2

from tinykube.controllers.work_queue import WorkQueue


@asynccontextmanager
async def working(handle: Callable[[str], Awaitable[None]]) -> AsyncIterator[WorkQueue[str]]:
    queue = WorkQueue("test", handle)
    running = asyncio.create_task(queue.run(4))
    async with asyncio.timeout(5):
        yield queue
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_key_added_many_times_is_handled_once() -> None:
    seen: list[str] = []
    done = asyncio.Event()

    async def handle(key: str) -> None:
        seen.append(key)
        if key == "last":
            done.set()

    async with working(handle) as queue:
        for _ in range(10):
            queue.add("one")
        queue.add("last")
        await done.wait()
    assert seen == ["one", "last"]


async def test_key_added_while_handled_is_handled_again_and_not_at_the_same_time() -> None:
    entered, continues, twice = asyncio.Event(), asyncio.Event(), asyncio.Event()
    inside = 0
    most = 0
    times = 0

    async def handle(key: str) -> None:
        nonlocal inside, most, times
        inside, times = inside + 1, times + 1
        most = max(most, inside)
        entered.set()
        await continues.wait()
        inside -= 1
        if times == 2:
            twice.set()

    async with working(handle) as queue:
        queue.add("key")
        await entered.wait()
        queue.add("key")
        queue.add("key")
        continues.set()
        await twice.wait()
    assert (most, times) == (1, 2)


async def test_failed_key_is_tried_again() -> None:
    tries = 0
    done = asyncio.Event()

    async def handle(key: str) -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise httpx2.ConnectError("the server is away")
        done.set()

    async with working(handle) as queue:
        queue.add("key")
        await done.wait()
    assert tries == 3
