"""The contract of the data planes, which needs a kernel with TLS."""

import asyncio
import sys
from asyncio.subprocess import DEVNULL, STDOUT

from tests.kernel.guest.machine import Machine

_TESTS = "tests/integration/data_planes"
_PYTEST = (
    *("-m", "pytest", _TESTS, "--timeout=300"),
    # Plugins that would write next to the tests, which is impossible here, and imports that take time.
    *("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:xdist", f"--confcutdir={_TESTS}"),
)


async def contract_of_both(machine: Machine) -> None:
    output = machine.logs / "pytest.log"
    with output.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *_PYTEST, stdin=DEVNULL, stdout=file, stderr=STDOUT
        )
        try:
            status = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert status == 0, "pytest failed; its output is in pytest.log"
    # Skipped tests mean that the kernel of the guest has no TLS.
    assert " skipped" not in output.read_text()
