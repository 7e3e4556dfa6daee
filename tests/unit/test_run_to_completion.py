"""Work that ends before its caller continues."""

import asyncio
import threading
from pathlib import Path

import pytest

from kube_efs.run_to_completion import run_to_completion


async def test_call_that_is_cancelled_twice_waits_for_its_thread(tmp_path: Path) -> None:
    """First by a time limit, then by a caller that gives up; the disk hangs meanwhile."""
    path, has_begun, disk = tmp_path / "state", asyncio.Event(), threading.Event()
    loop, saving = asyncio.get_running_loop(), asyncio.Lock()

    def write(text: str) -> None:
        loop.call_soon_threadsafe(has_begun.set)
        if text == "older":
            assert disk.wait(10)
        path.write_text(text)

    async def save(text: str) -> None:
        async with saving:
            await run_to_completion(asyncio.to_thread(write, text))

    earlier = asyncio.create_task(save("older"))
    await has_begun.wait()
    later = asyncio.create_task(save("newer"))
    for _ in range(2):
        earlier.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
    assert not earlier.done()
    assert saving.locked()
    disk.set()
    with pytest.raises(asyncio.CancelledError):
        await earlier
    await later
    assert path.read_text() == "newer"


async def test_result_and_error_of_the_work_are_those_of_the_call() -> None:
    assert await run_to_completion(asyncio.sleep(0, "done")) == "done"
    with pytest.raises(FileNotFoundError):
        await run_to_completion(asyncio.to_thread(Path("/nonexistent").stat))


async def test_cancelled_call_hides_the_error_of_its_work() -> None:
    fail = asyncio.Event()

    async def work() -> None:
        await fail.wait()
        raise OSError

    call = asyncio.create_task(run_to_completion(work()))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.sleep(0)
    fail.set()
    with pytest.raises(asyncio.CancelledError):
        await call
