"""mount(8) and umount(8): their arguments, timeouts and cancellation."""

import asyncio
import os
import re
import subprocess
import tempfile
from asyncio.base_subprocess import BaseSubprocessTransport
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.unmounting import unmount

from kube_efs.model.errors import MountFailed, PlatformError
from kube_efs.mounts.mount import SystemMounter
from kube_efs.mounts.mountinfo import read_mountinfo
from kube_efs.mounts.table import MountTable

Eventually = Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]
TARGET = Path("/pods/a b")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")


def program(folder: Path, script: str) -> str:
    path = folder / "program"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def mounter(path: str) -> SystemMounter:
    return SystemMounter(program=path, unmounting=path, pause=lambda _attempt: 0)


@pytest.fixture
def recording(tmp_path: Path) -> tuple[SystemMounter, Path]:
    """A mounter whose programs only record their arguments, and the file with them."""
    calls = tmp_path / "calls"
    return mounter(program(tmp_path, f'printf "%s|" "$@" >> {calls}; echo >> {calls}')), calls


async def test_export_is_mounted_with_exact_arguments(recording: tuple[SystemMounter, Path]) -> None:
    mounting, calls = recording
    await mounting.mount("127.0.0.1:/a b", TARGET, "nfsvers=4.1,port=22049")
    assert calls.read_text() == "-t|nfs4|-o|nfsvers=4.1,port=22049|127.0.0.1:/a b|/pods/a b|\n"


async def test_target_is_unmounted_without_access_to_it(recording: tuple[SystemMounter, Path]) -> None:
    mounting, calls = recording
    await mounting.unmount(TARGET)
    await mounting.unmount(TARGET, force=True)
    await mounting.unmount(TARGET, force=True, lazy=True)
    assert calls.read_text().splitlines() == [
        "--no-canonicalize|--internal-only|/pods/a b|",
        "--no-canonicalize|--internal-only|--force|/pods/a b|",
        "--no-canonicalize|--internal-only|--force|--lazy|/pods/a b|",
    ]


async def test_error_contains_the_output_of_the_program(tmp_path: Path) -> None:
    failing = mounter(program(tmp_path, "echo mount.nfs4: access  denied >&2; echo twice; exit 32"))
    with pytest.raises(MountFailed) as caught:
        await failing.mount("127.0.0.1:/", TARGET, "hard")
    assert caught.value.problem.endswith("ended with status 32: mount.nfs4: access denied twice")
    assert caught.value.value == "/pods/a b"


@pytest.mark.parametrize(
    ("text", "tries"),
    [
        pytest.param(
            "mount.nfs4: access denied by server while mounting 127.0.0.1:/", 3, id="new access point"
        ),
        pytest.param("mount.nfs4: Connection reset by peer", 3, id="new tunnel"),
        pytest.param("mount.nfs4: No such file or directory", 1, id="wrong path"),
        pytest.param("", 1, id="no reason"),
    ],
)
async def test_temporary_errors_are_retried(tmp_path: Path, text: str, tries: int) -> None:
    calls = tmp_path / "calls"
    with pytest.raises(MountFailed):
        await mounter(program(tmp_path, f"echo x >> {calls}; echo '{text}'; exit 32")).mount(
            "a:/", TARGET, "hard"
        )
    assert len(calls.read_text().splitlines()) == tries


async def test_retry_can_succeed(tmp_path: Path) -> None:
    once = tmp_path / "once"
    script = f"test -e {once} && exit 0; touch {once}; echo reset by peer; exit 32"
    await mounter(program(tmp_path, script)).mount("a:/", TARGET, "hard")


@pytest.mark.parametrize(("options", "readings"), [("rsize=65536,hard", 1), ("hard", 0)])
async def test_mount_succeeds_if_the_table_cannot_be_read(
    tmp_path: Path, options: str, readings: int
) -> None:
    count = 0

    def read() -> tuple[bytes, bool]:
        nonlocal count
        count += 1
        raise FileNotFoundError(2, "No such file or directory")

    quiet = program(tmp_path, "exit 0")
    table = MountTable(read=read, ask=lambda _: True)
    with capture_logs() as logs:
        await SystemMounter(program=quiet, table=table).mount("a:/", TARGET, options)
    assert count == readings
    assert [line["event"] for line in logs] == ["read-ahead-not-set"] * readings


async def test_missing_program_is_a_platform_error(tmp_path: Path) -> None:
    with pytest.raises(PlatformError, match="cannot be run"):
        await mounter(str(tmp_path / "missing")).mount("a:/", TARGET, "hard")


@pytest.mark.parametrize("is_starting", [False, True], ids=["while it runs", "while it is started"])
async def test_cancelled_call_kills_the_program_and_its_helper(
    tmp_path: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, is_starting: bool
) -> None:
    pids = tmp_path / "pids"
    script = f"trap '' TERM; sleep 1000 & echo $! >> {pids}; echo $$ >> {pids}; wait"

    async def begun() -> bool:
        return pids.exists() and len(pids.read_text().split()) == 2

    if is_starting:
        connect = BaseSubprocessTransport._connect_pipes  # what follows the fork, and waits for the loop

        async def connect_late(transport: Any, *arguments: Any) -> None:
            await eventually(begun)
            call.cancel()
            await connect(transport, *arguments)

        monkeypatch.setattr(BaseSubprocessTransport, "_connect_pipes", connect_late)
    call = asyncio.create_task(mounter(program(tmp_path, script)).mount("a:/", TARGET, "hard"))
    if not is_starting:
        await eventually(begun)
        call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    async def gone() -> bool:  # a process closes its pipe a moment before it is gone
        return not any(map(is_alive, map(int, pids.read_text().split())))

    await eventually(gone)


def is_alive(pid: int) -> bool:
    with suppress(FileNotFoundError):
        return re.search(r"^State:\s+Z", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE) is None
    return False


@contextmanager
def private_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mount-") as name:
        subprocess.run(["mount", "-t", "tmpfs", "none", name], check=True)
        subprocess.run(["mount", "--make-private", name], check=True)
        try:
            yield Path(name)
        finally:
            unmount(Path(name), "--recursive")


@needs_root
async def test_real_mounts_are_unmounted_by_the_real_program() -> None:
    with private_folder() as folder:
        target = folder / "a b\\c"
        target.mkdir()
        await asyncio.to_thread(subprocess.run, ["mount", "-t", "tmpfs", "none", str(target)], check=True)
        assert await SystemMounter().table.is_mounted(target)
        await SystemMounter().unmount(target)
        assert target not in [entry.mount_point for entry in read_mountinfo()]

        with pytest.raises(MountFailed, match=r"umount ended with status \d+: .*not mounted"):
            await SystemMounter().unmount(target)
        with pytest.raises(MountFailed, match="no mount point specified"):
            await SystemMounter().unmount(folder / "missing")


@needs_root
async def test_mount_in_use_is_kept() -> None:
    with private_folder() as folder, (folder / "open").open("w"):
        with pytest.raises(MountFailed, match="target is busy"):
            await SystemMounter().unmount(folder)
        assert folder in [entry.mount_point for entry in read_mountinfo()]
