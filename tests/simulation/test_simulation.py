"""A few runs of the simulation; ``make simulate`` runs any number."""

import subprocess
import sys

_SEEDS = 10


def test_simulation_breaks_no_invariant() -> None:
    # A separate process, so that a run depends only on its seed.
    command = [sys.executable, "-m", "tests.simulation", "--seeds", str(_SEEDS), "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert f"{_SEEDS} runs" in done.stdout
