"""What pods do with their volumes while things break.

By programs, since the process of the scenarios is the file server, too: it must never wait for itself.
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
    """A program has ended with another status than 0."""


async def run(*command: str, seconds: float = _SECONDS) -> str:
    """What the program says until it has ended; raises CommandFailed, or TimeoutError after killing it."""
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
    """A pod that writes to a file, and reads what it wrote, until it is stopped.

    ``blocks`` are those written and read back, ``longest`` is how long one of them took at most, in seconds.
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
        """How long ago the latest block was done, in seconds."""
        return time.monotonic() - self._latest

    async def goes_on(self, blocks: int = 3, *, seconds: float = _SECONDS) -> None:
        """Wait until so many more are done; raises CommandFailed when it cannot go on."""
        wanted = self.blocks + blocks
        await until(
            lambda: self.blocks >= wanted or self._following.done(), f"more in {self.file}", seconds=seconds
        )
        if self.blocks < wanted:
            await self.stop()

    async def stop(self, *, seconds: float = _SECONDS) -> None:
        """Let it end; raises CommandFailed with what went wrong."""
        assert self._process.stdin
        assert self._process.stderr
        self._process.stdin.close()
        async with asyncio.timeout(seconds):
            await self._following
            errors = await self._process.stderr.read()
            if await self._process.wait():
                raise CommandFailed(f"{self.file}: {errors.decode().strip()}")

    def check(self, served: Path) -> None:
        """Compare with what the server has, byte for byte."""
        expected = b"".join(map(pod.content, range(self.blocks)))
        found = served.read_bytes()
        assert found == expected, f"{served}: {len(found)} bytes, not the {len(expected)} that were written"

    async def kill(self) -> None:
        """End it however it is, and wait until it is gone."""
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
    """Work while the context is open; in the end ``served`` on the server has every byte of it."""
    process = await asyncio.create_subprocess_exec(*_POD, str(file), stdin=PIPE, stdout=PIPE, stderr=PIPE)
    work = Work(file, process)
    try:
        await work.goes_on()
        yield work
        await work.goes_on()
        await work.stop()
    finally:
        await work.kill()
    work.check(served)


def _kill(process: Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
