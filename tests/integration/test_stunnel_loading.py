"""A stunnel that is slow to read its configuration is waited for; one that hangs is not."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from tests.integration.tunnel_node import FS, eventually, host_of

from kube_efs.telemetry.metrics import TunnelMetrics
from kube_efs.tunnels.data_plane import TunnelService
from kube_efs.tunnels.options import TunnelOptions
from kube_efs.tunnels.stunnel import keeper
from kube_efs.tunnels.stunnel.keeper import StunnelKeeper
from kube_efs.tunnels.stunnel.log import ConnectionLog, Outcome
from kube_efs.tunnels.stunnel.process import Activity, StunnelProcess
from tinykube.ports import free_port

STUNNEL = Path("/usr/bin/stunnel")

pytestmark = pytest.mark.skipif(not STUNNEL.exists(), reason="stunnel is not installed")

# It works far longer than the keeper waits for a stunnel that does nothing.
SLOW = f'n=0; while [ $n -lt 1000000 ]; do n=$((n+1)); done; exec {STUNNEL} "$@"'
ENDLESS = "while :; do :; done"
HANGING = "exec sleep 3600"


@pytest.fixture(autouse=True)
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper gives up a stunnel that does nothing for 0.2 s."""
    monkeypatch.setattr(keeper, "_LOOK_SECONDS", 0.04)


@asynccontextmanager
async def keeping(options: TunnelOptions, script: str) -> AsyncIterator[StunnelKeeper]:
    """A keeper that loads one service, with this script as its stunnel."""
    program = options.conf_path.with_name("stunnel")
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    kept = keeper_of(options, program)
    assert options.ca_file
    service = TunnelService(
        name=FS,
        file_system_id=FS,
        port=free_port(),
        addresses=("127.0.0.1",),
        check_host=host_of(FS),
        ca_file=options.ca_file,
    )
    kept.set_services([service])
    running = asyncio.create_task(kept.run())
    try:
        yield kept
    finally:
        running.cancel()
        await kept.stop()


def keeper_of(options: TunnelOptions, program: Path) -> StunnelKeeper:
    return StunnelKeeper(
        program,
        options,
        TunnelMetrics(CollectorRegistry()),
        ConnectionLog(),
        asyncio.Semaphore(1),
        on_change=lambda: None,
    )


async def test_slow_stunnel_is_waited_for(options: TunnelOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "_MOST_LOOKS", 10_000)
    async with keeping(options, SLOW) as kept:
        await eventually(lambda: kept.report.loaded or kept.report.left_out, "a result")
        assert kept.report.left_out == {}


@pytest.mark.parametrize(
    ("script", "seconds"),
    [
        pytest.param(HANGING, "0.2", id="that does nothing"),
        pytest.param(ENDLESS, "1.2", id="that never ends reading"),
    ],
)
async def test_stunnel_is_not_waited_for_longer(options: TunnelOptions, script: str, seconds: str) -> None:
    async with keeping(options, script) as kept:
        await eventually(lambda: kept.report.left_out, "the end of the wait")
        assert f"stunnel did not confirm it within {seconds} s" in str(kept.report.left_out[FS])


def without_a_processor(monkeypatch: pytest.MonkeyPatch) -> list[StunnelProcess]:
    """Let each stunnel wait for a processor; returns an entry for each look of the keeper."""
    looks: list[StunnelProcess] = []

    def wait(process: StunnelProcess) -> Activity:
        looks.append(process)
        return Activity(ticks=1, runs=True)

    monkeypatch.setattr(StunnelProcess, "activity", wait)
    return looks


async def test_stunnel_without_a_processor_is_not_replaced(
    options: TunnelOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with keeping(options, f'exec {STUNNEL} "$@"') as kept:
        await eventually(lambda: kept.report.loaded, "the first load")
        pid = kept.report.pid
        assert pid
        os.kill(pid, signal.SIGSTOP)
        looks = without_a_processor(monkeypatch)
        kept.reload_or_replace()
        await eventually(lambda: len(looks) > 2 * keeper._IDLE_LOOKS, "more looks than one that hangs gets")
        os.kill(pid, signal.SIGCONT)
        await eventually(lambda: kept._monitor is None, "the result")
        assert (kept.report.pid, kept.report.left_out) == (pid, {})


async def test_stunnel_of_an_earlier_agent_without_a_processor_has_loaded_nothing(
    options: TunnelOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It listens on all ports with the file that it had, and refuses the new one when it reads it."""
    async with keeping(options, f'exec {STUNNEL} "$@"') as earlier:
        await eventually(lambda: earlier.report.loaded, "the first load")
        pid, [service] = earlier.report.pid, earlier.report.loaded.values()
        assert pid
        os.kill(pid, signal.SIGSTOP)
        looks = without_a_processor(monkeypatch)
        kept = keeper_of(options, STUNNEL)
        kept.set_services([replace(service, ca_file=Path("/nonexistent"))])
        kept.take_over(pid)
        running = asyncio.create_task(kept.run())
        await eventually(lambda: len(looks) > 2 * keeper._IDLE_LOOKS, "more looks than one that hangs gets")
        assert kept.report.loaded == {}
        os.kill(pid, signal.SIGCONT)
        await eventually(lambda: kept.report.left_out, "the refusal")
        assert kept.report.pid == pid
        running.cancel()


async def test_cancelled_load_waits_for_no_line_of_the_log(options: TunnelOptions) -> None:
    async with keeping(options, HANGING) as kept:
        await eventually(lambda: kept._monitor, "a load")
    assert kept._monitor is None


async def test_request_about_a_stunnel_that_has_ended_does_not_reload_the_next_one(
    options: TunnelOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with keeping(options, f'exec {STUNNEL} "$@"') as kept:
        await eventually(lambda: kept.report.loaded, "the first load")
        pid = kept.report.pid
        assert pid
        load, reload, loads, reloads = kept._load, StunnelProcess.reload, 0, 0

        async def counted(services: Collection[TunnelService]) -> Outcome:
            nonlocal loads
            loads += 1
            if kept.report.pid is None:  # the next stunnel is about to be started
                asyncio.get_running_loop().call_soon(kept.reload_or_replace)
            return await load(services)

        def reloaded(process: StunnelProcess) -> None:
            nonlocal reloads
            reloads += 1
            reload(process)

        monkeypatch.setattr(kept, "_load", counted)
        monkeypatch.setattr(StunnelProcess, "reload", reloaded)
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: loads == 2, "its start, and what the request causes")
        await eventually(lambda: kept._monitor is None, "the result")
        assert kept.report.pid not in {None, pid}
        assert reloads == 0
        kept.reload_or_replace()
        await eventually(lambda: reloads == 1, "a request about the one that runs")


@pytest.mark.parametrize(
    ("later", "has_worked"),
    [
        pytest.param(Activity(ticks=7, runs=False), False, id="sleeps"),
        pytest.param(Activity(ticks=8, runs=False), True, id="has used a processor"),
        pytest.param(Activity(ticks=7, runs=True), True, id="waits for a processor"),
    ],
)
def test_process_has_worked_if_it_used_or_awaits_a_processor(later: Activity, has_worked: bool) -> None:
    assert later.has_worked_since(Activity(ticks=7, runs=False)) is has_worked
