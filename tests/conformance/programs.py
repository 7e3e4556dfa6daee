"""The programs that ``tests/conformance/tools/build`` builds: a real control plane and its tests."""

import os
import subprocess
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[2] / ".cache" / "conformance" / "bin"
_SECONDS = 120


def run_optional(program: str, *arguments: str | Path, stdin: str = "", path: Path | None = None) -> str:
    """What a program prints; ``path`` is a directory with programs for it.

    Skips the test if the Go modules of the program could not be downloaded.
    """
    if not (PROGRAMS / program).exists():
        pytest.skip(f"{program} is missing: tests/conformance/tools/build could not download its Go modules")
    done = subprocess.run(
        [PROGRAMS / program, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        env={**os.environ, "PATH": f"{path}:{os.environ['PATH']}"} if path else None,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
