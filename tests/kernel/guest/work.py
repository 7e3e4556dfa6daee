"""The work of pods with their volumes during faults.

Programs do it, because the process of the scenarios is also the file server and must never wait for itself.
"""

import asyncio
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.kernel.guest import pod
from tests.kernel.guest.waiting import until

_POD = (sys.executable, "-I", "-S", pod.__file__)
_SECONDS = 60.0


class CommandFailed(Exception):
    """A program ended with a status other than 0."""


async def run(*command: str, seconds: float = _SECONDS) -> str:
    """The output of a program; raises CommandFailed, or TimeoutError after killing it."""
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    try:
        async with asyncio.timeout(seconds):
            output, errors = await process.communicate()
    finally:
        _kill(process)
        await process.wait()
    if process.returncode:
        raise CommandFailed(f"{' '.join(command)}: {errors.decode().strip()} (status {process.returncode})")
    return output.decode()


class Work:
    """A pod that writes to a file and reads it back until it is stopped.

    ``blocks`` is the number of blocks written and read back, ``longest`` the maximum seconds for one of them.
    """

    def __init__(self, file: Path, process: Process) -> None:
        self.file = file
        self.blocks = 0
        self.longest = 0.0
        self._process = process
        self._latest = time.monotonic()
        self._following = asyncio.create_task(self._follow())

    @property
    def waits_since(self) -> float:
        """The seconds since the last completed block."""
        return time.monotonic() - self._latest

    async def continues(self, blocks: int = 3, *, seconds: float = _SECONDS) -> None:
        """Wait for that many more blocks; raises CommandFailed if the program fails."""
        wanted = self.blocks + blocks
        await until(
            lambda: self.blocks >= wanted or self._following.done(), f"more in {self.file}", seconds=seconds
        )
        if self.blocks < wanted:
            await self.stop()

    async def stop(self, *, seconds: float = _SECONDS) -> None:
        """Stop it; raises CommandFailed with the error."""
        assert self._process.stdin
        assert self._process.stderr
        self._process.stdin.close()
        async with asyncio.timeout(seconds):
            await self._following
            errors = await self._process.stderr.read()
            if await self._process.wait():
                raise CommandFailed(f"{self.file}: {errors.decode().strip()}")

    def check(self, served: Path) -> None:
        """Compare every byte with the file at the server."""
        expected = b"".join(map(pod.content, range(self.blocks)))
        found = served.read_bytes()
        assert found == expected, f"{served}: {len(found)} bytes, not the {len(expected)} that were written"

    async def kill(self) -> None:
        """Kill it, and wait until it has ended."""
        _kill(self._process)
        await self._following
        await self._process.wait()

    async def _follow(self) -> None:
        assert self._process.stdout
        async for line in self._process.stdout:
            blocks, seconds = line.split()
            self.blocks, self.longest = int(blocks), max(self.longest, float(seconds))
            self._latest = time.monotonic()


@asynccontextmanager
async def working(file: Path, served: Path) -> AsyncIterator[Work]:
    """Work while the context is open; at the end, ``served`` at the server must have every byte."""
    process = await asyncio.create_subprocess_exec(*_POD, str(file), stdin=PIPE, stdout=PIPE, stderr=PIPE)
    work = Work(file, process)
    try:
        await work.continues()
        yield work
        await work.continues()
        await work.stop()
    finally:
        await work.kill()
    work.check(served)


def _kill(process: Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
