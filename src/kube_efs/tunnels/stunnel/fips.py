"""FIPS mode of stunnel: whether the node is in it, and whether stunnel can be.

In FIPS mode, stunnel uses only the FIPS provider of OpenSSL (``fips = yes``, stunnel(8)), as in efs-utils.
Without the provider, stunnel does not start. The agent checks this before it serves anything, to refuse to
start with the reason instead of serving without the mode that somebody requires.
"""

import asyncio
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path
from typing import Final

from kube_efs.model.errors import InvalidSetting

_NODE: Final = Path("/proc/sys/crypto/fips_enabled")
# Without a service, stunnel ends after it has read the global options, and connects to nothing.
_CONFIGURATION: Final = b"fips = yes\nforeground = yes\nsyslog = no\npid =\n"
_ENABLED: Final = "FIPS mode enabled"
_FAILED: Final = "[!]"
_CHECK_SECONDS: Final = 10.0


def is_node_in_fips_mode(path: Path = _NODE) -> bool:
    """Whether the kernel of the node is in FIPS mode; a kernel without the mode has no such file."""
    try:
        return path.read_text(encoding="ascii").strip() == "1"
    except FileNotFoundError:
        return False


async def check_fips_mode(program: Path, *, required_by: str) -> None:
    """Raise InvalidSetting unless stunnel can be in FIPS mode; ``required_by`` is the cause of the check."""
    problem = await _failure(program)
    if problem:
        raise InvalidSetting(
            f"is required by {required_by}, but {program} has no FIPS mode ({problem})",
            field="FIPS mode of the tunnels",
            remedy="use an image whose OpenSSL has a FIPS provider, or set FIPS_ENABLED to false",
        )


async def _failure(program: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        program, "-fd", "0", stdin=PIPE, stdout=PIPE, stderr=STDOUT
    )
    try:
        async with asyncio.timeout(_CHECK_SECONDS):
            output, _ = await process.communicate(_CONFIGURATION)
    except TimeoutError:
        return f"it did not end within {_CHECK_SECONDS:g} s"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    lines = output.decode(errors="replace").splitlines()
    if any(_ENABLED in line for line in lines):
        return ""
    failed = [line.partition(_FAILED)[2].strip() for line in lines if _FAILED in line]
    return next((line for line in failed if "FIPS" in line.upper()), "; ".join(failed) or "no reason given")
