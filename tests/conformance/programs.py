"""The programs that ``tests/conformance/tools/build`` makes: a real control plane, and what tests it."""

from pathlib import Path

PROGRAMS = Path(__file__).parents[2] / ".cache" / "conformance" / "bin"
