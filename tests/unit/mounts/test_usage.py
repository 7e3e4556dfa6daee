"""The usage of file systems, also of unresponsive ones."""

import asyncio
import os
from pathlib import Path

import pytest

from kube_efs.model.errors import MountFailed, PlatformError
from kube_efs.mounts.usage import Usage, count_bytes, read_usage


async def test_usage_matches_the_kernel() -> None:
    found, usage = os.statvfs("/"), await read_usage(Path("/"))
    assert usage.total_bytes == found.f_blocks * found.f_frsize
    assert usage.total_inodes == found.f_files
    assert 0 <= usage.available_bytes <= usage.total_bytes - usage.used_bytes


def test_figures_match_df() -> None:
    assert Usage.parse("512 1000 400 300 50 20") == Usage(
        total_bytes=512_000,
        used_bytes=307_200,
        available_bytes=153_600,
        total_inodes=50,
        used_inodes=30,
        available_inodes=20,
    )


async def test_failed_reading_contains_the_reason(tmp_path: Path) -> None:
    with pytest.raises(MountFailed) as caught:
        await read_usage(tmp_path / "a b")
    assert caught.value.problem.startswith("cannot be used (stat: cannot read file system information for")
    assert caught.value.problem.endswith("No such file or directory)")
    assert caught.value.value == str(tmp_path / "a b")


@pytest.mark.parametrize("answer", ["", "1 2 3", "1 2 3 4 5 -6", "a b c d e f"])
async def test_invalid_answer_is_an_error(tmp_path: Path, answer: str) -> None:
    program = tmp_path / "stat"
    program.write_text(f"#!/bin/sh\necho '{answer}'\n")
    program.chmod(0o755)
    with pytest.raises(MountFailed, match="cannot be used"):
        await read_usage(Path("/"), program=str(program))


async def test_missing_program_is_a_platform_error() -> None:
    with pytest.raises(PlatformError, match="cannot be run"):
        await read_usage(Path("/"), program="/nowhere/stat")


async def test_unresponsive_file_system_is_awaited_until_the_timeout_of_the_caller(
    tmp_path: Path,
) -> None:
    program = tmp_path / "stat"
    program.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 1000\n")
    program.chmod(0o755)
    text = tmp_path / "pid"

    async def time_out_when_it_runs() -> None:
        async with asyncio.timeout(30) as limit, asyncio.TaskGroup() as tasks:
            tasks.create_task(read_usage(Path("/"), program=str(program)))
            while not (text.exists() and text.read_text().endswith("\n")):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.01)
            limit.reschedule(asyncio.get_running_loop().time())

    with pytest.raises(TimeoutError):
        await time_out_when_it_runs()
    pid = int(text.read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_count_contains_blocks_of_all_entries_and_each_file_once(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    (folder / "data").write_bytes(b"x" * 100_000)
    (folder / "again").hardlink_to(folder / "data")
    with (folder / "hole").open("wb") as hole:
        hole.truncate(10**9)
    entries = [tmp_path, folder, folder / "data", folder / "hole"]
    assert await count_bytes(tmp_path) == sum(one.stat().st_blocks * 512 for one in entries)


async def test_count_that_misses_files_is_a_lower_bound(tmp_path: Path) -> None:
    program = tmp_path / "du"
    program.write_text("#!/bin/sh\necho \"du: cannot access 'secret'\" >&2\nprintf '42\\t/x\\n'\nexit 1\n")
    program.chmod(0o755)
    assert await count_bytes(Path("/x"), program=str(program)) == 42


async def test_failed_count_names_the_path_and_no_file(tmp_path: Path) -> None:
    with pytest.raises(MountFailed) as caught:
        await count_bytes(tmp_path / "missing")
    assert caught.value.problem == "cannot be counted (du ended with status 1)"
    assert caught.value.value == str(tmp_path / "missing")
