"""A few runs of the simulation; ``make simulate`` runs as many as wanted."""

import subprocess
import sys

_SEEDS = 30


def test_simulation_breaks_no_invariant() -> None:
    # A process of its own: what a run does is to depend on its seed alone.
    command = [sys.executable, "-m", "tests.simulation", "--seeds", str(_SEEDS), "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert f"{_SEEDS} runs" in done.stdout
