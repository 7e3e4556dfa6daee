"""The programs that ``tests/conformance/tools/build`` builds: a real control plane and its tests."""

from pathlib import Path

PROGRAMS = Path(__file__).parents[2] / ".cache" / "conformance" / "bin"
