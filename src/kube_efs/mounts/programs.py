"""Running the programs of the system that wait for file servers, so that none is waited for for ever.

The limit is the caller's (``asyncio.timeout``): when a call is cancelled, the program is ended with all that
it has started.
"""

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import structlog

from kube_efs.model.errors import PlatformError
from kube_efs.mounts.finishing import to_its_end

log = structlog.get_logger()

# A program that waits for a dead server can be killed, but need not be gone at once.
_DYING_SECONDS: Final = 2.0
_MOST_OUTPUT: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a program has ended; ``output`` is what it has said in all, on one line."""

    status: int
    output: str


async def run(program: str, *arguments: str) -> Ended:
    """Run it to its end; raises PlatformError when it cannot be run."""
    # asyncio ends a program whose start is cancelled, but not what the program has started by then.
    starting = asyncio.ensure_future(_start(program, *arguments))
    try:
        process = await asyncio.shield(starting)
    except asyncio.CancelledError:
        await to_its_end(_kill_started(program, starting))
        raise
    ending = asyncio.ensure_future(process.communicate())
    try:
        output, _ = await asyncio.shield(ending)
    except asyncio.CancelledError:
        await _kill(program, process, ending)
        raise
    text = " ".join(output.decode(errors="replace").split())
    return Ended(status=process.returncode or 0, output=text[:_MOST_OUTPUT])


async def _start(program: str, *arguments: str) -> Process:
    try:
        return await asyncio.create_subprocess_exec(
            program,
            *arguments,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            start_new_session=True,
            env={**os.environ, "LC_ALL": "C"},
        )
    except OSError as error:
        problem, remedy = f"cannot be run ({error.strerror})", f"install {program}"
        raise PlatformError(problem, field="program", value=program, remedy=remedy) from error


async def _kill_started(program: str, starting: "asyncio.Future[Process]") -> None:
    with suppress(PlatformError):
        process = await starting
        await _kill(program, process, asyncio.ensure_future(process.communicate()))


async def _kill(program: str, process: Process, ending: "asyncio.Future[tuple[bytes, bytes]]") -> None:
    """End the program and what it has started; what does not die is left, since nothing more can be done."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await asyncio.wait([ending], timeout=_DYING_SECONDS)  # until all of them have gone
    if not ending.done():
        log.error("program-does-not-die", program=program, pid=process.pid)
        ending.cancel()
