"""The tests that both data planes have in common, run in a guest."""

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, STDOUT
from pathlib import Path

from tests.kernel.guest.machine import Machine

_TESTS = "tests/integration/data_planes"
_PYTEST = (
    *("-m", "pytest", _TESTS, "--timeout=300"),
    # Plugins that would write next to the tests, which is impossible here, and imports that take time.
    *("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:xdist", f"--confcutdir={_TESTS}"),
)


async def run_contract(machine: Machine, *options: str, relay_python: str | Path = sys.executable) -> None:
    """Run the tests with these options of pytest, and the relay with that Python."""
    output = machine.logs / "pytest.log"
    with output.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *_PYTEST,
            *options,
            stdin=DEVNULL,
            stdout=file,
            stderr=STDOUT,
            env={**os.environ, "RELAY_PYTHON": str(relay_python)},
        )
        try:
            status = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert status == 0, "pytest failed; its output is in pytest.log"
    # Skipped tests mean that the kernel of the guest has no TLS, or that the relay cannot use it.
    assert " skipped" not in output.read_text()
