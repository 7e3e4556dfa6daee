"""A few runs of the simulation; ``make simulate`` runs any number."""

import subprocess
import sys
from multiprocessing import get_context

from tests.simulation.planted_faults import PLANTED_FAULTS

_SEEDS = 10


def test_simulation_breaks_no_invariant() -> None:
    # A separate process, so that a run depends only on its seed.
    command = [sys.executable, "-m", "tests.simulation", "--seeds", str(_SEEDS), "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert f"{_SEEDS} runs" in done.stdout


def test_planted_faults_fit_the_code_that_they_change() -> None:
    # Each in a process of its own, since a fault stays.
    with get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        assert [one for one in pool.map(_set_up, PLANTED_FAULTS, chunksize=1) if one] == []


def _set_up(name: str) -> str:
    """The error of a planted fault."""
    try:
        PLANTED_FAULTS[name].set_up()
    except Exception as error:  # noqa: BLE001 the test shows it
        return f"{name}: {error!r}"
    return ""
