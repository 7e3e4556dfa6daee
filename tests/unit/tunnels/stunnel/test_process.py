"""Signals to a stunnel that is starting; another program takes its place."""

import asyncio
import sys
from pathlib import Path

import pytest

from kube_efs.tunnels.stunnel import process as module
from kube_efs.tunnels.stunnel.process import StunnelProcess, find_running

# As stunnel: it listens before it handles SIGHUP, which until then ends it.
STARTING = """\
#!{python}
import pathlib, signal, sys, time
conf = pathlib.Path(sys.argv[1])
conf.with_suffix(".listens").touch()
while not conf.with_suffix(".go").exists():
    time.sleep(0.01)
signal.signal(signal.SIGHUP, lambda *_: conf.with_suffix(".reloaded").touch())
while True:
    time.sleep(0.01)
"""


async def until(path: Path) -> None:
    async with asyncio.timeout(20):
        while not await asyncio.to_thread(path.exists):  # noqa: ASYNC110 - another process creates it
            await asyncio.sleep(0.01)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "stunnel"
    path.write_text(STARTING.format(python=sys.executable))
    path.chmod(0o755)
    return path


async def test_stunnel_that_listens_is_not_ended_by_a_reload(program: Path, tmp_path: Path) -> None:
    conf = tmp_path / "stunnel.conf"
    process = StunnelProcess.start(program, conf, tmp_path / "log", lambda: None)
    try:
        await until(conf.with_suffix(".listens"))
        ready = asyncio.create_task(process.wait_until_reloadable())
        await asyncio.sleep(0)
        conf.with_suffix(".go").touch()
        await ready
        process.reload()
        await until(conf.with_suffix(".reloaded"))
        assert not process.ended.is_set()
    finally:
        await process.stop(timeout_seconds=5)


async def test_process_of_another_configuration_is_not_adopted(program: Path, tmp_path: Path) -> None:
    conf, other = tmp_path / "stunnel.conf", tmp_path / "stunnel-1.conf"
    process = StunnelProcess.start(program, conf, tmp_path / "log", lambda: None)
    try:
        await until(conf.with_suffix(".listens"))
        # The interpreter of the script is the program here.
        python = Path(sys.executable)
        ended = asyncio.Event()
        assert StunnelProcess.adopt(process.pid, program, other, ended.set) is None
        assert StunnelProcess.adopt(process.pid, python, conf, ended.set) is None
        assert (process.pid, conf) not in list(find_running(program))
    finally:
        await process.stop(timeout_seconds=5)
    assert StunnelProcess.adopt(process.pid, program, conf, ended.set) is None
    await asyncio.sleep(0)
    assert not ended.is_set()


async def test_wait_for_a_stunnel_that_never_handles_signals_ends(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RELOADABLE_SECONDS", 0.05)
    process = StunnelProcess.start(program, tmp_path / "stunnel.conf", tmp_path / "log", lambda: None)
    try:
        async with asyncio.timeout(5):
            await process.wait_until_reloadable()
    finally:
        await process.stop(timeout_seconds=5)
    async with asyncio.timeout(5):
        await process.wait_until_reloadable()
