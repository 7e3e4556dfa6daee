"""Programs that run beside this one: started, asked for their port, and never left behind."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

import psutil
import pytest

from fake_efs.errors import PlatformError
from fake_efs.process import ChildProcess

LISTEN = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {LISTEN}"


async def python(code: str, tmp_path: Path) -> ChildProcess:
    return await ChildProcess.start(sys.executable, "-c", code, log_file=tmp_path / "log")


@pytest.mark.parametrize("code", [LISTEN, STUBBORN], ids=["ends on SIGTERM", "ignores SIGTERM"])
async def test_its_port_is_found_and_it_ends(code: str, tmp_path: Path) -> None:
    process = await python(code, tmp_path)
    port = await process.listening_port(timeout_seconds=60)
    socket.create_connection(("127.0.0.1", port), timeout=1).close()
    await process.stop()
    assert not process.running
    assert not psutil.pid_exists(process.pid)
    await process.stop()


async def test_a_program_that_dies_tells_why(tmp_path: Path) -> None:
    process = await python("raise SystemExit('no coffee')", tmp_path)
    with pytest.raises(PlatformError, match=r"did not open its port; see .*/log, which ends: no coffee"):
        await process.listening_port(timeout_seconds=60)


async def test_a_program_that_opens_no_port_is_given_up(tmp_path: Path) -> None:
    process = await python("import time; time.sleep(600)", tmp_path)
    try:
        with pytest.raises(PlatformError, match="did not open its port"):
            await process.listening_port(timeout_seconds=0.1)
    finally:
        await process.stop()


async def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlatformError, match="'no-such-program' is not installed"):
        await ChildProcess.start("no-such-program", log_file=tmp_path / "log")


PARENT = """
import asyncio, sys
from pathlib import Path
from fake_efs.process import ChildProcess
async def main():
    child = await ChildProcess.start("sleep", "600", log_file=Path(sys.argv[1]))
    print(child.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


# Asks for the signal only when the parent is dead.
LATE = """#!/bin/sh
while ! [ -e {parent_is_dead} ]; do sleep 0.01; done
exec {setpriv} "$@"
"""


@pytest.mark.parametrize("script", ["", LATE], ids=["later", "at once"])
async def test_it_dies_with_a_parent_that_is_killed(script: str, tmp_path: Path) -> None:
    parent_is_dead = tmp_path / "parent-is-dead"
    if script:
        text = script.format(setpriv=shutil.which("setpriv"), parent_is_dead=parent_is_dead)
        (tmp_path / "setpriv").write_text(text)
        (tmp_path / "setpriv").chmod(0o755)
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PARENT,
        str(tmp_path / "log"),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    assert parent.stdout is not None
    async with asyncio.timeout(60):
        child = int(await parent.stdout.readline())
        os.kill(parent.pid, signal.SIGKILL)
        await parent.wait()
    parent_is_dead.touch()
    try:
        await asyncio.to_thread(wait_for_end, child)
    except AssertionError:
        os.kill(child, signal.SIGKILL)
        raise


def wait_for_end(pid: int) -> None:
    deadline = time.monotonic() + 60
    with contextlib.suppress(psutil.NoSuchProcess):
        # Where nobody reaps orphans, as in a container, what is left of it is a zombie.
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline, "the child has outlived its parent"
            time.sleep(0.02)
