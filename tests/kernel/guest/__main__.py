"""Runs scenarios inside a guest: ``python -m tests.kernel.guest OUT MODULE SCENARIO,SCENARIO… DATA_PLANE``.

After each, a line of JSON is appended to ``OUT/results.jsonl``.
"""

import asyncio
import importlib
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.kernel.guest.machine import Machine, for_scenario, machine
from tests.kernel.results import Result

from kube_efs.telemetry.logging import configure
from kube_efs.tunnels.data_plane import DataPlaneName

_LIMIT_SECONDS = 400.0


async def run(out: Path, module: str, names: Sequence[str], data_plane: DataPlaneName) -> None:
    """Run the scenarios one after the other, each on its own node."""
    scenarios = importlib.import_module(module)
    folder = Path(tempfile.mkdtemp())
    async with machine(folder, data_plane) as shared:
        for name in names:
            own = for_scenario(shared, name, out)
            result = await judge(name, getattr(scenarios, name), own)
            with (out / "results.jsonl").open("a") as results:
                results.write(json.dumps(asdict(result)) + "\n")
    shutil.copytree(folder / "efs" / "nfs", out / "nfs", ignore=_all_but_logs)


async def judge(name: str, scenario: Callable[[Machine], Awaitable[None]], own: Machine) -> Result:
    """Run a scenario; returns its result."""
    began, error = time.monotonic(), ""
    try:
        async with asyncio.timeout(_LIMIT_SECONDS):
            await scenario(own)
    except Exception:  # noqa: BLE001 - reported to the host
        error = traceback.format_exc()
    seconds = round(time.monotonic() - began, 1)
    return Result(scenario=name, seconds=seconds, error=error, figures=own.figures)


def _all_but_logs(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if not name.endswith(".log") and not (Path(folder) / name).is_dir()}


if __name__ == "__main__":
    configure("ERROR")
    asyncio.run(run(Path(sys.argv[1]), sys.argv[2], sys.argv[3].split(","), DataPlaneName(sys.argv[4])))
    sys.stdout.flush()
    # Threads that wait for a file server which is gone would be waited for.
    os._exit(0)
