"""A stunnel that is slow to read its configuration is waited for; one that hangs is not."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from tests.integration.tunnel_node import FS, eventually, free_port, host_of

from kube_efs.telemetry.metrics import TunnelMetrics
from kube_efs.tunnels.data_plane import TunnelService
from kube_efs.tunnels.options import TunnelOptions
from kube_efs.tunnels.stunnel import keeper
from kube_efs.tunnels.stunnel.keeper import StunnelKeeper
from kube_efs.tunnels.stunnel.log import ConnectionLog

STUNNEL = Path("/usr/bin/stunnel")

pytestmark = pytest.mark.skipif(not STUNNEL.exists(), reason="stunnel is not installed")

# Each uses far more CPU time than the keeper waits for a sign of life in these tests.
SLOW = f'n=0; while [ $n -lt 1000000 ]; do n=$((n+1)); done; exec {STUNNEL} "$@"'
ENDLESS = "while :; do :; done"
HANGING = "exec sleep 3600"


@pytest.fixture
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "stunnel"
    path.write_text(f"#!/bin/sh\n{request.param}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
async def kept(
    program: Path, options: TunnelOptions, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[StunnelKeeper]:
    """A keeper that loads one service and waits 0.2 s for a sign of life."""
    monkeypatch.setattr(keeper, "_LOAD_SECONDS", 0.2)
    kept = StunnelKeeper(
        program,
        options,
        TunnelMetrics(CollectorRegistry()),
        ConnectionLog(),
        asyncio.Semaphore(1),
        on_change=lambda: None,
    )
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
    yield kept
    running.cancel()
    await kept.stop()


@pytest.mark.parametrize("program", [SLOW], indirect=True)
async def test_slow_stunnel_is_waited_for(kept: StunnelKeeper) -> None:
    await eventually(lambda: kept.report.loaded or kept.report.left_out, "a result")
    assert kept.report.left_out == {}


@pytest.mark.parametrize("program", [HANGING], indirect=True)
async def test_hanging_stunnel_is_not_waited_for(kept: StunnelKeeper) -> None:
    await eventually(lambda: kept.report.left_out, "the end of the wait")
    assert "has done nothing for 0.2 s" in str(kept.report.left_out[FS])


@pytest.mark.parametrize("program", [ENDLESS], indirect=True)
async def test_stunnel_that_never_ends_reading_is_not_waited_for_longer(
    kept: StunnelKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "_LONGEST_LOAD_SECONDS", 0.5)
    await eventually(lambda: kept.report.left_out, "the end of the wait")
    assert "within 0.5 s" in str(kept.report.left_out[FS])
