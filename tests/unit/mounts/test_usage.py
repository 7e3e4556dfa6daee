"""How full a file system is, with ones that do not answer."""

import asyncio
import os
import threading
from pathlib import Path

import pytest

from kube_efs.mounts.usage import Usage, read_usage


async def test_usage_is_that_of_statvfs(tmp_path: Path) -> None:
    found, usage = os.statvfs("/proc"), await read_usage(Path("/proc"))
    assert usage == Usage.of(found)
    assert (await read_usage(tmp_path)).total_bytes == Usage.of(os.statvfs(tmp_path)).total_bytes


def test_figures_are_those_of_df() -> None:
    values = (4096, 512, 1000, 400, 300, 50, 20, 10, 0, 255)
    assert Usage.of(os.statvfs_result(values)) == Usage(
        total_bytes=512_000,
        used_bytes=307_200,
        available_bytes=153_600,
        total_inodes=50,
        used_inodes=30,
        available_inodes=10,
    )


async def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await read_usage(tmp_path / "missing")


async def test_a_file_system_that_does_not_answer_holds_up_nobody() -> None:
    answering = threading.Event()

    def wait(path: Path) -> os.statvfs_result:
        answering.wait(10)
        return os.statvfs("/")

    asking = read_usage(Path("/dead"), wait)
    done, _ = await asyncio.wait([asking], timeout=0.05)
    assert done == set()
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "usage /dead")
    answering.set()
    async with asyncio.timeout(5):
        assert (await asking).total_bytes > 0


async def test_an_answer_that_nobody_waits_for_is_dropped() -> None:
    answering, answered = threading.Event(), threading.Event()

    def wait(path: Path) -> os.statvfs_result:
        answering.wait(10)
        answered.set()
        return os.statvfs("/")

    asking = read_usage(Path("/dead"), wait)
    asking.cancel()
    answering.set()
    await asyncio.to_thread(answered.wait, 5)
    await asyncio.sleep(0)
    assert asking.cancelled()
